"""Tests com.microsoft's operators on sequences: AttnLSTM, VarlenNGramHashMapping, and the windows of states of LinearAttention and
CausalConvWithState."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contrib import compare, feeds_of, model, run
from treadle import errors

ROUNDS = int(os.environ.get("TREADLE_TEST_ROUNDS", "40"))
Inputs = dict[str, Any]


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def draw_attn_lstm(rng: np.random.Generator) -> tuple[Inputs, dict[str, Any]]:
    """Returns random operands. Each optional one is absent half of the time."""

    def small() -> int:
        return int(rng.integers(1, 6))

    def maybe(make: Callable[[], np.ndarray]) -> np.ndarray | None:
        return make() if rng.integers(2) else None

    steps, batch, width, hidden, depth, memory, features = (small() for _ in range(7))
    direction = ("forward", "reverse", "bidirectional")[rng.integers(3)]
    count = 2 if direction == "bidirectional" else 1
    layer = small() if rng.integers(2) else 0
    inputs = {
        "X": floats(rng, steps, batch, width),
        "W": floats(rng, count, 4 * hidden, width + (layer or features)),
        "R": floats(rng, count, 4 * hidden, hidden),
        "B": maybe(lambda: floats(rng, count, 8 * hidden)),
        "sequence_lens": maybe(lambda: rng.integers(1, steps + 1, batch).astype(np.int32)),
        "initial_h": maybe(lambda: floats(rng, count, batch, hidden)),
        "initial_c": maybe(lambda: floats(rng, count, batch, hidden)),
        "P": maybe(lambda: floats(rng, count, 3 * hidden)),
        "QW": floats(rng, count, hidden, depth),
        "MW": floats(rng, count, features, depth),
        "V": floats(rng, count, depth),
        "M": floats(rng, batch, memory, features),
        "memory_seq_lens": maybe(lambda: rng.integers(1, memory + 1, batch).astype(np.int32)),
        "AW": floats(rng, count, features + hidden, layer) if layer else None,
    }
    return inputs, {"hidden_size": hidden, "direction": direction, "input_forget": int(rng.integers(4) == 0)}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def attend_from(d: int, b: int, h: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Returns the attention's state after a step with output h."""
    length = inputs["M"].shape[1] if inputs["memory_seq_lens"] is None else inputs["memory_seq_lens"][b]
    memory = inputs["M"][b, :length]
    scores = (inputs["V"][d] * np.tanh(memory @ inputs["MW"][d] + h @ inputs["QW"][d])).sum(-1)
    weights = np.exp(scores - scores.max())
    context = weights / weights.sum() @ memory
    return context if inputs["AW"] is None else np.concatenate([h, context]) @ inputs["AW"][d]


def attn_lstm(inputs: Inputs, attributes: dict[str, Any]) -> list[np.ndarray]:
    """Computes the equations of the operator's description, one sample at a time."""
    X, W, R = inputs["X"].astype(np.float64), inputs["W"], inputs["R"]
    steps, batch, width = X.shape
    count, _, hidden = R.shape
    lengths = np.full(batch, steps) if inputs["sequence_lens"] is None else inputs["sequence_lens"]
    bound = attributes.get("clip", np.inf)
    Y, Y_h, Y_c = np.zeros((steps, count, batch, hidden)), np.zeros((count, batch, hidden)), np.zeros((count, batch, hidden))

    def clip(x: np.ndarray) -> np.ndarray:
        return np.clip(x, -bound, bound)

    for d, b in np.ndindex(count, batch):
        h, c = (np.zeros(hidden) if inputs[name] is None else inputs[name][d, b] for name in ("initial_h", "initial_c"))
        bias = 0 if inputs["B"] is None else inputs["B"][d, : 4 * hidden] + inputs["B"][d, 4 * hidden :]
        peep_i, peep_o, peep_f = np.split(np.zeros(3 * hidden) if inputs["P"] is None else inputs["P"][d], 3)
        attended = np.zeros(W.shape[2] - width)
        for step in range(lengths[b]):
            t = lengths[b] - 1 - step if attributes["direction"] == "reverse" or d == 1 else step
            i, o, f, new = np.split(W[d] @ np.concatenate([X[t, b], attended]) + R[d] @ h + bias, 4)
            i = sigmoid(clip(i + peep_i * c))
            f = 1 - i if attributes["input_forget"] else sigmoid(clip(f + peep_f * c))
            c = f * c + i * np.tanh(clip(new))
            h = sigmoid(clip(o + peep_o * c)) * np.tanh(clip(c))
            attended = attend_from(d, b, h, inputs)
            Y[t, d, b] = h
        Y_h[d, b], Y_c[d, b] = h, c
    return [Y, Y_h, Y_c]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_attn_lstm(ort: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, attributes = draw_attn_lstm(rng)
    if rng.integers(3) == 0:  # ONNX Runtime does not clip the cell before its activation
        attributes["clip"] = 0.7
        found = run(model("AttnLSTM", inputs, 3, attributes), feeds_of(inputs, ()))
    else:
        found = compare(ort, "AttnLSTM", inputs, 3, attributes, rtol=1e-4, atol=1e-4, static=seed % 2 == 0)
    for a, b in zip(found, attn_lstm(inputs, attributes)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_attn_lstm_with_other_activations(ort: Any, direction: str) -> None:
    rng = np.random.default_rng(7)
    inputs, attributes = draw_attn_lstm(rng)
    while attributes["direction"] != direction:
        inputs, attributes = draw_attn_lstm(rng)
    count = 2 if direction == "bidirectional" else 1
    attributes |= {"activations": ["HardSigmoid", "Tanh", "Softsign"] + ["Sigmoid", "Tanh", "Tanh"] * (count - 1)}
    attributes |= {"activation_alpha": [0.3], "activation_beta": [0.4]}
    compare(ort, "AttnLSTM", inputs, 3, attributes, rtol=1e-4, atol=1e-4)


def test_attn_lstm_names_what_is_missing() -> None:
    inputs, attributes = draw_attn_lstm(np.random.default_rng(0))
    with pytest.raises(errors.Error, match="the input 11 is missing: there is no attention without it"):
        run(model("AttnLSTM", inputs | {"M": None, "memory_seq_lens": None, "AW": None}, 3, attributes), {})


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_hashes_of_packed_sequences(ort: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.int32, np.int64)[rng.integers(2)]
    size, heads, batch, capacity = (int(rng.integers(low, 5)) for low in (2, 1, 1, 0))
    lengths = rng.integers(1, 6, batch)

    def numbers(low: int, high: int, *shape: int) -> np.ndarray:
        return rng.integers(low, high, shape).astype(dtype)

    def maybe(array: np.ndarray) -> np.ndarray | None:
        return array if rng.integers(2) else None

    segments = maybe(rng.integers(0, 3, lengths.sum()).astype(np.int32))
    inputs = {
        "input_ids": numbers(0, 6, lengths.sum()),
        "multipliers": numbers(1, 1 << 30, size),
        "vocab_sizes": numbers(5, 100, (size - 1) * heads),
        "cumulative_sequence_length": np.append(0, lengths.cumsum()).astype(np.int32),
        "past_ids": maybe(numbers(0, 6, batch, size - 1)),
        "head_offsets": maybe(numbers(0, 1000, (size - 1) * heads)),
        "eos_token_id": maybe(np.array(3, dtype)),
        "segment_ids": segments,
        "past_segment_ids": None,
        "capture_count": rng.integers(0, 4, batch).astype(np.int32) if capacity else None,
    }
    if segments is not None and inputs["past_ids"] is not None:
        inputs["past_segment_ids"] = rng.integers(0, 3, (batch, size - 1)).astype(np.int32)
    attributes = {"max_ngram_size": size, "n_head_per_ngram": heads, "pad_id": 9, "reset_on_eos": int(rng.integers(2)), "state_update_capacity": capacity}
    outputs = ["hashes", "present", "present_segments" if segments is not None else "", "states" if capacity else ""]
    compare(ort, "VarlenNGramHashMapping", inputs, outputs, attributes, static=seed % 2 == 0)


def test_packed_sequences_that_do_not_fit_are_named() -> None:
    inputs = {
        "input_ids": np.zeros(4, np.int32),
        "multipliers": np.ones(2, np.int32),
        "vocab_sizes": np.full(1, 7, np.int32),
        "cumulative_sequence_length": np.array([0, 2, 2, 4], np.int32),
    }
    attributes = {"max_ngram_size": 2, "n_head_per_ngram": 1, "pad_id": 0}
    with pytest.raises(errors.Error, match="cumulative_sequence_length has 2 before 2: no sequence may be empty"):
        run(model("VarlenNGramHashMapping", inputs, 1, attributes), inputs)


# ONNX Runtime refuses windows on the CPU. The expected state at each position of the window is the state after a run over fewer tokens.
def prefix_states(op_type: str, inputs: Inputs, attributes: dict[str, Any], axis: int, along: tuple[str, ...], window: int) -> np.ndarray:
    length = inputs[along[0]].shape[axis]
    states = []
    for slot in range(window):
        tokens = length - window + slot + 1
        shorter = inputs | {name: np.take(inputs[name], range(max(tokens, 1)), axis) for name in along if inputs[name] is not None}
        if shorter["past_state"] is not None:
            shorter["past_state"] = inputs["past_state"][window - 1]
        state = run(model(op_type, shorter, 2, attributes), feeds_of(shorter, ()))[1]
        states.append(state if tokens > 0 else np.zeros_like(state))
    return np.stack(states)


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("with_past", [False, True])
def test_windows_of_linear_attention(window: int, with_past: bool) -> None:
    rng = np.random.default_rng(window)
    inputs = {"query": floats(rng, 2, 3, 8), "key": floats(rng, 2, 3, 4), "value": floats(rng, 2, 3, 6)}
    inputs["past_state"] = floats(rng, window, 2, 1, 4, 6) if with_past else None
    inputs |= {"decay": -np.abs(floats(rng, 2, 3, 1)), "beta": np.abs(floats(rng, 2, 3, 1)) / 2}
    attributes = {"q_num_heads": 2, "kv_num_heads": 1, "update_rule": "gated_delta"}
    found = run(model("LinearAttention", inputs, 2, attributes | {"state_window": window}), feeds_of(inputs, ()))
    along = ("query", "key", "value", "decay", "beta")
    np.testing.assert_allclose(found[1], prefix_states("LinearAttention", inputs, attributes, 1, along, window), rtol=1e-5, atol=1e-6)
    last = inputs | {"past_state": inputs["past_state"][window - 1] if with_past else None}
    np.testing.assert_allclose(found[0], run(model("LinearAttention", last, 2, attributes), feeds_of(last, ()))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("with_past", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_windows_of_causal_convolutions(window: int, with_past: bool, dilation: int) -> None:
    rng = np.random.default_rng(window)
    inputs = {"input": floats(rng, 2, 3, 4), "weight": floats(rng, 3, 1, 3), "bias": None}
    inputs["past_state"] = floats(rng, window, 2, 3, 2 * dilation) if with_past else None
    attributes = {"dilation": dilation}
    found = run(model("CausalConvWithState", inputs, 2, attributes | {"state_window": window}), feeds_of(inputs, ()))
    np.testing.assert_allclose(found[1], prefix_states("CausalConvWithState", inputs, attributes, 2, ("input",), window), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_more_heads_of_keys_than_of_queries(ort: Any, rule: str) -> None:
    rng = np.random.default_rng(3)
    inputs = {"query": floats(rng, 2, 3, 8), "key": floats(rng, 2, 3, 16) / 4, "value": floats(rng, 2, 3, 12), "past_state": floats(rng, 2, 4, 4, 3)}
    inputs["decay"] = -np.abs(floats(rng, 2, 3, 4)) if "gated" in rule else None
    inputs["beta"] = np.abs(floats(rng, 2, 3, 4)) / 2 if "delta" in rule else None
    attributes = {"q_num_heads": 2, "kv_num_heads": 4, "update_rule": rule}
    compare(ort, "LinearAttention", inputs, 2, attributes, rtol=1e-4, atol=1e-4)
