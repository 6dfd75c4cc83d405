"""Runs cases with Treadle, onnxruntime and ONNX's reference, and compares the results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import defs, helper
from onnx.reference import ReferenceEvaluator

import treadle
from draft import Case
from elementwise_makers import onnx_kinds

onnxruntime.set_default_logger_severity(4)
_KINDS = onnx_kinds()
_ORT_NEWEST = {"": 26, "ai.onnx.ml": 5, "com.microsoft": 1}
_ORT_DTYPES = {np.dtype(t) for t in ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "O")}
# The relative difference that two results may have, by dtype; a case's tolerance is a factor of it.
_RELATIVE = {"float32": 2e-6, "float64": 2e-12, "float16": 2e-3, "bfloat16": 1.6e-2}


@dataclass
class Result:
    """The outputs of a case, or the error that a runtime gave instead."""

    outputs: list[Any] | None
    error: str = ""


def _within(body: onnx.GraphProto, prefix: str) -> onnx.GraphProto:
    """Returns the body with its captures renamed to the names in the graph around it."""
    made = onnx.GraphProto()
    made.CopyFrom(body)
    for node in made.node:
        node.input[:] = [prefix + name[1:] if name.startswith("@") else name for name in node.input]
    return made


def _node(case: Case, prefix: str) -> tuple[onnx.NodeProto, list[str]]:
    names = ["" if x is None else f"{prefix}x{i}" for i, x in enumerate(case.inputs)]
    outputs = ["" if i in case.unwanted else f"{prefix}y{i}" for i in range(case.num_outputs)]
    attributes = {k: _within(v, prefix) if isinstance(v, onnx.GraphProto) else v for k, v in case.attributes.items()}
    return helper.make_node(case.op, names, outputs, name=prefix, domain=case.domain, **attributes), outputs


def _type(name: str, value: Any, declared: str = "all") -> onnx.ValueInfoProto:
    if isinstance(value, list):
        return helper.make_tensor_sequence_value_info(name, _KINDS[value[0].dtype], None)
    shapes = {
        "all": value.shape,
        "symbols": [f"{name}_{n}" for n in value.shape],  # equal extents get the same symbol
        "rank": [None] * value.ndim,
        "nothing": None,
    }
    return helper.make_tensor_value_info(name, _KINDS[value.dtype], shapes[declared])


def _tensor(value: np.ndarray, name: str) -> onnx.TensorProto:
    if value.dtype == np.object_:
        return helper.make_tensor(name, onnx.TensorProto.STRING, value.shape, [s.encode() for s in value.reshape(-1)])
    return onnx.numpy_helper.from_array(value, name)


def model_of(cases: Sequence[Case], opset: int, ir_version: int, constants: bool = True) -> tuple[bytes, dict[str, Any], list[list[str]]]:
    """Returns a model with a node for each case, its feeds, and the names of each case's outputs."""
    graph = onnx.GraphProto(name="cases")
    feeds: dict[str, Any] = {}
    outputs = []
    for number, case in enumerate(cases):
        node, names = _node(case, f"n{number}_")
        graph.node.append(node)
        names = [name for name in names if name]
        outputs.append(names)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        for i, value in enumerate(case.inputs):
            if value is None:
                continue
            name = node.input[i]
            if constants and case.constant[i]:
                graph.initializer.append(_tensor(value, name))
            else:
                graph.input.append(_type(name, value, case.declared_of(i)))
                feeds[name] = value if isinstance(value, list) else np.asarray(value)
        for i, value in enumerate(case.captured):
            graph.input.append(_type(f"n{number}_c{i}", value))
            feeds[f"n{number}_c{i}"] = value
    model = onnx.ModelProto(ir_version=ir_version, graph=graph)
    domain = cases[0].domain
    model.opset_import.append(helper.make_opsetid(domain, opset))
    if domain:
        model.opset_import.append(helper.make_opsetid("", 21))
    return model.SerializeToString(), feeds, outputs


def _text(error: Exception) -> str:
    text = str(error)  # in onnxruntime's errors the reason follows the signature of a function
    return (text if len(text) <= 900 else f"{text[:450]} … {text[-450:]}") or type(error).__name__


def _options(optimised: bool) -> treadle.SessionOptions:
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


_OPTIONS = {optimised: _options(optimised) for optimised in (False, True)}


def treadle_run(cases: Sequence[Case]) -> list[Result]:
    """Runs all cases as one model. If the model fails, runs the halves of the cases separately."""
    try:
        data, feeds, names = model_of(cases, cases[0].opset, 13)
        session = treadle.InferenceSession(data, _OPTIONS[cases[0].optimised])
        found = session.run(None, feeds)
    except (treadle.Error, ValueError, MemoryError) as error:  # NumPy raises ValueError for too large extents
        if len(cases) == 1:
            return [Result(None, _text(error))]
        middle = len(cases) // 2
        return treadle_run(cases[:middle]) + treadle_run(cases[middle:])
    values = iter(found)
    return [Result([next(values) for _ in each]) for each in names]


_ORT_OPTIONS = onnxruntime.SessionOptions()
_ORT_OPTIONS.intra_op_num_threads = 1
_ORT_OPTIONS.log_severity_level = 4
_ORT_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


# Kernels that onnxruntime was found to lack. Cases that need one are left out, because each would make its whole batch run again in halves. A
# child that replaces a dead one gets the kernels found so far.
no_kernel: set[tuple] = set()


def _kernel_of(case: Case) -> tuple:
    """Returns what onnxruntime selects a kernel by: operator, version, the operands' dtypes and the dtypes given by attributes."""
    operands = tuple(None if x is None else ("seq", *(e.dtype for e in x[:1])) if isinstance(x, list) else x.dtype for x in case.inputs)
    named = tuple(sorted((k, v) for k, v in case.attributes.items() if k == "to" or k.endswith("dtype")))
    return case.domain, case.op, case.since, operands, named, len(case.captured) > 0


def _is_empty_skip(case: Case) -> bool:
    return len(case.inputs) > 1 and case.inputs[1] is not None and case.inputs[1].size == 0


def _is_without_scales(case: Case) -> bool:
    return any(x is not None and x.size == 0 for x in case.inputs[1:4])


def _kills_onnxruntime(case: Case) -> bool:
    """True if onnxruntime 1.32.0 dies of a signal, never ends, or writes outside of its memory, after which the results of later cases are
    wrong."""
    shape, changed = np.shape(case.inputs[0]) if case.inputs and isinstance(case.inputs[0], np.ndarray) else (), " ".join(case.changes)
    if case.op in ("Div", "Mod"):  # the node divides the smallest integer by -1
        return case.inputs[0].dtype.kind == "i" and bool(np.any(case.inputs[1] == -1)) and bool(np.any(case.inputs[0] == np.iinfo(case.inputs[0].dtype).min))
    if case.op.startswith("Random"):
        return case.attributes.get("scale", 1) <= 0 or case.attributes.get("low", 0) > case.attributes.get("high", 1)
    if case.op.startswith("TreeEnsemble"):  # the nodes form a cycle, so the evaluation never ends
        return "nodeids" in changed
    deaths = {
        "AttnLSTM": lambda: bool(changed),  # the shapes do not match
        "BatchNormalization": lambda: case.attributes.get("training_mode", 0) != 0 and len(case.unwanted) > 0,
        "Conv": lambda: any(x.size == 0 for x in case.arrays()),
        # The node uses the default axis.
        "DFT": lambda: "axis" in changed or (case.since >= 20 and (len(case.inputs) < 3 or case.inputs[2] is None)),
        "DynamicQuantizeMatMul": lambda: _is_without_scales(case),
        "EmbedLayerNormalization": lambda: len(case.inputs) > 8 and bool(changed),  # position_ids have another shape
        "Einsum": lambda: any(x.size == 0 for x in case.arrays()),
        "GRU": lambda: 0 in shape,
        "GatherND": lambda: case.attributes.get("batch_dims", 0) < 0,
        "Inverse": lambda: len(shape) < 2 or shape[-1] != shape[-2],
        "InstanceNormalization": lambda: 0 in shape,
        "LSTM": lambda: 0 in shape,
        "MatMulIntegerToFloat": lambda: _is_without_scales(case),
        "MaxRoiPool": lambda: len(shape) != 4 or np.ndim(case.inputs[1]) != 2,
        "Multinomial": lambda: len(shape) != 2,
        "QLinearAveragePool": lambda: "extent" in changed,  # there are windows that contain only padding
        "QLinearWhere": lambda: "zero_point" in changed,
        "QMoE": lambda: "scales" in changed or "axis" in changed or len(shape) < 2,
        "ReverseSequence": lambda: len(shape) < 2,
        "RoiAlign": lambda: 0 in shape or len(shape) != 4,
        "RotaryEmbedding": lambda: 0 in shape,
        "SkipLayerNormalization": lambda: _is_empty_skip(case),
        "SkipSimplifiedLayerNormalization": lambda: _is_empty_skip(case),
        "STFT": lambda: any(words in changed for words in ("window given", "axis", "element")),
        "SequenceAt": lambda: np.size(case.inputs[1]) == 0,
        "SequenceInsert": lambda: len(case.inputs) > 2 and case.inputs[2] is not None and np.size(case.inputs[2]) == 0,
        "Split": lambda: "num_outputs" in changed,
        "SequenceErase": lambda: len(case.inputs) > 1 and case.inputs[1] is not None and np.size(case.inputs[1]) == 0,
        "Unique": lambda: 0 in shape,
        "Upsample": lambda: len(case.inputs) > 1 and np.ndim(case.inputs[1]) != 1,
        "Scan": lambda: any(x.size == 0 for x in case.arrays()),
        "WordConvEmbedding": lambda: any(x.size == 0 for x in case.arrays()),
    }
    return case.op in deaths and bool(deaths[case.op]())


def _takes_dtypes(case: Case) -> bool:
    """True if onnxruntime's binding accepts the dtypes of all operands that are fed."""
    fed = [x for x, constant in zip(case.inputs, case.constant) if x is not None and not constant] + case.captured
    return all(each.dtype in _ORT_DTYPES for x in fed for each in (x if isinstance(x, list) else [x]))


def onnxruntime_run(cases: Sequence[Case]) -> list[Result]:
    """Like `treadle_run`. A case gets no result if onnxruntime lacks its operator's version, dtype or kernel, or would die of it."""
    known = [
        c for c in cases
        if c.since <= _ORT_NEWEST.get(c.domain, 0) and _takes_dtypes(c) and _kernel_of(c) not in no_kernel and not _kills_onnxruntime(c)
    ]
    if not known:
        return [Result(None, "not known to onnxruntime") for _ in cases]
    results = iter(_onnxruntime_run(known))
    kept = {id(c) for c in known}
    return [next(results) if id(c) in kept else Result(None, "not known to onnxruntime") for c in cases]


def _onnxruntime_run(cases: Sequence[Case]) -> list[Result]:
    # Seeds random numbers of operators without a seed of their own, so that a case is the same in every run.
    onnxruntime.set_seed(cases[0].seed & 0x7FFFFFFF)
    try:
        opset = min(cases[0].opset, _ORT_NEWEST.get(cases[0].domain, 1))
        data, feeds, names = model_of(cases, opset, 10)
        session = onnxruntime.InferenceSession(data, _ORT_OPTIONS, providers=["CPUExecutionProvider"])
        found = session.run(None, feeds)
    except Exception as error:  # onnxruntime raises different classes for different failures
        if len(cases) == 1:
            if "Could not find an implementation" in str(error) and not any(isinstance(v, onnx.GraphProto) for v in cases[0].attributes.values()):
                no_kernel.add(_kernel_of(cases[0]))
            return [Result(None, _text(error))]
        middle = len(cases) // 2
        return _onnxruntime_run(cases[:middle]) + _onnxruntime_run(cases[middle:])
    values = iter(found)
    return [Result([next(values) for _ in each]) for each in names]


def reference_run(case: Case, widen: bool = False) -> Result:
    """Runs ONNX's reference. `widen`: it computes floats in a wider type, which tells rounding from mistakes."""
    np.random.seed(case.seed & 0x7FFFFFFF)
    operands = [widened(x) if widen and x is not None else x for x in case.inputs]
    wide = Case(**{**case.__dict__, "inputs": operands})
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            data, feeds, names = model_of([wide], case.opset, 13, constants=False)
            found = ReferenceEvaluator(onnx.load_from_string(data)).run(None, feeds)
        except Exception as error:  # any error: the reference is a judge, and is not tested
            return Result(None, _text(error))
    outputs = []
    for value in found:
        array = np.asarray(value) if not isinstance(value, list) else value
        outputs.append(array)
    return Result(outputs)


_WIDER = {"float32": np.float64, "float16": np.float32, "bfloat16": np.float32}


def widened(value: np.ndarray) -> np.ndarray:
    return value.astype(_WIDER[value.dtype.name]) if value.dtype.name in _WIDER else value


def explained_by_rounding(case: Case, ours: Sequence[Any], wide: Sequence[Any]) -> bool:
    """True if changing the operands in their last bits changes the exact results by as much as `ours` differ from them: the terms of a sum
    cancel."""
    random = np.random.default_rng(case.seed)
    spread = [np.zeros(np.shape(y)) for y in wide]
    for _ in range(4):
        operands = [_nudged(x, random) if x is not None and x.dtype.name in _WIDER else x for x in case.inputs]
        moved = reference_run(Case(**{**case.__dict__, "inputs": operands})).outputs
        if moved is None or any(np.shape(a) != np.shape(b) or np.asarray(a).dtype.kind != "f" for a, b in zip(moved, wide)):
            return False
        with np.errstate(all="ignore"):
            spread = [np.fmax(s, np.abs(np.asarray(a, np.float64) - b)) for s, a, b in zip(spread, moved, wide)]
    for a, b, s in zip(ours, wide, spread):
        x, y = np.asarray(a).astype(np.float64), np.asarray(b, np.float64)
        if x.shape != y.shape:
            return False
        with np.errstate(all="ignore"):
            near = np.abs(x - y) <= 16 * s + _RELATIVE[np.asarray(a).dtype.name] * np.abs(y)
        if not ((x == y) | (np.isnan(x) & np.isnan(y)) | near).all():
            return False
    return True


def _nudged(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return widened(value) * (1 + float(ml_dtypes.finfo(value.dtype).eps) * random.uniform(-1, 1, value.shape))


def can_widen(case: Case) -> bool:
    """True if all floats of the case have one type, and the reference can compute them in a wider one."""
    floats = {x.dtype.name for x in case.arrays() if x.dtype.kind == "f" or x.dtype == ml_dtypes.bfloat16}
    if case.captured or any(isinstance(x, list) for x in case.inputs):
        return False
    return len(floats) == 1 and floats <= set(_WIDER) and not case.op.startswith(("Cast", "BitCast", "Quantize", "Dequantize"))


def only_cut(case: Case, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """True if resized integers differ by at most 1, and only where the exact result is so close to a whole number, or to a half, that rounding
    errors decide."""
    if case.op not in ("Resize", "Upsample") or len(ours) != 1 or np.shape(ours[0]) != np.shape(theirs[0]) or np.asarray(ours[0]).dtype.kind not in "iu":
        return False
    exact = onnxruntime_run([replace(case, inputs=[case.inputs[0].astype(np.float32), *case.inputs[1:]])])[0].outputs
    if exact is None:
        return False
    a, b = (np.asarray(x[0], np.int64) for x in (ours, theirs))
    halves = exact[0] * (2 if case.attributes.get("antialias") else 1)  # with antialiasing, results are rounded instead of truncated
    whole = np.abs(halves - np.round(halves)) < 1e-4 * np.maximum(1, np.abs(halves))
    return bool(((a == b) | ((np.abs(a - b) == 1) & whole)).all())


def difference(ours: Any, theirs: Any, tolerance: float, any_float: bool = False, steps: int = 0) -> str:
    """Says how two outputs differ; an empty string if they are the same."""
    if isinstance(ours, list) or isinstance(theirs, list):
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            return "sequences differ in length, or one is none"
        return next((f"element {i}: {text}" for i, pair in enumerate(zip(ours, theirs)) if (text := difference(*pair, tolerance, any_float))), "")
    a, b = np.asarray(ours), np.asarray(theirs)
    if a.shape != b.shape:
        return f"shape {list(a.shape)} against {list(b.shape)}"
    if a.dtype.kind in "OU" or b.dtype.kind in "OU":
        same = [str(x) for x in a.reshape(-1)] == [str(x) for x in b.reshape(-1)]
        return "" if same else "strings differ"
    if a.dtype != b.dtype and not (any_float and a.dtype.name in _RELATIVE):
        return f"dtype {a.dtype} against {b.dtype}"
    if a.dtype.name not in _RELATIVE:
        if a.dtype.name.startswith("float"):
            a, b = a.astype(np.float64), b.astype(np.float64)
            bad = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        elif steps and a.dtype.kind in "iu":
            bad = np.abs(a.astype(np.int64) - b.astype(np.int64)) > steps
        else:
            bad = a != b
        return _first(a, b, bad)
    relative = _RELATIVE[a.dtype.name] * tolerance
    with np.errstate(all="ignore"):
        if any_float and b.dtype.name in _RELATIVE and a.dtype.itemsize > b.dtype.itemsize:
            relative = _RELATIVE[b.dtype.name] * tolerance
        elif any_float:
            b = b.astype(a.dtype)
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.abs(y[np.isfinite(y)])
        # The terms of a sum may be as large as the largest output, so rounding errors are relative to the largest output, not to each element.
        size = min(max(float(finite.max()), 1e-2), 1e4) if finite.size and tolerance > 1 else 1e-2
        allowed = relative * (np.abs(y) + size) + (float(ml_dtypes.finfo(a.dtype).tiny))
        bad = ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= allowed))
    return _first(a, b, bad)


def _first(a: np.ndarray, b: np.ndarray, bad: np.ndarray) -> str:
    if not bad.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} differ, first at {list(where)}: {a[where]} against {b[where]}"


def same_distributions(ours: Sequence[Any], theirs: Sequence[Any]) -> str:
    """Says how random outputs differ in type or shape, or that their distributions differ (Kolmogorov-Smirnov test); an empty string if they do
    not."""
    for i, (a, b) in enumerate(zip(map(np.asarray, ours), map(np.asarray, theirs))):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {i}: {a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
        if not a.size:
            continue
        x, y = np.sort(a.astype(np.float64).reshape(-1)), np.sort(b.astype(np.float64).reshape(-1))
        points = np.concatenate([x, y])
        distance = np.abs(np.searchsorted(x, points, "right") / x.size - np.searchsorted(y, points, "right") / y.size).max()
        if distance > 2.7 * np.sqrt((x.size + y.size) / (x.size * y.size)):  # exceeded by chance in one of a million cases
            return f"output {i}: distributions are {distance:.3f} apart"
    return ""


def all_same(ours: Sequence[Any], theirs: Sequence[Any], tolerance: float, any_float: bool = False, steps: int = 0) -> str:
    """Says how the outputs of two runs differ; an empty string if they are the same."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outputs against {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs)):
        found = difference(a, b, tolerance, any_float, steps)
        if found:
            return f"output {i}: {found}"
    return ""


def same_as_either(ours: Sequence[Any], narrow: Sequence[Any], wide: Sequence[Any], tolerance: float) -> bool:
    """True if each element equals that of one of two results. Of the steps of a chain, some runtimes round intermediate results and others do
    not."""
    if len(ours) != len(narrow) or any(isinstance(x, list) or np.shape(x) != np.shape(y) for x, y in zip(ours, narrow)):
        return False
    mixed = []
    for a, b, c in zip(ours, narrow, wide):
        x, y = np.asarray(a), np.asarray(b)
        if x.dtype.name not in _RELATIVE or np.shape(c) != x.shape:
            return False
        with np.errstate(all="ignore"):
            p, q = x.astype(np.float64), y.astype(np.float64)
            near = (p == q) | (np.isnan(p) & np.isnan(q)) | (np.abs(p - q) <= _RELATIVE[x.dtype.name] * tolerance * np.abs(q))
        mixed.append(np.where(near, p, np.asarray(c, np.float64)))
    return not all_same(ours, mixed, tolerance, any_float=True)


def schema_of(op: str, domain: str, opset: int) -> defs.OpSchema:
    return defs.get_schema(op, opset, domain)
