"""Compares attention, its caches and rotary embedding on a GPU with NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from test_gpu import on_gpu

import treadle


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(op_type: str, feeds: dict[str, np.ndarray | None], outputs: int = 1, opset: int = 24, domain: str = "", **attributes: Any) -> list[np.ndarray]:
    """Runs the node with all operands fed; None is an absent one. Every node that it becomes has to run on the GPU."""
    given = {name: value for name, value in feeds.items() if value is not None}
    names = [f"out{i}" for i in range(outputs)]
    first = helper.np_dtype_to_tensor_dtype(next(iter(given.values())).dtype)
    graph = helper.make_graph(
        [helper.make_node(op_type, [name if name in given else "" for name in feeds], names, "node", domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in given.items()],
        [helper.make_tensor_value_info(name, first, None) for name in names],
    )
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    session = on_gpu(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString())
    devices = {line.split("\t")[0] for line in session.to_text("devices").splitlines()}
    assert devices == {"gpu:0"}, session.to_text("devices")
    return session.run(None, given)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, causal: bool = False, past: int = 0, scale: float | None = None,
    softcap: float = 0, windows: tuple[int, int] = (-1, -1), lengths: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """By the formula, of [batch, heads, rows, size]; k and v with the past. A query that sees no key has zeros."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (x.repeat(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    batch, _, rows, keys = scores.shape
    offset = np.full(batch, past) if lengths is None else lengths - rows
    place = (offset[:, None] + np.arange(rows))[:, None, :, None]
    key = np.arange(keys)
    sees = np.ones((batch, 1, rows, keys), bool)
    if causal:
        sees &= key <= place
    if windows[0] >= 0:
        sees &= key >= place - windows[0]
    if windows[1] >= 0:
        sees &= key <= place + windows[1]
    if lengths is not None:
        sees &= key < lengths[:, None, None, None]
    if mask is not None:
        if mask.shape[-1] < keys:  # a key without an entry in the mask is not seen
            none = False if mask.dtype == bool else -np.inf
            mask = np.concatenate([mask, np.full((*mask.shape[:-1], keys - mask.shape[-1]), none, mask.dtype)], -1)
        sees, scores = (sees & mask, scores) if mask.dtype == bool else (sees, scores + mask)
    scores = np.where(sees, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    return weights @ v


def packed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1)


SHAPES = [(2, 4, 4, 7, 7, 8), (1, 6, 2, 40, 150, 33), (3, 2, 1, 1, 70, 64), (1, 1, 1, 3, 5, 130)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("is_packed", [False, True])
def test_heads_share_keys(shape: tuple[int, ...], causal: int, is_packed: bool) -> None:
    batch, heads, kv_heads, rows, keys, size = shape
    q, k, v = floats(batch, heads, rows, size), floats(batch, kv_heads, keys, size, seed=2), floats(batch, kv_heads, keys, size // 2 + 1, seed=3)
    expected = attention(q, k, v, causal=bool(causal))
    if is_packed:
        (y,) = run("Attention", {"q": packed(q), "k": packed(k), "v": packed(v)}, q_num_heads=heads, kv_num_heads=kv_heads, is_causal=causal)
        expected = packed(expected)
    else:
        (y,) = run("Attention", {"q": q, "k": k, "v": v}, is_causal=causal)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("extents", [(2, 4, 5, 9), (1, 4, 5, 9), (2, 1, 1, 9), (5, 9), (9,), (4, 1, 9), (5, 6), (2, 4, 5, 1)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_broadcast(extents: tuple[int, ...], boolean: bool) -> None:
    q, k, v = floats(2, 4, 5, 16), floats(2, 4, 9, 16, seed=2), floats(2, 4, 9, 16, seed=3)
    mask = floats(*extents, seed=4)
    if boolean:
        mask = mask > -0.5
    else:
        mask[mask > 1] = -np.inf
    (y,) = run("Attention", {"q": q, "k": k, "v": v, "mask": mask})
    np.testing.assert_allclose(y, attention(q, k, v, mask), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("windows", [(2, 0), (0, 3), (-1, 2), (2, 2**31 - 1), (2**31 - 1, 1), (2**63 - 1, 2**63 - 1)])
def test_windows(windows: tuple[int, int]) -> None:
    q, k, v = floats(2, 2, 20, 8), floats(2, 2, 90, 8, seed=2), floats(2, 2, 90, 8, seed=3)
    (y,) = run("Attention", {"q": q, "k": k, "v": v}, opset=25, left_window_size=windows[0], right_window_size=windows[1])
    left, right = (min(window, 90) for window in windows)  # the sums in attention() must not overflow
    np.testing.assert_allclose(y, attention(q, k, v, windows=(left, right)), rtol=2e-5, atol=2e-5)


def test_heads_without_features_weigh_all_values_alike() -> None:
    q, k, v = floats(2, 2, 3, 0), floats(2, 2, 5, 0), floats(2, 2, 5, 8)
    (y,) = run("Attention", {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(y, np.broadcast_to(v.mean(2, keepdims=True), y.shape), rtol=2e-5, atol=2e-5)


def test_a_query_that_sees_no_key_has_zeros() -> None:
    q, k, v = floats(1, 1, 3, 8), floats(1, 1, 4, 8, seed=2), floats(1, 1, 4, 8, seed=3)
    mask = np.array([[True] * 4, [False] * 4, [False, True, False, True]])
    (y,) = run("Attention", {"q": q, "k": k, "v": v, "mask": mask})
    assert not y[0, 0, 1].any()
    np.testing.assert_allclose(y, attention(q, k, v, mask), rtol=2e-5, atol=2e-5)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = 200 * floats(1, 2, 20, 16), 200 * floats(1, 2, 300, 16, seed=2), floats(1, 2, 300, 16, seed=3)
    (y,) = run("Attention", {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(y, attention(q, k, v), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_packed", [False, True])
def test_caches_grow(is_packed: bool) -> None:
    q, k, v = floats(2, 4, 3, 8), floats(2, 2, 3, 8, seed=2), floats(2, 2, 3, 12, seed=3)
    past_k, past_v = floats(2, 2, 70, 8, seed=4), floats(2, 2, 70, 12, seed=5)
    all_k, all_v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    expected = attention(q, all_k, all_v, causal=True, past=70)
    heads = {"q_num_heads": 4, "kv_num_heads": 2} if is_packed else {}
    given = [packed(x) if is_packed else x for x in (q, k, v)]
    feeds = {"q": given[0], "k": given[1], "v": given[2], "mask": None, "past_k": past_k, "past_v": past_v}
    y, present_k, present_v = run("Attention", feeds, outputs=3, is_causal=1, **heads)
    np.testing.assert_allclose(y, packed(expected) if is_packed else expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(present_k, all_k)
    np.testing.assert_array_equal(present_v, all_v)


def test_scale_and_cap_of_scores() -> None:
    q, k, v = 3 * floats(1, 2, 5, 16), floats(1, 2, 9, 16, seed=2), floats(1, 2, 9, 16, seed=3)
    (y,) = run("Attention", {"q": q, "k": k, "v": v}, scale=0.7, softcap=2.0)
    np.testing.assert_allclose(y, attention(q, k, v, scale=0.7, softcap=2), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scores_are_an_output(mode: int, dtype: Any) -> None:
    q, k, v = (x.astype(dtype) for x in (2 * floats(2, 4, 5, 16), floats(2, 2, 90, 16, seed=2), floats(2, 2, 90, 16, seed=3)))
    mask = np.random.default_rng(4).random((5, 90)) < 0.7
    mask[2] = False
    y, shown = run("Attention", {"q": q, "k": k, "v": v, "mask": mask}, outputs=4, softcap=2.0, qk_matmul_output_mode=mode)[::3]
    wide = [x.astype(np.float64) for x in (q, k.repeat(2, 1))]
    scores = wide[0] @ wide[1].swapaxes(2, 3) / 4
    if mode >= 1:
        scores = 2 * np.tanh(scores / 2)
    if mode >= 2:
        scores = np.where(mask, scores, -np.inf)
    if mode == 3:
        with np.errstate(invalid="ignore"):
            scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores = np.nan_to_num(scores / scores.sum(-1, keepdims=True))
    tolerance = 2e-5 if dtype == np.float32 else 3e-3
    np.testing.assert_allclose(shown, scores, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(y, attention(q, k, v, mask, softcap=2), rtol=tolerance, atol=tolerance)


def test_lengths_of_each_sample() -> None:
    q, k, v = floats(3, 2, 4, 8), floats(3, 2, 20, 8, seed=2), floats(3, 2, 20, 8, seed=3)
    lengths = np.array([20, 7, 4])
    feeds = {"q": q, "k": k, "v": v, "mask": None, "past_k": None, "past_v": None, "lengths": lengths}
    (y,) = run("Attention", feeds, is_causal=1)
    np.testing.assert_allclose(y, attention(q, k, v, causal=True, lengths=lengths), rtol=2e-5, atol=2e-5)
    with pytest.raises(treadle.Error, match="length outside"):
        run("Attention", {**feeds, "lengths": np.array([20, 21, 4])}, is_causal=1)


def test_half_precision() -> None:
    q, k, v = (floats(2, 2, 12, 32, seed=s).astype(np.float16) for s in (1, 2, 3))
    (y,) = run("Attention", {"q": q, "k": k, "v": v}, is_causal=1)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, attention(q, k, v, causal=True), rtol=2e-3, atol=2e-3)


def rotated(x: np.ndarray, angles: np.ndarray, interleaved: bool) -> np.ndarray:
    """Turns the first features of each head of [batch, tokens, heads, size] by angles [batch, tokens, pairs]."""
    y, half = x.astype(np.float64), angles.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    numbers = (y[..., first] + 1j * y[..., second]) * np.exp(1j * angles)[:, :, None]
    y[..., first], y[..., second] = numbers.real, numbers.imag
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 6])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("by_id", [True, False])
def test_rotary_embedding(interleaved: int, turned: int, rank: int, by_id: bool) -> None:
    x, pairs = floats(2, 5, 3, 10), (turned or 10) // 2
    table = np.random.default_rng(2).uniform(-3, 3, (40, pairs))
    ids = np.random.default_rng(3).integers(0, 40, (2, 5))
    expected = rotated(x, table[ids], bool(interleaved))
    given = x.reshape(2, 5, 30) if rank == 3 else np.ascontiguousarray(x.swapaxes(1, 2))
    tables = [f(table if by_id else table[ids]).astype(np.float32) for f in (np.cos, np.sin)]
    feeds = {"x": given, "cos": tables[0], "sin": tables[1], "ids": ids if by_id else None}
    attributes = {"num_heads": 3} if rank == 3 else {}
    (y,) = run("RotaryEmbedding", feeds, interleaved=interleaved, rotary_embedding_dim=turned, **attributes)
    np.testing.assert_allclose(y, expected.reshape(2, 5, 30) if rank == 3 else expected.swapaxes(1, 2), rtol=1e-5, atol=1e-5)


def test_an_id_outside_of_the_tables_is_an_error() -> None:
    table = np.ones((4, 4), np.float32)
    with pytest.raises(treadle.Error, match="outside"):
        run("RotaryEmbedding", {"x": floats(1, 2, 8), "cos": table, "sin": table, "ids": np.array([[1, 4]])}, num_heads=1)


def test_tables_that_do_not_fit_the_tokens_are_errors() -> None:
    x, table = floats(3, 2, 4, 8), floats(4, 3, 4)  # 12 rows, as there are tokens, but 4 samples of 3 tokens
    with pytest.raises(treadle.Error, match="cos_cache"):
        run("RotaryEmbedding", {"x": x, "cos": table, "sin": table})


def test_rotary_embedding_of_no_heads() -> None:
    (y,) = run("RotaryEmbedding", {"x": floats(3, 0, 4, 8), "cos": floats(3, 4, 4), "sin": floats(3, 4, 4)})
    assert y.shape == (3, 0, 4, 8)


def test_rotary_embedding_and_attention_of_com_microsoft() -> None:
    x, table = floats(2, 5, 24), np.random.default_rng(2).uniform(-3, 3, (40, 4))
    ids = np.random.default_rng(3).integers(0, 40, (2, 5))
    feeds = {"x": x, "ids": ids, "cos": np.cos(table).astype(np.float32), "sin": np.sin(table).astype(np.float32)}
    (y,) = run("RotaryEmbedding", feeds, domain="com.microsoft", num_heads=3)
    np.testing.assert_allclose(y.reshape(2, 5, 3, 8), rotated(x.reshape(2, 5, 3, 8), table[ids], False), rtol=1e-5, atol=1e-5)
    q, k, v = floats(2, 4, 7, 8), floats(2, 4, 9, 8, seed=2), floats(2, 4, 9, 8, seed=3)
    (y,) = run("MultiHeadAttention", {"q": packed(q), "k": packed(k), "v": packed(v)}, domain="com.microsoft", num_heads=4)
    np.testing.assert_allclose(y, packed(attention(q, k, v)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("biased", [True, False])
def test_skip_layer_normalization(biased: bool) -> None:
    x, skip, scale, shift, bias = floats(2, 3, 40), floats(2, 3, 40, seed=2), floats(40, seed=3), floats(40, seed=4), floats(40, seed=5)
    feeds = {"x": x, "skip": skip, "scale": scale, "shift": shift, "bias": bias if biased else None}
    (y,) = run("SkipLayerNormalization", feeds, domain="com.microsoft", epsilon=1e-5)
    total = x.astype(np.float64) + skip + (bias if biased else 0)
    centered = total - total.mean(-1, keepdims=True)
    np.testing.assert_allclose(y, centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + shift, rtol=2e-5, atol=2e-5)
    simple = {"x": x, "skip": skip, "scale": scale, "bias": bias if biased else None}
    (y,) = run("SkipSimplifiedLayerNormalization", simple, domain="com.microsoft", epsilon=1e-5)
    np.testing.assert_allclose(y, total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * scale, rtol=2e-5, atol=2e-5)

