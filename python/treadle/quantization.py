"""Quantises float32 models to 8 and 4 bits, with operators that other runtimes support as well.

    treadle.quantize("bert.onnx", "bert_int8.onnx")
    treadle.quantize("resnet.onnx", "resnet_int8.onnx", mode="static", samples=samples, method="percentile")
    result = treadle.quantize("decoder.onnx", mode="weights", bits=4, block_size=32)
    print(result.report)
    result.model.save("decoder_int4.onnx")

docs/quantize.md explains for which models each mode is suitable, and how much accuracy it costs.
"""

from __future__ import annotations

import inspect
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, get_type_hints, overload

import numpy as np

from ._models import ModelLike, load_model
from ._treadle import QuantizedNode, QuantizedOutput, QuantizeOptions, QuantizeReport, QuantizeResult, nearest_names, quantize_model
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "QuantizeOptions",
    "QuantizeReport",
    "QuantizeResult",
    "QuantizedNode",
    "QuantizedOutput",
    "Samples",
    "quantize",
]

Path = Union[str, "os.PathLike[str]"]
Sample = Mapping[str, Any]
#: Samples: an iterable, a callable that returns the next sample (None at the end), a .npz file with one sample, or a folder of such
#: files. Each sample maps names of inputs to values.
Samples = Union[Path, Iterable[Sample], Callable[[], Sample | None]]  # noqa: UP007


def _from_npz(path: pathlib.Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        # In files that also contain reference results, names of inputs have the prefix "in:", and names of outputs have the prefix "out:".
        return {name.removeprefix("in:"): arrays[name] for name in arrays.files if not name.startswith("out:")}


def _source(samples: Samples | None) -> Callable[[], dict[str, Any] | None] | None:
    if samples is None:
        return None
    if isinstance(samples, (str, os.PathLike)):
        path = pathlib.Path(samples)
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(f"the folder {path} holds no .npz file")
        iterator: Any = (_from_npz(file) for file in files)
    elif callable(samples):
        iterator = iter(samples, None)
    else:
        iterator = iter(samples)

    def following() -> dict[str, Any] | None:
        sample = next(iterator, None)
        return None if sample is None else dict(sample)

    return following


class _Keywords(TypedDict, total=False):
    op_types: Sequence[str]
    include: Sequence[str]
    exclude: Sequence[str]
    skip_first: int
    skip_last: int
    min_weight_elements: int
    compared_samples: int


class DynamicKeywords(_Keywords, total=False):
    """Keywords of mode "dynamic", for type checkers."""

    per_channel: bool
    reduce_range: bool
    preprocess: bool


class StaticKeywords(_Keywords, total=False):
    """Keywords of mode "static", for type checkers."""

    method: Literal["minmax", "percentile", "entropy"]
    percentile: float
    activations: Literal["uint8", "int8"]
    per_channel: bool
    reduce_range: bool


class WeightsKeywords(_Keywords, total=False):
    """Keywords of mode "weights", for type checkers."""

    bits: Literal[4, 8]
    block_size: Literal[16, 32, 64, 128, 256]
    symmetric: bool
    format: Literal["matmul_nbits", "qdq"]
    preprocess: bool


# For each mode: the name by which the library knows it, and its keywords.
_MODES = {"dynamic": ("dynamic", DynamicKeywords), "static": ("qdq", StaticKeywords), "weights": ("weights", WeightsKeywords)}
# Options that have another name in the library.
_RENAMED = {"activations": "activation_dtype", "bits": "weight_bits"}


def _run(model: ModelLike, output: Path | None, mode: str, samples: Samples | None, given: Mapping[str, Any]) -> QuantizeResult:
    if mode not in _MODES:
        raise InvalidArgument(f"mode is {mode!r}; {', '.join(map(repr, _MODES))} are expected", code="invalid_argument")
    core_mode, keywords = _MODES[mode]
    options = QuantizeOptions()
    options.mode = core_mode
    for name, value in given.items():
        if name not in keywords.__annotations__:
            nearest = nearest_names(name, list(keywords.__annotations__))
            raise TypeError(f"quantisation of mode {mode!r} got an unexpected keyword argument {name!r}; is it {nearest}?")
        try:
            setattr(options, _RENAMED.get(name, name), list(value) if isinstance(value, (list, tuple)) else value)
        except TypeError:
            raise TypeError(f"{name} is {value!r}; {inspect.formatannotation(get_type_hints(keywords)[name])} is expected") from None
    result = quantize_model(load_model(model), options, _source(samples))
    for text in result.report.warnings:
        warnings.warn(text, stacklevel=3)
    if output is not None:
        result.model.save(os.fspath(output))
    return result


class _QuantizeFunction:
    """Implements `treadle.quantize(...)`, and its modes as `quantize.dynamic`, `quantize.static` and `quantize.weights`."""

    @overload
    def __call__(
        self, model: ModelLike, output: Path | None = None, *, mode: Literal["dynamic"] = "dynamic", samples: Samples | None = None, **options: Unpack[DynamicKeywords]
    ) -> QuantizeResult: ...
    @overload
    def __call__(
        self, model: ModelLike, output: Path | None = None, *, mode: Literal["static"], samples: Samples, **options: Unpack[StaticKeywords]
    ) -> QuantizeResult: ...
    @overload
    def __call__(
        self, model: ModelLike, output: Path | None = None, *, mode: Literal["weights"], samples: Samples | None = None, **options: Unpack[WeightsKeywords]
    ) -> QuantizeResult: ...
    def __call__(
        self, model: ModelLike, output: Path | None = None, *, mode: str = "dynamic", samples: Samples | None = None, **options: Any
    ) -> QuantizeResult:
        """Quantises a float32 model to 8 or 4 bits.

        :param model: a path, the bytes of a file, a `treadle.Model` or an `onnx.ModelProto`.
        :param output: the file to write; None: no file is written.
        :param mode: "dynamic": int8 weights of MatMul and Gemm; activations are quantised in every run (DynamicQuantizeLinear, MatMulInteger).
            "static": int8 weights and 8-bit activations of Conv, MatMul and Gemm, as QuantizeLinear and DequantizeLinear around them.
            "weights": weights of MatMul and Gemm in 4 or 8 bits, a scale for each block of the inner dimension; activations stay float32.
        :param samples: typical values of the inputs. "static" derives the ranges of activations from them, and reads them once; the other modes only
            use them to compare the two models.
        :param op_types: operators to quantise, of Conv, MatMul and Gemm; by default all that the mode supports.
        :param include: shell patterns of the names of nodes to quantise; all by default.
        :param exclude: shell patterns of the names of nodes that stay float32.
        :param skip_first: how many of the first selected nodes stay float32; `skip_last`: how many of the last.
        :param min_weight_elements: products with smaller weights stay float32; 256 by default.
        :param compared_samples: number of samples on which the two models are compared; 4 by default, 0: no comparison.
        :param per_channel: for "dynamic" and "static": a scale for each output channel (the default), or one for each tensor.
        :param reduce_range: for "dynamic" and "static": weights of 7 bits, for machines whose 8-bit products saturate.
        :param preprocess: for "dynamic" and "weights": constants and batch normalisation are folded first; "static" always does it.
        :param method: for "static": how ranges are derived from the samples: "minmax" (the default), "percentile" or "entropy".
        :param percentile: for method "percentile": percentage of values that the range includes; 99.999 by default.
        :param activations: for "static": "uint8" (the default) or "int8".
        :param bits: for "weights": 4 (the default) or 8.
        :param block_size: for "weights": number of elements of a block: 16, 32 (the default), 64, 128 or 256.
        :param symmetric: for "weights": blocks have no zero points (the default).
        :param format: for "weights": "matmul_nbits" (com.microsoft's MatMulNBits, the default) or "qdq" (DequantizeLinear with block_size, opset 21).
        :return: the model, and a report with the error of every node.
        :raises TypeError: the mode has no such option.
        :raises InvalidArgument: options contradict, "static" has no samples, or a sample is not finite.
        """
        return _run(model, output, mode, samples, options)

    def dynamic(
        self, model: ModelLike, output: Path | None = None, *, samples: Samples | None = None, **options: Unpack[DynamicKeywords]
    ) -> QuantizeResult:
        """Calls `quantize(..., mode="dynamic")`."""
        return _run(model, output, "dynamic", samples, options)

    def static(
        self, model: ModelLike, calibration: Samples, output: Path | None = None, **options: Unpack[StaticKeywords]
    ) -> QuantizeResult:
        """Calls `quantize(..., mode="static", samples=calibration)`."""
        return _run(model, output, "static", calibration, options)

    def weights(
        self, model: ModelLike, output: Path | None = None, *, samples: Samples | None = None, **options: Unpack[WeightsKeywords]
    ) -> QuantizeResult:
        """Calls `quantize(..., mode="weights")`."""
        return _run(model, output, "weights", samples, options)


quantize = _QuantizeFunction()
