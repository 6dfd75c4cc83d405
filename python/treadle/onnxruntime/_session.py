"""Sessions with ONNX Runtime's interface."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _treadle
from .. import session as _session
from .._models import FOLDER_KEY
from .._treadle import ModelMetadata, NodeArg, OrtValue, RunOptions, SessionOptions
from ..enums import OrtAllocatorType
from ..errors import Error, Fail, InvalidArgument, ModelLoadCanceled, NoModel, of_binding
from ..errors import NotImplemented as NotImplementedByTreadle
from ..session import with_hint
from ._devices import OrtEpAssignedNode, OrtEpAssignedSubgraph, OrtEpDevice, OrtMemoryInfo
from ._environment import CPU_PROVIDER, VULKAN_PROVIDER, device_of_provider, get_all_providers

ProviderArgs = Sequence["str | tuple[str, dict[Any, Any]]"]

# Config entry: with the value "1", the session records the execution provider of each node.
_ASSIGNMENT_KEY = "session.record_ep_graph_assignment_info"


def _as_dict(feeds: Mapping[str, Any], inputs: Sequence[NodeArg]) -> dict[str, Any]:
    """Returns the feeds as a dict, because the extension module accepts only dicts."""
    if isinstance(feeds, dict):
        return feeds
    if isinstance(feeds, Mapping):
        return dict(feeds)
    names = ", ".join(f'"{info.name}": ...' for info in inputs)
    raise TypeError(f"input_feed is a {type(feeds).__name__}; values go by the inputs' names: session.run(None, {{{names}}})")


def _as_names(output_names: Sequence[str] | None) -> Sequence[str] | None:
    """Returns the names of outputs; None, which means all outputs, if there are no names."""
    if isinstance(output_names, str):
        raise TypeError(f'output_names is one name; write ["{output_names}"], or None for all outputs')
    return output_names or None


class OrtValueVector(list[OrtValue]):
    """A list of OrtValues, with the methods that ONNX Runtime's own type has."""

    push_back = list.append

    def reserve(self, size: int) -> None:
        """Does nothing: a Python list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Does nothing: a Python list shrinks by itself."""

    def dlpack_at(self, index: int) -> object:
        """Returns one value as a DLPack capsule."""
        return self[index].__dlpack__()

    def element_type_at(self, index: int) -> int:
        """Returns ONNX's number for the element type of one value."""
        return int(self[index].element_type())

    def bool_tensor_indices(self) -> list[int]:
        """Returns the positions of the values whose elements are bools."""
        return [i for i, value in enumerate(self) if value.data_type() == "tensor(bool)"]

    def to_dlpacks(self, to_tensor: Callable[[object], Any] | None = None) -> list[Any]:
        """Returns all values as DLPack capsules, or what `to_tensor` makes of them."""
        return [value.__dlpack__() if to_tensor is None else to_tensor(value.__dlpack__()) for value in self]


def check_and_normalize_provider_args(
    providers: ProviderArgs | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Returns the names and options of providers, which may be given in several forms. Warns of names that do not exist.

    Raises ValueError for a malformed argument.
    """
    if providers is None:
        return [], []
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise ValueError("'providers' should be a sequence.")
    pairs: list[tuple[str, Mapping[Any, Any]]] = []
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(name, str) for name in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(options, dict) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        pairs = [(str(name), options) for name, options in zip(providers, provider_options, strict=True)]
    else:
        for provider in providers:
            if isinstance(provider, str):
                pairs.append((provider, {}))
            elif isinstance(provider, tuple) and len(provider) == 2 and isinstance(provider[0], str) and isinstance(provider[1], dict):
                pairs.append(provider)
            else:
                raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    found: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name not in available_provider_names:
            available = ", ".join(available_provider_names)
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names. Available providers: '{available}'",
                stacklevel=4,
            )
        elif name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=4)
        else:
            found[name] = {str(key): str(value) for key, value in options.items()}
    return list(found), list(found.values())


class Session(_session.Session):
    """Has all methods of ONNX Runtime's InferenceSession except the constructor. Any number of threads may run one session at once."""

    def __init__(self, enable_fallback: bool = True) -> None:
        self._enable_fallback = enable_fallback
        self._fallback_providers = [CPU_PROVIDER]
        self._providers = [CPU_PROVIDER]
        self._provider_options: dict[str, dict[str, str]] = {CPU_PROVIDER: {}}

    def get_session_options(self) -> SessionOptions:
        """Returns the options of the session."""
        return self._sess_options

    def get_inputs(self) -> list[NodeArg]:
        """Returns the inputs that a run needs."""
        return self._inputs_meta

    def get_outputs(self) -> list[NodeArg]:
        """Returns the outputs of the model."""
        return self._outputs_meta

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Returns the inputs that have a default value, an initializer."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        """Returns the model's name, producer, version and other metadata."""
        return self._model_meta

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Returns, for each input, the memory in which runs expect it: the CPU's."""
        return [OrtMemoryInfo(allocator_type=OrtAllocatorType.ORT_ARENA_ALLOCATOR) for _ in self._inputs_meta]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """Returns, for each output, the memory in which runs make it: the CPU's."""
        return [OrtMemoryInfo(allocator_type=OrtAllocatorType.ORT_ARENA_ALLOCATOR) for _ in self._outputs_meta]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Returns, for each input, the device that reads it."""
        device = device_of_provider(self._providers[0], self._sess_options.device)
        return [device for _ in self._inputs_meta]

    def get_providers(self) -> list[str]:
        """Returns the names of the execution providers in use."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Returns the options of the execution providers in use, by the providers' names."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Returns a subgraph for each node of the optimised graph, with the provider of the node. Nodes in the bodies of Loop, Scan and If
        come first.

        :raises Fail: the config entry session.record_ep_graph_assignment_info of the options is not "1".
        """
        if self._sess_options.config.get(_ASSIGNMENT_KEY) != "1":
            raise Fail(f"Session configuration entry '{_ASSIGNMENT_KEY}' must be set to \"1\" to retrieve EP graph assignment information.", code="fail")
        return [OrtEpAssignedSubgraph(provider, [OrtEpAssignedNode(*names)]) for provider, *names in self._sess.assigned_nodes()]

    def set_providers(self, providers: ProviderArgs | None = None, provider_options: Sequence[dict[Any, Any]] | None = None) -> None:
        """Stores the arguments. Providers that only other builds of ONNX Runtime have are ignored with a warning.

        :raises RuntimeError: no build of ONNX Runtime has such a provider.
        :raises NotImplemented: the first provider has another device than the session, whose device cannot change.
        """
        for provider in providers or ():
            name = provider if isinstance(provider, str) else provider[0]
            if name not in get_all_providers():
                raise RuntimeError(f"Unknown Provider Type: {name}")
        first = next((name if isinstance(name, str) else name[0] for name in providers or ()), CPU_PROVIDER)
        if (first == VULKAN_PROVIDER) != (self._providers[0] == VULKAN_PROVIDER):
            raise NotImplementedByTreadle(f"this session runs on {self._providers[0]}: make another one for {first}", code="not_implemented")
        self._keep_providers(providers, provider_options)

    def _keep_providers(self, providers: ProviderArgs | None, provider_options: Sequence[dict[Any, Any]] | None) -> None:
        # If the caller requests the Vulkan provider, this check accepts it without looking for a device: the session does not load if there
        # is none.
        asked = isinstance(providers, Sequence) and any(each == VULKAN_PROVIDER or (isinstance(each, tuple) and VULKAN_PROVIDER in each) for each in providers)
        known = [VULKAN_PROVIDER, CPU_PROVIDER] if asked else [CPU_PROVIDER]
        names, options = check_and_normalize_provider_args(providers, provider_options, known)
        self._provider_options = dict(zip(names, options, strict=True)) or {CPU_PROVIDER: {}}

    def _use_providers(self, options: SessionOptions) -> None:
        """Lets a session with these options run on the first provider's device."""
        first = next(iter(self._provider_options))
        if first == VULKAN_PROVIDER:
            options.add_provider(first, self._provider_options[first])
        if options.device.startswith("gpu"):
            self._providers = [VULKAN_PROVIDER, CPU_PROVIDER]
            self._provider_options = {VULKAN_PROVIDER: {}, CPU_PROVIDER: {}} | self._provider_options

    def disable_fallback(self) -> None:
        """Has no effect: a run that fails is never repeated with another execution provider."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Has no effect: a run that fails is never repeated with another execution provider."""
        self._enable_fallback = True

    def run(  # type: ignore[override]
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Computes outputs.

        :param output_names: names of the outputs to compute; None or an empty list for all outputs.
        :param input_feed: values by input name: arrays (used in place while they are contiguous), lists for sequences, dicts for
            maps, None for empty optionals, OrtValue and SparseTensor objects.
        :return: one value per output: an array that owns its memory, a list, a dict, a SparseTensor, or None.
        :raises ValueError: an input is missing.
        :raises InvalidArgument: an unknown name, or a value of another type or shape than the model declares.
        """
        # Programs run small models very often, so arguments in their usual forms need no conversion here, and no further Python call.
        feeds = input_feed if type(input_feed) is dict else _as_dict(input_feed, self._inputs_meta)
        names = None if output_names is None else _as_names(output_names)
        try:
            return self._sess.run(names, feeds, run_options)
        except InvalidArgument as error:
            raise with_hint(error, feeds, self._inputs_meta) from None

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Runs in another thread, and then calls `callback(results, user_data, error)` in that thread; `error` is empty if the run
        succeeded.
        """

        def work() -> None:
            results: list[Any] = []
            error = ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as exception:
                error = str(exception) or type(exception).__name__
            callback(results, user_data, error)

        threading.Thread(target=work, name="treadle-run-async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Computes outputs like `run`, with OrtValues as inputs and outputs."""
        return self._sess.run_with_ort_values(_as_dict(input_dict_ort_values, self._inputs_meta), _as_names(output_names), run_options)

    def run_with_ortvaluevector(
        self,
        run_options: RunOptions | None,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: OrtValueVector,
        fetch_devices: Sequence[object],
    ) -> None:
        """Like run_with_ort_values, with separate names and values. The outputs replace the contents of `fetches`."""
        self._sess.run_with_ortvaluevector(run_options, feed_names, feeds, list(fetch_names), fetches, fetch_devices)

    def run_to_handles(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[_treadle.ValueHandle]:
        """Computes outputs like `run`, but leaves them in the session and returns handles."""
        values = self._sess.run_with_ort_values(_as_dict(input_feed, self._inputs_meta), _as_names(output_names), run_options)
        return [self.store(value) for value in values]

    def end_profiling(self) -> str:
        """Writes the profile in ONNX Runtime's format, and ends it. Returns the file's path, or "" if the session has no profile."""
        return self._sess.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """Returns the time at which the profile began, in nanoseconds of the system's clock; 0 without profiling."""
        return self._sess.get_profiling_start_time_ns()

    def io_binding(self) -> IOBinding:
        """Returns a new binding, to which inputs and outputs can be bound."""
        return IOBinding(self)

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Makes a value as `OrtValue.ortvalue_from_shape_and_type` does."""
        return OrtValue.ortvalue_from_shape_and_type(list(shape), element_type, device_type, device_id, vendor_id)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Does nothing: graphs of device commands are not captured."""

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Runs with the inputs and outputs that are bound."""
        if iobinding._session is not self._sess:
            raise ValueError("IOBinding must be used with the session that created it.")
        try:
            self._sess.run_with_iobinding(iobinding, run_options)
        except Error as error:
            raise of_binding(error) from None

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Does nothing: no execution provider has options that can change after the session was made."""

    def get_tuning_results(self) -> list[Any]:
        """Returns no results, as nothing is tuned at run time."""
        return []

    def set_tuning_results(self, results: object, *, error_on_invalid: bool = False) -> None:
        """Does nothing, as nothing is tuned at run time."""


class InferenceSession(Session):
    """A model that is ready to run."""

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: ProviderArgs | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        """Loads a model.

        :param path_or_bytes: a file's name, or the contents of one.
        :param sess_options: options, which are copied.
        :param providers: execution providers, of which the first is used; the CPU computes the nodes for which that one has no kernel.
            Unknown providers are ignored with a warning.
        :param provider_options: the options of each provider.
        :raises NoSuchFile: there is no such file.
        :raises InvalidProtobuf: it is no ONNX model.
        :raises InvalidGraph: the model breaks ONNX's rules.
        :raises NotImplemented: the model needs operators, dtypes or features that this build lacks.
        """
        super().__init__(enable_fallback=int(kwargs.get("enable_fallback", 1)) == 1)
        self._model_path = None
        options = SessionOptions(sess_options) if sess_options is not None else SessionOptions()
        if kwargs.get("disabled_optimizers"):
            options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(kwargs["disabled_optimizers"]))
        self._keep_providers(providers, provider_options)
        self._use_providers(options)
        if getattr(options, "_load_cancelled", False):
            raise ModelLoadCanceled("loading was cancelled by the options' flag", code="cancelled")
        if isinstance(path_or_bytes, (str, os.PathLike)):
            self._model_path = os.fspath(path_or_bytes)
            if not self._model_path:
                raise NoModel("the path of the model is empty", code="not_found")
            model = _treadle.Model.load(self._model_path, options)
        elif isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            folder = options.config.get(FOLDER_KEY) or os.getcwd()
            model = _treadle.Model.from_bytes(bytes(path_or_bytes), folder, options)
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._open(model, options)


class IOBinding(_treadle.SessionIOBinding):
    """Inputs and outputs of a session, bound by name before the runs. Only one thread at a time may use a binding."""

    def __init__(self, session: _session.Session) -> None:
        super().__init__(session._sess)
        self._session = session._sess

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Binds an array to an input. Runs read a contiguous array in place."""
        try:
            super().bind_cpu_input(name, arr_on_cpu)
        except Error as error:
            raise of_binding(error) from None

    def bind_input(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Binds the caller's memory to an input. The arguments are the device's kind and number, the element type, the shape and the
        address.
        """
        try:
            super().bind_input(name, *args, **kwargs)
        except Error as error:
            raise of_binding(error) from None

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Binds an OrtValue to an input. Runs read it in place."""
        try:
            super().bind_ortvalue_input(name, ortvalue)
        except Error as error:
            raise of_binding(error) from None

    @property
    def _iobinding(self) -> IOBinding:
        """ONNX Runtime's class wraps another object, under this name. Treadle's binding returns itself."""
        return self

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Returns the last run's outputs, in the order in which they were bound."""
        return OrtValueVector(self.get_outputs())


__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtValueVector",
    "Session",
    "check_and_normalize_provider_args",
]
