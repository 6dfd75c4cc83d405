"""Draws nodes with operands for elementwise operators, reductions, conversions and quantisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from draft import DTYPES, Draft

# The intervals from which operands are drawn, for functions that are not defined everywhere.
_DOMAINS = {"Acos": (-1, 1), "Asin": (-1, 1), "Atanh": (-0.999, 0.999), "Acosh": (1, 20), "Log": (0, 20), "Sqrt": (0, 20)}
_BITS = {np.dtype(np.int8): 8, np.dtype(np.uint8): 8, np.dtype(np.uint16): 16, np.dtype(np.uint32): 32, np.dtype(np.uint64): 64}


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name in ("bfloat16",)


def unary(d: Draft) -> None:
    low, high = _DOMAINS.get(d.schema.name, (-6, 6))
    d.tolerance = 30 if d.schema.name in ("Gelu", "Swish", "Mish") else 1  # 1 + erf(x), 1 + tanh(x) and the like lose digits for x far below 0
    dtype = d.dtype(0)
    if dtype.kind == "u":
        low = max(low, 0)
    d.add(d.array(dtype, d.shape(), low, high, edges=d.edges if is_float(dtype) or dtype.kind in "iu" else False))
    for name, attribute in d.schema.attributes.items():
        if attribute.type.name == "FLOAT":
            d.maybe(name, lambda: d.fraction(-1, 2), 0.4)
    if d.schema.name == "Gelu":
        d.maybe("approximate", lambda: d.pick(["none", "tanh"]))
    if d.schema.name == "IsInf":
        d.maybe("detect_negative", lambda: d.below(2))
        d.maybe("detect_positive", lambda: d.below(2))
    if d.schema.name == "ThresholdedRelu":
        d.attributes.pop("alpha", None)
        d.maybe("alpha", lambda: d.fraction(0, 2))
    if d.schema.name == "Celu":
        d.attributes.pop("alpha", None)
        d.maybe("alpha", lambda: d.fraction(0.5, 2))


def _pair(d: Draft) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a = d.shape()
    b = d.partner(a) if d.since >= 7 else a
    return (b, a) if d.flip(0.4) else (a, b)


def binary(d: Draft) -> None:
    dtype = d.dtype(0)
    a, b = _pair(d)
    op = d.schema.name
    if op == "Pow":
        exponent = d.dtype(1)
        base = d.array(dtype, a, -3, 3, edges=d.edges and is_float(dtype))
        low = 0 if dtype.kind in "iu" and not is_float(dtype) else -3
        d.add(base)
        d.add(d.array(exponent, b, low if exponent.kind != "u" else 0, 3, edges=d.edges and is_float(exponent) and is_float(dtype)))
        return
    d.add(d.array(dtype, a))
    second = d.array(dtype, b, edges=d.edges and (op not in ("Div", "Mod") or is_float(dtype)))
    if op in ("Div", "Mod") and not is_float(dtype):
        second = np.where(second == 0, np.array(3).astype(dtype), second).astype(dtype)  # integer division by 0 has no defined result
    d.add(second)
    if op == "Mod":
        if is_float(dtype):
            d.attributes["fmod"] = 1
        else:
            d.maybe("fmod", lambda: d.below(2))


def bit_shift(d: Draft) -> None:
    dtype = d.dtype(0)
    a, b = _pair(d)
    d.add(d.array(dtype, a, 0, 100, edges=True))
    d.add(d.array(dtype, b, 0, _BITS.get(dtype, 8) - 1))
    d.attributes["direction"] = d.pick(["LEFT", "RIGHT"])


def bitwise(d: Draft) -> None:
    dtype = d.dtype(0)
    a, b = _pair(d)
    d.add(d.array(dtype, a, -100, 100, edges=True))
    if len(d.schema.inputs) > 1:
        d.add(d.array(dtype, b, -100, 100, edges=True))


def variadic(d: Draft) -> None:
    dtype = d.dtype(0)
    shape = d.shape()
    for i in range(d.number(1, 4)):
        of = shape if i == 0 or d.since < 8 else d.partner(shape)
        if i and d.since >= 8:
            try:
                of = np.broadcast_shapes(of, shape) and of
            except ValueError:
                of = shape
        d.add(d.array(dtype, of, edges=d.edges and is_float(dtype)))
    try:
        np.broadcast_shapes(*(x.shape for x in d.inputs))
    except ValueError:
        d.reject_if(True)


def where(d: Draft) -> None:
    dtype = d.dtype(1)
    a, b = _pair(d)
    d.add(d.array(np.bool_, d.narrower(np.broadcast_shapes(a, b))))
    d.add(d.array(dtype, a))
    d.add(d.array(dtype, b))


def clip(d: Draft) -> None:
    dtype = d.dtype(0)
    d.add(d.array(dtype, d.shape()))
    if d.since >= 11:
        for _ in range(2):
            d.add(d.array(dtype, (), -3, 3) if d.flip(0.7) else None)
    else:
        d.maybe("min", lambda: d.fraction(-3, 3))
        d.maybe("max", lambda: d.fraction(-3, 3))


def prelu(d: Draft) -> None:
    dtype = d.dtype(0)
    shape = d.shape(1)
    d.add(d.array(dtype, shape))
    d.add(d.array(dtype, d.narrower(shape) if d.since >= 7 else (1,)))


def reduction(d: Draft) -> None:
    dtype = d.dtype(0)
    shape = d.shape()
    d.tolerance = 4
    positive = d.schema.name in ("ReduceLogSum",)
    # Sums of squares and products of large integers would overflow.
    low, high = (0, 4) if positive or dtype.kind == "u" else (-3, 3)
    if d.schema.name == "ReduceProd":
        low, high = max(low, -1), 2
    d.add(d.array(dtype, shape, low, high))
    axes = d.axes(len(shape), 0, negative=d.since >= 11) if d.flip(0.8) else None
    if d.has_input("axes"):
        if axes is not None:
            d.add(d.ints(axes))
        d.maybe("noop_with_empty_axes", lambda: d.below(2), 0.3)
    elif axes:
        d.attributes["axes"] = axes
    d.maybe("keepdims", lambda: d.below(2))


def arg_reduction(d: Draft) -> None:
    shape = d.shape(1)
    axis = d.axis(len(shape), d.since >= 11)
    d.reject_if(shape[axis] == 0)
    d.add(d.array(d.dtype(0), shape, edges=False))
    d.maybe("axis", axis) if shape[0] else d.attributes.update(axis=axis)
    d.maybe("keepdims", lambda: d.below(2))
    d.maybe("select_last_index", lambda: d.below(2))


def softmax(d: Draft) -> None:
    d.tolerance = 4
    shape = d.shape(1)
    d.add(d.array(d.dtype(0), shape, edges=d.edges and d.schema.name != "Hardmax"))
    axis = d.axis(len(shape), d.since >= 11)
    if len(shape) < 2 or d.flip(0.8):
        d.attributes["axis"] = axis


def cumulative(d: Draft) -> None:
    shape = d.shape(1)
    d.tolerance = 4
    d.add(d.array(d.dtype(0), shape, -2, 2))
    axis = d.axis(len(shape))
    d.add(np.array(axis if d.flip(0.7) else [axis], d.dtype(1)))
    d.maybe("exclusive", lambda: d.below(2))
    d.maybe("reverse", lambda: d.below(2))


def cast(d: Draft) -> None:
    d.reject_if(d.since < 6)  # in these opsets the attribute `to` is a string
    names = [t[7:-1] for t in sorted(d.schema.type_constraints[1].allowed_type_strs) if t[7:-1] in DTYPES]
    source = d.dtype(0)
    to = d.pick(names)
    target = np.dtype(DTYPES[to])
    d.reject_if("string" in (to, source.name) or target == np.object_ or source == np.object_)
    # The conversion of a number outside an integer type's range has no defined result.
    low, high = -4.0, 4.0
    if not is_float(target) and target != np.bool_ and "float" not in target.name:
        info = np.iinfo(target) if target.kind in "iu" else ml_dtypes.iinfo(target)
        low, high = max(-100, info.min), min(100, info.max)
    integral = source.kind in "iu" or source.name in ("int4", "uint4", "int2", "uint2")
    edges = d.edges and ("float" in target.name or target == np.bool_) and source.name[:7] not in ("float8_", "float4_", "float6_")
    if "e8m0" in source.name + target.name:
        low, high = max(low, 1), min(high, 4)  # float8e8m0 has only powers of two: no zero, no negative numbers
        edges = False
    elif "float8" in source.name or "float4" in source.name:
        low, high = max(low, -4), min(high, 4)
    d.add(d.array(source, d.shape(), low, high, edges=edges and not integral))
    kinds = onnx_kinds()
    if d.schema.name == "CastLike":
        d.add(d.array(target, (1,), 0, 1, edges=False))
    else:
        d.attributes["to"] = kinds[target]
    d.maybe("saturate", lambda: d.below(2), 0.4)
    d.maybe("round_mode", lambda: d.pick(["up", "down", "nearest"]), 0.2) if "e8m0" in target.name else None


def onnx_kinds() -> dict[np.dtype, int]:
    """Returns ONNX's number of each element type, by dtype."""
    import onnx

    return {np.dtype(t): onnx.TensorProto.DataType.Value(name.upper()) for name, t in DTYPES.items()}


def _quantised_shape(d: Draft) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Returns the shape of the values, the shape of their scales, and the axis of the scales."""
    shape = d.shape(1)
    axis = d.axis(len(shape))
    kind = d.below(3)
    if kind == 1 and d.has_attribute("axis"):
        return shape, (shape[axis],), axis
    if kind == 2 and d.has_attribute("block_size"):
        block = d.pick([1, 2, 3])
        d.reject_if(shape[axis] == 0)
        d.attributes["block_size"] = block
        scales = list(shape)
        scales[axis] = -(-shape[axis] // block)
        return shape, tuple(scales), axis
    return shape, (), axis


def quantize(d: Draft) -> None:
    shape, scales, axis = _quantised_shape(d)
    x = d.dtype(0)
    d.reject_if("int" in x.name)
    values = d.array(x, shape, -60, 60, edges=False)
    scale = np.abs(d.array(d.dtype(1) if d.dtype(1).name != "float8_e8m0fnu" else np.float32, scales, 0.1, 2, edges=False)) + 0.25
    d.add(values)
    d.add(scale.astype(d.dtype(1)))
    given = d.flip(0.7)
    target = d.dtype(2)
    d.reject_if("float4" in target.name)
    if given:
        is_integer = "int" in target.name
        d.add(d.array(target, scales, 0, 7, edges=False) if is_integer else np.zeros(scales, target))
    if scales:
        d.attributes["axis"] = axis
    if "float8" in target.name:
        d.maybe("saturate", lambda: d.below(2), 0.3)
    if not given and d.has_attribute("output_dtype") and d.flip():
        d.attributes["output_dtype"] = onnx_kinds()[target]


def dequantize(d: Draft) -> None:
    shape, scales, axis = _quantised_shape(d)
    source = d.dtype(0)
    d.reject_if("float4" in source.name)
    scale_type = d.dtype(1) if "x_scale" in [i.name for i in d.schema.inputs] else np.dtype(np.float32)
    d.reject_if("e8m0" in scale_type.name)
    d.add(d.array(source, shape, -100, 100, edges="int" in source.name and d.edges))
    d.add((np.abs(d.array(scale_type, scales, 0.1, 2, edges=False)) + 0.25).astype(scale_type))
    if d.flip(0.7) and source != np.int32:
        d.add(d.array(source, scales, -7, 7, edges=False) if "int" in source.name else np.zeros(scales, source))
    if scales:
        d.attributes["axis"] = axis


def dynamic_quantize(d: Draft) -> None:
    shape = d.shape(0, 3)
    d.reject_if(0 in shape)
    d.add(d.array(np.float32, shape, edges=False))
    d.num_outputs = 3


def matmul_integer(d: Draft) -> None:
    m, k, n = d.extent(), d.extent(), d.extent()
    stack = d.shape(0, 2)
    d.add(d.array(d.dtype(0), (*stack, m, k), -100, 100, edges=d.edges))
    d.add(d.array(d.dtype(1), (*(stack if d.flip() else ()), k, n), -100, 100, edges=d.edges))
    d.add(d.array(d.dtype(0), () if d.flip() else (1,), -7, 7) if d.flip() else None)
    d.add(d.array(d.dtype(1), () if d.flip() else (1,), -7, 7) if d.flip() else None)


def qlinear_matmul(d: Draft) -> None:
    m, k, n = d.extent(False), d.extent(False), d.extent(False)
    stack = d.shape(0, 2, empty=False)
    types = [p.type_str for p in d.schema.inputs]
    scale = d.dtype(1) if d.since >= 21 else np.dtype(np.float32)
    a, b, y = d.dtype(types[0]), d.dtype(types[3]), d.dtype(types[7])
    d.reject_if("float8" in a.name + b.name + y.name)

    def scale_of() -> np.ndarray:
        return np.array(d.fraction(0.25, 2), scale)

    d.add(d.array(a, (*stack, m, k), -20, 20))
    d.add(scale_of())
    d.add(d.array(a, (), -7, 7))
    d.add(d.array(b, (*(stack if d.flip() else ()), k, n), -20, 20))
    d.add(scale_of())
    d.add(d.array(b, (), -7, 7))
    d.add(np.array(float(scale_of()) * max(k, 1) * 4, scale))
    d.add(d.array(y, (), -7, 7))


def string_concat(d: Draft) -> None:
    a, b = _pair(d)
    d.add(d.array(object, a))
    d.add(d.array(object, b))


def string_split(d: Draft) -> None:
    d.add(d.array(object, d.shape()))
    d.maybe("delimiter", lambda: d.pick([" ", ",", ""]))
    d.maybe("maxsplit", lambda: d.below(4))
    d.num_outputs = 2


def regex(d: Draft) -> None:
    d.add(d.array(object, d.shape()))
    d.attributes["pattern"] = d.pick(["a", ".*", "[a-z]+", "\\d+", "(a|bc)?"])


_UNARY = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu
 Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Size""".split()
_BINARY = "Add Sub Mul Div Pow Mod And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual".split()
_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()

MAKERS = {
    **dict.fromkeys(_UNARY, unary),
    **dict.fromkeys(_BINARY, binary),
    **dict.fromkeys(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"], bitwise),
    **dict.fromkeys(["Max", "Min", "Sum", "Mean"], variadic),
    **dict.fromkeys(["Reduce" + name for name in _REDUCTIONS], reduction),
    **dict.fromkeys(["ArgMax", "ArgMin"], arg_reduction),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], softmax),
    **dict.fromkeys(["CumSum", "CumProd"], cumulative),
    **dict.fromkeys(["Cast", "CastLike"], cast),
    "BitShift": bit_shift,
    "Where": where,
    "Clip": clip,
    "PRelu": prelu,
    "QuantizeLinear": quantize,
    "DequantizeLinear": dequantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "StringConcat": string_concat,
    "StringSplit": string_split,
    "RegexFullMatch": regex,
}
