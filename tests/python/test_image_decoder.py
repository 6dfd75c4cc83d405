"""Compares ImageDecoder with Pillow, which also made ONNX's test cases."""

import io

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from treadle import errors

Image = pytest.importorskip("PIL.Image")


def model(pixel_format):
    node = helper.make_node("ImageDecoder", ["stream"], ["image"], pixel_format=pixel_format)
    graph = helper.make_graph(
        [node],
        "decode",
        [helper.make_tensor_value_info("stream", TensorProto.UINT8, [None])],
        [helper.make_tensor_value_info("image", TensorProto.UINT8, [None, None, None])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


SESSIONS = {name: treadle.InferenceSession(model(name)) for name in ("RGB", "BGR", "Grayscale")}


def decode(data, pixel_format="RGB"):
    """Skips the test if the build has no library for the format."""
    try:
        return SESSIONS[pixel_format].run(None, {"stream": np.frombuffer(data, np.uint8)})[0]
    except errors.NotImplemented as error:
        assert "this build was made without" in str(error)
        pytest.skip(str(error))


def picture(rng, mode):
    """Returns a smooth image with some noise, in which lossy codecs lose little."""
    height, width = rng.integers(1, 40, 2)
    y, x = np.mgrid[:height, :width]
    planes = np.stack([120 + 60 * np.sin(x / 7 + k) + 50 * np.cos(y / 9 - k) + rng.normal(0, 4, x.shape) for k in range(4)], -1)
    pixels = np.clip(planes, 0, 255).astype(np.uint8)
    if mode == "P":
        return Image.fromarray(pixels[..., :3], "RGB").quantize(16)
    if mode == "1":
        return Image.fromarray(pixels[..., 0], "L").convert("1")
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels[..., : len(mode)], mode)


FILES = [
    ("BMP", "RGB", {}),
    ("BMP", "L", {}),
    ("BMP", "P", {}),
    ("BMP", "1", {}),
    ("PPM", "RGB", {}),
    ("PPM", "L", {}),
    ("PPM", "1", {}),
    ("PNG", "RGB", {}),
    ("PNG", "L", {}),
    ("PNG", "P", {}),
    ("PNG", "1", {}),
    ("JPEG", "RGB", {"quality": 90}),
    ("JPEG", "RGB", {"subsampling": 0}),
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {"progressive": True}),
    ("TIFF", "RGB", {}),
    ("TIFF", "L", {}),
    ("TIFF", "1", {}),
    ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    ("TIFF", "RGB", {"compression": "tiff_adobe_deflate"}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGB", {"quality": 80}),
    ("JPEG2000", "RGB", {}),
    ("JPEG2000", "L", {}),
    ("JPEG2000", "RGB", {"irreversible": True, "quality_layers": [20]}),
]


@pytest.mark.parametrize(("kind", "mode", "options"), FILES, ids=lambda value: str(value))
def test_pixels_are_those_of_pillow(kind, mode, options):
    for seed in range(20):
        image = picture(np.random.default_rng(seed), mode)
        file = io.BytesIO()
        image.save(file, kind, **options)
        expected = Image.open(io.BytesIO(file.getvalue())).convert("RGB")
        pixels = np.asarray(expected)
        # For lossy formats, other versions of the libraries round differently.
        lost = 2 if kind in ("JPEG", "WEBP", "JPEG2000") else 0
        for actual, wanted in [
            (decode(file.getvalue()), pixels),
            (decode(file.getvalue(), "BGR"), pixels[..., ::-1]),
            (decode(file.getvalue(), "Grayscale"), np.asarray(expected.convert("L"))[..., None]),
        ]:
            assert actual.shape == wanted.shape
            assert np.abs(actual.astype(int) - wanted).max() <= lost


@pytest.mark.parametrize("text", ["P1 # a comment\n2 2\n10 01", "P2\n2 2\n100\n0 50\n100 25", "P3 1 2 255 1 2 3 4 5 6"])
def test_text_of_portable_pixmaps(text):
    expected = np.asarray(Image.open(io.BytesIO(text.encode() + b"\n")).convert("RGB")).astype(int)
    assert np.abs(decode(text.encode()) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["BMP", "PPM", "PNG", "JPEG", "TIFF", "WEBP", "JPEG2000"])
def test_broken_files_give_an_empty_image_or_what_is_left(kind):
    file = io.BytesIO()
    rng = np.random.default_rng(0)
    image = picture(rng, "RGB")
    image.save(file, kind)
    data = bytearray(file.getvalue())
    for _ in range(300):
        broken = bytearray(data)
        for place in rng.integers(0, min(len(data), 200), rng.integers(1, 4)):
            broken[place] = rng.integers(256)
        broken = broken[: rng.integers(0, len(data) + 1)]
        try:
            shape = decode(bytes(broken)).shape
        except errors.Error as error:
            assert "pixels" in str(error)  # the image is too large
            continue
        assert shape[2] == 3


def test_what_is_no_image_is_empty():
    assert decode(b"").shape == (0, 0, 3)
    assert decode(b"no image", "Grayscale").shape == (0, 0, 1)


def test_an_unknown_pixel_format_is_refused():
    with pytest.raises(errors.Error, match="not RGB, BGR or Grayscale"):
        treadle.InferenceSession(model("CMYK"))
