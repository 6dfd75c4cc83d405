"""Quantisation: float32 models into 8- and 4-bit ones, in operators that other runtimes take as well.

    treadle.quantize("bert.onnx", "bert_int8.onnx")
    treadle.quantize("resnet.onnx", "resnet_int8.onnx", mode="static", samples=samples, method="percentile")
    result = treadle.quantize("decoder.onnx", mode="weights", bits=4, block_size=32)
    print(result.report)
    result.model.save("decoder_int4.onnx")

docs/quantize.md tells which mode is for what, and what it costs in accuracy.
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
#: Samples by the names of the inputs: an iterable of them, a callable that gives the next (None at the end), one .npz file, or a folder
#: of .npz files (a sample each).
Samples = Union[Path, Iterable[Sample], Callable[[], Sample | None]]  # noqa: UP007


def _from_npz(path: pathlib.Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        # Reference files keep inputs and outputs apart by a prefix.
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


# The core's name of each mode, and its keywords.
_MODES = {"dynamic": ("dynamic", DynamicKeywords), "static": ("qdq", StaticKeywords), "weights": ("weights", WeightsKeywords)}
# Options that the core names differently.
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
    """`treadle.quantize(...)`; `quantize.dynamic`, `quantize.static` and `quantize.weights` are its modes."""

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
        """Makes a model of 8- or 4-bit numbers of one of float32.

        :param model: a path, the bytes of a file, a `treadle.Model` or an `onnx.ModelProto`.
        :param output: the file to write; None: none is written.
        :param mode: "dynamic": int8 weights of MatMul and Gemm; activations are quantised in every run (DynamicQuantizeLinear, MatMulInteger).
            "static": int8 weights and 8-bit activations of Conv, MatMul and Gemm, as QuantizeLinear and DequantizeLinear around them.
            "weights": weights of MatMul and Gemm in 4 or 8 bits, a scale for each block of the inner dimension; activations stay float32.
        :param samples: values that the inputs take in use. "static" takes the ranges of activations from them, and goes through them once; in the
            other modes they only serve the comparison of the two models.
        :param op_types: operators to quantise, of Conv, MatMul and Gemm; all that the mode can by default.
        :param include: shell patterns over names of nodes; all by default.
        :param exclude: the same, of nodes that stay float.
        :param skip_first: so many of the nodes that would be taken stay float; `skip_last`: of the last ones.
        :param min_weight_elements: products with smaller weights stay float; 256 by default.
        :param compared_samples: samples on which the two models are compared; 4 by default, 0: none.
        :param per_channel: of "dynamic" and "static": a scale for each output channel (the default), or one for each tensor.
        :param reduce_range: of "dynamic" and "static": weights of 7 bits, for machines whose 8-bit products saturate.
        :param preprocess: of "dynamic" and "weights": constants and batch normalisation are folded first; "static" always does it.
        :param method: of "static": "minmax" (the default), "percentile" or "entropy"; how ranges follow from the samples.
        :param percentile: of method "percentile": share of the values within the range, in percent; 99.999 by default.
        :param activations: of "static": "uint8" (the default) or "int8".
        :param bits: of "weights": 4 (the default) or 8.
        :param block_size: of "weights": elements of a block: 16, 32 (the default), 64, 128 or 256.
        :param symmetric: of "weights": blocks have no zero points (the default).
        :param format: of "weights": "matmul_nbits" (com.microsoft's MatMulNBits, the default), or "qdq" (DequantizeLinear with block_size, opset 21).
        :return: the model, and a report of every node with its error.
        :raises TypeError: the mode has no such option.
        :raises InvalidArgument: options contradict, "static" has no samples, or a sample is not finite.
        """
        return _run(model, output, mode, samples, options)

    def dynamic(
        self, model: ModelLike, output: Path | None = None, *, samples: Samples | None = None, **options: Unpack[DynamicKeywords]
    ) -> QuantizeResult:
        """`quantize(..., mode="dynamic")`."""
        return _run(model, output, "dynamic", samples, options)

    def static(
        self, model: ModelLike, calibration: Samples, output: Path | None = None, **options: Unpack[StaticKeywords]
    ) -> QuantizeResult:
        """`quantize(..., mode="static", samples=calibration)`."""
        return _run(model, output, "static", calibration, options)

    def weights(
        self, model: ModelLike, output: Path | None = None, *, samples: Samples | None = None, **options: Unpack[WeightsKeywords]
    ) -> QuantizeResult:
        """`quantize(..., mode="weights")`."""
        return _run(model, output, "weights", samples, options)


quantize = _QuantizeFunction()
