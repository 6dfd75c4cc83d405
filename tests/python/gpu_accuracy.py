"""Measures how far operators on a GPU are from float64, on ONNX's own cases: `python tests/python/gpu_accuracy.py docs/gpu-accuracy.md`.

A deviation is the largest of a case's float32 elements: the difference to float64, by the element or, if it is larger, by a thousandth of the
largest element of the tensor. It is infinite if one of both is NaN or infinite and the other is not. Truth is the host's run of the model in
float64, or ONNX's expected output where the operator has no float64.
"""

from __future__ import annotations

import pathlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import treadle

GPU = "gpu:0"
# The bound of an operator's deviation; all others have DEFAULT. These have sums that cancel, or functions near their zeros, where the host is
# as far from float64; Gelu's tail is the host's formula in fewer steps.
DEFAULT = 2e-6
BOUNDS: dict[str, float] = {
    "AffineGrid": 2e-5,
    "AveragePool": 3e-4,
    "BatchNormalization": 1e-5,
    "DFT": 1e-5,
    "GRU": 2e-4,
    "Gelu": 3e-5,
    "GridSample": 1e-5,
    "InstanceNormalization": 1e-5,
    "LayerNormalization": 3e-5,
    "MeanVarianceNormalization": 5e-6,
    "Resize": 1e-5,
    "RoiAlign": 5e-6,
    "STFT": 2e-5,
}


@dataclass
class Deviation:
    """The largest deviations over an operator's cases."""

    cases: int = 0
    gpu: float = 0
    host: float = 0
    apart: float = 0  # the GPU from the host

    def join(self, gpu: float, host: float, apart: float) -> None:
        self.cases += 1
        self.gpu, self.host, self.apart = max(self.gpu, gpu), max(self.host, host), max(self.apart, apart)


def node_cases() -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray], list[np.ndarray]]]:
    """ONNX's cases of one node, whose operands are tensors and whose results have float32: operator, model, inputs, outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    for case in cases:
        graph = case.model.graph
        types = [value.type for value in [*graph.input, *graph.output]]
        if len(graph.node) != 1 or graph.node[0].domain or not all(t.HasField("tensor_type") for t in types):
            continue
        if not any(value.type.tensor_type.elem_type == TensorProto.FLOAT for value in graph.output):
            continue
        inputs, outputs = case.data_sets[0]
        if all(isinstance(value, np.ndarray) for value in [*inputs, *outputs]):
            yield graph.node[0].op_type, case.model, inputs, outputs


def in_float64(model: onnx.ModelProto) -> bytes:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in [*wide.graph.input, *wide.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    return wide.SerializeToString()


def run(model: bytes, inputs: list[np.ndarray], device: str | None = None) -> tuple[list[np.ndarray], treadle.InferenceSession]:
    options = treadle.SessionOptions()
    options.log_severity_level = 4
    if device:
        options.device = device
    session = treadle.InferenceSession(model, options)
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), inputs, strict=False))), session


def runs_on_gpu(session: treadle.InferenceSession) -> bool:
    return all(line.split("\t")[0] == GPU for line in session.to_text("devices").splitlines() if line and not line.startswith("#"))


def deviation(got: list[np.ndarray], truth: list[np.ndarray]) -> float:
    largest = 0.0
    for y, t in zip(got, truth, strict=True):
        if y.dtype != np.float32 or y.size == 0:
            continue
        y, t = y.astype(np.float64), np.asarray(t).astype(np.float64)
        finite = np.isfinite(t)
        if not np.array_equal(y[~finite], t[~finite], equal_nan=True):
            return np.inf
        if not finite.any():
            continue
        y, t = y[finite], t[finite]
        scale = np.maximum(np.abs(t), np.abs(t).max() / 1000)
        differences = np.abs(y - t) / np.where(scale == 0, 1, scale)
        largest = max(largest, float(np.max(np.where(np.isnan(y), np.inf, differences))))
    return largest


def measure(operators: set[str] | None = None) -> dict[str, Deviation]:
    found: dict[str, Deviation] = {}
    for operator, model, inputs, outputs in node_cases():
        if operators is not None and operator not in operators:
            continue
        if operator in RANDOM:
            continue
        try:
            host, _ = run(model.SerializeToString(), inputs)
        except treadle.Error:
            continue
        got, session = run(model.SerializeToString(), inputs, GPU)
        if not runs_on_gpu(session):
            continue
        try:
            truth, _ = run(in_float64(model), [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs])
        except (treadle.Error, ValueError):
            truth = outputs
        found.setdefault(operator, Deviation()).join(deviation(got, truth), deviation(host, truth), deviation(got, host))
    return found


RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Dropout"}


def table(found: dict[str, Deviation]) -> str:
    def number(value: float) -> str:
        return "0" if value == 0 else f"{value:.1e}"

    lines = [
        "# How exact operators are on a GPU",
        "",
        "The largest deviations from float64 over ONNX's own cases with float32 results, on Mesa's lavapipe. A difference is divided by the",
        "element or, if that is larger, by a thousandth of the largest element of the tensor. `tests/python/test_gpu_accuracy.py` asserts the",
        "bounds; `python tests/python/gpu_accuracy.py docs/gpu-accuracy.md` writes this page.",
        "",
        "| operator | cases | GPU from float64 | host from float64 | GPU from host | bound |",
        "|---|---|---|---|---|---|",
    ]
    for operator in sorted(found):
        d = found[operator]
        bound = BOUNDS.get(operator, DEFAULT)
        lines.append(f"| {operator} | {d.cases} | {number(d.gpu)} | {number(d.host)} | {number(d.apart)} | {bound:.0e} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> Any:
    text = table(measure())
    if arguments:
        pathlib.Path(arguments[0]).write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
