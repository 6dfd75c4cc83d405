"""Quantisation: float32 models into 8- and 4-bit ones, in operators that other runtimes take as well.

    from treadle import quantize

    quantize.dynamic("bert.onnx", "bert_int8.onnx")
    quantize.static("resnet.onnx", samples, "resnet_int8.onnx", method="percentile")
    result = quantize.weights("decoder.onnx", bits=4, block_size=32)
    print(result.report)
    result.model.save("decoder_int4.onnx")

docs/quantize.md tells which mode is for what, and what it costs in accuracy.
"""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Union

import numpy as np

from ._treadle import Model, QuantizedNode, QuantizedOutput, QuantizeOptions, QuantizeReport, QuantizeResult, quantize_model

__all__ = [
    "QuantizeOptions",
    "QuantizeReport",
    "QuantizeResult",
    "QuantizedNode",
    "QuantizedOutput",
    "Samples",
    "dynamic",
    "static",
    "weights",
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


def _run(model: Path | Model, samples: Samples | None, output: Path | None, options: Mapping[str, Any]) -> QuantizeResult:
    chosen = QuantizeOptions()
    for name, value in options.items():
        setattr(chosen, name, list(value) if isinstance(value, (list, tuple)) else value)
    loaded = model if isinstance(model, Model) else Model.load(os.fspath(model))
    result = quantize_model(loaded, chosen, _source(samples))
    for text in result.report.warnings:
        warnings.warn(text, stacklevel=3)
    if output is not None:
        result.model.save(os.fspath(output))
    return result


def dynamic(
    model: Path | Model,
    output: Path | None = None,
    *,
    samples: Samples | None = None,
    op_types: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skip_first: int = 0,
    skip_last: int = 0,
    min_weight_elements: int = 256,
    per_channel: bool = True,
    reduce_range: bool = False,
    preprocess: bool = False,
    compared_samples: int = 4,
) -> QuantizeResult:
    """int8 weights of MatMul and Gemm; activations are quantised in every run (DynamicQuantizeLinear, MatMulInteger).

    `output` is the file to write. `samples` only serve the comparison of the two models. `include` and `exclude` are shell patterns over
    names of nodes; `skip_first` and `skip_last` of those that would be taken stay float. Raises treadle.errors.InvalidArgument for options
    that contradict.
    """
    return _run(
        model,
        samples,
        output,
        dict(
            mode="dynamic",
            op_types=op_types,
            include=include,
            exclude=exclude,
            skip_first=skip_first,
            skip_last=skip_last,
            min_weight_elements=min_weight_elements,
            per_channel=per_channel,
            reduce_range=reduce_range,
            preprocess=preprocess,
            compared_samples=compared_samples,
        ),
    )


def static(
    model: Path | Model,
    calibration: Samples,
    output: Path | None = None,
    *,
    method: Literal["minmax", "percentile", "entropy"] = "minmax",
    percentile: float = 99.999,
    activations: Literal["uint8", "int8"] = "uint8",
    op_types: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skip_first: int = 0,
    skip_last: int = 0,
    min_weight_elements: int = 256,
    per_channel: bool = True,
    reduce_range: bool = False,
    compared_samples: int = 4,
) -> QuantizeResult:
    """int8 weights and 8-bit activations of Conv, MatMul and Gemm, as QuantizeLinear and DequantizeLinear around them.

    `calibration` has values that the inputs take in use; the ranges of activations follow from them by `method`. The samples are gone
    through once. Raises treadle.errors.InvalidArgument if there are none, or if a value is not finite.
    """
    return _run(
        model,
        calibration,
        output,
        dict(
            mode="qdq",
            method=method,
            percentile=percentile,
            activation_dtype=activations,
            op_types=op_types,
            include=include,
            exclude=exclude,
            skip_first=skip_first,
            skip_last=skip_last,
            min_weight_elements=min_weight_elements,
            per_channel=per_channel,
            reduce_range=reduce_range,
            compared_samples=compared_samples,
        ),
    )


def weights(
    model: Path | Model,
    output: Path | None = None,
    *,
    bits: Literal[4, 8] = 4,
    block_size: Literal[16, 32, 64, 128, 256] = 32,
    symmetric: bool = True,
    format: Literal["matmul_nbits", "qdq"] = "matmul_nbits",
    samples: Samples | None = None,
    op_types: Sequence[str] = (),
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    skip_first: int = 0,
    skip_last: int = 0,
    min_weight_elements: int = 256,
    preprocess: bool = False,
    compared_samples: int = 4,
) -> QuantizeResult:
    """Weights of MatMul and Gemm in 4 or 8 bits, a scale for each block of the inner dimension; activations stay float32.

    `format` is com.microsoft's MatMulNBits, or ONNX's DequantizeLinear with block_size (opset 21). `symmetric=False` gives each block a
    zero point. `samples` only serve the comparison of the two models.
    """
    return _run(
        model,
        samples,
        output,
        dict(
            mode="weights",
            weight_bits=bits,
            block_size=block_size,
            symmetric=symmetric,
            format=format,
            op_types=op_types,
            include=include,
            exclude=exclude,
            skip_first=skip_first,
            skip_last=skip_last,
            min_weight_elements=min_weight_elements,
            preprocess=preprocess,
            compared_samples=compared_samples,
        ),
    )
