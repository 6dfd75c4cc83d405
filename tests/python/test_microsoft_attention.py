"""Compares com.microsoft's attention operators with ONNX Runtime, for random shapes and attributes."""

import numpy as np
import pytest

import treadle
from attention_cases import CASES, SEED, Case, Source, coded_query, group_query, padded_query, windowed_query


def key_mask(r, batch, length, keys, lengths_only=()):
    """Returns a mask of a random rank, or none."""
    rank = r.one_of(0, 1, 2, 3)
    if rank == 1:
        ends = r.rng.integers(1, keys + 1, batch)
        form = r.one_of(batch, *lengths_only)
        if form == batch:
            return ends.astype(np.int32)
        if form == 2 * batch:
            return np.concatenate([ends, r.rng.integers(0, ends)]).astype(np.int32)
        return np.concatenate([ends, np.zeros(batch + 1), np.zeros(batch + 1)]).astype(np.int32)
    if rank in (2, 3):
        mask = (r.rng.random((batch, keys) if rank == 2 else (batch, length, keys)) < 0.7).astype(np.int32)
        mask[..., 0] = 1  # in a fully masked row, scores would lose their digits to the mask
        return mask
    return None


def multi_head(r):
    batch, heads, size, v_size, length = r.between(1, 3), r.between(1, 3), r.one_of(4, 8), r.one_of(4, 8, 12), r.between(1, 6)
    form = r.one_of("self", "self", "cross", "apart", "past")
    keys = length if form == "self" else r.between(1, 7)
    past = r.between(1, 5) if form == "past" else 0
    if form in ("past", "apart"):
        v_size = size
    if form == "past":
        keys = length if r.coin(0.7) else keys
    D, Dv = heads * size, heads * v_size
    if form == "apart":
        key, value = r.floats(batch, heads, keys, size), r.floats(batch, heads, keys, v_size)
    else:
        key, value = r.floats(batch, keys, D), r.floats(batch, keys, Dv)
    total = past + keys
    attributes = {"num_heads": heads}
    if r.coin(0.3):
        attributes["unidirectional"] = 1
    if r.coin(0.3):
        attributes["scale"] = r.one_of(0.3, 1.0)
    mask = key_mask(r, batch, length, total, [3 * batch + 2])
    if mask is not None and r.coin(0.3):
        attributes["mask_filter_value"] = r.one_of(-3.0, -100.0)
    inputs = [
        ("query", r.floats(batch, length, D)),
        ("key", key),
        ("value", value),
        ("bias", r.floats(2 * D + Dv) if form != "apart" and r.coin() else None),
        ("mask", mask),
        ("attention_bias", r.floats(r.one_of(1, batch), r.one_of(1, heads), length, total) if r.coin(0.3) else None),
        ("past_key", r.floats(batch, heads, past, size) if past else None),
        ("past_value", r.floats(batch, heads, past, size) if past else None),
    ]
    # If there are a past but no present outputs, ONNX Runtime reads keys that do not exist.
    count = 1 if form == "apart" else r.one_of(3, 4) if past else r.one_of(1, 3, 4)
    outputs = ["output", "present_key", "present_value", "qk"][:count]
    return Case("MultiHeadAttention", inputs, outputs, tolerance=2e-3 if mask is not None else 2e-5, **attributes)


def rotary(r):
    batch, heads, size, length = r.between(1, 3), r.between(1, 3), r.one_of(8, 16), r.between(1, 6)
    dtype = np.float16 if r.coin(0.2) else np.float32
    attributes = {"interleaved": int(r.coin())}
    width = size // 2
    if r.coin(0.3):
        width = size // 4
        attributes.update(num_heads=heads, rotary_embedding_dim=2 * width)
    elif r.coin(0.3):
        attributes["num_heads"] = heads
    form = r.one_of("one", "scalar", "all")
    positions = {"one": np.array([r.between(0, 9)]), "scalar": np.array(r.between(0, 9)), "all": r.rng.integers(0, 16, (batch, length))}[form]
    shape = (batch, heads, length, size) if r.coin(0.4) else (batch, length, heads * size)
    inputs = [
        ("input", r.floats(*shape, dtype=dtype)),
        ("position_ids", positions.astype(np.int64)),
        ("cos", r.floats(16, width, dtype=dtype)),
        ("sin", r.floats(16, width, dtype=dtype)),
    ]
    return Case("RotaryEmbedding", inputs, ["output"], tolerance=1e-2 if dtype == np.float16 else 1e-5, **attributes)


def self_attention(r):
    batch, heads, size, v_size, length, width = r.between(1, 3), r.between(1, 3), r.one_of(4, 8), r.one_of(4, 8), r.between(1, 6), r.between(3, 20)
    past = r.between(1, 4) if r.coin(0.35) else 0
    attributes = {"num_heads": heads}
    if past or r.coin():
        v_size = size
    else:
        attributes["qkv_hidden_sizes"] = [heads * size, heads * size, heads * v_size]
    hidden, total = heads * (2 * size + v_size), past + length
    if r.coin(0.3):
        attributes["unidirectional"] = 1
    if r.coin(0.3):
        attributes["scale"] = r.one_of(0.3, 1.0)
    mask = key_mask(r, batch, length, total, [2 * batch, 3 * batch + 2])
    if mask is not None and r.coin(0.3):
        attributes["mask_filter_value"] = r.one_of(-3.0, -100.0)
    bias = not past and r.coin(0.3)
    inputs = [
        ("input", r.floats(batch, length, width)),
        ("weights", r.floats(width, hidden) / 2),
        ("bias", r.floats(hidden)),
        ("mask", mask),
        ("past", r.floats(2, batch, heads, past, size) if past else None),
        ("attention_bias", r.floats(r.one_of(1, batch), r.one_of(1, heads), length, total) if bias else None),
    ]
    outputs = ["output", "present"] if past or (v_size == size and r.coin()) else ["output"]
    return Case("Attention", inputs, outputs, tolerance=5e-3 if mask is not None else 1e-4, **attributes)


def shared_heads(r):
    """Makes a MultiHeadAttention whose past and present share one buffer, which beams may share too.

    With beams, onnxruntime's kernel uses biases of other samples, and is wrong for several new tokens and for masks of ranks 1 and 3.
    """
    beams = r.one_of(0, 0, 1, 2, 3)
    groups, heads, size = r.between(1, 3), r.between(1, 3), r.one_of(4, 8)
    batch, length = groups * max(beams, 1), 1 if beams else r.between(1, 4)
    room = length + r.between(1, 5)
    past, D = r.between(0, room - length), heads * size
    total = past + length
    attributes = {"num_heads": heads, "unidirectional": int(r.coin())}
    mask = key_mask(r, batch, length, total, [3 * batch + 2])
    if beams and mask is not None and mask.ndim != 2:
        mask = None
    inputs = [
        ("query", r.floats(batch, length, D)),
        ("key", r.floats(batch, length, D)),
        ("value", r.floats(batch, length, D)),
        ("bias", r.floats(3 * D) if r.coin() else None),
        ("mask", mask),
        ("attention_bias", r.floats(1 if beams else r.one_of(1, batch), r.one_of(1, heads), length, total) if r.coin(0.3) else None),
        ("past_key", r.floats(batch, heads, room, size)),
        ("past_value", r.floats(batch, heads, room, size)),
        ("past_length", np.array([past], np.int32)),
        ("cache_indirection", r.rng.integers(0, beams, (groups, beams, room)).astype(np.int32) if beams else None),
    ]

    def compared(results):
        """Removes the rows of the buffers after the last key."""
        return [results[0], *(cache[:, :, :total] for cache in results[1:3]), *results[3:]]

    outputs = ["output", "present_key", "present_value", "qk"][: r.one_of(3, 4)]
    return Case("MultiHeadAttention", inputs, outputs, compared, 2e-3 if mask is not None else 2e-5, **attributes)


def decoder_masked(r):
    beams, heads, size = r.one_of(0, 0, 1, 2, 3), r.between(1, 3), r.one_of(4, 8)
    groups = r.between(1, 3)
    batch = groups * max(beams, 1)
    D, room = heads * size, r.between(1, 8)
    cross = not beams and r.coin(0.3)
    past = r.between(0, room - 1)
    keys = room if cross else past + 1
    mask = (r.rng.random((batch, keys)) < 0.7).astype(np.int32) if r.coin() else None
    if mask is not None:
        mask[:, 0] = 1
    attributes = {"num_heads": heads}
    if r.coin(0.3):
        attributes["scale"] = r.one_of(0.3, 1.0)
    shown = r.coin(0.3)
    if shown:
        attributes["output_qk"] = 1
    if not cross:
        attributes["past_present_share_buffer"] = 1
    apart = lambda: r.floats(batch, heads, room, size)  # noqa: E731
    inputs = [
        ("query", r.floats(batch, 1, D)),
        ("key", apart() if cross else r.floats(batch, 1, D)),
        ("value", apart() if cross else r.floats(batch, 1, D)),
        ("mask", mask),
        ("attention_bias", r.floats(1 if beams else r.one_of(1, batch), r.one_of(1, heads), 1, keys) if not cross and r.coin(0.3) else None),
        ("past_key", None if cross else apart()),
        ("past_value", None if cross else apart()),
        ("past_length", None if cross else np.array([past], np.int32)),
        ("beam_width", np.array([beams], np.int32) if beams else None),
        ("cache_indirection", r.rng.integers(0, beams, (groups, beams, room)).astype(np.int32) if beams else None),
        ("bias", r.floats(3 * D) if r.coin() else None),
    ]
    outputs = ["output"] if cross else ["output", "present_key", "present_value"]
    if shown:
        outputs = outputs + [""] * (3 - len(outputs)) + ["qk"]
    return Case("DecoderMaskedMultiHeadAttention", inputs, outputs, tolerance=2e-3 if mask is not None else 2e-5, **attributes)


def quantized_attention(r):
    batch, heads, size, length, width = r.between(1, 3), r.between(1, 3), r.one_of(4, 8), r.between(1, 6), r.between(3, 20)
    past = r.between(1, 4) if r.coin(0.35) else 0
    hidden, total = heads * 3 * size, past + length
    weights = r.one_of(np.int8, np.uint8)
    columns = hidden if r.coin() else 1
    attributes = {"num_heads": heads}
    if r.coin(0.3):
        attributes["unidirectional"] = 1
    mask = key_mask(r, batch, length, total, [2 * batch])
    low = -20 if weights == np.int8 else 100
    inputs = [
        ("input", r.rng.integers(0, 256, (batch, length, width)).astype(np.uint8)),
        ("weight", r.rng.integers(low, low + 60, (width, hidden)).astype(weights)),
        ("bias", r.floats(hidden)),
        ("input_scale", np.array(0.01, np.float32)),
        ("weight_scale", (r.rng.random(columns) * 0.02 + 0.01).astype(np.float32)),
        ("mask", mask),
        ("input_zero_point", np.array(r.between(100, 150), np.uint8)),
        ("weight_zero_point", (low + r.rng.integers(0, 60, columns)).astype(weights)),
        ("past", r.floats(2, batch, heads, past, size) if past else None),
    ]
    return Case("QAttention", inputs, ["output", "present"], tolerance=5e-3 if mask is not None else 1e-4, **attributes)


def quantized_embed(r):
    batch, length, hidden, dtype = r.between(1, 3), r.between(1, 6), r.between(2, 12), np.uint8
    segments = r.coin()
    table = lambda rows: r.rng.integers(0, 256, (rows, hidden)).astype(dtype)  # noqa: E731
    row = lambda: r.rng.integers(0, 256, hidden).astype(dtype)  # noqa: E731
    scale = lambda: np.array(r.rng.random() * 0.02 + 0.005, np.float32)  # noqa: E731
    zero = lambda: np.array(r.between(100, 150), dtype)  # noqa: E731
    inputs = [
        ("ids", r.rng.integers(0, 10, (batch, length)).astype(np.int32)),
        ("segment_ids", r.rng.integers(0, 2, (batch, length)).astype(np.int32) if segments else None),
        ("words", table(10)),
        ("positions", table(8)),
        ("segments", table(2) if segments else None),
        ("gamma", row()),
        ("beta", row()),
        ("mask", (np.arange(length)[None] < r.rng.integers(1, length + 1, (batch, 1))).astype(np.int32) if r.coin() else None),
        ("words_scale", scale()),
        ("positions_scale", scale()),
        ("segments_scale", scale() if segments else None),
        ("gamma_scale", scale()),
        ("beta_scale", scale()),
        ("words_zero", zero()),
        ("positions_zero", zero()),
        ("segments_zero", zero() if segments else None),
        ("gamma_zero", zero()),
        ("beta_zero", zero()),
    ]
    return Case("QEmbedLayerNormalization", inputs, ["output", "mask_index"], tolerance=1e-4)


def skip_norm(r):
    batch, length, hidden = r.between(1, 3), r.between(1, 5), r.between(2, 12)
    simplified = r.coin()
    skip = r.one_of((batch, length, hidden), (1, length, hidden), (length, hidden))
    inputs = [("input", r.floats(batch, length, hidden)), ("skip", r.floats(*skip)), ("gamma", r.floats(hidden))]
    if not simplified:
        inputs.append(("beta", r.floats(hidden) if r.coin() else None))
    inputs.append(("bias", r.floats(hidden) if r.coin() else None))
    outputs = ["output"] if r.coin() else ["output", "", "", "sum"]
    return Case(("SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"), inputs, outputs, tolerance=1e-4)


MAKERS = [group_query, coded_query, windowed_query, padded_query, multi_head, shared_heads, rotary, self_attention, decoder_masked, quantized_attention, quantized_embed, skip_norm]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_values_are_onnxruntimes(ort, make):
    wrong = []
    for seed in range(SEED, SEED + CASES):
        case = make(Source(seed))
        expected = case.compared(case.ort(ort))
        try:
            actual = case.compared(case.treadle(fixed=(True, False, None)[seed % 3]))
            assert len(actual) == len(expected)
            for a, e in zip(actual, expected):
                assert a.shape == e.shape and a.dtype == e.dtype, f"{a.dtype}{a.shape} {e.dtype}{e.shape}"
                np.testing.assert_allclose(a.astype(np.float64), e.astype(np.float64), rtol=case.tolerance, atol=case.tolerance)
        except (AssertionError, treadle.Error) as error:
            wrong.append(f"seed {seed}: {case.describe()}: {str(error).strip()[:400]}")
    assert not wrong, f"{len(wrong)} of {CASES}\n" + "\n".join(wrong[:6])
