"""Tests operators and operands that are new in com.microsoft of onnxruntime 1.32: gated delta networks, routers of experts, tables of
packed rows, padded queries. Random cases are compared with ONNX Runtime, and with NumPy in float64 where its CPU provider has no kernel."""

import os

import ml_dtypes
import numpy as np
import pytest

import treadle
from contrib import compare, feeds_of, model, run

ROUNDS = int(os.environ.get("TREADLE_TEST_ROUNDS", "40"))


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def small(rng, low=1, high=5):
    return int(rng.integers(low, high + 1))


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def gated_delta_net(rng):
    shared, group, key, value, batch = small(rng, 1, 3), small(rng, 1, 3), small(rng, 1, 9), small(rng, 1, 9), small(rng, 1, 3)
    heads, rule = shared * group, pick(rng, "linear", "gated", "delta", "gated_delta", "gated_delta")
    gated, delta = rule.startswith("gated"), rule.endswith("delta")
    form, dtype = pick(rng, "packed sequences", "one length", "batch"), pick(rng, np.float32, np.float32, np.float16)
    lengths = rng.integers(0, 6, batch) if form == "packed sequences" else np.full(batch, small(rng))
    lengths[0] += lengths.sum() == 0
    tokens = int(lengths.sum())
    lead = (batch, tokens // batch) if form == "batch" else (tokens,)
    widths = [shared * key, shared * key, heads * value]
    q, k, v = (floats(rng, tokens, width, dtype=dtype) for width in widths)
    gates = pick(rng, dtype, np.float32)
    per_key, gate = bool(rng.integers(2)), pick(rng, "none", "none", "softplus", "sigmoid", "kda", "qwen") if gated else "none"
    together, capacity = rng.integers(3) == 0, pick(rng, 0, 0, 3)
    decay = floats(rng, *lead, heads, *([key] if per_key else []), dtype=gates)
    inputs = {
        "query": np.concatenate([q, k, v], 1).reshape(*lead, -1) if together else q.reshape(*lead, shared, key),
        "key": None if together else k.reshape(*lead, shared, key),
        "value": None if together else v.reshape(*lead, heads, value),
        "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) if form == "packed sequences" else None,
        "decay": (decay if gate != "none" else -abs(decay)) if gated else None,
        "beta": (abs(floats(rng, *lead, heads)) / 2).astype(gates) if delta else None,
        "initial_state": floats(rng, batch, heads, value, key) if together or form == "one length" or rng.integers(2) else None,
        "a_log": floats(rng, heads) / 2 if gate != "none" else None,
        "dt_bias": floats(rng, *pick(rng, (heads,), *([(heads, key), (heads * key,)] if per_key else []))) if gate != "none" else None,
        "capture_count": rng.integers(-1, 6, batch).astype(np.int32) if capacity else None,
        "state_update_active": pick(rng, None, np.array([0], np.int32), np.array([1], np.int32)) if capacity else None,
    }
    attributes = {"update_rule": rule, "gate_activation": gate, "qk_l2_norm": 1 if delta else int(rng.integers(2))}
    attributes |= {"beta_activation": pick(rng, "none", "sigmoid")} | ({"scale": 0.7} if rng.integers(2) else {})
    attributes |= {"state_update_capacity": capacity} if capacity else {}
    # Near 0, ONNX Runtime's sigmoid has an error of a few percent. NumPy checks this more strictly below.
    tolerance = 5e-2 if gate in ("sigmoid", "kda") else 4e-3 if dtype == np.float16 else 2e-5
    return "GatedDeltaNet", inputs, {"attributes": attributes, "outputs": 3 if capacity else small(rng, 1, 2), "rtol": tolerance, "atol": tolerance}


def group_router(rng):
    groups, size, dtype = small(rng), small(rng, 1, 4), pick(rng, np.float32, np.float16)
    full = rng.integers(4) == 0
    if full:
        groups = 1
    inputs = {"logits": floats(rng, *[small(rng) for _ in range(small(rng, 1, 3))], groups * size, dtype=dtype), "expert_bias": floats(rng, groups * size)}
    attributes = {"top_k": small(rng, 1, groups * size), "n_group": groups, "topk_group": small(rng, 1, groups), "group_topk": small(rng, 1, 3)}
    if rng.integers(2):
        attributes["router_sentinel"] = -7.5
    if full and rng.integers(2):
        width = 256
        inputs = {"logits": floats(rng, small(rng), width, dtype=dtype) / 8, "bias": floats(rng, size), "projection": (floats(rng, size, width) / 8).astype(dtype)}
    outputs = ["", "scores", "weights"] if full else 1
    return "MoEGroupRouter", inputs, {"attributes": attributes, "outputs": outputs, "rtol": 2e-3 if dtype == np.float16 else 1e-5}


# For each number of a format: how many numbers are in a block, and how many bytes a block has.
FORMATS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176), 14: (256, 210), 20: (32, 18), 23: (256, 136), 30: (1, 2), 42: (64, 18)}
SCALES_AT = {2: [0], 6: [0], 8: [0], 13: [0, 2], 14: [208], 20: [0], 23: [0], 42: [0]}


def gather_packed(rng):
    kind = pick(rng, *FORMATS)
    elements, size = FORMATS[kind]
    blocks, rows = small(rng, 1, 3), small(rng)
    if kind in SCALES_AT:
        data = rng.integers(0, 256, (rows, blocks, size)).astype(np.uint8)
        for at in SCALES_AT[kind]:
            data[..., at : at + 2] = floats(rng, rows, blocks, 1, dtype=np.float16).view(np.uint8)
    else:
        data = floats(rng, rows, blocks, dtype={0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}[kind]).view(np.uint8)
    indices = rng.integers(-2, rows + 2, [small(rng, 0, 3) for _ in range(small(rng, 0, 2))]).astype(pick(rng, np.int32, np.int64))
    attributes = {"packed_type": kind, "K": elements * blocks, "output_dtype": pick(rng, 1, 10)}
    tolerance = 1e-3 if attributes["output_dtype"] == 10 else 1e-6
    options = {"attributes": attributes, "constants": ("data",) if rng.integers(2) else (), "rtol": tolerance, "atol": tolerance}
    return "GatherPacked", {"data": data.reshape(rows, -1), "indices": np.asarray(indices)}, options


def causal_conv(rng):
    """Returns a case with channels before the positions or, on any number of axes, after them."""
    batch, channels, length, taps, dilation = small(rng), [small(rng, 1, 3) for _ in range(small(rng, 1, 3))], small(rng, 1, 9), small(rng), small(rng, 1, 3)
    past, count = (taps - 1) * dilation, int(np.prod(channels))
    last = int(rng.integers(2))
    axes = (lambda n: (n, *channels)) if last else (lambda n: (count, n))
    inputs = {
        "input": floats(rng, batch, *axes(length)),
        "weight": floats(rng, count, 1, taps),
        "bias": floats(rng, count) if rng.integers(2) else None,
        "past_state": floats(rng, batch, *axes(past)) if rng.integers(2) else None,
    }
    attributes = {"activation": pick(rng, "none", "silu"), "dilation": dilation, "channels_last": last}
    return "CausalConvWithState", inputs, {"outputs": 2, "attributes": attributes, "constants": ("weight",) if rng.integers(2) else ()}


CASES = [gated_delta_net, group_router, gather_packed, causal_conv]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_those_of_onnxruntime(ort, case):
    for seed in range(ROUNDS):
        op_type, inputs, options = case(np.random.default_rng(seed))
        compare(ort, op_type, inputs, static=seed % 2 == 0, **options)


@pytest.mark.parametrize("last_alone", [True, False])
def test_windows_of_states_have_their_channels_behind_the_positions_too(last_alone):
    """According to the schema, element j of the window holds the state after position length - window + j, or zeros. ONNX Runtime's CPU
    kernel has no window."""
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        batch, channels, length, taps, dilation, window = small(rng), (2, 3), small(rng, 1, 5), small(rng, 2, 4), small(rng, 1, 2), small(rng, 1, 4)
        past = (taps - 1) * dilation
        x, w, state = floats(rng, batch, length, *channels), floats(rng, 6, 1, taps), floats(rng, window, batch, past, *channels)
        inputs = {"x": x, "w": w, "b": None, "state": state if last_alone else None}
        attributes = {"channels_last": 1, "state_window": window, "dilation": dilation}
        found = run(model("CausalConvWithState", inputs, 2, attributes, ("w",), None), feeds_of(inputs, ("w",)))[1]
        seen = np.concatenate([state[-1] if last_alone else np.zeros_like(state[-1]), x], 1)
        expected = np.zeros_like(state)
        for j in range(window):
            done = length - window + j + 1
            if done > 0:
                expected[j] = seen[:, done : done + past]
        np.testing.assert_array_equal(found, expected)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def delta_net(inputs, attributes):
    """Computes output and state by the recurrence in the operator's schema, in float64, for query, key and value of equal rank."""
    x = {name: None if value is None else value.astype(np.float64) for name, value in inputs.items()}
    q, k, v = x["query"], x["key"], x["value"]
    heads, group, scale = v.shape[1], v.shape[1] // q.shape[1], attributes.get("scale") or q.shape[2] ** -0.5
    if attributes["qk_l2_norm"]:
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-12) for a in (q, k))
    ends = inputs["cu_seqlens"]
    states = x["initial_state"].copy() if x["initial_state"] is not None else np.zeros((len(ends) - 1, heads, v.shape[2], q.shape[2]))
    y = np.zeros_like(v)
    for b, h in np.ndindex(len(ends) - 1, heads):
        for t in range(ends[b], ends[b + 1]):
            S, key = states[b, h], k[t, h // group]
            if x["decay"] is not None:
                g = x["decay"][t, h]
                if attributes["gate_activation"] != "none":
                    bias = x["dt_bias"].reshape(heads, -1)[h]
                    z, rate = g + (bias if np.ndim(g) else bias[0]), np.exp(x["a_log"][h])
                    g = -rate * np.log1p(np.exp(z)) if attributes["gate_activation"] in ("softplus", "qwen") else -5 * sigmoid(rate * z)
                S *= np.exp(g)
            added = v[t, h] - (S @ key if x["beta"] is not None else 0)
            if x["beta"] is not None:
                added *= sigmoid(x["beta"][t, h]) if attributes["beta_activation"] == "sigmoid" else x["beta"][t, h]
            S += np.outer(added, key)
            y[t, h] = scale * S @ q[t, h // group]
    return y, states


def test_a_gated_delta_network_is_the_recurrence():
    count = 0
    for seed in range(10 * ROUNDS):
        op_type, inputs, options = gated_delta_net(np.random.default_rng(seed))
        if inputs["key"] is None or inputs["cu_seqlens"] is None or inputs["query"].dtype != np.float32:
            continue
        count += 1
        y, states = delta_net(inputs, options["attributes"])
        found = run(model(op_type, inputs, options["outputs"], options["attributes"]), feeds_of(inputs, ()))
        np.testing.assert_allclose(found[0], y, rtol=1e-4, atol=1e-4)
        if len(found) > 1:
            np.testing.assert_allclose(found[1], states, rtol=1e-4, atol=1e-4)
    assert count > ROUNDS // 4


@pytest.mark.parametrize("static", [True, None])
def test_a_state_goes_on_from_where_it_was(static):
    """Two steps, with the state updated in place, must give the same result as one step over all tokens."""
    rng = np.random.default_rng(3)
    q, k = floats(rng, 7, 2, 4), floats(rng, 7, 2, 4)
    v, decay, beta, state = floats(rng, 7, 4, 3), -abs(floats(rng, 7, 4)), abs(floats(rng, 7, 4)) / 4, floats(rng, 1, 4, 3, 4)

    def inputs(begin, end, state):
        rows = {"q": q[begin:end], "k": k[begin:end], "v": v[begin:end], "ends": None, "decay": decay[begin:end], "beta": beta[begin:end]}
        return rows | {"state": state}

    made = model("GatedDeltaNet", inputs(0, 7, state), 2, {"qk_l2_norm": 1}, static=False if static else None)
    whole = run(made, feeds_of(inputs(0, 7, state), ()))
    kept = treadle.OrtValue.ortvalue_from_numpy(state.copy())
    session = treadle.InferenceSession(made)
    for begin, end in ((0, 3), (3, 7)):
        binding = session.io_binding()
        for name, value in inputs(begin, end, None).items():
            if value is not None:
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
        binding.bind_ortvalue_input("state", kept)
        binding.bind_output("out0")
        binding.bind_ortvalue_output("out1", kept)
        session.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), whole[0][begin:end], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kept.numpy(), whole[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("static", [True, None])
def test_routers_write_bfloat16_as_they_write_floats(static):
    rng = np.random.default_rng(5)
    x, bias = floats(rng, 3, 8, dtype=ml_dtypes.bfloat16), floats(rng, 8)
    attributes = {"top_k": 3, "n_group": 4, "topk_group": 2}
    wide = run(model("MoEGroupRouter", {"x": x.astype(np.float32), "b": bias}, 1, attributes), {"x": x.astype(np.float32), "b": bias})[0]
    narrow = run(model("MoEGroupRouter", {"x": x, "b": bias}, 1, attributes, static=static), {"x": x, "b": bias})[0]
    assert narrow.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(narrow, wide.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("static", [True, None])
def test_a_projected_gate_is_rounded_after_each_step(static):
    rng, bf16 = np.random.default_rng(6), ml_dtypes.bfloat16
    inputs = {"x": floats(rng, 2, 3, 5, dtype=bf16), "y": floats(rng, 2, 3, 5, dtype=bf16), "gate": floats(rng, 2, 3, 4, dtype=bf16), "w": floats(rng, 4, 1, dtype=bf16)}
    found = run(model("GatedAdd", inputs, 1, static=static), inputs)[0]
    p = (inputs["gate"].astype(np.float32) @ inputs["w"].astype(np.float32)).astype(bf16).astype(np.float32)
    s = (1 / (1 + np.exp(-p))).astype(bf16).astype(np.float32)
    expected = inputs["x"].astype(np.float32) + (inputs["y"].astype(np.float32) * s).astype(bf16).astype(np.float32)
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(bf16).astype(np.float32), rtol=1e-2)


@pytest.mark.parametrize("op_type", ["MoE", "QMoE"])
def test_the_activated_gate_of_experts_may_have_the_limit(op_type):
    """The expected result follows the schema, because ONNX Runtime has this only on GPUs."""
    rng, inner = np.random.default_rng(7), 16
    x, scores = floats(rng, 3, 16), floats(rng, 3, 1)
    first, second = rng.integers(0, 256, (1, 2 * inner, 16)).astype(np.uint8), rng.integers(0, 256, (1, 16, inner)).astype(np.uint8)
    scales = np.full((1, 2 * inner), 0.01, np.float32), np.full((1, 16), 0.01, np.float32)
    weights = [(codes[0].astype(np.float32) - 128) * scale[0][:, None] for codes, scale in zip((first, second), scales)]
    attributes = {"k": 1, "activation_type": "swiglu", "swiglu_fusion": 2, "swiglu_limit": 0.3, "swiglu_limit_after_activation": 1, "activation_alpha": 1.5, "activation_beta": 0.5}
    if op_type == "MoE":
        inputs = {"x": x, "r": scores, "w1": weights[0][None], "b1": None, "w2": weights[1][None]}
    else:
        inputs = {"x": x, "r": scores, "w1": first, "s1": scales[0], "b1": None, "w2": second, "s2": scales[1]}
        attributes |= {"expert_weight_bits": 8}
    found = run(model(op_type, inputs, 1, attributes), feeds_of(inputs, ()))[0]
    gate, up = np.split(x @ weights[0].T, 2, 1)
    hidden = np.minimum(gate * sigmoid(1.5 * gate), 0.3) * (np.clip(up, -0.3, 0.3) + 0.5)
    np.testing.assert_allclose(found, hidden @ weights[1].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("static", [True, None])
def test_queries_and_keys_are_normalised_in_front_of_their_rotation(ort, static):
    """ONNX Runtime's CPU kernel refuses the normalisation weights, so it gets operands that NumPy has normalised."""
    rng, heads, shared, size = np.random.default_rng(8), 4, 2, 16
    weights = {"q_norm": 1 + floats(rng, size) / 4, "k_norm": 1 + floats(rng, size) / 4}
    q, k, v = floats(rng, 2, 3, heads * size), floats(rng, 2, 3, shared * size), floats(rng, 2, 3, shared * size)

    def normalised(x, weight, epsilon):
        x = x.reshape(2, 3, -1, size)
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight).reshape(2, 3, -1).astype(np.float32)

    def inputs(q, k, **more):
        rows = {"q": q, "k": k, "v": v, "pk": None, "pv": None, "ends": np.array([2, 2], np.int32), "total": np.array(3, np.int32)}
        return rows | {"cos": np.cos(angles), "sin": np.sin(angles)} | {f"none{i}": None for i in range(5)} | more

    angles = floats(rng, 8, size // 2)
    attributes = {"num_heads": heads, "kv_num_heads": shared, "do_rotary": 1}
    for own, (q_epsilon, k_epsilon) in (({}, (1e-6, 1e-6)), ({"qk_norm_epsilon": 0.1, "k_norm_epsilon": 0.5}, (0.1, 0.5)), ({"q_norm_epsilon": 0.3}, (0.3, 1e-6))):
        plain = inputs(normalised(q, weights["q_norm"], q_epsilon), normalised(k, weights["k_norm"], k_epsilon))
        expected = ort.InferenceSession(model("GroupQueryAttention", plain, 3, attributes)).run(None, feeds_of(plain, ()))
        given = inputs(q, k, **weights)
        found = run(model("GroupQueryAttention", given, 3, attributes | own, static=static), feeds_of(given, ()))
        for a, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5)


REFUSED = [
    ("GatedDeltaNet", {"cu_seqlens": np.array([0, 3, 2, 4], np.int32)}, {}, "cu_seqlens\\[2\\] is 2"),
    ("GatedDeltaNet", {"cu_seqlens": np.array([0, 1, 2, 5], np.int32)}, {}, "cu_seqlens\\[3\\] is 5"),
    ("GatedDeltaNet", {"cu_seqlens": np.array([1, 1, 2, 4], np.int32)}, {}, "cu_seqlens\\[0\\] is 1"),
    ("GatedDeltaNet", {"cu_seqlens": np.array([0, 1, 2, 3], np.int32)}, {}, "cu_seqlens\\[3\\] is 3"),
    ("GatedDeltaNet", {"cu_seqlens": None}, {}, "initial_state"),
    ("GatedDeltaNet", {"beta": None}, {}, "update_rule"),
    ("GatedDeltaNet", {}, {"gate_activation": "kda"}, "a_log and dt_bias"),
    ("GatedDeltaNet", {}, {"gate_lower_bound": 1.0}, "gate_lower_bound"),
    ("GatedDeltaNet", {}, {"state_update_capacity": 2}, "capture_count"),
    ("GatedDeltaNet", {}, {"state_update_capacity": 9}, "state_update_capacity"),
    ("GatedDeltaNet", {"value": np.ones((4, 3, 2), np.float32), "decay": np.ones((4, 3), np.float32), "beta": np.ones((4, 3), np.float32)}, {}, "3 heads"),
    ("MoEGroupRouter", {}, {"n_group": 3}, "n_group = 3"),
    ("MoEGroupRouter", {}, {"top_k": 9}, "top_k = 9"),
    ("MoEGroupRouter", {}, {"topk_group": 2}, "topk_group = 2"),
    ("GatherPacked", {}, {"packed_type": 16}, "packed_type = 16"),
    ("GatherPacked", {}, {"K": 40}, "K is 40"),
    ("GatherPacked", {}, {"K": 1 << 62}, "bytes of a row|overflow"),
    ("GatherPacked", {"data": np.zeros((0, 34), np.uint8)}, {}, "no row"),
]


@pytest.mark.parametrize("static", [True, None])
@pytest.mark.parametrize(("op_type", "changed", "attributes", "message"), REFUSED)
def test_what_does_not_fit_is_refused(op_type, changed, attributes, message, static):
    ones = np.ones((4, 2, 2), np.float32)
    bases = {
        "GatedDeltaNet": ({"query": ones, "key": ones, "value": ones, "cu_seqlens": np.array([0, 1, 2, 4], np.int32), "decay": ones[..., 0], "beta": ones[..., 0]}, {}),
        "MoEGroupRouter": ({"logits": np.ones((2, 8), np.float32), "expert_bias": np.ones(8, np.float32)}, {"top_k": 2}),
        "GatherPacked": ({"data": np.zeros((2, 34), np.uint8), "indices": np.array([0, 1])}, {"packed_type": 8, "K": 32, "output_dtype": 1}),
    }
    inputs = bases[op_type][0] | changed
    with pytest.raises(treadle.Error, match=message):
        run(model(op_type, inputs, 1, bases[op_type][1] | attributes, static=static), feeds_of(inputs, ()))
