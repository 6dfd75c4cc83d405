"""Reads training data from files, tables of numbers and folders of pictures, into arrays for `treadle.train.DataLoader`."""

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
    labels: np.ndarray | None  # int64 if all are integers, float32 if all are numbers, otherwise indices into `classes`
    feature_names: list[str]
    classes: list[str]


class Pictures(NamedTuple):
    """The result of `read_pictures`."""

    images: np.ndarray  # [N, C, H, W]
    labels: np.ndarray  # int64 [N], indices into `classes`
    classes: list[str]  # the folders' names, sorted
    paths: list[str]


def read_csv(
    path: str | os.PathLike[str], label: str = "", *, features: Iterable[str] = (), separator: str = ",", classes: Iterable[str] = ()
) -> Table:
    """Reads a text table in UTF-8 whose first line names its columns.

    :param label: the column of the labels; "": there is none.
    :param features: names or patterns of columns, in the file's order; all but the label by default.
    :param classes: the classes of an earlier file, so that labels that are text get the same numbers; by default this file's classes, sorted.
    :raises treadle.Error: a field is no number; the message names its line and column.
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
    """Reads the pictures of a folder that contains one folder for each class into an array. Needs Pillow.

    :param size: height and width to which pictures are scaled.
    :param channels: 3 for RGB, 1 for grey.
    :param dtype: float32 for numbers from 0 to 1, uint8 for levels.
    :param classes: the classes of an earlier folder, so that labels get the same numbers; by default the names of the folders here, sorted.
    :param file: a .npy file to which the array is written, one picture after the other, for more pictures than fit into memory. The result is
        then a view of the file (`numpy.memmap`, read only). Without it, the array is in memory. If reading fails, an earlier file is kept.
    :raises ValueError: there are no pictures, a folder is none of the classes, or a file is no picture (its path is in the message).
    """
    from PIL import Image, UnidentifiedImageError  # imported here, because only this function needs it

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
    """Fills a temporary .npy file, which gets its final name when it is complete, and returns a read-only view of it."""
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
