"""Data to train on, from files: tables of numbers and folders of pictures, as arrays for `treadle.train.DataLoader`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _treadle

__all__ = ["Pictures", "Table", "read_csv", "read_pictures"]

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


class Table(NamedTuple):
    """The result of `read_csv`."""

    features: np.ndarray  # float32 [rows, columns]
    labels: np.ndarray | None  # int64 if all are integers, float32 if all are numbers, else places in `classes`
    feature_names: list[str]
    classes: list[str]


class Pictures(NamedTuple):
    """The result of `read_pictures`."""

    images: np.ndarray  # [N, C, H, W]
    labels: np.ndarray  # int64 [N], places in `classes`
    classes: list[str]  # the folders' names, sorted
    paths: list[str]


def read_csv(
    path: str | os.PathLike[str], label: str = "", *, features: Iterable[str] = (), separator: str = ",", classes: Iterable[str] = ()
) -> Table:
    """A text table in UTF-8 whose first line names its columns.

    :param label: the column of the labels; "": there is none.
    :param features: names or patterns of columns, in the file's order; all but the label by default.
    :param classes: of an earlier file, whose numbers labels of text shall have; by default the sorted classes of this one.
    :raises treadle.Error: naming line and column of what is no number.
    """
    return Table(*_treadle.read_csv(os.fspath(path), label, list(features), separator, list(classes)))


def read_pictures(
    folder: str | os.PathLike[str],
    size: Sequence[int],
    *,
    channels: int = 3,
    dtype: Any = np.float32,
    classes: Iterable[str] = (),
    file: str | os.PathLike[str] | None = None,
) -> Pictures:
    """The pictures of a folder that has a folder for each class, as one array. Needs Pillow.

    :param size: height and width that pictures are scaled to.
    :param channels: 3 for RGB, 1 for grey.
    :param dtype: float32 for numbers from 0 to 1, uint8 for levels.
    :param classes: of an earlier folder, whose numbers labels shall have; by default the sorted names of the folders here.
    :param file: a .npy file that the array is written to, one picture after the other, and then is a view of (`numpy.memmap`, read only):
        for more pictures than memory has room for. Without it, the array is in memory. If reading fails, an earlier file stays as it was.
    :raises ValueError: there are no pictures, or folders that are no class; a file is no picture (its path is in the message).
    """
    from PIL import Image, UnidentifiedImageError  # here: only pictures need it

    if channels not in (1, 3):
        raise ValueError(f"pictures have 1 or 3 channels, not {channels}")
    if np.dtype(dtype) not in (np.float32, np.uint8):
        raise ValueError(f"pictures become float32 or uint8, not {np.dtype(dtype)}")
    height, width = size
    names = sorted(entry.name for entry in Path(folder).iterdir() if entry.is_dir())
    known = list(classes) or names
    if others := [name for name in names if name not in known]:
        raise ValueError(f"{folder}: the folder {others[0]!r} is no class; the classes are {', '.join(known)}")
    found = [(path, known.index(name)) for name in names for path in sorted(Path(folder, name).iterdir()) if path.suffix.lower() in _SUFFIXES]
    if not found:
        raise ValueError(f"{folder} has no pictures in folders of classes")
    shape = (len(found), channels, height, width)

    def fill(images: np.ndarray) -> None:
        for i, (path, _) in enumerate(found):
            try:
                with Image.open(path) as picture:
                    pixels = np.asarray(picture.convert("RGB" if channels == 3 else "L").resize((width, height), Image.Resampling.BILINEAR))
            except (UnidentifiedImageError, OSError) as error:
                raise ValueError(f"{path} is no picture that can be read: {error}") from error
            planes = pixels.reshape(height, width, channels).transpose(2, 0, 1)
            images[i] = planes if images.dtype == np.uint8 else planes.astype(np.float32) / 255

    if file is None:
        images = np.empty(shape, dtype)
        fill(images)
    else:
        images = _filled_file(Path(file), shape, np.dtype(dtype), fill)
    return Pictures(images, np.array([label for _, label in found], np.int64), known, [str(path) for path, _ in found])


def _filled_file(path: Path, shape: tuple[int, ...], dtype: np.dtype, fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """A view of a .npy file, which takes its name only when it is whole."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        written = np.lib.format.open_memmap(unfinished, "w+", dtype, shape)
        fill(written)
        written.flush()
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    mapped: np.ndarray = np.load(path, mmap_mode="r")
    return mapped
