"""Lists where a judge (onnxruntime or ONNX's reference) is wrong by ONNX's specification, or where the specification leaves a result open. On
such a case, the judge's result does not count."""

from __future__ import annotations

import re
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
    """True if some operand has elements that are infinite, NaN, or so large that their squares or sums overflow."""
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


def _is_at_the_border(case: Case) -> bool:
    from judges import treadle_run  # imported here, because scripts/generate_operator_table.py reads only the table, without a runtime

    outputs = treadle_run([case])[0].outputs
    return outputs is not None and len(outputs) > 1 and bool((np.abs(outputs[1]) < 1e-6).any())


def _has_inexact_scales(case: Case) -> bool:
    scales = case.inputs[2] if len(case.inputs) > 2 else None
    return scales is not None and bool((np.mod(scales * 64.0, 1) != 0).any())


def is_float8(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.name.startswith("float8")


def _target(case: Case) -> str:
    """Returns the name of the type that Cast or CastLike converts to."""
    if "to" in case.attributes:
        return onnx.TensorProto.DataType.Name(case.attributes["to"]).lower()
    return "string" if case.inputs[1].dtype == np.object_ else case.inputs[1].dtype.name


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind not in "iubO" and bool(np.isnan(value.astype(np.float32)).any())


def _has_tiny(value: np.ndarray) -> bool:
    return value.dtype.kind not in "iubO" and bool(((value != 0) & (np.abs(value.astype(np.float64)) < 2.0**-126)).any())


def _larger_skip(case: Case) -> bool:
    return np.ndim(case.inputs[1]) == 3 and case.inputs[1].shape[0] > case.inputs[0].shape[0]


def _has_empty_text(case: Case) -> bool:
    return "" in case.inputs[0].reshape(-1).tolist()


def _has_float_zero(case: Case) -> bool:
    """True if the zero point has a float type of 8 or 4 bits: then only its dtype matters."""
    return len(case.inputs) > 2 and case.inputs[2] is not None and case.inputs[2].dtype.name.startswith(("float8", "float4"))


def _operand(index: int) -> Callable[[Case], bool]:
    return lambda case: len(case.inputs) > index and case.inputs[index] is not None


@dataclass(frozen=True)
class Ruling:
    """A judge whose results do not count on the cases of some operators, and the reason."""

    judge: str  # "reference", "onnxruntime" or "both"
    ops: str  # names of operators, separated by spaces
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
    Ruling("reference", "LinearRegressor LinearClassifier", "has NaN for missing intercepts, and no batch for a vector", lambda c: "intercepts" not in c.attributes or c.inputs[0].ndim == 1),
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
    Ruling("reference", "QuantizeLinear", "divides in the input's type where the scale's is asked for", lambda c: _mixed(c) or any(x.dtype.kind == "i" for x in c.inputs[:2])),
    Ruling("both", "BlackmanWindow HannWindow HammingWindow", "0 / 0 for a symmetric window of one sample, which is 1", lambda c: c.inputs[0] == 1),
    Ruling("onnxruntime", "BlackmanWindow HannWindow HammingWindow", "computes float64 in single precision, or its coefficients", _with("output_datatype")),
    Ruling("onnxruntime", "Gather", "of several texts for an index copies the first alone; reads indices of texts beyond the operand", _is_string),
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
    Ruling("reference", "QuantizeLinear DequantizeLinear", "a zero point that floats of 8 bits do not have, and precisions that are no floats", lambda c: _has_float_zero(c) or "precision" in c.attributes),
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
    Ruling("onnxruntime", "SplitToSequence", "drops the axis for keepdims = 0 also where split is given", _with("keepdims")),
    Ruling("onnxruntime", "RNN GRU LSTM", "gives zeros for the state of a sequence without a step, which stays as it was",
           lambda c: c.inputs[0].size == 0 or (len(c.inputs) > 4 and c.inputs[4] is not None and bool((c.inputs[4] == 0).any()))),
    Ruling("both", "Attention", "adds masks of integers in integers, which have no infinity", lambda c: len(c.inputs) > 3 and c.inputs[3] is not None and c.inputs[3].dtype.kind in "iu"),
    Ruling("both", "Attention", "takes the root of a negative scale", lambda c: c.attributes.get("scale", 1) < 0),
    Ruling("reference", "Attention", "shows capped scores where those before the cap are asked", lambda c: "softcap" in c.attributes and c.num_outputs == 4),
    Ruling("both", "Celu", "divides by an alpha of 0", lambda c: c.attributes.get("alpha") == 0),
    Ruling("reference", "LabelEncoder", "takes the last of equal keys", lambda c: bool(c.changes)),
    Ruling("reference", "OneHotEncoder", "takes categories that are there twice for one", lambda c: len(set(c.attributes.get("cats_int64s", []))) < len(c.attributes.get("cats_int64s", []))),
    Ruling("reference", "TfIdfVectorizer", "keeps the last of n-grams with one index, or of equal ones", lambda c: any("ngram" in change or "pool" in change for change in c.changes)),
    Ruling("reference", "FeatureVectorizer SVMRegressor SVMClassifier", "takes a vector for a column", lambda c: c.inputs[0].ndim == 1),
    Ruling("both", "TreeEnsemble", "leaves scores as they are, whatever post_transform asks for", lambda c: c.attributes.get("post_transform", 0) != 0),
    Ruling("reference", "QuantizeLinear", "has no floats of 8 bits below opset 19", _below(19)),
    Ruling("reference", "QuantizeLinear", "makes the least integer of the infinity that a scale of 0 gives", lambda c: bool((c.inputs[1].astype(np.float64) == 0).any())),
    Ruling("reference", "Shrink", "integers of 64 bits at the ends of their range", _is_integral),
    Ruling("onnxruntime", "WordConvEmbedding", "reads in front of the table, and writes nothing for words that begin with 0",
           lambda c: bool((c.inputs[0] < 0).any()) or (c.inputs[0].ndim > 0 and bool((c.inputs[0][..., :1] == 0).any()))),
    Ruling("onnxruntime", "QMoE", "reads behind weights that are said to be fused, and are not", lambda c: c.attributes.get("swiglu_fusion", 0) != 0 and c.attributes.get("activation_type") != "swiglu"),
    Ruling("onnxruntime", "BatchNormalization", "has NaN where variance and epsilon add up to 0", lambda c: c.attributes.get("epsilon", 1) < 0),
    Ruling("reference", "CenterCropPad", "takes axes that are named twice one after the other", lambda c: "axes" in c.attributes),
    Ruling("reference", "GroupNormalization LayerNormalization RMSNormalization", "rounds all of it to the stash's 16 bits, or stretches X", lambda c: c.attributes.get("stash_type") == 16 or bool(c.changes)),
    Ruling("reference", "Adam Momentum Adagrad", "gives results the shape of R or T", lambda c: bool(c.changes)),
    Ruling("reference", "STFT", "has frames of one sample without window and frame_length", lambda c: bool(c.changes)),
    Ruling("reference", "RotaryEmbedding", "turns by positions of one axis in another order", lambda c: len(c.inputs) > 3 and c.inputs[3] is not None and c.inputs[3].ndim == 1),
    Ruling("reference", "DequantizeLinear", "scales of powers of two alone give NaN", lambda c: c.inputs[1].dtype.name == "float8_e8m0fnu"),
    Ruling("onnxruntime", "NonZero", "gives a scalar an axis (docs/onnxruntime.md)", lambda c: c.inputs[0].ndim == 0),
    Ruling("reference", "QuantizeLinear DequantizeLinear", "a zero point that floats of 8 bits do not have, and precisions that are no floats", lambda c: _has_float_zero(c) or "precision" in c.attributes),
    Ruling("onnxruntime", "SkipLayerNormalization SkipSimplifiedLayerNormalization", "takes mean and deviation of sums that are not rounded to 16 bits", lambda c: _is_half(c) and c.num_outputs > 1),
    Ruling("reference", "Gemm", "multiplies integers by alpha in floats", _is_integral),
    Ruling("onnxruntime", "Resize", "rounds integers after each axis, with antialias", lambda c: _is_integral(c) and c.attributes.get("antialias", 0) != 0),
    Ruling("onnxruntime", "DynamicQuantizeMatMul MatMulIntegerToFloat", "stretches scales of several axes over rows", lambda c: any(x is not None and x.ndim > 1 and x.shape[-1] == 1 for x in c.inputs[2:4])),
    Ruling("reference", "Clip", "casts bounds that the operand's integers do not have", _is_integral),
    Ruling("reference", "Compress", "leaves out conditions behind the end in another way", lambda c: bool(c.changes)),
    Ruling("both", "ReduceSumSquare", "integers whose squares add up to more than floats tell apart", lambda c: _is_integral(c) and (c.inputs[0].astype(np.float64) ** 2).sum() > 2**24),
    Ruling("reference", "SequenceInsert", "takes places behind the end", lambda c: bool(c.changes)),
    Ruling("both", "InstanceNormalization GroupNormalization GatedRMSNorm", "takes the root of a negative number, or of what an epsilon below 0 leaves of a variance", lambda c: c.attributes.get("epsilon", 1) < 0),
    Ruling("onnxruntime", "TfIdfVectorizer", "counts n-grams of one index as one, and weighs them alike", lambda c: len(set(c.attributes["ngram_indexes"])) < len(c.attributes["ngram_indexes"])),
    Ruling("onnxruntime", "Attention", "gives Y three axes where operands of four come with numbers of heads", lambda c: c.inputs[0].ndim == 4 and "q_num_heads" in c.attributes),
    Ruling("onnxruntime", "DynamicQuantizeMatMul MatMulIntegerToFloat", "takes the first of several scales, or no bias, for the one column of B, which they stretch",
           lambda c: c.inputs[1].shape[-1:] == (1,) and any(x is not None and x.size != 1 for x in c.inputs[2:])),
    Ruling("onnxruntime", "QuantizeLinear", "keeps the sign of a zero to which it should add a zero point of 8-bit floats", _has_float_zero),
    Ruling("reference", "Pad", "cuts the fraction off a value for integers of 4 and 2 bits, which Pad has not below opset 11", lambda c: c.since < 11 and c.inputs[0].dtype.name.strip("u") in ("int4", "int2")),
    Ruling("reference", "TreeEnsemble", "takes a leaf for the node of its number, where nodes that nothing leads to refer to that", lambda c: re.search("leafs|nodeids", " ".join(c.changes)) is not None),
    Ruling("reference", "Cast CastLike", "takes every text for true, that of a 0 as well", lambda c: _target(c) == "bool" and _is_string(c)),
    Ruling("both", "Loop Scan", "a state of one element that the body declares as a scalar, and that is one from then on", lambda c: bool(c.changes) and any(np.shape(x) == (1,) for x in c.inputs)),
    Ruling("reference", "Cast CastLike", "rounds what is below the least power of two up to the next but one", lambda c: "e8m0" in _target(c) and _has_tiny(c.inputs[0])),
    Ruling("reference", "CastLike", "makes NaN of infinity, where the specification has the largest power of two", lambda c: "e8m0" in _target(c) and not np.isfinite(c.inputs[0].astype(np.float64)).all()),
    Ruling("onnxruntime", "Cast CastLike", "takes -0 of 8-bit floats for true", lambda c: _target(c) == "bool" and is_float8(c.inputs[0])),
    Ruling("reference", "TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier", "gives what no leaf votes for the type's least or largest number, not 0",
           lambda c: c.attributes.get("aggregate_function") in (2, 3, "MIN", "MAX")),
    Ruling("onnxruntime", "QGemm", "leaves the output unwritten for a depth of 0", _is_empty),
    Ruling("onnxruntime", "MatMulNBits", "takes packed zero points beside g_idx for the default, where they are no constants",
           lambda c: len(c.inputs) > 4 and c.inputs[4] is not None and c.inputs[3] is not None and c.inputs[3].dtype == np.uint8 and not all(c.constant[3:5])),
    Ruling("reference", "MatMulInteger", "takes a vector of zero points of rows for one of the last axis, with more than two axes", lambda c: c.inputs[0].ndim > 2 or c.inputs[1].ndim > 2),
    Ruling("both", "SVMClassifier", "the sign of a margin that is nothing but rounding", _is_at_the_border),
    Ruling("onnxruntime", "SVMClassifier", "takes the second of two classes for a score above 0, whatever the other score is, where there are no support vectors and one rho",
           lambda c: not c.attributes.get("vectors_per_class") and len(c.attributes.get("rho", ())) == 1),
    Ruling("onnxruntime", "GatedDeltaNet", "is 0.2 off the recurrence for queries, keys and values in one operand, with keys of one element that are normalised",
           lambda c: c.inputs[1] is None and c.attributes.get("qk_l2_norm", 0) != 0 and c.inputs[6].shape[-1] == 1),
    Ruling("onnxruntime", "MultiHeadAttention", "adds a float16 bias to the -10000 of masked keys in float32; in float16 they swallow it, which shows where all keys are masked",
           lambda c: _is_half(c) and len(c.inputs) > 5 and all(x is not None for x in c.inputs[4:6])),
    Ruling("onnxruntime", "Resize", "computes places in single precision, which decides what lies between two elements", lambda c: c.attributes.get("mode", "nearest") == "nearest" and _has_inexact_scales(c)),
    Ruling("reference", "Pow", "takes powers of integers by uint64 as float64, which do not wrap around", lambda c: _is_integral(c) and c.inputs[1].dtype == np.uint64),
    Ruling("both", "Clip", "below opset 11 the default bounds are the largest finite floats; infinities stay", lambda c: c.since < 11 and _not_finite(c)),
]  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """Errors that are intended: for the nodes of some operators, one side gives an error that contains certain words, the other side runs the
    node."""

    ops: str  # names separated by spaces, or a domain; "*": all operators
    words: str  # a regular expression that is searched in the error
    reason: str

    def holds(self, case: Case, error: str) -> bool:
        return (self.ops in ("*", case.domain) or case.op in self.ops.split()) and re.search(self.words, error) is not None


# Errors that Treadle gives for nodes that a judge runs.
_POOLS = "AveragePool LpPool MaxPool NhwcMaxPool QLinearAveragePool MaxpoolWithMask"
_LOSSES = "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"
REFUSED = [
    Refusal(_POOLS, r"a window that spans \d+ does not fit", "a window must fit; onnxruntime cuts it off, or has an empty result (docs/onnxruntime.md)"),
    Refusal(_POOLS + " GlobalLpPool", r"p is -?\d+, not a positive integer", "a norm of p < 1, or of an empty operand, has no meaning"),
    Refusal("Compress ConstantOfShape Expand Resize Upsample WordConvEmbedding CumProd CumSum", r"\d axes expected|must be a scalar|elements of axis", "another rank is asked for, whatever the elements"),
    Refusal("GroupNormalization", "scale or bias and channels|is of rank ., not 1", "a vector with an element for each channel is asked for"),
    Refusal("QMoE", "prepacked weights", "weights in the order of graphics cards: onnxruntime's CPU takes them for plain ones"),
    Refusal("Expand", "has a negative extent", "no extent is negative: onnxruntime takes it for 1"),
    Refusal("CenterCropPad", "a negative extent|the extent -|elements for . axes", "no extent is negative, and each axis has one"),
    Refusal("CropAndResize RoiAlign DynamicTimeWarping", "nothing to crop|nothing to pool|the output is|must not be empty", "there is nothing to take a result from"),
    Refusal("ArgMax ArgMin CumSum CumProd Hardmax Softmax LogSoftmax QLinearSoftmax QLinearConv ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
            "ReduceSum ReduceSumSquare MeanVarianceNormalization", r"(axis|axes) = -?\d+ is outside", "no such axis: onnxruntime does not look at it for scalars and empty operands, or never"),
    Refusal("Concat QLinearConcat", "axis . of input|inputs are of rank", "onnxruntime passes over operands without elements"),
    Refusal("GatherND", "batch axis|index tuples of|out of bounds", "batches differ: onnxruntime does not look where there are no elements"),
    Refusal("Inverse", "rows and columns of X", "a matrix that is not square has no inverse: onnxruntime takes other elements"),
    Refusal("Conv ConvInteger ConvTranspose QLinearConv WordConvEmbedding", "must be positive|shape contains 0", "a kernel without extent"),
    Refusal("RNN", "clip is", "a bound of 0, which GRU and LSTM of onnxruntime refuse as well"),
    Refusal("Imputer", "imputed_value has", "a value for each column, or one: onnxruntime takes the first ones"),
    Refusal("LinearClassifier LinearRegressor", "columns, the model has", "X of more columns than the model has"),
    Refusal("OneHotEncoder", "the categories are", "an operand of another kind than the categories is none of them"),
    Refusal("TfIdfVectorizer", "ngram_counts puts", "an operand of texts with a pool of integers, or the reverse"),
    Refusal("PRelu LayerNormalization LinearAttentionGate", "must stretch|cannot be stretched|does not broadcast|do not broadcast", "a slope or scale that stretches X"),
    Refusal(_LOSSES, r"the target -?\d+ is outside|weights and classes|one entry for each|extents of the input and of the target|do not fit", "targets name classes, and each class has a weight"),
    Refusal("NonMaxSuppression SequenceInsert", "elements of a limit or threshold|expected a scalar", "a scalar is asked for: onnxruntime takes the first of several"),
    Refusal("Attention", r"qk_matmul_output_mode is|batches of Q and [KV]|Q, K and V are of rank|lengths of K and V|it has to broadcast to|nonpad_kv_seqlen|head sizes of Q and K|heads of K and V", "shapes and modes that ONNX does not have"),
    Refusal("Attention MultiHeadAttention MoE QMoE RotaryEmbedding", "is not implemented|is given without past_key|cannot be rotated in pairs", "operands without effect in onnxruntime, or for graphics cards (docs/status.md)"),
    Refusal("LayerNormalization", "stash_type is", "no float type that may be stashed"),
    Refusal("ReverseSequence", "one must be 0 and the other 1", "no such axes"),
    Refusal("Split SplitToSequence", "split names|sum up to|num_outputs = |neither the input split", "as many lengths as parts, which are the axis"),
    Refusal("UnfoldTensor", "size = 0 and step", "windows of nothing"),
    Refusal("WordConvEmbedding", "out of bounds|window's shape contains", "onnxruntime reads behind the table"),
    Refusal("QLinearConv Conv ConvInteger", "(strides|dilations) has", "a stride and a dilation for each axis"),
    Refusal("QLinearSoftmax", "the scale is of rank", "a scalar is asked for"),
    Refusal("Multinomial Gemm", "must be .batch, classes|is of rank", "a matrix is asked for"),
    Refusal("SequenceMap Scan Loop", "Got invalid dimensions|Invalid rank", "a body's operand has the shape that the body declares"),
    Refusal("MatMulBnb4 MatMulNBits", "elements of the input and of the output|elements, .* would have|bytes, expected|bytes and absmax", "more bytes than the codes have"),
    Refusal("BranchwiseRMSNorm HyperConnectionPreMix HyperConnectionPostMix", "elements, .* would have|gates for|perm has|no axis of branches", "shapes that do not fit"),
    Refusal("Attention", "do not fit . heads", "values of the past without features"),
    Refusal("Pow", "integer division by zero", "0 to a negative power, of integers"),
    Refusal("DFT", r"a transform of -?\d+ elements", "the inverse of one bin has no sample"),
    Refusal("LinearRegressor", "intercepts for|cannot be split among", "one for each score, and as many coefficients for each"),
    Refusal("MatMulNBits", "must have one type", "zero points of another float type than the scales"),
    Refusal("QGemm", "A is of rank", "a matrix is asked for"),
    Refusal("STFT", "do not say what output", "a window is a vector"),
    Refusal("ConcatFromSequence", "cannot be joined", "elements without elements of their own, which differ along other axes"),
    Refusal("FusedGemm MaxRoiPool", "is of rank", "another rank than the operator has"),
    Refusal("Pad ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp", r"names axis -?\d twice|has the shape .*, inferred was", "ONNX leaves open what an axis means that is named twice"),
    Refusal("QLinearSoftmax QMoE Scaler", "do not broadcast|scales for an axis|zero points for|the input . is .*, expected|offset has|scale has", "one for each scale, expert or column"),
    Refusal("SkipLayerNormalization SkipSimplifiedLayerNormalization", "do(es)? not broadcast", "a skip of a larger batch than the input's"),
    Refusal("WordConvEmbedding MatMulNBits", "elements, .* would have|is outside|elements of the input and of the output", "weights without elements"),
    Refusal("HammingWindow HannWindow BlackmanWindow", "is no numeric type", "windows of texts"),
    Refusal("Conv ConvInteger ConvTranspose QLinearConv", r"a window over \d+ spatial axes", "more spatial axes than three"),
    Refusal("RoiAlign", "X is of rank", "a batch of images is asked for: the judges pass over further axes"),
    Refusal("AffineGrid", "batches of theta and size", "as many grids as there are thetas"),
    Refusal("TreeEnsembleRegressor TreeEnsembleClassifier TreeEnsemble", "the input has 0 columns", "trees that test what is not there, without a row"),
    Refusal("CausalConvWithState", "does not fit into an extent of", "a step of no tokens"),
    Refusal("DynamicQuantizeMatMul FusedConv MatMulIntegerToFloat", r"do(es)? not broadcast|b_zero_point is|elements, \[.*\] would have", "a bias, a sum or zero points for other columns than there are, where the result is empty"),
    Refusal("RotaryEmbedding", "the last extent of cos_cache", "caches as wide as half of the head, of which a part is rotated: onnxruntime reads other rows"),
    Refusal("*", "no implementation for string", "no elements, so that onnxruntime does not add strings"),
    Refusal("Erf Col2Im GridSample", "allowed: ", "dtypes of the reference's that onnxruntime has not either"),
]

# Errors that onnxruntime gives for nodes that Treadle runs.
_SHAPE = r"[Ss]hape|[Rr]ank|dimension|scalar|[Ss]calar|[0-9]-?D\b|elements|element count|last dim|suffix|length of|quantization parameter|ValidateReduced|ValidateStreamMix"
_NO_WORDS = r"IsScalar|\.(cc|h):\d+ (virtual|static|onnxruntime|int64_t|T )|onnxruntime::[A-Za-z:<>, ]*\(|parameter out of computation|^Unsupported"
TAKEN = [
    Refusal("*", "No corresponding Numpy type", "onnxruntime's binding has no such array"),
    Refusal("com.microsoft", _SHAPE, "operands of another rank or shape that have the elements, or that stretch"),
    Refusal("com.microsoft", "Input data type does not match", "zero points that are left out"),
    Refusal("com.microsoft", "Unsupported data type|is null|gather_axis and|must be float or match|output arg .* type inference failed|same hidden size|known", "dtypes and shapes that onnxruntime has no kernel or inference for"),
    Refusal("com.microsoft", r"must be \[|a positive multiple|shall have same|size of|must match|is expected to be|must not exceed|requested together|is required when|is required|must be requested|does not match|output index|index out of range|'axis' must be in|must not contain negative|"
            "non-negative|invalid mode|out of valid range|at stream|dimension is <= 0|must be positive", "what onnxruntime wants to be told, and Treadle does not need"),
    Refusal("com.microsoft", _NO_WORDS, "attributes and extents, of which the error does not say more"),
    Refusal("BlackmanWindow HannWindow HammingWindow Col2Im DFT STFT Dropout TopK Tile Pad Split Unsqueeze Squeeze GatherND TfIdfVectorizer MelWeightMatrix ReverseSequence Reshape "
            "TensorScatter TreeEnsemble Trilu Concat CenterCropPad", _SHAPE + "|" + _NO_WORDS, "a vector of one element for a scalar, and the reverse; operands of another rank that have the elements"),
    Refusal("ArgMax ArgMin Squeeze", "'axis' must be in|Unexpected axis", "axes of scalars"),
    Refusal("Conv ConvInteger ConvTranspose QLinearConv", "output_padding|must not contain negative", "paddings that cut off"),
    Refusal("GlobalAveragePool GlobalLpPool MaxRoiPool AveragePool LpPool MaxPool", _NO_WORDS + "|Unsupported pooling size|cannot be less than", "operands without elements"),
    Refusal("DepthToSpace SpaceToDepth Gather", "to be a multiple|out of data bounds", "results without elements, which are not looked at"),
    Refusal("FeatureVectorizer Scaler TreeEnsembleRegressor TreeEnsemble RegexFullMatch Einsum QLinearConv Trilu", _NO_WORDS + "|must have same type", "attributes that onnxruntime asks for"),
    Refusal("CategoryMapper Imputer", "is required|Empty input", "no categories, no axis"),
    Refusal("ConvTranspose", "Output padding must be", "paddings that cut off"),
    Refusal("Multinomial", "batch_size is < 1|num_samples is < 1", "a batch without samples"),
    Refusal("DeformConv MatMulInteger RotaryEmbedding NonMaxSuppression", _NO_WORDS + "|" + _SHAPE, "offsets with a further axis; zero points of rows"),
    Refusal("Mean Sum Max Min", _NO_WORDS, "operands that broadcast before opset 8"),
    Refusal("Attention", "must be requested together|hidden sizes must be|Unexpected axis|reshape_helper", "outputs that are asked for apart, operands without features"),
    Refusal("Flatten", "Invalid value", "an axis from the end before opset 11"),
    Refusal("SequenceAt SequenceErase", "Input is not a tensor", "onnxruntime's binding makes no sequence of such elements"),
    Refusal("AffineGrid", "must be positive", "a grid without places"),
    Refusal("SplitToSequence", "can not be empty", "lengths of another rank without elements"),
    Refusal("ConvTranspose", "Computed output dimension", "operands without elements"),
    Refusal("GridSample", "must be non-empty", "samples of nothing, which are the padding's zeros"),
    Refusal("Attention", "attn_mask must be 2D|must not be specified for 4D", "masks of one axis, which broadcast; numbers of heads beside four axes, which onnxruntime takes below opset 26"),
    Refusal("SoftmaxCrossEntropyLoss", "reshape_helper", "no class, where all targets are ignored"),
    Refusal("Cast CastLike", "Attribute saturate is only used", "saturate beside a type that has no bounds to go beyond"),
    Refusal("Pad", "zero effective input extent", "an axis that pads cut off, and fill again"),
    Refusal("ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp", _NO_WORDS + "|" + _SHAPE, "axes in an operand of another rank"),
]


def meant(case: Case, table: list[Refusal], error: str) -> bool:
    """True if a row of the table covers this error."""
    return any(row.holds(case, error) for row in table)


def heard(case: Case, judge: str) -> bool:
    """True if the judge's result counts: no ruling excludes it on this case."""
    return not any(case.op in r.names and r.judge in (judge, "both") and r.when(case) for r in RULINGS)
