"""Compares com.microsoft's operators with ONNX Runtime, for random shapes and attributes. TREADLE_TEST_ROUNDS sets the number of cases."""

import os

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from conftest import need_exact_bytes
from contrib import compare, model, run
from treadle import errors

ROUNDS = int(os.environ.get("TREADLE_TEST_ROUNDS", "25"))
HALF = {"rtol": 4e-3, "atol": 4e-3}


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def small(rng, low=1, high=6):
    return int(rng.integers(low, high))


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def some_float(rng):
    return pick(rng, np.float32, np.float16)


def tolerance(dtype):
    return HALF if dtype == np.float16 else {}


def gated_rms_norm(rng):
    dtype, group, heads = some_float(rng), small(rng, 1, 9), small(rng)
    shape = (small(rng), small(rng), group * heads)
    inputs = {name: floats(rng, *size, dtype=dtype) for name, size in [("x", shape), ("scale", (group,)), ("gate", shape)]}
    attributes = {"activation": pick(rng, "silu", "swish", "sigmoid"), "epsilon": 1e-4}
    return "GatedRMSNorm", inputs, {"attributes": attributes, **tolerance(dtype)}


def gated_add(rng):
    dtype, rows, width = some_float(rng), (small(rng), small(rng)), small(rng)
    inputs = {"x": floats(rng, *rows, width, dtype=dtype), "y": floats(rng, *rows, width, dtype=dtype), "gate": floats(rng, *rows, 1, dtype=dtype)}
    return "GatedAdd", inputs, tolerance(dtype)


def scaled_silu(rng):
    dtype = some_float(rng)
    inputs = {"x": floats(rng, small(rng), small(rng), dtype=dtype)}
    if rng.integers(2):
        inputs["scale"] = np.array(rng.standard_normal(), np.float32)
    return "ScaledSiLU", inputs, {"attributes": {"alpha": 1.5}, **tolerance(dtype)}


def streams(rng):
    branches, width, rows = small(rng, 2), small(rng, 7, 12), [small(rng)] * small(rng, 1, 3)
    return branches, width, rows, bool(rng.integers(2))


def hyper_connection_pre_mix(rng):
    branches, width, rows, flat = streams(rng)
    gates = pick(rng, (branches,), (branches, 1), (branches, width), *([(branches * width,)] if flat else []))
    inputs = {"streams": floats(rng, *rows, *((branches * width,) if flat else (branches, width))), "pre_mix": floats(rng, *rows, *gates)}
    return "HyperConnectionPreMix", inputs, {"attributes": {"num_branches": branches if flat else 0, "reduction_scale": 0.5}}


def hyper_connection_post_mix(rng):
    branches, width, rows, flat = streams(rng)
    gates = pick(rng, (branches,), (branches, 1), (branches, width))
    inputs = {
        "streams": floats(rng, *rows, *((branches * width,) if flat else (branches, width))),
        "block_output": floats(rng, *rows, width),
        "post_mix": floats(rng, *rows, *gates),
        "stream_mix": floats(rng, *rows, branches, branches) if rng.integers(2) else None,
    }
    return "HyperConnectionPostMix", inputs, {"attributes": {"num_branches": branches if flat else 0}}


def branchwise_rms_norm(rng):
    branches, width, rows, flat = streams(rng)
    scale = pick(rng, None, (branches * width,), (branches, width), (width,))
    inputs = {"x": floats(rng, *rows, *((branches * width,) if flat else (branches, width))), "scale": scale and floats(rng, *scale)}
    return "BranchwiseRMSNorm", inputs, {"attributes": {"num_branches": branches if flat else 0, "epsilon": 1e-3}}


def linear_attention_gate(rng):
    dtype, shape = some_float(rng), (small(rng), small(rng), small(rng))
    inputs = {
        "a": floats(rng, *shape, dtype=dtype),
        "dt_bias": floats(rng, shape[2]),
        "decay_scale": floats(rng, shape[2]),
        "b": floats(rng, *shape, dtype=dtype),
    }
    return "LinearAttentionGate", inputs, {"outputs": small(rng, 1, 3), **tolerance(dtype)}


def engram_gate(rng):
    dtype, shape = some_float(rng), (small(rng), small(rng), small(rng), small(rng, 2, 20))
    inputs = {"key": floats(rng, *shape, dtype=dtype), "query": floats(rng, *shape, dtype=dtype), "value": floats(rng, *shape[:2], shape[3], dtype=dtype)}
    inputs |= {name: floats(rng, *shape[2:], dtype=dtype) for name in ("key_norm_scale", "query_norm_scale", "conv_norm_scale")}
    return "EngramGate", inputs, {"outputs": small(rng, 1, 3), **tolerance(dtype)}


def linear_attention(rng):
    kv, size, width = small(rng), 2 * small(rng), small(rng, 1, 8)
    heads, batch, length = kv * small(rng, 1, 4), small(rng, 1, 4), small(rng, 1, 8)
    rule = pick(rng, "linear", "gated", "delta", "gated_delta")
    inputs = {"query": floats(rng, batch, length, heads * size), "key": floats(rng, batch, length, kv * size) / size}
    inputs["value"] = floats(rng, batch, length, kv * width)
    inputs["past_state"] = floats(rng, batch, kv, size, width) if rng.integers(2) else None
    inputs["decay"] = -np.abs(floats(rng, batch, length, pick(rng, kv, kv * size))) if "gated" in rule else None
    inputs["beta"] = np.abs(floats(rng, batch, length, pick(rng, 1, kv))) / 2 if "delta" in rule else None
    attributes = {"q_num_heads": heads, "kv_num_heads": kv, "update_rule": rule, "scale": pick(rng, 0.0, 0.5)}
    return "LinearAttention", inputs, {"outputs": 2, "attributes": attributes, "rtol": 1e-4, "atol": 1e-4}


def sectioned_rotary(rng):
    sections = [small(rng, 0, 4), small(rng, 0, 4), small(rng, 1, 4)]
    half, heads, batch, length = sum(sections), small(rng), small(rng, 1, 4), small(rng)
    partial, layout = bool(rng.integers(2)), int(rng.integers(2))
    size = 2 * half + (2 * small(rng, 0, 3) if partial else 0)
    shape = pick(rng, (batch, heads, length, size), (batch, length, heads * size))
    inputs = {
        "input": floats(rng, *shape),
        "position_ids": rng.integers(0, 20, (3, batch, length)),
        "cos_cache": floats(rng, 20, half),
        "sin_cache": floats(rng, 20, half),
    }
    attributes = {"mrope_section": sections, "mrope_layout": layout, "interleaved": int(rng.integers(2)), "scale": pick(rng, 1.0, 0.5)}
    if len(shape) == 3 or partial:
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half if partial else 0}
    return "MRotaryEmbedding", inputs, {"attributes": attributes}


def matmul_fp_q4(rng):
    depth, columns, rows, with_zeros = small(rng, 1, 100), small(rng, 1, 9), small(rng), int(rng.integers(2))
    blocks = columns * -(-depth // 32)
    parts = [rng.random((blocks, 1), np.float32).view(np.uint8), rng.integers(0, 16, (blocks, with_zeros)), rng.integers(0, 256, (blocks, 16))]
    inputs = {
        "A": floats(rng, *pick(rng, (rows,), (2, rows)), depth),
        "B": np.concatenate(parts, axis=1).astype(np.uint8).ravel(),
        "B_shape": np.array([depth, columns], np.int64),
    }
    return "MatMulFpQ4", inputs, {"attributes": {"blk_quant_type": with_zeros}, "constants": ("B", "B_shape"), "rtol": 1e-4, "atol": 1e-4}


def masked_max_pool(rng):
    rank = small(rng, 1, 4)
    image, kernel = [small(rng, 3, 8) for _ in range(rank)], [small(rng, 1, 4) for _ in range(rank)]
    inputs = {"X": floats(rng, small(rng), small(rng), *image), "M": rng.integers(0, 4, (1, 1, *image)).astype(np.int32)}
    attributes = {"kernel_shape": kernel, "strides": [small(rng, 1, 3) for _ in range(rank)]}
    if rng.integers(2):
        attributes["pads"] = [k // 2 for k in kernel] * 2
    return "MaxpoolWithMask", inputs, {"attributes": attributes}


def causal_conv(rng):
    batch, channels, length, taps, dilation = small(rng), small(rng), small(rng, 1, 9), small(rng), small(rng, 1, 3)
    past = (taps - 1) * dilation
    inputs = {
        "input": floats(rng, batch, channels, length),
        "weight": floats(rng, channels, 1, taps),
        "bias": floats(rng, channels) if rng.integers(2) else None,
        "past_state": floats(rng, batch, channels, past) if rng.integers(2) else None,
    }
    attributes = {"activation": pick(rng, "none", "silu"), "dilation": dilation}
    return "CausalConvWithState", inputs, {"outputs": 2, "attributes": attributes}


def window(rng):
    return {
        "kernel_shape": [small(rng, 1, 4), small(rng, 1, 4)],
        "strides": [small(rng, 1, 3), small(rng, 1, 3)],
        "pads": [0] * 4,
        "dilations": [1, 1],
    }


def nhwc_max_pool(rng):
    dtype = pick(rng, np.int8, np.uint8)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (small(rng), small(rng, 4, 9), small(rng, 4, 9), small(rng, 1, 20))).astype(dtype)
    return "NhwcMaxPool", {"x": x}, {"attributes": window(rng)}


def qlinear_conv(rng):
    dtype, last, group = pick(rng, np.int8, np.uint8), bool(rng.integers(2)), small(rng, 1, 3)
    channels, filters = group * small(rng), group * small(rng)
    info, attributes = np.iinfo(dtype), window(rng)
    size = (small(rng, 4, 9), small(rng, 4, 9))
    shape = (small(rng), *size, channels) if last else (small(rng), channels, *size)
    per_channel = bool(rng.integers(2))
    inputs = {
        "x": rng.integers(info.min, info.max + 1, shape).astype(dtype),
        "x_scale": np.float32(0.02),
        "x_zero_point": np.array(rng.integers(info.min, info.max), dtype),
        "w": rng.integers(-128, 128, (filters, channels // group, *attributes["kernel_shape"])).astype(np.int8),
        "w_scale": rng.uniform(0.01, 0.02, filters).astype(np.float32) if per_channel else np.float32(0.02),
        "w_zero_point": np.zeros(filters, np.int8) if per_channel else np.array(0, np.int8),
        "y_scale": np.float32(0.3),
        "y_zero_point": np.array(rng.integers(info.min, info.max), dtype),
        "B": rng.integers(-1000, 1000, filters).astype(np.int32) if rng.integers(2) else None,
    }
    inputs = {name: None if array is None else np.asarray(array) for name, array in inputs.items()}
    constants = tuple(name for name in inputs if name != "x")
    return "QLinearConv", inputs, {"attributes": {**attributes, "group": group, "channels_last": int(last)}, "constants": constants, "steps": 1}


def conv_transpose(rng):
    attributes = window(rng)
    pads = rng.integers(0, 2, 4)
    pads = np.minimum(pads, np.array(attributes.pop("kernel_shape") * 2) - 1).astype(np.int64)
    kernel = [int(k) + 1 for k in pads[:2] + pads[2:]]
    del attributes["pads"]
    channels, filters = small(rng), small(rng)
    inputs = {
        "x": floats(rng, small(rng), channels, small(rng, 2), small(rng, 2)),
        "w": floats(rng, channels, filters, *kernel),
        "pads": pads,
        "b": floats(rng, filters) if rng.integers(2) else None,
    }
    return "ConvTransposeWithDynamicPads", inputs, {"attributes": {**attributes, "kernel_shape": kernel}, "constants": ("pads",) if rng.integers(2) else ()}


def word_conv_embedding(rng):
    letters, size, window_size = small(rng, 4, 9), small(rng, 1, 6), small(rng, 1, 4)
    words = rng.integers(1, 20, (small(rng, 1, 9), letters)).astype(np.int32)
    words *= np.arange(letters) < rng.integers(1, letters + 1, len(words))[:, None]
    filters = small(rng)
    inputs = {
        "sequence": words.astype(np.int32),
        "w": floats(rng, filters, 1, window_size, size),
        "b": floats(rng, filters),
        "c": floats(rng, 20, size),
    }
    return "WordConvEmbedding", inputs, {"constants": ("w", "b", "c")}


def murmur_hash(rng):
    dtype, shape = pick(rng, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64, object), (small(rng), small(rng))
    x = rng.integers(0, 1 << 30, shape)
    if dtype is object:
        x = np.array(["".join(rng.choice(list("aäbc€ "), rng.integers(0, 12))) for _ in range(x.size)], object).reshape(shape)
    attributes = {"positive": int(rng.integers(2)), "seed": int(rng.integers(0, 1 << 31))}
    return "MurmurHash3", {"x": x.astype(dtype)}, {"attributes": attributes}


def ngram_repeat_block(rng):
    rows, vocabulary = small(rng), small(rng, 2, 5)
    inputs = {"ids": rng.integers(0, vocabulary, (rows, small(rng, 1, 20))), "scores": floats(rng, rows, vocabulary)}
    return "NGramRepeatBlock", inputs, {"attributes": {"ngram_size": small(rng, 1, 5)}}


def bifurcation_detector(rng):
    source = rng.integers(0, 4, small(rng, 2, 9))
    start = int(rng.integers(0, len(source)))
    predicted = np.append(source[start:], 0)
    if rng.integers(2):
        predicted[rng.integers(len(predicted))] += 1
    inputs = {
        "src": source,
        "cur": rng.integers(0, 4, small(rng, 1, 5)),
        "prev": np.array(start),
        "pred": predicted if rng.integers(2) else None,
    }
    least = small(rng, 1, 4)
    return "BifurcationDetector", inputs, {"outputs": 2, "attributes": {"min_ngram_size": least, "max_ngram_size": least + small(rng, 0, 3)}}


def inverse(rng):
    size, dtype = small(rng), pick(rng, np.float32, np.float64)
    x = rng.standard_normal((*([small(rng)] * small(rng, 0, 3)), size, size)) + 4 * np.eye(size)
    return "Inverse", {"x": x.astype(dtype)}, {"rtol": 1e-3, "atol": 1e-4}


def matmul_bnb4(rng):
    K, N, block = 16 * small(rng), small(rng, 1, 9), pick(rng, 16, 32, 64)
    inputs = {
        "a": floats(rng, small(rng), small(rng), K),
        "b": rng.integers(0, 256, (N * K + 1) // 2).astype(np.uint8),
        "absmax": rng.uniform(0.1, 2, -(-N * K // block)).astype(np.float32),
    }
    attributes = {"K": K, "N": N, "block_size": block, "quant_type": int(rng.integers(2))}
    constants = pick(rng, ("b", "absmax"), ("b",), ())
    return "MatMulBnb4", inputs, {"attributes": attributes, "constants": constants, "rtol": 1e-4, "atol": 1e-4}


def matmul_int16(rng):
    M, N, K = small(rng), small(rng), small(rng)
    inputs = {"a": rng.integers(-3000, 3000, (2, M, K)).astype(np.int16), "b": rng.integers(-3000, 3000, (K, N)).astype(np.int16)}
    return "MatMulInteger16", inputs, {}


def gather_nd(rng):
    data = floats(rng, small(rng), small(rng), small(rng))
    depth = small(rng, 1, 4)
    indices = np.stack([rng.integers(0, data.shape[i], (2, 3)) for i in range(depth)], -1)
    return "GatherND", {"data": data, "indices": indices.astype(pick(rng, np.int32, np.int64))}, {}


def sample_op(rng):
    return "SampleOp", {"x": floats(rng, small(rng), small(rng))}, {}


def unfold_tensor(rng):
    rank = small(rng, 1, 4)
    x = floats(rng, *(small(rng, 3, 8) for _ in range(rank)))
    return "UnfoldTensor", {"x": x}, {"attributes": {"dim": int(rng.integers(-rank, rank)), "size": small(rng, 1, 4), "step": small(rng, 1, 4)}}


def dynamic_time_warping(rng):
    costs = rng.integers(0, 5, (small(rng, 1, 9), small(rng, 1, 9))).astype(np.float32)
    return "DynamicTimeWarping", {"costs": costs[None] if rng.integers(2) else costs}, {}


def crop_and_resize(rng):
    x = floats(rng, small(rng, 1, 3), small(rng, 1, 4), small(rng, 1, 9), small(rng, 1, 9))
    count = small(rng)
    rois = rng.uniform(-0.2, 1.2, (count, 4)).astype(np.float32) if rng.integers(2) else np.tile(np.array([[0, 0, 1, 1]], np.float32), (count, 1))
    inputs = {
        "x": x,
        "rois": rois,
        "batch_indices": rng.integers(0, x.shape[0], count).astype(np.int32),
        "crop_size": np.array([small(rng), small(rng)], np.int32),
    }
    attributes = {"mode": pick(rng, "bilinear", "nearest"), "extrapolation_value": 0.25}
    return "CropAndResize", inputs, {"attributes": attributes, "constants": ("crop_size",) if rng.integers(2) else (), "atol": 1e-4}


def ngram_hash_mapping(rng):
    dtype, size, heads, batch, length = pick(rng, np.int32, np.int64), small(rng, 2, 5), small(rng, 1, 4), small(rng), small(rng, 1, 9)
    outputs = (size - 1) * heads

    def numbers(low, high, *shape):
        return rng.integers(low, high, shape).astype(dtype)

    inputs = {
        "ids": numbers(0, 9, batch, length),
        "multipliers": numbers(1, 1 << 30, size),
        "vocab_sizes": numbers(2, 1000, outputs),
        "past": numbers(0, 9, batch, size - 1) if rng.integers(2) else None,
        "offsets": numbers(0, 1000, outputs) if rng.integers(2) else None,
        "eos": np.array(3, dtype) if rng.integers(2) else None,
        "segments": np.sort(rng.integers(0, 3, (batch, length))).astype(np.int32) if rng.integers(2) else None,
    }
    attributes = {"max_ngram_size": size, "n_head_per_ngram": heads, "pad_id": 5, "reset_on_eos": int(rng.integers(2))}
    return "NGramHashMapping", inputs, {"outputs": 2, "attributes": attributes}


def matmul_nbits(rng):
    bits, block, N = pick(rng, 4, 8), pick(rng, 16, 32), small(rng, 1, 20)
    K = block * small(rng, 1, 4)
    blocks = K // block
    groups = bool(rng.integers(2)) and bits == 4
    inputs = {
        "a": floats(rng, small(rng), small(rng), K),
        "b": rng.integers(0, 256, (N, blocks, block * bits // 8)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.1, (N, blocks)).astype(np.float32),
        "zero_points": rng.uniform(0, 1 << bits, (N, blocks)).astype(np.float32) if bits == 4 else None,
        "g_idx": rng.permutation(np.arange(K) // block).astype(np.int32) if groups else None,
        "bias": floats(rng, N) if rng.integers(2) and not groups else None,
    }
    attributes = {"K": K, "N": N, "bits": bits, "block_size": block}
    return "MatMulNBits", inputs, {"attributes": attributes, "constants": ("b", "scales", "zero_points", "g_idx", "bias"), "rtol": 1e-4, "atol": 1e-3}


CASES = [
    gated_rms_norm,
    gated_add,
    scaled_silu,
    hyper_connection_pre_mix,
    hyper_connection_post_mix,
    branchwise_rms_norm,
    linear_attention_gate,
    engram_gate,
    causal_conv,
    linear_attention,
    sectioned_rotary,
    masked_max_pool,
    matmul_fp_q4,
    nhwc_max_pool,
    qlinear_conv,
    conv_transpose,
    word_conv_embedding,
    murmur_hash,
    ngram_repeat_block,
    bifurcation_detector,
    inverse,
    matmul_bnb4,
    matmul_int16,
    gather_nd,
    sample_op,
    unfold_tensor,
    dynamic_time_warping,
    crop_and_resize,
    ngram_hash_mapping,
    matmul_nbits,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_those_of_onnxruntime(ort, case):
    if case is qlinear_conv:
        need_exact_bytes()
    for seed in range(ROUNDS):
        op_type, inputs, options = case(np.random.default_rng(seed))
        try:
            compare(ort, op_type, inputs, static=seed % 2 == 0, **options)
        except Exception as error:  # onnxruntime raises an exception class of its own for this error
            if "not yet supported on this hardware platform" not in str(error):
                raise
            pytest.skip("ONNX Runtime has no kernel for this processor")


@pytest.mark.parametrize("static", [True, False, None], ids=["known extents", "symbols", "nothing declared"])
def test_packed_causal_convolutions_are_those_of_each_sequence(static):
    """Compares with NumPy, by the schema: some versions of onnxruntime have no kernel for the CPU."""
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        channels, taps, dilation, slots = small(rng), small(rng, 1, 5), small(rng, 1, 4), pick(rng, 0, 3)
        lengths, past = rng.integers(1, 6, small(rng)), (taps - 1) * dilation
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        x, w, state = floats(rng, ends[-1], channels), floats(rng, channels, 1, taps), floats(rng, len(lengths), channels, past)
        bias, counts = floats(rng, channels) if rng.integers(2) else None, rng.integers(-1, 5, len(lengths)).astype(np.int32)
        activation = pick(rng, "none", "silu")
        y, states, update = np.zeros_like(x), np.zeros_like(state), np.zeros((len(lengths), slots, channels), np.float32)
        for b, (begin, end) in enumerate(zip(ends[:-1], ends[1:])):
            seen = np.concatenate([state[b].T, x[begin:end]])
            for t in range(begin, end):
                taken = seen[t - begin : t - begin + past + 1 : dilation] if taps > 1 else seen[t - begin : t - begin + 1]
                y[t] = (taken * w[:, 0].T).sum(0) + (0 if bias is None else bias)
            states[b] = seen[len(seen) - past :].T
            captured = int(np.clip(counts[b], 0, min(slots, end - begin)))
            update[b, :captured] = x[begin : begin + captured]
        expected = [y / (1 + np.exp(-y)) if activation == "silu" else y, states] + ([update] if slots else [])
        inputs = {"x": x, "w": w, "ends": ends, "b": bias, "state": state, "counts": counts if slots else None}
        attributes = {"dilation": dilation, "activation": activation} | ({"state_update_capacity": slots} if slots else {})
        constants = ("w",) if static is not True else ()
        made = model("VarlenCausalConvWithState", inputs, len(expected), attributes, constants, static)
        fed = {name: array for name, array in inputs.items() if array is not None and name not in constants}
        for a, e in zip(run(made, fed), expected, strict=True):
            assert a.shape == e.shape
            np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def group_norm(x, gamma, beta, groups, epsilon):
    """Computes group normalisation with channels last."""
    n, h, w, c = x.shape
    parts = x.reshape(n, h * w, groups, c // groups)
    mean, variance = (f(parts, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    return ((parts - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta


@pytest.mark.parametrize("skip", [False, True])
def test_group_norm_is_numpys(skip):
    """Compares with NumPy, because onnxruntime has these operators only on other devices."""
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        groups, activation = small(rng), int(rng.integers(2))
        n, h, w, c = small(rng), small(rng), small(rng), groups * small(rng, 1, 9)
        x, gamma, beta = floats(rng, n, h, w, c), floats(rng, c), floats(rng, c)
        inputs = {"x": x, "gamma": gamma, "beta": beta}
        if skip:
            inputs |= {"skip": floats(rng, *pick(rng, (n, h, w, c), (n, 1, 1, c), (n, c))), "bias": floats(rng, c) if rng.integers(2) else None}
            x = x + inputs["skip"].reshape(n, *(inputs["skip"].shape[1:3] if inputs["skip"].ndim == 4 else (1, 1)), c)
            x = x + (0 if inputs["bias"] is None else inputs["bias"])
        attributes = {"groups": groups, "activation": activation, "epsilon": 1e-4}
        made = model("SkipGroupNorm" if skip else "GroupNorm", inputs, 1, attributes)
        y = group_norm(x, gamma, beta, groups, 1e-4)
        expected = y / (1 + np.exp(-y)) if activation else y
        actual = run(made, {name: array for name, array in inputs.items() if array is not None})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op_type", ["NhwcConv", "NhwcFusedConv"])
def test_convolutions_of_channels_innermost_are_those_of_onnx(ort, op_type):
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        attributes, group = window(rng), small(rng, 1, 3)
        channels, filters = group * small(rng), group * small(rng)
        inputs = {
            "x": floats(rng, small(rng), small(rng, 4, 9), small(rng, 4, 9), channels),
            "w": floats(rng, filters, channels // group, *attributes["kernel_shape"]),
            "b": floats(rng, filters),
        }
        attributes["group"] = group
        planes = inputs | {"x": inputs["x"].transpose(0, 3, 1, 2)}
        expected = ort.InferenceSession(model("Conv", planes, 1, attributes, domain="")).run(None, planes)[0].transpose(0, 2, 3, 1)
        if op_type == "NhwcFusedConv":
            inputs["z"] = floats(rng, *expected.shape)
            expected = np.maximum(expected + inputs["z"], 0)
            attributes["activation"] = "Relu"
        actual = run(model(op_type, inputs, 1, attributes), inputs)[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_bias_add_and_split_gelu_are_numpys():
    from math import erf

    rng = np.random.default_rng(0)
    x, bias, skip = floats(rng, 2, 3, 8), floats(rng, 8), floats(rng, 2, 3, 8)
    inputs = {"x": x, "bias": bias, "skip": skip}
    np.testing.assert_allclose(run(model("BiasAdd", inputs, 1), inputs)[0], x + bias + skip, rtol=1e-6)
    left, right = np.split(x + bias, 2, axis=-1)
    expected = left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))
    del inputs["skip"]
    np.testing.assert_allclose(run(model("BiasSplitGelu", inputs, 1), inputs)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("turned_a", "turned_b", "alpha"), [(0, 0, 1.0), (0, 0, 2.0), (1, 0, 0.5), (0, 1, 1.0)])
def test_a_sparse_matrix_times_a_dense_one(ort, turned_a, turned_b, alpha):
    rng = np.random.default_rng(0)
    a, b = floats(rng, 4, 5) * (rng.random((4, 5)) < 0.4), floats(rng, 5, 3)
    stored, dense = a.T.copy() if turned_a else a, b.T.copy() if turned_b else b
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], "node", domain="com.microsoft", transA=turned_a, transB=turned_b, alpha=alpha)
    inputs = [
        helper.make_value_info("a", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, stored.shape)),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, dense.shape),
    ]
    graph = helper.make_graph([node], "product", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    shape, at = np.array(stored.shape, np.int64), np.flatnonzero(stored)
    sparse = treadle.SparseTensor.sparse_coo_from_numpy(shape, stored.ravel()[at], at)
    actual = treadle.InferenceSession(made).run(None, {"a": sparse, "b": dense})[0]
    np.testing.assert_allclose(actual, alpha * (a @ b), rtol=1e-5, atol=1e-6)
    if not turned_a and not turned_b:  # onnxruntime's inference refuses transposed operands
        places = np.argwhere(stored).astype(np.int64).copy()
        theirs = ort.SparseTensor.sparse_coo_from_numpy(shape, stored[stored != 0], places, ort.OrtDevice.make("cpu", 0))
        session = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
        expected = session.run(None, {"a": ort.OrtValue.ort_value_from_sparse_tensor(theirs), "b": dense})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_words_without_characters_are_zeros():
    inputs = {"s": np.array([[0, 3, 3], [2, 0, 0]], np.int32), "w": F((2, 1, 2, 4)), "b": F(2), "c": F((9, 4))}
    inputs = {name: array.astype(np.float32) if name != "s" else array for name, array in inputs.items()}
    np.testing.assert_allclose(run(model("WordConvEmbedding", inputs, 1), inputs)[0], [[0, 0], [np.tanh(9)] * 2], rtol=1e-6)


F = np.ones
REFUSED = [
    ("LinearAttention", {"q": F((1, 2, 4)), "k": F((1, 2, 4)), "v": F((1, 2, 4))}, {"q_num_heads": 2, "kv_num_heads": 2, "state_window": 9}, "state_window is 9"),
    ("MRotaryEmbedding", {"x": F((1, 1, 2, 4)), "p": np.ones((3, 1, 2), np.int64), "c": F((2, 2)), "s": F((2, 2))}, {"mrope_section": [1, 1]}, "three extents"),
    ("MaxpoolWithMask", {"x": F((1, 1, 4, 4)), "m": np.ones((1, 1, 4, 3), np.int32)}, {"kernel_shape": [2, 2]}, "extents of the mask and of X"),
    ("GatedRMSNorm", {"x": F((2, 5)), "scale": F(2), "gate": F((2, 5))}, {}, "not a multiple of the 2 of scale"),
    ("GatedRMSNorm", {"x": F((2, 4)), "scale": F(2), "gate": F((2, 4))}, {"activation": "relu"}, "not silu, swish or sigmoid"),
    ("HyperConnectionPreMix", {"x": F((2, 7)), "g": F((2, 2))}, {"num_branches": 2}, "not a multiple of the 2 branches"),
    ("HyperConnectionPreMix", {"x": F((2, 8)), "g": F((2, 3))}, {"num_branches": 2}, "3 gates for 2 branches"),
    ("CausalConvWithState", {"x": F((1, 2, 3)), "w": F((2, 1, 2))}, {"ndim": 2}, "implemented is ndim = 1"),
    ("CausalConvWithState", {"x": F((1, 2, 3)), "w": F((2, 1, 2))}, {"dilation": 0}, "dilation = 0"),
    ("NGramRepeatBlock", {"i": np.ones((1, 4), np.int64), "s": F((1, 4))}, {"ngram_size": 0}, "expected at least 1"),
    ("NGramRepeatBlock", {"i": np.full((1, 4), 9), "s": F((1, 4))}, {"ngram_size": 2}, "outside the vocabulary of 4"),
    ("NGramRepeatBlock", {"i": np.ones((2, 4), np.int64), "s": F((1, 4))}, {"ngram_size": 2}, "rows of input_ids and scores"),
    ("WordConvEmbedding", {"s": np.ones((2, 2, 3), np.int32), "w": F((1, 1, 2, 4)), "b": F(1), "c": F((9, 4))}, {}, "2 axes expected"),
    ("WordConvEmbedding", {"s": np.ones((2, 3), np.int32), "w": F((1, 1, 2, 4)), "b": F(1), "c": F((9, 4))}, {"conv_window_size": 3}, "conv_window_size is 3"),
    ("WordConvEmbedding", {"s": np.ones((2, 3), np.int32), "w": F((1, 1, 2, 4)), "b": F(1), "c": F((9, 4))}, {"embedding_size": 2}, "embedding_size is 2"),
    ("WordConvEmbedding", {"s": np.ones((2, 3), np.int32), "w": F((1, 1, 2, 4)), "b": F(1), "c": F((9, 4))}, {"char_embedding_size": 2}, "char_embedding_size is 2"),
    ("BifurcationDetector", {"s": np.arange(4), "c": np.arange(2), "p": np.array(9), "q": np.arange(2)}, {}, "outside the 4 source tokens"),
    ("BifurcationDetector", {"s": np.arange(4), "c": np.arange(2), "p": np.array(1), "q": np.arange(2)}, {}, "2 predicted tokens for 4"),
    ("Inverse", {"x": F((2, 3))}, {}, "rows and columns of X"),
    ("UnfoldTensor", {"x": F((2, 3))}, {"size": 4}, "size = 4"),
    ("DynamicTimeWarping", {"x": F((2, 3, 3))}, {}, "the first extent of the costs"),
    ("DynamicTimeWarping", {"x": F((0, 3))}, {}, "must not be empty"),
    ("CropAndResize", {"x": F((1, 1, 2, 2)), "r": F((1, 4)), "b": np.full(1, 3, np.int32), "s": np.ones(2, np.int32)}, {}, "image 3 of 1"),
    ("CropAndResize", {"x": F((1, 1, 2, 2)), "r": F((1, 4)), "b": np.zeros(1, np.int32), "s": np.zeros(2, np.int32)}, {}, "crop_size is 0 by 0"),
    ("CropAndResize", {"x": F((1, 1, 2, 2)), "r": F((1, 4)), "b": np.zeros(1, np.int32), "s": np.ones(2, np.int32)}, {"mode": "cubic"}, "cubic"),
    ("MoE", {"x": F((2, 4)), "r": F((2, 3)), "w": F((3, 5, 3)), "b": None, "v": F((3, 4, 5))}, {}, "expected [3,5,4]"),
    ("MoE", {"x": F((2, 4)), "r": F((2, 3)), "w": F((3, 5, 4)), "b": None, "v": F((3, 4, 5))}, {"k": 4}, "k = 4 of 3 experts"),
    ("MoE", {"x": F((2, 4)), "r": F((2, 3)), "w": F((3, 5, 4)), "b": None, "v": F((3, 4, 5))}, {"activation_type": "tanh"}, "tanh"),
    ("MoE", {"x": F((2, 4)), "r": F((2, 3)), "w": F((3, 5, 4)), "b": None, "v": F((3, 4, 5))}, {"activation_type": "swiglu"}, "swiglu needs"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("static", [True, False, None], ids=["known extents", "symbols", "nothing declared"])
def test_bad_operands_are_refused(op_type, inputs, attributes, message, static):
    inputs = {name: array.astype(np.float32) if array is not None and array.dtype == np.float64 else array for name, array in inputs.items()}
    feeds = {name: array for name, array in inputs.items() if array is not None}
    if op_type == "UnfoldTensor" and not static:
        pytest.skip("an axis that turns out to be too short has no windows")
    with pytest.raises(errors.Error) as caught:
        run(model(op_type, inputs, 1, attributes, static=static), feeds)
    if static:  # otherwise the error may name a part of the decomposed operator
        assert message in str(caught.value)
        assert op_type in str(caught.value)
