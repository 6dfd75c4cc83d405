"""Where a judge is at fault by ONNX's specification, or the specification leaves a result open: such a judge is not heard on such a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from draft import Case


def _always(case: Case) -> bool:
    return True


def _is_double(case: Case) -> bool:
    return any(x is not None and x.dtype == np.float64 for x in case.inputs)


def _is_half(case: Case) -> bool:
    return any(x is not None and x.dtype.name in ("float16", "bfloat16") for x in case.inputs)


def _is_empty(case: Case) -> bool:
    return any(x is not None and x.size == 0 for x in case.inputs)


def _mixed(case: Case) -> bool:
    return len({x.dtype for x in case.inputs if x is not None and (x.dtype.kind == "f" or x.dtype.name == "bfloat16")}) > 1


def _is_string(case: Case) -> bool:
    return case.inputs[0].dtype == np.object_


def _is_integral(case: Case) -> bool:
    return case.inputs[0].dtype.kind in "iub"


def _signs_differ(case: Case) -> bool:
    return {case.inputs[0].dtype.name, case.inputs[1].dtype.name} == {"int8", "uint8"}


def _not_finite(case: Case) -> bool:
    """Some operand is infinite, NaN, or so large that squares and sums of it overflow."""
    for x in case.inputs:
        if x is None or not (x.dtype.kind == "f" or x.dtype.name == "bfloat16"):
            continue
        limit = {"float64": 1e150, "float16": 1e3}.get(x.dtype.name, 1e18)
        if not np.all(np.abs(x.astype(np.float64)) < limit):
            return True
    return False


def _with(*names: str) -> Callable[[Case], bool]:
    return lambda case: any(name in case.attributes for name in names)


def _is_softmax_zero(case: Case) -> bool:
    return case.attributes.get("post_transform") == "SOFTMAX_ZERO"


def _below(since: int) -> Callable[[Case], bool]:
    return lambda case: case.since < since


def _target(case: Case) -> str:
    """What Cast and CastLike convert to."""
    if "to" in case.attributes:
        return onnx.TensorProto.DataType.Name(case.attributes["to"]).lower()
    return "string" if case.inputs[1].dtype == np.object_ else case.inputs[1].dtype.name


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind not in "iubO" and bool(np.isnan(value.astype(np.float32)).any())


def _larger_skip(case: Case) -> bool:
    return np.ndim(case.inputs[1]) == 3 and case.inputs[1].shape[0] > case.inputs[0].shape[0]


def _has_empty_text(case: Case) -> bool:
    return "" in case.inputs[0].reshape(-1).tolist()


def _operand(index: int) -> Callable[[Case], bool]:
    return lambda case: len(case.inputs) > index and case.inputs[index] is not None


@dataclass(frozen=True)
class Ruling:
    """A judge that is not heard on the cases of some operators, and why."""

    judge: str  # reference, onnxruntime, or both
    ops: str  # separated by spaces
    reason: str
    when: Callable[[Case], bool] = _always

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", frozenset(self.ops.split()))


RULINGS = [
    Ruling("reference", "GRU LSTM RNN", "ignores sequence_lens, clip, activations, input_forget and directions"),
    Ruling("reference", "Softmax LogSoftmax Hardmax", "does not flatten to two dimensions, as opsets below 13 do", _below(13)),
    Ruling("reference", "BatchNormalization", "takes statistics of the batch below opset 14; its outputs of training have the input's dtype"),
    Ruling("reference", "GlobalMaxPool", "gives another rank than the input's"),
    Ruling("reference", "LRN", "begins one channel late: the region is c - floor((size - 1) / 2) to c + ceil((size - 1) / 2)"),
    Ruling("reference", "MaxUnpool", "takes indices for places in the shape that the attributes give, where output_shape gives another", _operand(2)),
    Ruling("onnxruntime", "TreeEnsembleRegressor", "leaves the score of a lone target as it is, whatever post_transform asks for", lambda c: c.attributes.get("n_targets") == 1 and c.attributes.get("post_transform", "NONE") != "NONE"),
    Ruling("reference", "LpNormalization", "sums x and not |x| for p = 1"),
    Ruling("reference", "Unsqueeze", "inserts axes in the order given", _below(13)),
    Ruling("reference", "RoiAlign", "samples another grid with sampling_ratio = 0, and borders differently"),
    Ruling("reference", "Shape", "does not clamp start and end to the rank", _with("start", "end")),
    Ruling("reference", "Slice", "takes an end before the first element as none for negative steps"),
    Ruling("reference", "Unique", "orders by value with sorted = 0, where the order of first occurrence is asked", _with("sorted")),
    Ruling("reference", "ConvTranspose", "adds the first group's bias to all groups", _with("group")),
    Ruling("reference", "AveragePool LpPool MaxPool", "ignores dilations with auto_pad, and pads at the wrong side", _with("auto_pad", "dilations")),
    Ruling("reference", "AveragePool LpPool MaxPool", "gives an empty batch another extent", _is_empty),
    Ruling("reference", "AveragePool", "counts padding before count_include_pad exists", _below(7)),
    Ruling("reference", "AveragePool", "shares what ceil_mode adds at the end between both ends", _with("ceil_mode")),
    Ruling("reference", "RMSNormalization", "sums squares of 16-bit floats in 16 bits", _is_half),
    Ruling("onnxruntime", "MatMulInteger ConvInteger", "on some machines saturates the sum of two products of int8 and uint8 at 16 bits", _signs_differ),
    Ruling("reference", "QLinearConv", "broadcasts scales of channels along the last axis, and wraps what it should saturate"),
    Ruling("reference", "ConvInteger", "broadcasts zero points of channels along the last axis", _operand(3)),
    Ruling("reference", "ReduceSumSquare ReduceL1 ReduceL2", "sums narrow integers in a wider type and returns that"),
    Ruling("reference", "DynamicQuantizeLinear", "has a scale of 1/255 for a range of 0"),
    Ruling("onnxruntime", "AffineGrid", "places a single point with align_corners elsewhere than at -1", _with("align_corners")),
    Ruling("onnxruntime", "LSTM", "does not clip the cell before its activation", _with("clip")),
    Ruling("reference", "TreeEnsembleRegressor TreeEnsembleClassifier SVMRegressor SVMClassifier LinearRegressor Scaler", "rounds to the input's integers", _is_integral),
    Ruling("onnxruntime", "ArrayFeatureExtractor", "reads before the row for negative indices", lambda c: bool((c.inputs[1] < 0).any())),
    Ruling("reference", "SVMClassifier", "takes the label of two classes from the other sign of the margin"),
    Ruling("reference", "StringNormalizer", "takes accents away, and stop words out of strings of several words"),
    Ruling("reference", "Adam Adagrad Momentum", "mixes float64 with factors of single precision", _is_double),
    Ruling("reference", "LinearClassifier", "takes the label from the transformed scores, which SOFTMAX_ZERO makes 0", _with("post_transform")),
    Ruling("reference", "LpPool", "takes windows beyond the operand for ceil_mode", _with("ceil_mode")),
    Ruling("reference", "Pad", "fills strings with 0", _is_string),
    Ruling("both", "MaxPool", "windows of nothing but padding, which have no maximum: -inf, the smallest float or NaN", _with("dilations")),
    Ruling("reference", "GridSample", "computes float64 with factors of single precision", _is_double),
    Ruling("onnxruntime", "TreeEnsembleClassifier", "has NaN for SOFTMAX_ZERO of scores of 0", _is_softmax_zero),
    Ruling("onnxruntime", "LinearClassifier", "has NaN for SOFTMAX_ZERO of scores of 0", _is_softmax_zero),
    Ruling("onnxruntime", "QuantizeLinear Resize", "computes 16-bit floats in float32, where the quotient or the place is asked in 16 bits", _is_half),
    Ruling("onnxruntime", "Resize", "rounds places up where it shrinks, for which opset 10 has no rule", _below(11)),
    Ruling("reference", "LinearRegressor", "has NaN for missing intercepts"),
    Ruling("reference", "Normalizer", "divides by max |x| for MAX, where max x is asked"),
    Ruling("reference", "Gemm", "does not scale C by beta where opsets below 7 do not broadcast it", _below(7)),
    Ruling("reference", "AveragePool LpPool MaxPool", "begins with the pads of other axes", lambda c: "pads" in c.attributes),
    Ruling("reference", "Resize", "has sizes of one for pytorch_half_pixel at another place than 0, and sums of cubic weights of single precision"),
    Ruling("reference", "Cast CastLike", "makes 2^-127 of 0 without saturation, where the specification says NaN", lambda c: c.attributes.get("saturate") == 0 and "float8_e8m0fnu" in {x.dtype.name for x in c.arrays()[1:]} | ({"float8_e8m0fnu"} if c.attributes.get("to") == 24 else set())),
    Ruling("reference", "Scan", "takes a negative scan axis to be another one", lambda c: any(axis < 0 for axis in c.attributes.get("scan_input_axes", ()))),
    Ruling("reference", "Pad", "has no zero of this type", lambda c: c.inputs[0].dtype.name == "float8_e8m0fnu"),
    Ruling("reference", "NegativeLogLikelihoodLoss", "counts ignored targets in the mean", _with("ignore_index")),
    Ruling("reference", "GridSample", "rounds and borders differently; truncates integers", lambda c: _mixed(c) or _is_integral(c) or "padding_mode" in c.attributes),
    Ruling("reference", "Erf HardSwish Gelu DeformConv", "computes float64 in single precision", _is_double),
    Ruling("reference", "Trilu CenterCropPad", "fills strings with 0", _is_string),
    Ruling("reference", "PRelu", "multiplies an infinite slope by elements that are not negative", _not_finite),
    Ruling("reference", "OneHot", "does not cast indices, or casts values to the depth's type"),
    Ruling("onnxruntime", "OneHot", "does not cast indices that are no integers", lambda c: c.inputs[0].dtype.kind == "f"),
    Ruling("reference", "Einsum", "rounds each partial product of 16-bit floats", _is_half),
    Ruling("reference", "QuantizeLinear", "divides in the input's type where the scale's is asked for", _mixed),
    Ruling("both", "BlackmanWindow HannWindow HammingWindow", "0 / 0 for a symmetric window of one sample, which is 1", lambda c: c.inputs[0] == 1),
    Ruling("onnxruntime", "BlackmanWindow HannWindow HammingWindow", "computes float64 in single precision, or its coefficients", _with("output_datatype")),
    Ruling("onnxruntime", "Gather", "reads indices of strings beyond the operand", _is_string),
    Ruling("onnxruntime", "MatMul MatMulInteger Gemm", "leaves the output unwritten, or forgets beta, for a depth of 0", _is_empty),
    Ruling("onnxruntime", "MeanVarianceNormalization", "has no epsilon: NaN for a variance of 0"),
    Ruling("onnxruntime", "LpPool MaxPool AveragePool", "extents and pads of auto_pad with dilations, or with strides beyond the kernel", _with("auto_pad")),
    Ruling("onnxruntime", "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ArgMax ArgMin",
           "gives an empty operand a wrong shape", _is_empty),
    Ruling("onnxruntime", "ReduceLogSumExp", "computes integers in integers"),
    Ruling("onnxruntime", "Shrink", "computes float64 in single precision, and saturates integers", lambda c: _is_double(c) or _is_integral(c)),
    Ruling("onnxruntime", "ReduceMax ReduceMin", "misses some NaN", _not_finite),
    Ruling("onnxruntime", "Slice", "takes an end of 2^63 - 1 as the first element for negative steps", lambda c: c.since >= 10),
    Ruling("onnxruntime", "Gelu", "computes float64 with factors of single precision", _is_double),
    Ruling("onnxruntime", "DFT STFT Attention", "computes float64 with factors of single precision", _is_double),
    Ruling("onnxruntime", "LRN", "refuses even sizes"),
    Ruling("onnxruntime", "AveragePool QLinearConv", "refuses auto_pad with dilations, and with strides beyond the kernel", _with("auto_pad")),
    Ruling("onnxruntime", "ConvInteger", "refuses zero points of channels", _operand(3)),
    Ruling("onnxruntime", "OneHot", "refuses scalar indices"),
    Ruling("onnxruntime", "Pad", "refuses axes of int32", _operand(3)),
    Ruling("onnxruntime", "RNN", "refuses layout = 1", _with("layout")),
    Ruling("onnxruntime", "DequantizeLinear", "its binding has no scalars of this kind"),
    Ruling("onnxruntime", "Clip", "clamps infinities to the largest finite floats", _not_finite),
    Ruling("onnxruntime", "Mod", "computes int64 in double", _is_integral),
    Ruling("both", "Scaler", "computes float64 in float64 where the output is float32", _is_double),
    Ruling("both", "HardSwish", "takes 1/6 of single precision for float64", _is_double),
    Ruling("both", "ReduceProd", "products that overflow: the order decides", _not_finite),
    Ruling("reference", "Pow", "has no powers of -inf with a fraction, which IEEE 754 has", _not_finite),
    Ruling("both", "Pow", "exponents of float64 are rounded to the base's type", lambda c: c.inputs[1].dtype == np.float64 and _not_finite(c)),
    Ruling("reference", "QLinearMatMul", "rounds after adding the zero point"),
    Ruling("reference", "Clip", "bounds that are NaN", _not_finite),
    Ruling("onnxruntime", "Resize", "takes the rounded extent for align_corners", _with("coordinate_transformation_mode")),
    Ruling("reference", "MaxPool", "gives indices within a channel", lambda c: c.num_outputs == 2),
    Ruling("onnxruntime", "QuantizeLinear", "gives the bits of 8-bit floats", _with("output_dtype")),
    Ruling("reference", "BitCast", "gives the bits of smaller types"),
    Ruling("reference", "MeanVarianceNormalization", "subtracts squares of means: cancels"),
    Ruling("both", "Attention GroupNormalization", "rounds the scale, or the stash, of float64 to single precision", _is_double),
    Ruling("both", "ReduceLogSum ReduceLogSumExp ReduceMean ReduceSum ReduceSumSquare LogSoftmax Softmax ReduceL1 ReduceL2 ReduceProd Mean Sum",
           "infinities, and numbers whose sum overflows: the order of the sums decides", _not_finite),
    Ruling("both", "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare", "integers beyond 2^24, of which sums overflow",
           lambda c: _is_integral(c) and c.inputs[0].size > 0 and np.abs(c.inputs[0].astype(np.float64)).max() > 2**24),
    Ruling("both", "Sum Mean", "rounds 16-bit floats after each sum", _is_half),
    Ruling("both", "ReduceMean ReduceMax ReduceMin", "no elements: integers have no NaN or infinity", lambda c: _is_empty(c) and _is_integral(c)),
    Ruling("reference", "Resize Upsample", "rounds integers between two values, which is left open: onnxruntime cuts the fraction off", _is_integral),
    Ruling("reference", "Cast CastLike", "cuts the fraction off for integers of 4 and 2 bits, which is left open: onnxruntime rounds to the nearest",
           lambda c: _target(c) in ("int4", "uint4", "int2", "uint2")),
    Ruling("reference", "Cast CastLike", "writes nan and 1.0, where ONNX names NaN and leaves digits open: onnxruntime gives NaN and 1", lambda c: _target(c) == "string"),
    Ruling("reference", "StringSplit", "has one part of an empty text with a delimiter, which is left open: onnxruntime has none", _has_empty_text),
    Ruling("reference", "Squeeze", "keeps all axes where `axes` is empty, which is left open: onnxruntime takes it for absent",
           lambda c: (len(c.inputs) > 1 and c.inputs[1] is not None and c.inputs[1].size == 0) or c.attributes.get("axes") == []),
    Ruling("reference", "Dropout", "has a mask of true below opset 12, which is left open: onnxruntime's is false", _below(12)),
    Ruling("both", "TopK", "order that is not asked for", lambda c: c.attributes.get("sorted") == 0),
    Ruling("both", "Dropout", "draws, with training_mode", _operand(2)),
    Ruling("onnxruntime", "FusedMatMul TransposeMatMul", "turns a vector, and then takes other elements", lambda c: any(x is not None and x.ndim == 1 for x in c.inputs)),
    Ruling("onnxruntime", "Imputer", "takes the second axis for the features of operands of more than two axes", lambda c: c.inputs[0].ndim > 2),
    Ruling("onnxruntime", "DynamicQuantizeLSTM", "leaves the states as they were in memory after no step", lambda c: c.inputs[0].shape[0] == 0),
    Ruling("both", "Cast CastLike", "NaN as an integer, which is undefined", lambda c: "int" in _target(c) and _has_nan(c.inputs[0])),
    Ruling("onnxruntime", "FastGelu", "has factors of single precision", _is_double),
    Ruling("onnxruntime", "MoE", "mixes up 16-bit weights", _is_half),
    Ruling("onnxruntime", "BifurcationDetector", "gives suffix_match_idx the shape of another operand", lambda c: c.inputs[2].ndim > 0),
    Ruling("onnxruntime", "SkipLayerNormalization SkipSimplifiedLayerNormalization", "takes a skip of a larger batch, whose rest it ignores", _larger_skip),
    Ruling("onnxruntime", "QLinearSoftmax", "has 0 along an axis of one element that is not the last, and no shape without elements",
           lambda c: 0 in c.inputs[0].shape or 1 in c.inputs[0].shape[:-1]),
    Ruling("both", "BlackmanWindow HammingWindow HannWindow", "integers: a peak may be 1, or a rounding error less", lambda c: c.attributes.get("output_datatype", 1) not in (1, 10, 11, 16)),
    Ruling("reference", "CumSum CumProd Scaler Tile Clip", "gives scalars, or operands that are to be, an axis", lambda c: any(x is not None and x.ndim == 0 for x in c.inputs)),
    Ruling("onnxruntime", "ReduceLogSum", "converts -inf or NaN to integers", _is_integral),
    Ruling("onnxruntime", "ConvTranspose", "gives SAME another extent where strides are larger than windows", _with("auto_pad")),
    Ruling("onnxruntime", "Bernoulli", "draws 1 with the probability of 0"),
    Ruling("reference", "Loop", "concatenates slices of scan outputs that it should stack, and takes a missing condition for false"),
    Ruling("reference", "Scan", "ignores scan_output_axes", _with("scan_output_axes")),
    Ruling("onnxruntime", "LinearClassifier", "takes X of fewer columns than the model has, with coefficients of other scores",
           lambda c: c.inputs[0].shape[-1] * max(1, len(c.attributes.get("intercepts", []))) < len(c.attributes.get("coefficients", []))),
    Ruling("onnxruntime", "SplitToSequence", "drops the axis for keepdims = 0 also where split is given", _with("keepdims")),
    Ruling("both", "Clip", "below opset 11 the default bounds are the largest finite floats; infinities stay", lambda c: c.since < 11 and _not_finite(c)),
]  # fmt: skip


def heard(case: Case, judge: str) -> bool:
    """No ruling excludes the judge from this case."""
    return not any(case.op in r.names and r.judge in (judge, "both") and r.when(case) for r in RULINGS)
