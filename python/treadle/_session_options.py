"""Options as keywords: of `treadle.Session`, and of its runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal, TypedDict

from . import _treadle
from ._treadle import OrtValue, RunOptions, SessionOptions
from .enums import ExecutionMode, GraphOptimizationLevel

_Path = str | os.PathLike[str]


class SessionKeywords(TypedDict, total=False):
    """Keywords of `treadle.Session`, for type checkers: attributes of `SessionOptions`, and what that has methods for."""

    allocator: str | _treadle.Allocator
    argument_devices: Mapping[str, str]
    cache_dir: _Path
    compiled_model_filepath: _Path
    compute_streams: int
    config: Mapping[str, str]
    conv_rates: _Path
    device: str
    dimensions: Mapping[str, int]
    disabled_passes: Iterable[str]
    enable_mem_reuse: bool
    execution_mode: ExecutionMode | Literal["sequential", "parallel"]
    graph_optimization_level: GraphOptimizationLevel | Literal["disable_all", "basic", "extended", "layout", "all"]
    group2ctx: Mapping[str, str]
    initializers: Mapping[str, Any]
    inter_op_num_threads: int
    intra_op_num_threads: int
    job: _treadle.Job | None
    log_severity_level: int
    max_patches: int
    max_weight_expansion: float
    memory_fraction: float
    memory_limit_bytes: int
    node_counters: bool
    optimized_model_data_file: str
    optimized_model_data_threshold: int
    optimized_model_filepath: _Path
    precision: str
    recompute_fraction: float
    set_denormal_as_zero: bool
    share_weights: bool
    spill_folder: _Path
    strict_symbols: bool
    thread_pool: _treadle.ThreadPool | None
    training_mode: bool
    use_mmap: bool
    verify_plans: bool


class RunKeywords(TypedDict, total=False):
    """Keywords of `treadle.Session.run`, for type checkers: attributes of `RunOptions`."""

    cancel_token: _treadle.CancelToken | None
    check_finite: Literal["off", "nan", "all"]
    deadline_ms: int
    dump_folder: _Path
    dump_pattern: str
    logid: str
    on_metadata: Callable[[_treadle.RunMetadata], None] | None
    output_allocators: Mapping[str, _treadle.Allocator]
    output_devices: Mapping[str, str]
    targets: Iterable[str]
    thread_pool: _treadle.ThreadPool | None


# Options that no attribute has.
_METHODS = {
    "dimensions": ("extents of symbols of the inputs' shapes, by name.", SessionOptions.add_free_dimension_override_by_name),
    "initializers": (
        "arrays in place of the model's initializers, by name.",
        lambda options, name, value: options.add_initializer(name, value if isinstance(value, OrtValue) else OrtValue.ortvalue_from_numpy(value)),
    ),
}


def _described(options: type, name: str) -> str:
    """The option's sentence."""
    return _METHODS[name][0] if name in _METHODS else " ".join((getattr(options, name).__doc__ or "").split())


def _set(options: Any, name: str, value: Any) -> None:
    if name in _METHODS:
        for key, item in value.items():
            _METHODS[name][1](options, key, item)
    elif isinstance(value, str) and isinstance(getattr(options, name), Enum):
        options.add_session_config_entry(f"treadle.{name}", value)
    elif isinstance(value, os.PathLike):
        setattr(options, name, os.fspath(value))
    else:
        setattr(options, name, value)


def _apply(options: Any, given: Mapping[str, Any], keywords: type, more: Iterable[str], caller: str) -> None:
    known = keywords.__annotations__
    for name, value in given.items():
        if name not in known:
            nearest = _treadle.nearest_names(name, [*known, *more])
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}; is it {nearest}?")
        try:
            _set(options, name, value)
        except (TypeError, AttributeError):
            raise TypeError(f"{name} is {value!r}; it is: {_described(type(options), name)}") from None


def session_options(options: SessionOptions | None, num_threads: int | None, given: Mapping[str, Any]) -> SessionOptions:
    """A copy of the options, with what keywords say."""
    made = SessionOptions() if options is None else SessionOptions(options)
    if num_threads is not None:
        if "intra_op_num_threads" in given:
            raise TypeError("num_threads and intra_op_num_threads are the same option; give one")
        given = {**given, "intra_op_num_threads": num_threads}
    _apply(made, given, SessionKeywords, ["options", "num_threads"], "Session")
    return made


def run_options(options: RunOptions | None, given: Mapping[str, Any]) -> RunOptions | None:
    """The options, or new ones of the keywords."""
    if not given:
        return options
    if options is not None:
        raise TypeError(f"run() got options and the keyword {next(iter(given))!r}; set it in the options")
    made = RunOptions()
    _apply(made, given, RunKeywords, ["outputs", "options"], "run")
    return made


def with_keywords(doc: str | None, options: type, keywords: type) -> str | None:
    """The docstring, with a line for each keyword in place of `:param keywords:`."""

    def lines(found: re.Match[str]) -> str:
        return "".join(f"{found[1]}:param {name}: {_described(options, name)}\n" for name in keywords.__annotations__)

    return doc and re.sub(r"^( *):param keywords:\n", lines, doc, flags=re.MULTILINE)
