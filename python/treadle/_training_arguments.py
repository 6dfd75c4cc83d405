"""Converts arguments of trainers and joint modules for their core: models, feeds, metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import _treadle
from .errors import InvalidArgument
from .session import dtype_hint


def as_array(value: Any) -> Any:
    """Converts any object with DLPack, such as a PyTorch tensor, to an array over the same memory."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    if hasattr(value, "detach"):
        value = value.detach()
    return np.from_dlpack(value)


def as_feeds(feeds: Any, inputs: Sequence[_treadle.NodeArg] = ()) -> dict[str, Any]:
    """Returns feeds by name: from a dict, from the only input's array, or from a tuple in the order of the inputs."""
    if not isinstance(feeds, Mapping):
        names = [info.name for info in inputs]
        values = feeds if isinstance(feeds, tuple) else (feeds,) if hasattr(feeds, "shape") else ()
        if len(values) != len(names) or not names:
            example = ", ".join(f'"{name}": ...' for name in names)
            raise TypeError(f"feeds is a {type(feeds).__name__}; values go by the inputs' names: {{{example}}}")
        feeds = dict(zip(names, values, strict=True))
    return {name: as_array(value) for name, value in feeds.items()}


_LABEL_TYPES = {"i64": "int64", "i32": "int32", "f32": "float32"}


@contextmanager
def given(feeds: Any, inputs: Sequence[_treadle.NodeArg]) -> Iterator[dict[str, Any]]:
    """Yields the feeds by name. If the block raises because of a wrong dtype, adds the needed conversion to the error."""
    taken = as_feeds(feeds, inputs)
    try:
        yield taken
    except InvalidArgument as error:
        text = str(error.args[0])
        hint = dtype_hint(taken, inputs)
        if labels := re.search(r'input "treadle.labels": another dtype; .* expected (\w+)\[', text):
            hint = f"; write labels.astype(np.{_LABEL_TYPES[labels[1]]})" if labels[1] in _LABEL_TYPES else ""
        if not hint:
            raise
        raise InvalidArgument(text + hint, code=error.code) from None


def as_metadata(metadata: Mapping[str, str] | None) -> list[tuple[str, str]]:
    return [(str(key), str(value)) for key, value in (metadata or {}).items()]
