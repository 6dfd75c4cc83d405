"""Writes objects as text, with their properties: `SessionOptions(intra_op_num_threads=4)`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 60  # texts of values that have more characters than this are left out
_MOST = 12  # of a collection with more items than this, only the number of items is shown


def _readable(value: object) -> str | None:
    """Returns the text of a value, or the number of items of a long collection; None for other values whose text would be too long."""
    if callable(value) or "__repr__" not in _inherited(type(value)):
        return None
    if isinstance(value, Mapping):
        value = dict(value)
    if isinstance(value, (list, tuple, dict, set)) and (len(value) > _MOST or len(repr(value)) > _LONGEST):
        return f"<{len(value)} items>"
    text = repr(value)
    return text if len(text) <= _LONGEST else None


def _properties(cls: type) -> list[str]:
    def is_property(value: object) -> bool:
        return isinstance(value, property) or type(value).__name__ == "nb_property"

    return [name for name in dir(cls) if not name.startswith("_") and is_property(inspect.getattr_static(cls, name))]


def _defaults(cls: type) -> dict[str, str | None]:
    """Returns the properties of a new object of the class; empty if it cannot be made without arguments."""
    try:
        return _values(cls())
    except Exception:
        return {}


def _values(instance: object) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in _properties(type(instance)):
        try:
            found[name] = _readable(getattr(instance, name))
        except Exception:  # a property may raise, for example before the first run
            continue
    return found


def describe(instance: Any) -> str:
    """Returns the name of the class and the properties of the object. Options only show those that differ from the defaults."""
    defaults = _defaults(type(instance)) if type(instance).__name__.endswith("Options") else {}
    shown = [f"{name}={text}" for name, text in _values(instance).items() if text is not None and defaults.get(name) != text]
    return f"{type(instance).__name__}({', '.join(shown)})"


def _inherited(cls: type) -> set[str]:
    return {name for base in cls.__mro__ if base is not object for name in vars(base)}


def describe_all(namespaces: Iterable[dict[str, Any]]) -> None:
    """Sets `__repr__` of the namespaces' classes that have none of their own, and of classes within them, to `describe`."""
    for namespace in namespaces:
        for name, value in list(namespace.items()):
            if not isinstance(value, type) or not value.__module__.startswith("treadle"):
                continue
            if "__repr__" not in _inherited(value):
                setattr(value, "__repr__", describe)
                describe_all([dict(vars(value))])
