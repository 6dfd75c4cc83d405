#!/usr/bin/env python3
"""Compares single operators with ONNX Runtime: one node per model, one thread, runs interleaved in one process, medians in microseconds.

    python bench/operators.py [--only REGEX] [--seconds 0.15] [--threads 1]

The last column is ONNX Runtime's time over treadle's: above 1 treadle is faster. Both figures hold what a run costs whatever it computes
(about 3 us through Python). Shapes are those of common networks.
"""

import argparse
import os
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from onnx import helper, numpy_helper

OPSET = 22


def ints(*values) -> np.ndarray:
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A node, with shapes and NumPy dtypes of the fed operands, and constants that follow them."""

    op: str
    shapes: tuple
    constants: tuple
    dtypes: tuple[str, ...]
    attributes: dict[str, Any]
    label: str = ""
    domain: str = ""
    version: int = OPSET  # the version of the domain's operators
    outputs: int = 1


def case(op, *shapes, constants=(), dtypes="float32", label="", domain="", version=OPSET, outputs=1, **attributes) -> Case:
    """Makes a case. `dtypes` are NumPy's names, one per fed operand, or one for all."""
    names = dtypes.split()
    return Case(op, shapes, tuple(constants), tuple(names * len(shapes) if len(names) == 1 else names), attributes, label, domain, version, outputs)


def ml(op, *shapes, **arguments) -> Case:
    return case(op, *shapes, domain="ai.onnx.ml", version=3, **arguments)


def unary(*names):
    return [case(name, (256, 256)) for name in names]


def to(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def random_values(rng, shape, dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


CASTS = [("float32", "int64"), ("int64", "float32"), ("float32", "float16"), ("float16", "float32"), ("bool", "float32"), ("float32", "bool")]
CASTS += [("int64", "int32"), ("int32", "float32"), ("uint8", "float32"), ("float32", "uint8"), ("int64", "bool"), ("bool", "int64")]

def floats(*shape, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def indices(below: int, *shape) -> np.ndarray:
    return np.random.default_rng(3).integers(0, below, shape)


def boxes(count: int) -> np.ndarray:
    corners = np.random.default_rng(4).uniform(0, 20, (count, 2))
    return np.concatenate([corners, corners + 8], 1).astype(np.float32)


def recurrent(op: str, gates: int, **attributes) -> Case:
    """Makes a recurrent layer: 32 steps, batch 4, 64 inputs and 64 units."""
    return case(op, (32, 4, 64), constants=[floats(1, gates * 64, 64) / 8, floats(1, gates * 64, 64) / 8], hidden_size=64, **attributes)


def ms(op, *shapes, **arguments) -> Case:
    return case(op, *shapes, domain="com.microsoft", version=1, **arguments)


def supports(op: str, kernel: str, classes: int = 1) -> Case:
    """Makes support vectors: 400 of ten columns; 442 rows are fed."""
    drawn = {"support_vectors": floats(4000).tolist(), "kernel_type": kernel, "kernel_params": [0.1, 0.0, 3.0]}
    if op == "SVMRegressor":
        return ml(op, (442, 10), label=kernel, n_supports=400, coefficients=floats(400).tolist(), rho=[0.5], **drawn)
    drawn |= {"classlabels_ints": list(range(classes)), "vectors_per_class": [400 // classes] * classes}
    pairs = classes * (classes - 1) // 2
    return ml(op, (442, 10), label=kernel, coefficients=floats(400 * (classes - 1)).tolist(), rho=floats(pairs).tolist(), outputs=2, **drawn)


SCALE, BYTES, ZERO = np.array(0.1, np.float32), np.array(128, np.uint8), np.array(0, np.uint8)
FLOATS = np.array([], np.float32)
TWICE = np.array([1, 1, 2, 2], np.float32)
POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}

CASES = [
    *(case("ReduceMean", (4096, n), constants=[ints(-1)]) for n in (2, 5, 16, 40, 128, 768)),
    *(case("ReduceMax", (4096, n), constants=[ints(-1)]) for n in (2, 8, 40, 128)),
    case("ReduceMean", (16, 64, 128), constants=[ints(1)]),
    case("ReduceMean", (1, 256, 14, 14), constants=[ints(2, 3)]),
    case("ReduceSum", (64, 64, 64)),
    case("ReduceL2", (4096, 128), constants=[ints(-1)]),
    case("ReduceProd", (4096, 32), constants=[ints(-1)]),
    case("ReduceLogSumExp", (1024, 128), constants=[ints(-1)]),
    *(case("LayerNormalization", (rows, n), (n,), (n,)) for rows, n in ((81, 128), (197, 192), (3136, 40), (128, 768))),
    case("GroupNormalization", (1, 64, 32, 32), (64,), (64,), num_groups=8),
    case("InstanceNormalization", (1, 64, 64, 64), (64,), (64,)),
    case("LpNormalization", (1024, 128), axis=-1),
    case("MeanVarianceNormalization", (1, 64, 32, 32)),
    case("LRN", (1, 64, 28, 28), size=5),
    *(case("Softmax", (1024, n)) for n in (5, 16, 81, 197, 512)),
    case("Softmax", (1, 81, 4096), axis=1),
    case("LogSoftmax", (1024, 128)),
    case("Concat", *[(1, 172, 264, 1)] * 8, axis=3),
    case("Concat", (20000, 3), (20000, 5), axis=1),
    case("Concat", (4000, 32), (4000, 32), axis=1),
    case("Concat", (1, 64, 56, 56), (1, 64, 56, 56), axis=1),
    case("Pad", (1, 32, 56, 56), constants=[ints(0, 0, 1, 1, 0, 0, 1, 1)]),
    case("Pad", (1, 172, 309, 1), constants=[ints(0, 0, 8, 0, 0, 0, 0, 0)]),
    case("Pad", (1, 56, 56, 32), constants=[ints(0, 1, 1, 0, 0, 1, 1, 0)]),
    case("Pad", (1, 3, 224, 224), constants=[ints(0, 0, 10, 10, 0, 0, 10, 10)], mode="reflect"),
    case("Pad", (1, 32, 56, 56), constants=[ints(0, 0, 2, 2, 0, 0, 2, 2)], mode="edge"),
    case("Transpose", (1, 128, 12, 64), perm=[0, 2, 1, 3]),
    case("Transpose", (1, 64, 56, 56), perm=[0, 2, 3, 1]),
    case("Transpose", (1, 56, 56, 64), perm=[0, 3, 1, 2]),
    case("Transpose", (1, 224, 224, 3), perm=[0, 3, 1, 2]),
    case("Transpose", (1, 3, 224, 224), perm=[0, 2, 3, 1]),
    case("Transpose", (8, 16, 32, 64), perm=[1, 0, 3, 2]),
    case("Slice", (1, 64, 56, 56), constants=[ints(0, 0), ints(56, 56), ints(2, 3), ints(2, 2)], label="every second"),
    case("Slice", (1, 64, 56, 56), constants=[ints(8), ints(40), ints(3)]),
    case("Expand", (1, 64, 1, 56), constants=[ints(1, 64, 56, 56)]),
    case("Tile", (1, 64, 28, 28), constants=[ints(1, 1, 2, 2)]),
    case("Gather", (30522, 384), constants=[np.random.default_rng(1).integers(0, 30522, 128)], label="rows"),
    case("Gather", (4000, 64), constants=[np.arange(0, 64, 2)], axis=1),
    case("DepthToSpace", (1, 64, 56, 56), blocksize=2),
    case("Resize", (1, 32, 40, 40), constants=[FLOATS, TWICE], mode="nearest"),
    case("Resize", (1, 32, 40, 40), constants=[FLOATS, TWICE], mode="linear"),
    case("Resize", (1, 8, 40, 40), constants=[FLOATS, TWICE], mode="cubic"),
    case("MaxPool", (1, 64, 56, 56), **POOL),
    case("AveragePool", (1, 64, 56, 56), **POOL),
    case("GlobalAveragePool", (1, 256, 14, 14)),
    case("ArgMax", (1024, 128), axis=-1),
    case("ArgMax", (1, 21, 64, 64), axis=1),
    case("TopK", (64, 1000), constants=[ints(10)], outputs=2),
    case("CumSum", (256, 256), constants=[np.array(1)]),
    case("Add", (256, 256), (256,)),
    case("Add", (256, 256), (256, 1)),
    case("Add", (256, 256), (256, 256)),
    case("Add", (256, 256), (1,)),
    case("Add", (1, 64, 56, 56), (1, 64, 1, 1)),
    case("Mul", (8, 64, 64), (8, 1, 64)),
    case("Max", (256, 256), (256, 256)),
    case("Mod", (256, 256), (256, 256), fmod=1),
    case("Pow", (256, 256), (256, 256)),
    case("Pow", (256, 256), constants=[np.array(2, np.float32)], label="squares"),
    case("Greater", (256, 256), (256, 256)),
    case("PRelu", (1, 64, 56, 56), (64, 1, 1)),
    case("Clip", (256, 256), constants=[np.array(0, np.float32), np.array(6, np.float32)]),
    *unary("Abs", "Acos", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu"),
    *unary("HardSigmoid", "HardSwish", "Identity", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu"),
    *unary("Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu"),
    case("Einsum", (8, 64, 64), (8, 64, 64), equation="bij,bjk->bik"),
    case("MatMul", (128, 128), (128, 128)),
    case("MatMul", (1, 512), (512, 512)),
    case("Gemm", (64, 256), (256, 256), (256,), transB=1),
    case("Conv", (1, 64, 400), (64, 64, 3), kernel_shape=[3], pads=[1, 1]),
    case("Conv", (1, 8, 16, 16, 16), (8, 8, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6),
    case("ConvTranspose", (1, 32, 32, 32), (32, 16, 2, 2), strides=[2, 2], kernel_shape=[2, 2]),
    case("ConvTranspose", (1, 32, 32, 32), (32, 16, 4, 4), strides=[2, 2], kernel_shape=[4, 4], pads=[1, 1, 1, 1]),
    case("GridSample", (1, 16, 32, 32), (1, 32, 32, 2)),
    case("Trilu", (8, 128, 128)),
    # Other types and odd sizes
    *(case("Add", (256, 257), (256, 257), dtypes=t) for t in ("int64", "int32", "float16", "float64")),
    *(case("Mul", (256, 257), (257,), dtypes=t) for t in ("int64", "int32")),
    case("Div", (256, 257), (1,), dtypes="int64"),
    case("Max", (256, 257), (256, 257), dtypes="int64"),
    *(case("Equal", (256, 257), (256, 257), dtypes=t) for t in ("int64", "int32", "float32")),
    case("Equal", (256, 257), (1,), dtypes="int64"),
    *(case("Less", (256, 257), (256, 257), dtypes=t) for t in ("int64", "int32")),
    *(case("Where", (256, 257), (256, 257), (256, 257), dtypes="bool " + t) for t in ("float32 float32", "int64 int64")),
    case("Where", (256, 257), (1,), (256, 257), dtypes="bool float32 float32"),
    case("Where", (1, 1, 128, 128), (1,), (1, 12, 128, 128), dtypes="bool float32 float32"),
    *(case(name, (256, 257), (256, 257), dtypes="bool") for name in ("And", "Or", "Xor")),
    case("Not", (256, 257), dtypes="bool"),
    *(case("Cast", (256, 257), dtypes=a, to=to(b)) for a, b in CASTS),
    *(case(name, (256, 257), dtypes="float16") for name in ("Relu", "Sigmoid", "Exp", "Sqrt")),
    *(case("ReduceSum", (1024, 127), constants=[ints(-1)], dtypes=t) for t in ("int64", "int32", "float16")),
    *(case("ReduceMax", (1024, 127), constants=[ints(-1)], dtypes=t) for t in ("int64", "int32", "uint8")),
    case("ReduceSum", (127, 1025), constants=[ints(0)], dtypes="int64"),
    *(case("ArgMax", (1024, 127), axis=-1, dtypes=t) for t in ("int64", "int32", "uint8")),
    case("Gather", (1000, 3), constants=[np.arange(0, 1000, 3)], dtypes="int64"),
    case("Gather", (4000, 65), constants=[np.arange(0, 64, 2)], axis=1, dtypes="uint8"),
    case("GatherElements", (256, 257), (256, 100), dtypes="float32 int64", axis=1),
    case("Concat", (999, 3), (999, 5), axis=1, dtypes="int64"),
    case("Transpose", (1, 3, 224, 224), perm=[0, 2, 3, 1], dtypes="uint8"),
    case("Transpose", (1, 224, 224, 3), perm=[0, 3, 1, 2], dtypes="uint8"),
    case("Transpose", (1, 63, 55, 55), perm=[0, 2, 3, 1], dtypes="float16"),
    case("Transpose", (511, 257), perm=[1, 0], dtypes="int64"),
    case("Slice", (1, 65, 57, 57), constants=[ints(1, 1), ints(57, 57), ints(2, 3)], dtypes="uint8"),
    case("MaxPool", (1, 64, 57, 57), dtypes="uint8", **POOL),
    case("Softmax", (1024, 127), dtypes="float16"),
    case("CumSum", (256, 257), constants=[np.array(1)], dtypes="int64"),
    case("TopK", (64, 1000), constants=[ints(10)], dtypes="int64", outputs=2),
    case("NonZero", (256, 257), dtypes="float32"),
    case("OneHot", (1024,), constants=[np.array(100), np.array([0, 1], np.float32)], dtypes="int64"),
    case("Range", constants=[np.array(0), np.array(100000), np.array(1)]),
    case("ScatterElements", (256, 257), (256, 100), (256, 100), dtypes="float32 int64 float32", axis=1),
    case("Clip", (256, 257), constants=[np.array(0), np.array(6)], dtypes="int64"),
    case("QuantizeLinear", (1, 64, 57, 57), constants=[np.array(0.1, np.float32), np.array(128, np.uint8)]),
    case("DequantizeLinear", (1, 64, 57, 57), constants=[np.array(0.1, np.float32), np.array(128, np.uint8)], dtypes="uint8"),
    # Other operators
    case("ArgMin", (1024, 128), axis=-1),
    case("Acosh", (256, 256)),
    case("BitShift", (256, 257), (256, 257), dtypes="uint32", direction="LEFT"),
    *(case(name, (256, 257), (256, 257), dtypes="int32") for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    case("BitwiseNot", (256, 257), dtypes="int32"),
    case("CenterCropPad", (64, 57, 57), constants=[ints(40, 70)], axes=[1, 2]),
    case("Col2Im", (1, 144, 784), constants=[ints(28, 28), ints(3, 3)], pads=[1, 1, 1, 1]),
    case("Compress", (1000, 64), constants=[indices(2, 1000).astype(bool)], axis=0),
    case("ConstantOfShape", constants=[ints(256, 257)]),
    case("ConvInteger", (1, 32, 28, 28), (32, 32, 3, 3), dtypes="uint8"),
    case("DFT", (4, 256, 2), constants=[np.array(256), np.array(1)]),
    case("DFT", (4, 300, 1), constants=[np.array(300), np.array(1)], onesided=1),
    case("DeformConv", (1, 16, 32, 32), (16, 16, 3, 3), (1, 18, 30, 30), label="3x3"),
    case("Det", (64, 16, 16)),
    case("Dropout", (256, 257)),
    case("DynamicQuantizeLinear", (256, 257), outputs=3),
    case("EyeLike", (256, 257)),
    case("GatherND", (100, 100, 16), (1000, 2), dtypes="float32 int64"),
    case("GatherND", (100, 100), (5000, 2), dtypes="float32 int64"),
    case("GlobalLpPool", (1, 256, 14, 14), version=21),
    case("GlobalMaxPool", (1, 256, 14, 14)),
    *(case(name, (256, 257), (256, 257)) for name in ("GreaterOrEqual", "LessOrEqual", "Min", "Mean", "Sub", "Sum")),
    case("Hardmax", (1024, 128)),
    case("IsInf", (256, 257)),
    case("LpPool", (1, 64, 56, 56), **POOL),
    *(recurrent(op, gates, **more) for op, gates, more in (("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {}))),
    case("MatMulInteger", (128, 128), (128, 128), dtypes="uint8"),
    case("MaxRoiPool", (1, 32, 40, 40), constants=[np.concatenate([np.zeros((20, 1), np.float32), boxes(20)], 1)], version=21, pooled_shape=[7, 7]),
    case("MaxUnpool", (1, 16, 28, 28), constants=[np.arange(0, 16 * 56 * 56, 4).reshape(1, 16, 28, 28)], kernel_shape=[2, 2], strides=[2, 2]),
    case("NonMaxSuppression", constants=[boxes(500)[None], np.abs(floats(1, 4, 500)), ints(50), SCALE * 5, SCALE], label="500 boxes"),
    case("QLinearConv", (1, 32, 28, 28), constants=[SCALE, BYTES, indices(256, 32, 32, 3, 3).astype(np.uint8), SCALE, BYTES, SCALE * 9, BYTES], dtypes="uint8"),
    case("QLinearMatMul", (128, 128), constants=[SCALE, BYTES, indices(256, 128, 128).astype(np.uint8), SCALE, BYTES, SCALE * 9, BYTES], dtypes="uint8"),
    case("RMSNormalization", (128, 768), (768,), version=23),
    *(case(name, (4096, 64), constants=[ints(-1)]) for name in ("ReduceL1", "ReduceLogSum", "ReduceMin", "ReduceSumSquare")),
    case("Reshape", (256, 257), constants=[ints(257, 256)]),
    case("ReverseSequence", (64, 16, 128), constants=[indices(64, 16) + 1], batch_axis=1, time_axis=0),
    case("RoiAlign", (1, 32, 40, 40), constants=[boxes(20), np.zeros(20, np.int64)], version=21, output_height=7, output_width=7, sampling_ratio=2),
    case("RotaryEmbedding", (1, 8, 128, 64), (1, 128, 32), (1, 128, 32), version=23),
    case("STFT", (2, 16000, 1), constants=[np.array(160), np.hanning(400).astype(np.float32), np.array(400)]),
    case("ScatterND", (100, 100, 16), (1000, 2), (1000, 16), dtypes="float32 int64 float32"),
    case("Shrink", (256, 257), lambd=0.5),
    case("SoftmaxCrossEntropyLoss", (1024, 128), (1024,), dtypes="float32 int64"),
    case("SpaceToDepth", (1, 64, 56, 56), blocksize=2),
    *(case("Split", (64, 64, 64), axis=axis, num_outputs=4, outputs=4) for axis in (0, 1, 2)),
    case("Squeeze", (1, 256, 257), constants=[ints(0)]),
    case("Swish", (256, 257), version=24),
    case("TfIdfVectorizer", (64, 100), dtypes="int64", mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=0, ngram_counts=[0, 50], ngram_indexes=list(range(100)), pool_int64s=[*range(50), *range(100)]),
    case("Unique", (10000,), dtypes="int64", outputs=4),
    case("Unsqueeze", (256, 257), constants=[ints(0)]),
    case("Attention", (1, 8, 128, 64), (1, 8, 128, 64), (1, 8, 128, 64), version=23),
    # Classical models
    ml("ArrayFeatureExtractor", (1000, 64), constants=[np.arange(0, 64, 3)]),
    ml("Binarizer", (1000, 64), threshold=0.5),
    ml("FeatureVectorizer", (1000, 3), (1000, 5), inputdimensions=[3, 5]),
    ml("Imputer", (1000, 64), imputed_value_floats=[0.5], replaced_value_float=float("nan")),
    ml("LabelEncoder", (1000,), dtypes="int64", keys_int64s=list(range(100)), values_int64s=list(range(100, 0, -1))),
    ml("LabelEncoder", (1000,), dtypes="int64", keys_int64s=list(range(100)), values_strings=[str(i) for i in range(100)], label="to strings"),
    ml("LinearClassifier", (1000, 64), coefficients=floats(640).tolist(), intercepts=floats(10).tolist(), classlabels_ints=list(range(10)), post_transform="SOFTMAX", outputs=2),
    ml("LinearRegressor", (1000, 64), coefficients=floats(64).tolist(), intercepts=[0.5]),
    ml("Normalizer", (1000, 64), norm="L2"),
    ml("OneHotEncoder", (1000, 4), dtypes="int64", cats_int64s=list(range(100))),
    ml("Scaler", (1000, 64), offset=floats(64).tolist(), scale=floats(64, seed=5).tolist()),
    *(supports("SVMRegressor", kernel) for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")),
    *(supports("SVMClassifier", kernel, 4) for kernel in ("LINEAR", "RBF")),
    # operators of the domain com.microsoft, in the forms that onnxruntime's optimizer and exporters write
    ms("Attention", (1, 128, 256), constants=[floats(256, 768) / 16, floats(768)], num_heads=4),
    ms("BiasGelu", (128, 1024), (1024,)),
    ms("CDist", (100, 16), (200, 16), metric="euclidean"),
    ms("CropAndResize", (1, 8, 40, 40), constants=[boxes(20) / 40, np.zeros(20, np.int32), ints(7, 7).astype(np.int32)]),
    ms("DynamicQuantizeMatMul", (64, 256), constants=[indices(256, 256, 256).astype(np.uint8), SCALE, BYTES]),
    ms("EmbedLayerNormalization", constants=[indices(1000, 1, 128).astype(np.int32), np.zeros((1, 128), np.int32), floats(1000, 256), floats(128, 256), floats(2, 256), floats(256), floats(256)], outputs=2),
    ms("FastGelu", (128, 1024), (1024,)),
    ms("FusedGemm", (64, 256), (256, 256), (256,), activation="Relu"),
    ms("FusedMatMul", (8, 64, 64), (8, 64, 64), alpha=0.5, transB=1),
    ms("Gelu", (256, 257)),
    ms("Inverse", (64, 16, 16)),
    ms("MatMulBnb4", (8, 256), constants=[indices(256, 32768).astype(np.uint8), np.abs(floats(1024))], K=256, N=256, block_size=64, quant_type=1),
    ms("MatMulIntegerToFloat", (64, 256), constants=[indices(256, 256, 256).astype(np.uint8), SCALE, SCALE, BYTES, BYTES], dtypes="uint8"),
    *(ms("MatMulNBits", (rows, 256), constants=[indices(256, 256, 8, 16).astype(np.uint8), np.abs(floats(2048))], K=256, N=256, bits=4, block_size=32) for rows in (1, 64)),
    ms("MultiHeadAttention", (1, 128, 256), (1, 128, 256), (1, 128, 256), num_heads=4),
    ms("MurmurHash3", (10000,), dtypes="int32", positive=1),
    ms("NGramRepeatBlock", constants=[indices(50, 4, 64), floats(4, 1000)], ngram_size=3),
    ms("NhwcMaxPool", (1, 56, 56, 64), dtypes="uint8", **POOL),
    *(ms(op, (256, 257), constants=[SCALE, BYTES, indices(256, 256, 257).astype(np.uint8), SCALE, BYTES, SCALE * 2, BYTES], dtypes="uint8") for op in ("QLinearAdd", "QLinearMul")),
    ms("QLinearAveragePool", (1, 64, 56, 56), constants=[SCALE, BYTES, SCALE, BYTES], dtypes="uint8", **POOL),
    ms("QLinearConcat", constants=[SCALE, BYTES, indices(256, 1, 64, 28, 28).astype(np.uint8), SCALE, BYTES, indices(256, 1, 64, 28, 28).astype(np.uint8), SCALE, BYTES], axis=1),
    ms("QLinearGlobalAveragePool", (1, 256, 14, 14), constants=[SCALE, BYTES, SCALE, BYTES], dtypes="uint8", channels_last=0),
    ms("QLinearLeakyRelu", (256, 257), constants=[SCALE, BYTES, SCALE, BYTES], dtypes="uint8", alpha=0.1),
    ms("QLinearSigmoid", (256, 257), constants=[SCALE, BYTES, SCALE / 25, ZERO], dtypes="uint8"),
    ms("QLinearSoftmax", (256, 257), constants=[SCALE, BYTES, SCALE / 25, ZERO], dtypes="uint8", axis=-1, opset=13),
    ms("QuickGelu", (256, 257)),
    ms("RotaryEmbedding", (1, 128, 256), constants=[np.arange(128).reshape(1, 128), floats(128, 32), floats(128, 32)], num_heads=4),
    case("SimplifiedLayerNormalization", (128, 768), (768,), label="ai.onnx", axis=-1),
    ms("SkipLayerNormalization", (1, 128, 768), (1, 128, 768), (768,), (768,)),
    ms("SkipSimplifiedLayerNormalization", (1, 128, 768), (1, 128, 768), (768,)),
    ms("TransposeMatMul", (8, 64, 64), (8, 64, 64), transA=1),
]


def title(c: Case) -> str:
    parts = [c.op, " ".join("x".join(map(str, s)) for s in c.shapes), c.label]
    parts += list(dict.fromkeys(d for d in c.dtypes if d != "float32"))
    parts += [np.dtype(helper.tensor_dtype_to_np_dtype(v)).name for name, v in c.attributes.items() if name == "to"]
    parts += [f"{name}={value}" for name, value in c.attributes.items() if name in ("axis", "mode", "perm")]
    return " ".join(p for p in parts if p)


def build(c: Case) -> bytes:
    names = [f"x{i}" for i in range(len(c.shapes))]
    inputs = [helper.make_tensor_value_info(n, to(d), s) for n, d, s in zip(names, c.dtypes, c.shapes)]
    stored = [numpy_helper.from_array(np.asarray(v), f"c{i}") for i, v in enumerate(c.constants)]
    outputs = [f"y{i}" for i in range(c.outputs)]
    node = helper.make_node(c.op, names + [t.name for t in stored], outputs, domain=c.domain, **c.attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(o) for o in outputs], stored)
    opsets = [helper.make_opsetid(c.domain, c.version)] + ([helper.make_opsetid("", OPSET)] if c.domain else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def measure(model: bytes, feeds: dict, threads: int, seconds: float) -> list[float]:
    import onnxruntime

    import treadle

    sessions = []
    for library in (treadle, onnxruntime):
        options = library.SessionOptions()
        options.intra_op_num_threads = threads
        sessions.append(library.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    times: list[list[float]] = [[], []]
    for s in sessions:
        s.run(None, feeds)
    for _ in range(15):
        for s, taken in zip(sessions, times):
            runs, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds / 15:
                s.run(None, feeds)
                runs += 1
            taken.append((time.perf_counter() - start) / runs)
    return [statistics.median(t) * 1e6 for t in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression over the lines' titles")
    parser.add_argument("--seconds", type=float, default=0.15, help="per engine and operator")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    ratios = []
    for c in CASES:
        name = title(c)
        if not re.search(args.only, name):
            continue
        feeds = {f"x{i}": random_values(rng, s, d) for i, (s, d) in enumerate(zip(c.shapes, c.dtypes))}
        try:
            ours, theirs = measure(build(c), feeds, args.threads, args.seconds)
        except Exception as e:  # one of the two engines lacks the operator
            print(f"{name:56s} {str(e).splitlines()[0][:120]}", flush=True)
            continue
        ratios.append(theirs / ours)
        print(f"{name:56s} {ours:9.1f} {theirs:9.1f} {theirs / ours:6.2f}", flush=True)
    if ratios:
        print(f"\n{len(ratios)} operators, geometric mean {statistics.geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
