"""Converts nested inputs and outputs to a flat list of tensors and a hashable description, and back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

TENSOR = "*"
_CONSTANTS = (bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, torch.memory_format, type(Ellipsis))


class UnsupportedStructure(TypeError):
    """A value that is neither a tensor, a container of tensors, nor a plain constant."""


def flatten(value: Any, leaves: list[torch.Tensor], where: str = "the inputs") -> Hashable:
    """Appends the tensors of `value` to `leaves`, depth first.

    Dicts (also subclasses such as `ModelOutput`), lists, tuples, named tuples, dataclasses and None may nest in any way. Other values are part
    of the description: numbers, strings, enums, dtypes and devices.

    :returns: the description, which unflatten() takes. Two values of the same form have equal ones.
    :raises UnsupportedStructure: naming the place, for any other object.
    """
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return TENSOR
    if value is None:
        return None
    kind = type(value)
    if isinstance(value, (list, tuple)):
        return ("sequence", kind, tuple([flatten(item, leaves, f"{where}[{i}]") for i, item in enumerate(value)]))
    if isinstance(value, Mapping):
        items = tuple([flatten(item, leaves, f"{where}[{key!r}]") for key, item in value.items()])
        return ("mapping", kind, tuple(value), items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple([field.name for field in dataclasses.fields(value)])
        return ("dataclass", kind, names, tuple([flatten(getattr(value, name), leaves, f"{where}.{name}") for name in names]))
    if isinstance(value, _CONSTANTS):
        return ("constant", kind, value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise UnsupportedStructure(f"{where}: a {name}; there are tensors, dicts, lists, tuples, dataclasses and constants")


_ONLYTENSORS = [("sequence", tuple, (("sequence", tuple, (TENSOR,) * count), ("mapping", dict, (), ()))) for count in range(9)]


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[torch.Tensor]) -> Hashable:
    """Like flatten((args, kwargs), leaves), faster if all arguments are tensors."""
    if not kwargs and len(args) < len(_ONLYTENSORS):
        for value in args:
            if not isinstance(value, torch.Tensor):
                break
        else:
            leaves.extend(args)
            return _ONLYTENSORS[len(args)]
    return flatten((args, kwargs), leaves)


def unflatten(structure: Any, leaves: Iterator[Any]) -> Any:
    """Returns the value that flatten() described, with other leaves."""
    if structure is None:
        return None
    if structure is TENSOR or structure == TENSOR:
        return next(leaves)
    form, kind, *rest = structure
    if form == "constant":
        return rest[0]
    if form == "sequence":
        items = [unflatten(item, leaves) for item in rest[0]]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    keys, described = rest
    made = {key: unflatten(item, leaves) for key, item in zip(keys, described, strict=True)}
    if form == "mapping" and not dataclasses.is_dataclass(kind):
        return made if kind is dict else kind(made)
    return _rebuild(kind, made)


def _rebuild(kind: type, values: dict[str, Any]) -> Any:
    initialized = {field.name for field in dataclasses.fields(kind) if field.init}
    made = kind(**{name: value for name, value in values.items() if name in initialized})
    for name, value in values.items():
        if name not in initialized:
            object.__setattr__(made, name, value)
    return made
