"""Draws the cases of the gradients' fuzzer: nodes by the operator fuzzer's makers, with numbers at which functions can be differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from onnx import defs

import gradient_makers
import microsoft_makers
from draft import DTYPES, Case, Choices, Draft, Rejected
from fuzz_operators import MAKERS as OPERATOR_MAKERS, NEWEST

MAKERS = {**{op: make for (domain, op), make in OPERATOR_MAKERS.items() if domain == ""}, **gradient_makers.MAKERS}
MICROSOFT = "com.microsoft."  # prefix of the names of this domain's operators
# Operators whose outputs are constant almost everywhere, or random.
FLAT = {"Floor", "Ceil", "Round", "Sign", "Hardmax", "EyeLike", "Bernoulli", "RandomNormalLike", "RandomUniformLike"}
# Operators without floats among their operands or without floats among their outputs.
NO_FLOATS = set(
    """And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Constant ConstantOfShape ConvInteger Equal Greater
    GreaterOrEqual HammingWindow HannWindow IsInf IsNaN Less LessOrEqual MatMulInteger Multinomial NonZero Not Or RandomNormal RandomUniform
    RegexFullMatch SequenceLength Shape Size StringConcat StringNormalizer StringSplit TfIdfVectorizer Xor""".split()
)
# Operators whose gradients differ from finite differences or do not exist. MelWeightMatrix is a step function, and NonMaxSuppression returns indices.
# Gradients treat a scale that follows the data as a constant (DynamicQuantizeLinear), and pass through rounding unchanged (the others).
UNJUDGED = {"DynamicQuantizeLinear", "MelWeightMatrix", "QuantizeLinear", "QLinearConv", "QLinearMatMul", "NonMaxSuppression"}
# Operands by which no gradient is checked, because they are counts, positions or switches.
FIXED = {
    "com.microsoft.CropAndResize": {1},
    "com.microsoft.RotaryEmbedding": {2, 3},
    "com.microsoft.Pad": {2},
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
LIMIT = 700  # limit of the number of elements of all differentiated operands of a case
FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


class SmoothDraft(Draft):
    """Drafts cases in float64, with small numbers and without edge values."""

    def __init__(self, schema: defs.OpSchema, choices: Choices, opset: int) -> None:
        super().__init__(schema, choices, opset)
        self.edges = False

    def pick(self, options):
        found = super().pick(options)
        return np.float64 if isinstance(found, type) and any(o is np.float64 for o in options) else found

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


def make_case(op: str, opset: int, seed: int) -> Case | None:
    choices = Choices(seed)
    try:
        if op.startswith(MICROSOFT):
            case = microsoft_makers.make_case(op.removeprefix(MICROSOFT), opset, choices)
            case.seed = seed
            return case
        draft = SmoothDraft(defs.get_schema(op, opset, ""), choices, opset)
        MAKERS[op](draft)
        case = draft.finish(opset)
    except Rejected:
        return None
    if case.is_random or (case.op == "BatchNormalization" and case.since < 14):  # trainers keep no float64 statistics
        return None
    if case.op == "BatchNormalization":  # in trainers it has one output, and float32 statistics
        case.num_outputs = 1
        case.inputs[3:] = [np.asarray(value, np.float32) for value in case.inputs[3:]]
    case.seed = seed
    return case


def operands(case: Case) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields all values that a case reads: name, number of the operand (-1: captured by a body), array."""
    for i, value in enumerate(case.inputs):
        if isinstance(value, list):
            yield from ((f"x{i}_{j}", i, element) for j, element in enumerate(value))
        elif value is not None:
            yield f"x{i}", i, value
    yield from ((f"c{j}", -1, value) for j, value in enumerate(case.captured))


def replace_operands(case: Case, change) -> None:
    """Replaces each operand by change(name, number, array)."""
    for i, value in enumerate(case.inputs):
        if isinstance(value, list):
            case.inputs[i] = [change(f"x{i}_{j}", i, element) for j, element in enumerate(value)]
        elif value is not None:
            case.inputs[i] = change(f"x{i}", i, value)
    case.captured = [change(f"c{j}", -1, value) for j, value in enumerate(case.captured)]


def name_of(case: Case) -> str:
    return f"{case.domain}.{case.op}" if case.domain else case.op


def operators(opset: int) -> list[str]:
    """Returns the operators of an opset and those of com.microsoft whose gradients are checked."""
    found = [op for op in sorted(MAKERS) if op not in FLAT | UNJUDGED | NO_FLOATS and defs.has(op, opset, "")]
    return [op for op in found if not defs.get_schema(op, opset, "").deprecated] + [MICROSOFT + op for op in sorted(microsoft_makers.MAKERS)]


def differentiable(case: Case) -> list[str]:
    fixed = FIXED.get(name_of(case), set())
    return [name for name, i, value in operands(case) if value.dtype in FLOATS and i not in fixed]


def narrow_dtypes(case: Case) -> list[Any]:
    """Returns the dtypes that a second node may have instead of float64."""
    if case.domain or case.captured or any(isinstance(x, list) for x in case.inputs) or case.op in ("Cast", "CastLike", "BitCast", "Range") or "body" in case.attributes:
        return []
    if case.op == "MeanVarianceNormalization" and np.prod([case.inputs[0].shape[a] for a in case.attributes.get("axes", [0, 2, 3])]) < 3:
        return []  # two elements always deviate equally from their mean, so the gradient consists of rounding errors
    schema = defs.get_schema(case.op, case.opset, case.domain)
    parameters = {schema.inputs[min(i, len(schema.inputs) - 1)].type_str for i, x in enumerate(case.inputs) if x is not None and x.dtype == np.float64}
    allowed = [set(c.allowed_type_strs) for c in schema.type_constraints if c.type_param_str in parameters]
    if not allowed or len(allowed) != len(parameters):
        return []
    return [DTYPES[name] for name in ("float", "float16", "bfloat16") if all(f"tensor({name})" in types for types in allowed)]


def settle(case: Case, narrow: Any) -> None:
    """Moves float operands away from ties, and rounds them to numbers that float32 and, unless it is None, `narrow` can represent."""
    random = np.random.default_rng(case.seed)
    wanted = set(differentiable(case))
    moves = case.op != "GroupNormalization"

    def change(name: str, i: int, x: np.ndarray) -> np.ndarray:
        if x.dtype not in FLOATS or (name not in wanted and narrow is None):
            return x
        y = x
        if name in wanted:
            y = y + random.uniform(-0.02, 0.02, x.shape) * (np.abs(x) + 0.1) * moves
        y = np.asarray(y).astype(np.float32)
        if case.op == "Mod" and name == "x1":  # the gradient is a sawtooth function with teeth of about b * b / a
            y = np.where(np.abs(y) < 0.1, np.float32(0.5), y)
        return np.asarray((y if narrow is None else y.astype(narrow)).astype(x.dtype))

    replace_operands(case, change)


def eps(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


__all__ = ["FIXED", "FLAT", "FLOATS", "LIMIT", "MAKERS", "NEWEST", "UNJUDGED", "differentiable", "eps", "make_case", "name_of", "narrow_dtypes", "operands", "operators", "settle"]
