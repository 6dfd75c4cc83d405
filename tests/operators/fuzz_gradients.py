#!/usr/bin/env python3
"""Fuzzes gradient rules: random cases of every operator that has a maker, by finite differences in float64 and, where it has the operator, by PyTorch.

    tests/operators/fuzz_gradients.py [--cases 10000] [--seed 0] [--ops Gather,Slice]

A case is a node with operands and attributes that the operator fuzzer's makers draw, all floats float64. Its gradients are those of a sum of
its outputs with random weights: for every float operand the derivative along a random direction has to be the central difference's. Points
where two steps of a difference disagree are kinks or poles; they are counted, not judged. Operators that compute float64 in single precision
(RNN, GRU, LSTM) are differentiated by PyTorch instead.
"""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import treadle
from onnx import helper
from treadle import executor

import torch_gradients
from draft import Case, Choices, Draft, Rejected
from fuzz_operators import MAKERS, NEWEST
from judges import _KINDS, _node, _tensor
from onnx import defs

# Operators that are constant almost everywhere, or random.
FLAT = {"Floor", "Ceil", "Round", "Sign", "Hardmax", "EyeLike", "Bernoulli", "RandomNormalLike", "RandomUniformLike"}
# Other numbers in every run, weights that steps decide, and a scale that follows the range of the data but counts as a constant.
UNJUDGED = {"Dropout", "DynamicQuantizeLinear", "MelWeightMatrix"}
# Operands that are no points to differentiate at: they count, order or switch.
FIXED = {
    "NonMaxSuppression": {0, 1, 2, 3, 4},
    "RoiAlign": {1},
    "MaxRoiPool": {1},
    "Resize": {1, 2},
    "Upsample": {1},
    "Dropout": {1, 2},
    "BatchNormalization": {3, 4},
    "OneHot": {0, 1},
    "Pow": {1},
    "Range": {1},
    "RotaryEmbedding": {1, 2},
    "NegativeLogLikelihoodLoss": {2},
    "SoftmaxCrossEntropyLoss": {2},
}
LIMIT = 700  # elements of all differentiated operands


class SmoothDraft(Draft):
    """A draft of float64, without edge values; small numbers."""

    def __init__(self, schema: defs.OpSchema, choices: Choices, opset: int) -> None:
        super().__init__(schema, choices, opset)
        self.edges = False

    def dtype(self, of, only=None):
        parameter = of if isinstance(of, str) else self.schema.inputs[min(of, len(self.schema.inputs) - 1)].type_str
        if parameter not in self._dtypes and "tensor(double)" in self._allowed.get(parameter, []) and (only is None or np.dtype(np.float64) in [np.dtype(o) for o in only]):
            self._dtypes[parameter] = np.dtype(np.float64)
        return super().dtype(of, only)

    def array(self, dtype, shape, low=-4, high=4, edges=None):
        if np.dtype(dtype).kind != "f":
            return super().array(dtype, shape, low, high, False)
        values = np.random.default_rng(self.below(1 << 16))
        return values.uniform(max(low, -4), min(high, 4), shape).astype(dtype)


@dataclass
class Tally:
    verdicts: collections.Counter = field(default_factory=collections.Counter)
    ops: dict[str, collections.Counter] = field(default_factory=lambda: collections.defaultdict(collections.Counter))
    findings: list[str] = field(default_factory=list)

    def add(self, case: Case, verdict: str, text: str = "") -> None:
        self.verdicts[verdict] += 1
        self.ops[case.op][verdict] += 1
        if verdict in ("wrong", "refused"):
            self.findings.append(f"{verdict}: {case} seed {case.seed}\n    {text[:600]}")


def make_case(op: str, opset: int, seed: int) -> Case | None:
    choices = Choices(seed)
    try:
        draft = SmoothDraft(defs.get_schema(op, opset, ""), choices, opset)
        MAKERS["", op](draft)
        case = draft.finish(opset)
    except Rejected:
        return None
    if case.is_random or case.captured or any(isinstance(x, list) for x in case.inputs):
        return None  # draws, bodies and sequences
    case.seed = seed
    return case


def differentiated(case: Case) -> list[int]:
    fixed = FIXED.get(case.op, set())
    return [i for i, x in enumerate(case.inputs) if x is not None and x.dtype in (np.float64, np.float32) and i not in fixed]


def models(case: Case, wanted: Sequence[int], symbolic: bool) -> tuple[bytes, bytes, list[str]]:
    """The node with operands of float64 as inputs, and the same behind casts from float32, as gradients are taken of float32."""
    built = []
    for casts in (False, True):
        graph = onnx.GraphProto(name="case")
        node, names = _node(case, "n_")
        for i, value in enumerate(case.inputs):
            if value is None:
                continue
            name = node.input[i]
            if i not in wanted:
                graph.initializer.append(_tensor(value, name))
                continue
            shape = [f"s{i}_{a}" if symbolic else n for a, n in enumerate(value.shape)]
            if not casts or value.dtype == np.float32:
                graph.input.append(helper.make_tensor_value_info(name, _KINDS[value.dtype], shape))
            else:
                graph.input.append(helper.make_tensor_value_info(name + "_32", onnx.TensorProto.FLOAT, shape))
                graph.node.append(helper.make_node("Cast", [name + "_32"], [name], to=onnx.TensorProto.DOUBLE))
        graph.node.append(node)
        for name in names:
            graph.output.append(onnx.ValueInfoProto(name=name))
        model = onnx.ModelProto(ir_version=13, graph=graph)
        model.opset_import.append(helper.make_opsetid("", case.opset))
        built.append(model)
    return built[0], built[1], names


_OPTIONS = treadle.SessionOptions()
_OPTIONS.intra_op_num_threads = 1


def judge(case: Case, tally: Tally, symbolic: bool = False) -> None:
    wanted = differentiated(case)
    if not wanted or case.op in FLAT | UNJUDGED or sum(case.inputs[i].size for i in wanted) > LIMIT or any(case.inputs[i].size == 0 for i in wanted):
        return
    random = np.random.default_rng(case.seed)
    for i in wanted:  # numbers that float32 has, away from ties
        x = case.inputs[i]
        x += random.uniform(-0.02, 0.02, x.shape) * (np.abs(x) + 0.1) * (case.op not in ("GroupNormalization",))
        case.inputs[i] = np.asarray(x.astype(np.float32).astype(x.dtype))
    plain, cast, names = models(case, wanted, symbolic)
    try:
        forward = treadle.InferenceSession(plain.SerializeToString(), _OPTIONS)
        feeds = {forward_name(plain, k): case.inputs[i] for k, i in enumerate(wanted)}
        outputs = forward.run(None, feeds)
    except (treadle.Error, ValueError):
        return tally.add(case, "invalid")
    floats = [k for k, y in enumerate(outputs) if isinstance(y, np.ndarray) and y.dtype in (np.float64, np.float32) and y.size]
    if any(outputs[k].dtype == np.float64 for k in floats):  # differences of single precision say little
        floats = [k for k in floats if outputs[k].dtype == np.float64]
    if not floats or not all(np.isfinite(outputs[k]).all() for k in floats):
        return tally.add(case, "invalid")
    weights = {k: random.uniform(0.5, 1.5, outputs[k].shape) for k in floats}
    # y = sum of all outputs times their weights, inside of the model.
    total = []
    for k in floats:
        name = f"w{k}"
        cast.graph.initializer.append(_tensor(weights[k].astype(outputs[k].dtype), name))
        cast.graph.node.append(helper.make_node("Mul", [names[k], name], [name + "_y"]))
        cast.graph.node.append(helper.make_node("Cast", [name + "_y"], [name + "_c"], to=onnx.TensorProto.DOUBLE))
        flat = name + "_f"
        cast.graph.initializer.append(helper.make_tensor("minus" + name, onnx.TensorProto.INT64, [1], [-1]))
        cast.graph.node.append(helper.make_node("Reshape", [name + "_c", "minus" + name], [flat]))
        total.append(flat)
    cast.graph.node.append(helper.make_node("Concat", total, ["all"], axis=0))
    cast.graph.node.append(helper.make_node("Cast", ["all"], ["y"], to=onnx.TensorProto.FLOAT))
    del cast.graph.output[:]
    cast.graph.output.append(onnx.ValueInfoProto(name="y"))
    args = {i.name: case.inputs[w].astype(np.float32) for i, w in zip(cast.graph.input, wanted)}
    try:
        bound = executor.bind(cast, args, options=_OPTIONS, grad_req={n: "write" for n in args})
        bound.forward(is_train=True)
        bound.backward([np.ones(bound.outputs[0].shape, np.float32)])
        grads = [np.array(bound.grad_dict[i.name], np.float64) for i in cast.graph.input]
    except (treadle.Error, ValueError) as error:
        return tally.add(case, "refused", str(error))
    expected = torch_gradients.gradients(case, weights, floats, wanted)
    if expected is not None:
        for i, got, want in zip(wanted, grads, expected):
            scale = np.abs(want).max(initial=0) + 1e-3
            if not np.allclose(got, want, rtol=2e-6, atol=2e-6 * scale):
                return tally.add(case, "wrong", f"operand {i} by PyTorch: {got.ravel()[:6]} for {want.ravel()[:6]}, off by {np.abs(got - want).max() / scale}")
        tally.verdicts["torch"] += 1
        tally.ops[case.op]["torch"] += 1
    if case.op in torch_gradients.ONLY:
        return tally.add(case, "same")

    def objective(i: int, direction: np.ndarray, step: float) -> float:
        moved = {**feeds}
        name = forward_name(plain, wanted.index(i))
        moved[name] = np.asarray((case.inputs[i].astype(np.float64) + step * direction).astype(case.inputs[i].dtype))
        return sum(float(np.vdot(np.asarray(y, np.float64), weights[k])) for k, y in enumerate(forward.run(None, moved)) if k in weights)

    single = all(outputs[k].dtype == np.float32 for k in floats)  # whose rounding a small step does not outgrow
    start, agreement, tolerance = (2e-2, 2e-3, 5e-3) if single else (1e-5, 2e-5, 5e-5)
    kinks = 0
    for i, got in zip(wanted, grads):
        direction = random.uniform(-1, 1, case.inputs[i].shape)
        slopes = [(objective(i, direction, h) - objective(i, direction, -h)) / (2 * h) for h in (start, start / 4)]
        found = float(np.vdot(got, direction))
        scale = float(np.abs(got * direction).sum()) + abs(objective(i, direction, 0)) * 1e-5 + 1e-3
        if not np.isfinite(slopes).all() or abs(slopes[0] - slopes[1]) > agreement * (scale + abs(slopes[0])):
            kinks += 1
            continue
        if not abs(found - slopes[1]) <= tolerance * (scale + abs(slopes[1])):
            return tally.add(case, "wrong", f"operand {i}: {found} along a direction, by differences {slopes}")
    tally.add(case, "kink" if kinks == len(wanted) else "same")


def forward_name(model: onnx.ModelProto, k: int) -> str:
    return model.graph.input[k].name


def fuzz(seeds: Sequence[int], chosen: frozenset[str] = frozenset()) -> Tally:
    """One case of every operator for each seed."""
    tally = Tally()
    names = sorted(op for domain, op in MAKERS if domain == "" and (not chosen or op in chosen))
    for seed in seeds:
        for op in names:
            choices = Choices(seed)
            opset = NEWEST[""] if choices.below(3) else 7 + choices.below(NEWEST[""] - 6)
            if not defs.has(op, opset, "") or defs.get_schema(op, opset, "").deprecated:
                continue
            case = make_case(op, opset, seed * 1000 + names.index(op))
            if case is not None:
                judge(case, tally, symbolic=choices.below(3) == 0)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20, help="of each operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ops", default="")
    arguments = parser.parse_args()
    tally = fuzz(range(arguments.seed, arguments.seed + arguments.cases), frozenset(filter(None, arguments.ops.split(","))))
    print("\n".join(tally.findings))
    print(dict(tally.verdicts))
    print({op: dict(found) for op, found in sorted(tally.ops.items()) if set(found) - {"same", "kink", "torch"}})
    print("not judged:", sorted(op for domain, op in MAKERS if domain == "" and op not in tally.ops))
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
