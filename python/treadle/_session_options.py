"""Makes options of sessions and runs from keywords of `treadle.Session` and `Session.run`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from . import _treadle
from ._treadle import OrtValue, RunOptions, SessionOptions

# Keywords that set options by a method instead of an attribute, and for each one: (type, description, method).
METHODS = {
    "dimensions": (
        "Mapping[str, int]",
        "Extents of symbols of the inputs' shapes, by name.",
        SessionOptions.add_free_dimension_override_by_name,
    ),
    "initializers": (
        "Mapping[str, Any]",
        "Arrays in place of the model's initializers, by name.",
        lambda options, name, value: options.add_initializer(name, value if isinstance(value, OrtValue) else OrtValue.ortvalue_from_numpy(value)),
    ),
}

# Options that are no keywords, because `treadle.profile` and cancel tokens replace them.
_ONLY_ATTRIBUTES = {"enable_profiling", "profile_file_prefix", "terminate"}


def _keywords(options: type, rows: list[dict[str, str]]) -> list[str]:
    """Returns the names of the table's options that may be keywords."""
    names = [row["keyword"] for row in rows]
    return sorted(name for name in names if hasattr(options, name) and name not in _ONLY_ATTRIBUTES)


#: Keywords of `treadle.Session`, and below those of its runs. The keyword `log_severity_level` exists only in Python.
SESSION_KEYWORDS = sorted([*_keywords(SessionOptions, _treadle.session_options()), *METHODS, "log_severity_level"])
RUN_KEYWORDS = _keywords(RunOptions, _treadle.run_options())


def described(options: type, name: str) -> str:
    """Returns the description of an option."""
    return METHODS[name][1] if name in METHODS else " ".join((getattr(options, name).__doc__ or "").split())


def as_list(options: Any, name: str, value: Any) -> Any:
    """Returns the value, converted to a list if the option is one. A string is not converted, so that it is refused."""
    return list(value) if isinstance(getattr(options, name), tuple) and not isinstance(value, str) else value


def _set(options: Any, name: str, value: Any) -> None:
    if name in METHODS:
        for key, item in value.items():
            METHODS[name][2](options, key, item)
    else:
        setattr(options, name, as_list(options, name, value))


def _apply(options: Any, given: Mapping[str, Any], known: Iterable[str], more: Iterable[str], caller: str) -> None:
    for name, value in given.items():
        if name not in known:
            nearest = _treadle.nearest_names(name, [*known, *more])
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}; is it {nearest}?")
        try:
            _set(options, name, value)
        except (TypeError, AttributeError):
            raise TypeError(f"{name} is {value!r}; it is: {described(type(options), name)}") from None


def session_options(options: SessionOptions | None, num_threads: int | None, given: Mapping[str, Any]) -> SessionOptions:
    """Returns a copy of the options, changed by keywords."""
    made = SessionOptions() if options is None else SessionOptions(options)
    if num_threads is not None:
        if "intra_op_num_threads" in given:
            raise TypeError("num_threads and intra_op_num_threads are the same option; give one")
        given = {**given, "intra_op_num_threads": num_threads}
    _apply(made, given, SESSION_KEYWORDS, ["options", "num_threads"], "Session")
    return made


def run_options(options: RunOptions | None, given: Mapping[str, Any]) -> RunOptions | None:
    """Returns the options, or new ones made from keywords."""
    if not given:
        return options
    if options is not None:
        raise TypeError(f"run() got options and the keyword {next(iter(given))!r}; set it in the options")
    made = RunOptions()
    _apply(made, given, RUN_KEYWORDS, ["outputs", "options"], "run")
    return made


def with_keywords(doc: str | None, options: type, keywords: Iterable[str]) -> str | None:
    """Returns the docstring, in which a line for each keyword that it does not explain replaces `:param keywords:`."""

    def lines(found: re.Match[str]) -> str:
        missing = [name for name in keywords if f":param {name}:" not in found.string]
        return "".join(f"{found[1]}:param {name}: {described(options, name)}\n" for name in missing)

    return doc and re.sub(r"^( *):param keywords:\n", lines, doc, flags=re.MULTILINE)
