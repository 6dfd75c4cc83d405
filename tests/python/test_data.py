"""Compares tables and folders of pictures that are read as arrays with NumPy and Pillow."""

import numpy as np
import pytest
import treadle
from treadle.data import read_csv, read_pictures
from treadle.train import DataLoader


def test_a_table_is_what_numpy_reads(tmp_path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a;b;kind;c\n1;2.5;cat;3\n-4;5e-1;dog;6\n7;8;cat;9\n")
    table = read_csv(path, "kind", separator=";")
    np.testing.assert_array_equal(table.features, np.loadtxt(path, np.float32, delimiter=";", skiprows=1, usecols=(0, 1, 3)))
    np.testing.assert_array_equal(table.labels, [0, 1, 0])
    assert table.feature_names == ["a", "b", "c"] and table.classes == ["cat", "dog"]
    other = read_csv(path, "kind", features=["c"], separator=";", classes=["bird", "cat", "dog"])
    np.testing.assert_array_equal(other.labels, [1, 2, 1])
    np.testing.assert_array_equal(other.features, [[3], [6], [9]])
    assert read_csv(path, features=["a"], separator=";").labels is None
    with pytest.raises(treadle.Error, match="line 2"):
        read_csv(path, separator=";")
    with pytest.raises(treadle.Error, match="one character"):
        read_csv(path, separator=";;")


@pytest.fixture
def folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 3), np.uint8)
    for i, name in enumerate(["b/1.png", "a/2.png", "b/0.bmp", "a/1.png", "a/10.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.fromarray(pixels[i]).save(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    return tmp_path, pixels


def test_pictures_are_their_pixels(folder) -> None:
    path, pixels = folder
    found = read_pictures(path, (8, 6), dtype=np.uint8)
    order = [3, 4, 1, 2, 0]  # the order is by class, then by name
    np.testing.assert_array_equal(found.images, pixels[order].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found.labels, [0, 0, 0, 1, 1])
    assert found.classes == ["a", "b"] and found.paths[0].endswith("1.png")
    numbers = read_pictures(path, (8, 6)).images
    assert numbers.dtype == np.float32
    np.testing.assert_allclose(numbers, found.images / 255, atol=1e-7)
    assert read_pictures(path, (4, 5), channels=1).images.shape == (5, 1, 4, 5)
    batches = list(DataLoader({"image": numbers, "label": found.labels}, batch_size=2, shuffle=False))
    assert [len(batch["label"]) for batch in batches] == [2, 2, 1]


def test_pictures_may_lie_in_a_file(folder, tmp_path_factory) -> None:
    path, _ = folder
    file = tmp_path_factory.mktemp("file") / "pictures.npy"
    for dtype in (np.uint8, np.float32):
        found = read_pictures(path, (8, 6), dtype=dtype, file=file)
        assert isinstance(found.images, np.memmap) and not found.images.flags.writeable
        np.testing.assert_array_equal(found.images, read_pictures(path, (8, 6), dtype=dtype).images)
    loader = DataLoader({"image": found.images, "label": found.labels}, batch_size=2, shuffle=False)
    np.testing.assert_array_equal(np.concatenate([batch["image"] for batch in loader]), found.images)
    before = file.read_bytes()
    (path / "a" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match="broken.png is no picture"):
        read_pictures(path, (8, 6), file=file)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


def test_what_is_no_folder_of_pictures_is_refused(folder) -> None:
    path, _ = folder
    np.testing.assert_array_equal(read_pictures(path, (8, 6), classes=["c", "b", "a"]).labels, [2, 2, 2, 1, 1])
    with pytest.raises(ValueError, match="the folder 'b' is no class"):
        read_pictures(path, (8, 6), classes=["a"])
    with pytest.raises(ValueError, match="has no pictures"):
        read_pictures(path / "a", (8, 6))
    with pytest.raises(ValueError, match="1 or 3 channels"):
        read_pictures(path, (8, 6), channels=2)
    with pytest.raises(ValueError, match="float32 or uint8"):
        read_pictures(path, (8, 6), dtype=np.float64)
    (path / "a" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match="broken.png is no picture"):
        read_pictures(path, (8, 6))
