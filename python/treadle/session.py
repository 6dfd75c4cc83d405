"""Sessions: models made ready to run.

    session = treadle.Session("model.onnx", num_threads=4)
    scores = session(image)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import _clients, _treadle, counters
from ._models import ModelLike, load_model
from ._session_options import RUN_KEYWORDS, SESSION_KEYWORDS, run_options, session_options, with_keywords
from ._treadle import (
    CacheStatistics,
    ModelMetadata,
    MonitorEvent,
    NodeArg,
    NodeMemory,
    NodeStatistics,
    RunMetadata,
    RunOptions,
    SessionOptions,
    UnfinishedRun,
    ValueCache,
    ValueHandle,
)
from .counters import NodeCounter
from .errors import InvalidArgument
from .memory import SessionMemory, report_of
from .partial_run import PartialRun

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keywords import RunKeywords, SessionKeywords

__all__ = [
    "CacheStatistics",
    "ModelMetadata",
    "MonitorEvent",
    "NodeArg",
    "NodeCounter",
    "NodeMemory",
    "NodeStatistics",
    "Outputs",
    "PartialRun",
    "RunMetadata",
    "Session",
    "StatefulRun",
    "UnfinishedRun",
    "ValueCache",
    "ValueHandle",
]

# NumPy's names of ONNX's element types, for the types that NumPy also has.
_NUMPY_TYPES = {f"tensor({name})": name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16")}
_NUMPY_TYPES |= {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(bool)": "bool"}


def dtype_hint(feeds: Mapping[str, Any], inputs: Sequence[NodeArg]) -> str:
    """Returns a text about arrays whose dtype differs from their input's; empty if all agree."""
    for info in inputs:
        dtype = getattr(feeds.get(info.name), "dtype", None)
        wanted = _NUMPY_TYPES.get(info.type)
        if dtype is not None and wanted is not None and str(dtype) != wanted:
            return f'; write "{info.name}": array.astype(np.{wanted})'
    return ""


def with_hint(error: InvalidArgument, feeds: Mapping[str, Any], inputs: Sequence[NodeArg]) -> InvalidArgument:
    """Returns the error. If a wrong dtype is the reason, its text also says which conversion to write."""
    hint = dtype_hint(feeds, inputs)
    return InvalidArgument(f"{error.args[0]}{hint}", code=error.code) if hint else error


def _text(value: Any) -> str:
    """Describes a value by its dtype and shape, or by its type."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") and hasattr(value, "shape") else type(value).__name__


class Outputs(tuple[Any, ...]):
    """Several outputs of a run: a tuple in the model's order, whose values can also be accessed by name.

    ::

        logits, state = outputs
        outputs["logits"], outputs.logits, outputs[0], dict(outputs)

    Outputs whose names are methods of a tuple cannot be read as attributes; read `outputs["count"]` instead.
    """

    names: tuple[str, ...]
    """The names of the values, in their order."""

    def __new__(cls, names: Sequence[str], values: Sequence[Any]) -> Outputs:
        made = super().__new__(cls, values)
        made.names = tuple(names)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.names, tuple(self)

    def __getitem__(self, key: str | SupportsIndex | slice) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"there is no output {key!r}; there are {', '.join(self.names)}")
        return super().__getitem__(self.names.index(key))

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("names", ()):
            raise AttributeError(f"there is no output {name!r}; there are {', '.join(self.__dict__.get('names', ()))}")
        return self[name]

    def __contains__(self, key: object) -> bool:
        return key in self.names

    def keys(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.names

    def values(self) -> tuple[Any, ...]:
        """The values, in the order of the names."""
        return tuple(self)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Pairs of name and value."""
        return zip(self.names, self, strict=True)

    def __repr__(self) -> str:
        return f"Outputs({', '.join(f'{name}: {_text(value)}' for name, value in self.items())})"


def _by_name(values: tuple[Any, ...], named: dict[str, Any], names: Sequence[str], takes_map: bool = False) -> dict[str, Any]:
    """Converts a call's arguments to feeds by the names of the inputs. `takes_map`: the only input is a map itself."""
    if len(values) == 1 and not named:  # the most frequent case comes first, because small models run fast
        value = values[0]
        if type(value) is not dict and not isinstance(value, Mapping):
            if names:
                return {names[0]: value}
        elif takes_map and names[0] not in value:
            return {names[0]: value}
        else:
            return value if type(value) is dict else dict(value)
    if len(values) > len(names):
        raise TypeError(f"{len(values)} values are given; the inputs are {', '.join(names)}")
    if len(values) == 1 and isinstance(values[0], Mapping) and not takes_map:
        raise TypeError("the inputs are given in a dict and by keyword; give one")
    feeds = dict(zip(names, values, strict=False))
    if twice := feeds.keys() & named:
        raise TypeError(f"the input {min(twice)!r} is given twice: by its place and by its name")
    return feeds | named


def _returned(names: Sequence[str], values: list[Any]) -> Any:
    """Returns the value of the only output, otherwise all values with their names."""
    return values[0] if len(values) == 1 else Outputs(names, values)


class StatefulRun(_treadle.StatefulRun):
    """Runs of one sequence, in which each run continues with the states of the previous one. Only one thread at a time may use it.

    ::

        runs = session.stateful({"past": "present"})
        for token in prompt:
            logits = runs(token)     # the outputs that are no states
    """

    def __init__(self, session: Session, pairs: Mapping[str, str], initial: Mapping[str, Any]) -> None:
        states = dict(pairs)
        super().__init__(session._sess, states, dict(initial))
        self._inputs = [name for name in session._input_names if name not in states]
        self._outputs = [name for name in session._output_names if name not in states.values()]

    def __call__(self, /, *values: Any, **named: Any) -> Any:
        """Computes the outputs that are no states, and updates the states; after an error the states are those before the run.

        :param values: one for each input that is no state, in the order of the model; or one dict of values by name.
        :param named: values of the inputs with these names.
        :return: the value, if there is one such output; otherwise `Outputs`.
        """
        return _returned(self._outputs, self.run(None, _by_name(values, named, self._inputs)))


class Session:
    """A model that is ready to run. Any number of threads may run one session at once.

    ::

        session = treadle.Session("model.onnx", num_threads=4, dimensions={"batch": 8})
        scores = session(image)                       # an array, because the model has one output
        outputs = session(input_ids=ids, mask=mask)   # Outputs, because the model has several outputs
        hidden = session.run(image, "hidden", deadline_ms=50)

    :param model: a path, the bytes of a file, a `treadle.Model` or an `onnx.ModelProto`.
    :param options: options, which are copied. Keywords override them.
    :param num_threads: threads that compute one node, the caller's included; 0: the process's shared pool.
    :param keywords:
    :raises NoSuchFile: there is no such file.
    :raises InvalidProtobuf: it is no ONNX model.
    :raises InvalidGraph: the model breaks ONNX's rules.
    :raises NotImplemented: the model needs operators, dtypes or features that this build lacks; all of them are listed.
    :raises InvalidArgument: an option cannot have the value.
    :raises OutOfMemory: the model does not fit in `memory_limit_bytes`.
    """

    _sess: _treadle.Session
    _sess_options: SessionOptions
    _model_path: str | None
    _inputs_meta: list[NodeArg]
    _input_names: list[str]
    _output_names: list[str]
    _takes_map: bool
    _outputs_meta: list[NodeArg]
    _overridable_initializers: list[NodeArg]
    _model_meta: ModelMetadata

    def __init__(
        self,
        model: ModelLike,
        options: SessionOptions | None = None,
        *,
        num_threads: int | None = None,
        **keywords: Unpack[SessionKeywords],
    ) -> None:
        made = session_options(options, num_threads, keywords)
        self._model_path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        self._open(load_model(model, made), made)

    def _open(self, model: _treadle.Model, options: SessionOptions) -> None:
        self._sess = _treadle.Session(model, options)
        self._sess_options = options
        self._inputs_meta = self._sess.inputs_meta
        self._outputs_meta = self._sess.outputs_meta
        self._input_names = [info.name for info in self._inputs_meta]
        self._output_names = [info.name for info in self._outputs_meta]
        self._takes_map = len(self._inputs_meta) == 1 and self._inputs_meta[0].type.startswith("map(")
        self._overridable_initializers = self._sess.overridable_initializers
        self._model_meta = self._sess.model_meta
        _clients.add(self)

    def __repr__(self) -> str:
        def described(values: Sequence[NodeArg]) -> str:
            return ", ".join(f"{info.name} {info.type} {info.shape}" for info in values)

        model_path = getattr(self, "_model_path", None)
        path = f"{os.path.basename(model_path)!r}: " if model_path else ""
        return f"{type(self).__name__}({path}{described(self._inputs_meta)} -> {described(self._outputs_meta)})"

    # These members are no plain properties, because classes derived from InferenceSession may set attributes with these names.
    @cached_property
    def inputs(self) -> list[NodeArg]:
        """Name, type and shape of each input that a run needs."""
        return self._inputs_meta

    @cached_property
    def outputs(self) -> list[NodeArg]:
        """Name, type and shape of each output."""
        return self._outputs_meta

    @cached_property
    def metadata(self) -> ModelMetadata:
        """The model's producer, version, opsets, and entries of its own."""
        return self._model_meta

    @cached_property
    def options(self) -> SessionOptions:
        """The options that the session was made with."""
        return self._sess_options

    def __call__(self, /, *values: Any, **named: Any) -> Any:
        """Computes all outputs.

        :param values: one for each input, in the order of `inputs`; or one dict of values by name.
        :param named: values of the inputs with these names.
        :return: the value, if the model has one output; otherwise `Outputs`.
        :raises ValueError: an input is missing.
        :raises InvalidArgument: there is no such input, or a value has another dtype or shape than the model declares.
        """
        return self._compute(self._feeds(values, named), None, None)

    def run(
        self,
        inputs: Any,
        outputs: str | Sequence[str] | None = None,
        *,
        options: RunOptions | None = None,
        **keywords: Unpack[RunKeywords],
    ) -> Any:
        """Like a call of the session, with selected outputs and with options of this run.

        :param inputs: the value of the only input, a tuple of values in the order of `Session.inputs`, or a dict of values by name. A value is an
            array, which is read in place if it is contiguous, a list for a sequence, a dict for a map, None for an empty optional, an `OrtValue`,
            or a `SparseTensor`.
        :param outputs: the name of one output or inner value of the model, or several names; None, or no name: all outputs.
        :param options: options of the run; they may be shared by runs.
        :param keywords:
        :return: the value, if `outputs` is one name or the model has one output; otherwise `Outputs`. Arrays own their memory.
        :raises ValueError: an input is missing.
        :raises InvalidArgument: there is no such input or output, or a value has another dtype or shape than the model declares.
        :raises Fail: the run was cancelled (code "cancelled") or passed its deadline ("timed_out").
        :raises OutOfMemory: the run does not fit in the session's or the job's limit.
        """
        values = inputs if isinstance(inputs, tuple) else (inputs,)
        return self._compute(self._feeds(values, {}), outputs, run_options(options, keywords))

    def _feeds(self, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return _by_name(values, named, self._input_names, self._takes_map)

    def _compute(self, feeds: dict[str, Any], outputs: str | Sequence[str] | None, options: RunOptions | None) -> Any:
        try:
            values = self._sess.run([outputs] if isinstance(outputs, str) else outputs, feeds, options)
        except InvalidArgument as error:
            raise with_hint(error, feeds, self._inputs_meta) from None
        if isinstance(outputs, str):
            return values[0]
        return Outputs(outputs, values) if outputs else _returned(self._output_names, values)

    def node_counters(self) -> list[NodeCounter]:
        """Returns how often each node has run and its times, in all runs since the session was made. Needs `SessionOptions.node_counters`."""
        return counters.read(self._sess)

    def reset_node_counters(self) -> None:
        """Sets all counts to zero."""
        _treadle.reset_node_counters(self._sess)

    def partial_run(
        self, input_feed: Any, cache: ValueCache | None = None, run_options: RunOptions | None = None
    ) -> PartialRun:
        """Begins a run that stops at every treadle.Yield node. Nothing is computed before its first advance().

        :param input_feed: values of inputs, as for `run`.
        :param cache: values to use instead of computing them, and names (with None) of values to store; see PartialRun.cache.
        """
        return PartialRun(_treadle.start_partial_run(self._sess, self._feeds((input_feed,), {}), cache, run_options))

    def close(self, timeout: float | None = None) -> list[UnfinishedRun]:
        """Cancels the runs in flight and waits for them; later runs are refused.

        :param timeout: how long to wait, in seconds; None: until all have ended.
        :return: the runs that have not ended.
        """
        return _treadle.close_session(self._sess, -1 if timeout is None else int(timeout * 1000))

    @property
    def closed(self) -> bool:
        """True once close() was called."""
        return _treadle.session_closed(self._sess)

    @property
    def runs_in_flight(self) -> int:
        """The number of runs that have begun and not ended."""
        return _treadle.runs_in_flight(self._sess)

    def set_monitor(
        self, callback: Callable[[MonitorEvent], None] | None, pattern: str = "*", inputs: bool = False
    ) -> None:
        """Calls `callback` in later runs with every value of the main graph whose name matches, when it is computed.

        :param callback: None: no function is called any more. An exception that it raises ends the run.
        :param pattern: a shell pattern with * and ?.
        :param inputs: also call it before each node that reads such a value.
        """
        _treadle.set_monitor(self._sess, callback, pattern, inputs)

    def store(self, value: Any) -> ValueHandle:
        """Stores a value in the session. The returned handle can be fed like an array."""
        return _treadle.store(self._sess, value)

    def cache_statistics(self) -> CacheStatistics:
        """Counts how often runs found their graph already compiled and bound to their extents."""
        return _treadle.cache_statistics(self._sess)

    def stateful(self, pairs: Mapping[str, str], initial: Mapping[str, Any] | None = None) -> StatefulRun:
        """Makes an object for runs of one sequence, in which each run reads the states of the previous one. States stay in the runtime, uncopied.

        :param pairs: name of each state's input → name of the output whose value it gets in the next run ({"past_key": "present_key", …}).
        :param initial: values for the first run, which are copied. States of a fixed shape that are not given begin with zeros.
        :return: an object that is called like the session, with the inputs that are no states; it has `run(output_names, input_feed)`, `state(name)`
            and `set_state(name, value)`.
        :raises InvalidArgument: there is no such input or output, or a state without a fixed shape is not given.
        """
        return StatefulRun(self, pairs, initial or {})

    def to_text(self, stage: str = "optimized") -> str:
        """The graph ("onnx", "optimized") or the flat list of instructions with their memory ("planned") as text."""
        return self._sess.to_text(stage)

    def memory(self) -> SessionMemory:
        """Returns the bytes that the session holds now, and their peaks, by class, and the sizes of its memory plans."""
        plan, held = self._sess.memory(), report_of(self._sess.memory_statistics())
        planned = {field.name: getattr(plan, field.name) for field in fields(SessionMemory) if field.name != "classes"}
        return SessionMemory(held.classes, **planned)

    def reset_memory_peaks(self) -> None:
        """Sets the peaks to the present values."""
        self._sess.reset_memory_peaks()

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Changes `SessionOptions.memory_limit_bytes`. Later runs keep to the new limit, running ones from their next node on.

        :raises InvalidArgument: if the session was made without a limit.
        """
        self._sess.set_memory_limit(limit_bytes)


Session.__doc__ = with_keywords(Session.__doc__, SessionOptions, SESSION_KEYWORDS)
Session.run.__doc__ = with_keywords(Session.run.__doc__, RunOptions, RUN_KEYWORDS)
