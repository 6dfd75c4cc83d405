"""Compares com.microsoft's mixtures of experts with ONNX Runtime and with their definition."""

import numpy as np
import pytest

from contrib import compare, model, run
from test_microsoft_operators import ROUNDS, floats, pick, small


def expert_attributes(rng, experts):
    attributes = {"k": small(rng, 1, experts + 1), "activation_type": pick(rng, "relu", "gelu", "silu", "identity", "swiglu")}
    attributes["normalize_routing_weights"] = int(rng.integers(2))
    if attributes["activation_type"] == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 1.5}
    return attributes


def moe(rng):
    experts, hidden, inner, tokens = small(rng), small(rng, 1, 20), small(rng, 1, 20), small(rng, 1, 9)
    attributes = expert_attributes(rng, experts)
    rows = inner * (2 if "swiglu_fusion" in attributes else 1)
    inputs = {
        "x": floats(rng, tokens, hidden) if rng.integers(2) else floats(rng, 1, tokens, hidden),
        "router": floats(rng, tokens, experts),
        "w1": floats(rng, experts, rows, hidden),
        "b1": floats(rng, experts, rows) if rng.integers(2) else None,
        "w2": floats(rng, experts, hidden, inner),
        "b2": floats(rng, experts, hidden) if rng.integers(2) else None,
    }
    if rng.integers(3) == 0:  # files of an older version of the schema declare other extents for the same elements
        inputs["w1"], inputs["w2"] = inputs["w1"].reshape(experts, hidden, rows), inputs["w2"].reshape(experts, inner, hidden)
    return "MoE", inputs, {"attributes": attributes, "rtol": 1e-4, "atol": 1e-4}


def qmoe(rng):
    experts, tokens, bits = small(rng), small(rng, 1, 9), pick(rng, 4, 8)
    hidden, inner, block = 16 * small(rng), 16 * small(rng), pick(rng, 0, 16)
    attributes = expert_attributes(rng, experts) | {"expert_weight_bits": bits}
    if block:
        attributes["block_size"] = block
    rows = inner * (2 if "swiglu_fusion" in attributes else 1)

    def layer(n, k):
        blocks = (k // block,) if block else ()
        codes = rng.integers(0, 256, (experts, n, k * bits // 8)).astype(np.uint8)
        return codes, rng.uniform(0.01, 0.02, (experts, n, *blocks)).astype(np.float32)

    w1, s1 = layer(rows, hidden)
    w2, s2 = layer(hidden, inner)
    inputs = {
        "x": floats(rng, tokens, hidden),
        "router": floats(rng, tokens, experts),
        "w1": w1,
        "s1": s1,
        "b1": floats(rng, experts, rows) if rng.integers(2) else None,
        "w2": w2,
        "s2": s2,
        "b2": floats(rng, experts, hidden) if rng.integers(2) else None,
    }
    if rng.integers(2):
        names = ("w3", "s3", "b3", "z1", "z2", "z3")
        inputs |= dict.fromkeys(names) | {"weights": rng.uniform(0.1, 1, (tokens, experts)).astype(np.float32)}
    # For blocks of 8-bit weights, onnxruntime also rounds the activations to bytes.
    atol = 0.05 * (hidden + inner) if bits == 8 and block else 1e-3
    constants = tuple(name for name in inputs if name not in ("x", "router", "weights"))
    return "QMoE", inputs, {"attributes": attributes, "constants": constants, "rtol": 1e-2 if bits == 8 and block else 1e-3, "atol": atol}


def dequantised(codes, scales, zeros, bits):
    """Dequantises packed weights [experts, rows, K]."""
    unpacked = codes if bits == 8 else np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1)
    if scales.ndim == 2:
        scales, zeros = scales[..., None], None if zeros is None else zeros[..., None]
    repeat = unpacked.shape[-1] // scales.shape[-1]
    zeros = 1 << (bits - 1) if zeros is None else zeros.repeat(repeat, -1)
    return ((unpacked - np.float32(1) * zeros) * scales.repeat(repeat, -1)).astype(np.float32)


def pack_nibbles(codes):
    """Packs two codes of the last axis into a byte, the first in the lower bits."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], -1)
    return codes[..., 0::2] | codes[..., 1::2] << 4


@pytest.mark.parametrize("case", [moe, qmoe], ids=lambda case: case.__name__)
def test_results_are_those_of_onnxruntime(ort, case):
    for seed in range(ROUNDS):
        op_type, inputs, options = case(np.random.default_rng(seed))
        compare(ort, op_type, inputs, static=seed % 2 == 0, **options)


@pytest.mark.parametrize("fusion", ["third", "halves", "interleaved"])
def test_gates_of_experts_are_those_of_the_definition(fusion):
    """Gates come from a third layer, or from the first in two layouts. onnxruntime's CPU kernel supports only one of these."""
    rng = np.random.default_rng(1)
    experts, hidden, inner, tokens = 3, 8, 6, 5
    x, router = floats(rng, tokens, hidden), floats(rng, tokens, experts)
    gates, factors, w2 = (floats(rng, experts, *shape) for shape in [(inner, hidden), (inner, hidden), (hidden, inner)])
    joined = {
        "third": gates,
        "halves": np.concatenate([gates, factors], 1),
        "interleaved": np.stack([gates, factors], 2).reshape(experts, 2 * inner, hidden),
    }
    inputs = {"x": x, "router": router, "w1": joined[fusion], "b1": None, "w2": w2, "b2": None, "w3": factors if fusion == "third" else None}
    attributes = {"k": 2, "activation_type": "swiglu", "activation_alpha": 1.5, "activation_beta": 0.5}
    attributes["swiglu_fusion"] = {"third": 0, "interleaved": 1, "halves": 2}[fusion]
    made = model("MoE", inputs, 1, attributes)
    shares = np.exp(router) / np.exp(router).sum(1, keepdims=True)
    expected = np.zeros_like(x)
    for t in range(tokens):
        for e in np.argsort(-router[t])[:2]:
            g, f = gates[e] @ x[t], factors[e] @ x[t]
            expected[t] += shares[t, e] * (w2[e] @ (g / (1 + np.exp(-1.5 * g)) * (f + 0.5)))
    actual = run(made, {name: array for name, array in inputs.items() if array is not None})[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_quantised_experts_are_those_of_their_weights():
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        _, inputs, options = qmoe(rng)
        attributes = options["attributes"]
        bits, block = attributes["expert_weight_bits"], attributes.get("block_size", 0)
        names = list(inputs)[:8]
        inputs = {name: inputs[name] for name in names} | dict.fromkeys(("w3", "s3", "b3"))
        zeros = [None, None]
        if rng.integers(2):
            shapes = [inputs[name].shape for name in ("s1", "s2")]
            zeros = [rng.integers(0, 1 << bits, shape).astype(np.uint8) for shape in shapes]
            packed = zeros if bits == 8 else [pack_nibbles(zero) for zero in zeros]
            inputs |= {"z1": packed[0], "z2": packed[1]}
        dense = {name: inputs[name] for name in ("x", "router", "w1", "b1", "w2", "b2")}
        dense |= {"w1": dequantised(inputs["w1"], inputs["s1"], zeros[0], bits), "w2": dequantised(inputs["w2"], inputs["s2"], zeros[1], bits)}
        plain = {name: value for name, value in attributes.items() if name not in ("expert_weight_bits", "block_size")}
        expected = run(model("MoE", dense, 1, plain | {"normalize_routing_weights": 1}), {n: a for n, a in dense.items() if a is not None})[0]
        actual = run(model("QMoE", inputs, 1, attributes), {n: a for n, a in inputs.items() if a is not None})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3, err_msg=f"{attributes} {block}")
