#!/usr/bin/env python3
"""Compares ONNX's reference, onnxruntime and Treadle on nodes for which the first two give different results, and writes the table in
docs/onnxruntime.md.

    tests/operators/open_points.py [--check]

ONNX's specification and its own test cases decide which result is right. If they are silent, or can be read in two ways, Treadle follows
onnxruntime. Treadle must give exactly the result that the table names.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import treadle

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "onnxruntime.md"
BEGIN, END = "<!-- Made by tests/operators/open_points.py. -->", "<!-- Until here. -->"
MOST = np.iinfo(np.int64).max
onnxruntime.set_default_logger_severity(4)


@dataclass
class Point:
    """A node for which ONNX's reference and onnxruntime give different results. `follows` says whose result Treadle gives: ONNX or
    onnxruntime."""

    title: str
    follows: str
    reason: str
    op: str
    inputs: list[np.ndarray | None]
    opset: int = 22
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    back: int = 0  # number of the dtype to which the output is cast, because every runtime can return it; 0: it is not cast
    shown: int = 0  # number of the output that the table shows

    def model(self) -> tuple[bytes, dict[str, np.ndarray]]:
        names = [f"x{i}" if x is not None else "" for i, x in enumerate(self.inputs)]
        feeds = {name: x for name, x in zip(names, self.inputs) if x is not None}
        outputs = [f"y{i}" for i in range(self.outputs)]
        nodes = [helper.make_node(self.op, names, outputs, **self.attributes)]
        if self.back:
            nodes.append(helper.make_node("Cast", ["y0"], ["z"], to=self.back))
            outputs = ["z"]
        inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()]
        graph = helper.make_graph(nodes, "point", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=11)
        return made.SerializeToString(), feeds


def _row(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def _line(dtype: Any, *values: float) -> np.ndarray:
    return np.array(values, dtype).reshape(1, 1, 1, -1)


def _slice(end: int) -> list[np.ndarray | None]:
    return [np.arange(5, dtype=np.float32), np.array([3]), np.array([end]), np.array([0]), np.array([-1])]


_RESIZE = "ONNX's own cases have it so, though its text says that the length of the result counts, which is an integer"
_LEFT_OPEN = "the text leaves it open"
POINTS = [
    Point("Resize, align_corners, a scale that gives no whole extent", "ONNX", _RESIZE, "Resize", [_line(np.float32, 1, 2, 3, 4, 5), None, _row(1, 1, 1, 1.5)],
          attributes={"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    Point("Resize, tf_crop_and_resize, likewise", "ONNX", "the same word of the text, read in the same way", "Resize",
          [_line(np.float32, 1, 2, 3, 4, 5), _row(0, 0, 0, 0, 1, 1, 1, 1), _row(1, 1, 1, 1.5)], attributes={"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}),
    Point("Resize of integers, linear", "onnxruntime", _LEFT_OPEN + ": the fraction is cut off, with antialias rounded", "Resize", [_line(np.int32, 0, 1, 4, -3), None, _row(1, 1, 1, 2)],
          attributes={"mode": "linear"}),
    Point("Cast of floats to 4-bit integers", "onnxruntime", _LEFT_OPEN + ": the nearest integer, halves away from 0. Wider integers cut the fraction off", "Cast", [_row(-1.5, -0.6, 0.5, 2.5)],
          attributes={"to": TensorProto.INT4}, back=TensorProto.INT32),
    Point("Cast of floats to 2-bit integers", "onnxruntime", "likewise", "Cast", [_row(-1.5, -0.6, 0.5, 0.4)], opset=25, attributes={"to": TensorProto.INT2}, back=TensorProto.INT32),
    Point("Cast of floats to text", "onnxruntime", "ONNX names NaN and INF; how many digits there are is left open: eight", "Cast", [_row(1, 0.1, np.nan, -np.inf)], attributes={"to": TensorProto.STRING}),
    Point("Cast of bool to text", "onnxruntime", _LEFT_OPEN, "Cast", [np.array([True, False])], attributes={"to": TensorProto.STRING}),
    Point("Slice backwards to the largest integer", "ONNX", "the text clamps it to the last element", "Slice", _slice(MOST)),
    Point("the mask of Dropout before opset 12", "onnxruntime", _LEFT_OPEN, "Dropout", [_row(1, 2)], opset=10, outputs=2, shown=1),
    Point("StringSplit of an empty text at a delimiter", "onnxruntime", _LEFT_OPEN + ": it has no part", "StringSplit", [np.array(["", "a,b"], object)], outputs=2, attributes={"delimiter": ","}, shown=1),
    Point("NonZero of a scalar", "ONNX", "the text gives the shape (0, N)", "NonZero", [np.array(5, np.float32)]),
    Point("MaxUnpool with output_shape", "onnxruntime", "indices are places in the result, as MaxPool gives them for a result of this shape", "MaxUnpool",
          [np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])], attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Point("a reflecting Pad that is longer than the data", "ONNX", "as `numpy.pad`, which the text names: it is reflected again", "Pad", [_row(1, 2, 3), np.array([0, 4])], attributes={"mode": "reflect"}),
    Point("OneHot with a depth of 0", "ONNX", "the depth is the extent of the result's axis, which may be 0", "OneHot", [np.array([0, 1]), np.array(0), _row(0, 1)]),
    Point("Einsum, an ellipsis that the output has not", "ONNX", "the sum is over what the output has not", "Einsum", [np.array([[1, 2], [3, 4]], np.float32)], attributes={"equation": "...j->j"}),
    Point("Squeeze with `axes` of no elements", "onnxruntime", "may be read as `axes` not given; reductions say so of theirs", "Squeeze", [np.zeros((1, 2, 1), np.float32), np.zeros(0, np.int64)]),
]  # fmt: skip


_REFUSALS = (onnxruntime.capi.onnxruntime_pybind11_state.Fail, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)


def _outcome(run: Callable[[], list[Any]]) -> list[np.ndarray]:
    """Returns the outputs; empty if onnxruntime refuses the node."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return [np.asarray(value) for value in run()]
        except _REFUSALS:
            return []


def outcomes(point: Point) -> dict[str, list[np.ndarray]]:
    """Returns the outputs of the node in each runtime."""
    data, feeds = point.model()
    return {
        "Treadle": _outcome(lambda: treadle.InferenceSession(data).run(None, feeds)),
        "ONNX": _outcome(lambda: ReferenceEvaluator(onnx.load_from_string(data)).run(None, feeds)),
        "onnxruntime": _outcome(lambda: onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)),
    }


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    def equal(x: np.ndarray, y: np.ndarray) -> bool:
        if x.shape != y.shape:
            return False
        return bool(np.allclose(x, y, rtol=1e-5)) if x.dtype.kind == "f" else x.astype(str).tolist() == y.astype(str).tolist()

    return len(a) == len(b) and all(map(equal, a, b))


def _text(value: np.ndarray) -> str:
    if 0 in value.shape:
        return f"shape {list(value.shape)}"
    numbers = value.reshape(-1).tolist()
    if len(numbers) > 12:
        return ", ".join(f"{n:.4g}" for n in numbers[:9]) + " …"
    return ", ".join(f"{n:.4g}" if isinstance(n, float) else str(n) for n in numbers) + (f", shape {list(value.shape)}" if value.ndim != 1 and value.size < 4 else "")


def table() -> list[str]:
    """Returns the table's lines in Markdown."""
    lines = ["| what | ONNX's reference | onnxruntime | Treadle's answer is that of | why |", "|---|---|---|---|---|"]
    for point in POINTS:
        found = outcomes(point)
        theirs = _text(found["onnxruntime"][point.shown]) if found["onnxruntime"] else "refused"
        lines.append(f"| {point.title} | {_text(found['ONNX'][point.shown])} | {theirs} | {point.follows} | {point.reason} |")
    return lines


def page() -> str:
    """Returns the text of the page with the table as it should be."""
    text = PAGE.read_text()
    return "\n".join([text[: text.index(BEGIN)] + BEGIN, "", *table(), "", text[text.index(END) :]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; the exit status says whether the page is as it has to be")
    options = parser.parse_args()
    wanted = page()
    if options.check:
        return 0 if wanted == PAGE.read_text() else 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
