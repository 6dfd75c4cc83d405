"""Tests forms of com.microsoft's attention that random cases do not reach: shared memory, beams, masks, projections, and errors."""

import numpy as np
import pytest

import treadle
from attention_cases import Case, Source, resident


@pytest.mark.parametrize("form", ["one sample", "several", "a prompt", "by readiness", "verified"])
def test_a_cache_that_past_and_present_share_is_onnxruntimes(ort, form):
    """If a cache shares its memory with the past, a step only writes the new rows. The test makes several steps; rows after the new ones
    are not read."""
    batch, length, room = (1 if form == "one sample" else 3), (4 if form == "a prompt" else 1), 9
    first = length if form == "a prompt" else 3
    found = []
    for module in (ort, treadle):
        r = Source(11)
        options = module.SessionOptions()
        options.intra_op_num_threads = 1
        if form == "by readiness":
            options.execution_mode, options.inter_op_num_threads = module.ExecutionMode.ORT_PARALLEL, 2
        if form == "verified" and module is treadle:
            options.verify_plans = True
        case = group(batch=batch, length=length, past=room, total=first, heads=4)
        session = module.InferenceSession(case.model(fixed=False), options, providers=["CPUExecutionProvider"])
        rows = [r.floats(batch, 2, room, 16) for _ in range(2)]
        for cache in rows:
            cache[:, :, first:] = np.nan
        caches = [module.OrtValue.ortvalue_from_numpy(cache) for cache in rows]
        addresses = [cache.data_ptr() for cache in caches]
        steps = []
        for total in range(first, first + (1 if form == "a prompt" else 4)):
            ends = [total - 1] if batch == 1 else [total - 1, max(total - 2, length - 1), total - 1]
            feeds = {"q": r.floats(batch, length, 64), "k": r.floats(batch, length, 32), "v": r.floats(batch, length, 32)}
            feeds |= {"ends": np.array(ends, np.int32), "total": np.array(total, np.int32)}
            binding = session.io_binding()
            for name, value in feeds.items():
                binding.bind_cpu_input(name, value)
            for cache, past, present in zip(caches, ("pk", "pv"), ("present_key", "present_value"), strict=True):
                binding.bind_ortvalue_input(past, cache)
                binding.bind_ortvalue_output(present, cache)
            binding.bind_output("y")
            session.run_with_iobinding(binding)
            steps += [binding.get_outputs()[0].numpy().copy(), *(cache.numpy().copy() for cache in caches)]
        assert [cache.data_ptr() for cache in caches] == addresses
        found.append(steps)
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_between_two_codes_round_as_onnxruntimes(ort, bits, kind):
    """Tests numbers for which division, and multiplication by the reciprocal, round to different codes."""
    most = 120 if bits == 8 else 6
    scales = np.linspace(0.01, 0.05, 4000, dtype=np.float32)
    numbers = ((np.arange(most, dtype=np.float64) + 0.5)[:, None] * scales).astype(np.float32)
    scale = scales[np.argmax((np.round(numbers / scales) != np.round(numbers * (np.float32(1) / scales))).sum(0))]
    numbers = ((np.arange(most) + 0.5) * np.float64(scale)).astype(np.float32)
    r, size = Source(0), 16
    x = np.resize(np.concatenate([numbers, -numbers]), (1, 16, size))
    cache = np.zeros((1, 1, 16, size * bits // 8), np.int8 if bits == 8 else np.uint8)
    given = np.full(size if kind == "PER_CHANNEL" else 1, scale)
    names = ["query", "key", "value", "past_key", "past_value", "seqlens_k", "total", "cos", "sin", "ids", "bias", "sink", "k_scale", "v_scale"]
    values = [r.floats(1, 16, size), x, -x, cache, cache, np.array([15], np.int32), np.array(16, np.int32), None, None, None, None, None, given, given]
    case = Case("GroupQueryAttention", list(zip(names, values)), ["y", "present_key", "present_value"], num_heads=1, kv_num_heads=1, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits)
    for mine, theirs in zip(case.treadle(True)[1:], case.ort(ort)[1:]):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("fixed", [False, None])
def test_a_mask_of_rank_four_holds_a_row_for_each_query_that_there_may_be(ort, past, fixed):
    """onnxruntime's CPU kernel accepts no mask of rank 4. The expected result is that of onnxruntime for a mask of rank 3, cut from the
    first rows and columns."""
    r, batch, length, most = Source(19), 2, 3, 7
    total = past + length
    mask = (r.rng.random((batch, 1, most, most)) < 0.6).astype(np.int32)
    mask[..., 0] = 1
    inputs = [("x", r.floats(batch, length, 5)), ("w", r.floats(5, 24)), ("b", r.floats(24)), ("m", mask)]
    inputs += [("past", r.floats(2, batch, 2, past, 4))] if past else []
    rank3 = [(name, mask[:, 0, past:total, :total] if name == "m" else x) for name, x in inputs]
    names = ["y", "present"] if past else ["y"]
    for unidirectional in (0, 1):
        attributes = {"num_heads": 2, "unidirectional": unidirectional}
        expected = Case("Attention", rank3, names, **attributes).ort(ort)
        for a, e in zip(Case("Attention", inputs, names, **attributes).treadle(fixed), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("slack", [0, 3])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "in place"])
def test_a_windowed_cache_gives_what_a_whole_one_gives(ort, shared, slack):
    """The tokens are cut into different steps, also with past and present in the same memory. The expected result is onnxruntime's with a whole
    cache."""
    window, capacity, steps = 4, 4 + slack, [7, 1, 1, 1, 3, 1, 6, 1, 1, 1, 1, 2]
    r, total = Source(17), sum(steps)
    q, k, v = (r.floats(1, total, heads * 16) for heads in (4, 2, 2))
    attributes = {"num_heads": 4, "kv_num_heads": 2, "local_window_size": window}

    def inputs(first, last, past_key, past_value):
        rows = [(name, x[:, first:last]) for name, x in (("q", q), ("k", k), ("v", v))]
        return [*rows, ("pk", past_key), ("pv", past_value), ("ends", np.array([last - 1], np.int32)), ("total", np.array(last, np.int32))]

    names = ["y", "present_key", "present_value"]
    expected = Case("GroupQueryAttention", inputs(0, total, None, None), names, **attributes).ort(ort)
    caches = [treadle.OrtValue.ortvalue_from_numpy(np.full((1, 2, capacity, 16), np.nan, np.float32)) for _ in range(2)]
    done, session = 0, None
    for step in steps:
        case = Case("GroupQueryAttention", inputs(done, done + step, *(cache.numpy() for cache in caches)), names, sliding_window_cache=1, **attributes)
        session = session or treadle.InferenceSession(case.model())
        binding = session.io_binding()
        for name, value in case.feeds().items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        binding.bind_output("y")
        for cache, past, present in zip(caches, ("pk", "pv"), names[1:], strict=True):
            binding.bind_ortvalue_input(past, cache)
            binding.bind_ortvalue_output(present, cache) if shared else binding.bind_output(present)
        session.run_with_iobinding(binding)
        y, *caches = binding.get_outputs()
        np.testing.assert_allclose(y.numpy(), expected[0][:, done : done + step], rtol=2e-5, atol=2e-5)
        done += step
        rows = resident(done, capacity, window)
        for cache, whole in zip(caches, expected[1:], strict=True):
            np.testing.assert_array_equal(cache.numpy()[:, :, :rows], whole[:, :, done - rows : done])


def multi_head_inputs(r, batch=2, length=3, heads=2, size=4):
    rows = [r.floats(batch, length, heads * size) for _ in range(3)]
    return rows, [row.reshape(batch, length, heads, size) for row in rows]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("keys_too", [False, True])
def test_packed_projections_are_the_separate_ones(ort, keys_too, bias):
    """ONNX Runtime's CPU kernel accepts no packed layouts; the expected result is that of ONNX Runtime for separate projections."""
    r = Source(3)
    (q, k, v), parts = multi_head_inputs(r)
    b = r.floats(24) if bias else None
    apart = Case("MultiHeadAttention", [("q", q), ("k", k), ("v", v), ("b", b)], ["y"], num_heads=2)
    packed = [("q", np.stack(parts, 3))] if keys_too else [("q", q), ("k", np.stack(parts[1:], 3))]
    packed = packed + [("none", None)] * (3 - len(packed)) + [("b", b)]
    together = Case("MultiHeadAttention", packed, ["y"], num_heads=2)
    np.testing.assert_allclose(together.treadle()[0], apart.ort(ort)[0], rtol=2e-5, atol=2e-5)


def group(batch=1, length=1, past=4, total=None, ends=None, key=True, value=True, cos=None, bias=None, heads=2, **attributes):
    r, total = Source(5), past + length if total is None else total
    inputs = [
        ("q", r.floats(batch, length, heads * 16)),
        ("k", r.floats(batch, length, 32) if key else None),
        ("v", r.floats(batch, length, 32) if value else None),
        ("pk", r.floats(batch, 2, past, 16)),
        ("pv", r.floats(batch, 2, past, 16)),
        ("ends", np.array([total - 1] * batch if ends is None else ends, np.int32)),
        ("total", np.array(total, np.int32)),
        ("cos", cos),
        ("sin", cos),
        ("ids", None),
        ("bias", bias),
    ]
    return Case("GroupQueryAttention", inputs, ["y", "present_key", "present_value"], num_heads=heads, kv_num_heads=2, **attributes)


def attended(q, k, v, bias):
    """Computes softmax(q k' / sqrt(size) + bias) v, where all arrays are [batch, heads, ...]."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("fixed", [True, False, None])
@pytest.mark.parametrize("buffer", [True, False], ids=["in a buffer", "grows"])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_of_the_past_are_those_of_the_beams_that_an_indirection_names(length, buffer, fixed):
    """Compares with NumPy, as onnxruntime is wrong for several new tokens and for a bias per sample."""
    r, groups, beams, heads, size, past = Source(3), 2, 3, 2, 4, 4
    batch, room = groups * beams, past + (3 if buffer else 0)
    q, k, v = (r.floats(batch, heads, length, size) for _ in range(3))
    past_key, past_value = r.floats(batch, heads, room, size), r.floats(batch, heads, room, size)
    indirection, bias = r.rng.integers(0, beams, (groups, beams, room)).astype(np.int32), r.floats(batch, 1, length, past + length)
    joined = lambda x: x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)  # noqa: E731
    inputs = [("q", joined(q)), ("k", joined(k)), ("v", joined(v)), ("b", None), ("m", None), ("a", bias), ("pk", past_key), ("pv", past_value)]
    inputs += [("l", np.array([past], np.int32) if buffer else None), ("i", indirection)]
    y, present_key, present_value = Case("MultiHeadAttention", inputs, ["y", "present_key", "present_value"], num_heads=heads).treadle(fixed)
    rows = np.arange(batch)[:, None] // beams * beams + indirection.reshape(batch, room)[:, :past]
    seen = lambda cache, new: np.concatenate([cache[rows, :, np.arange(past)].transpose(0, 2, 1, 3), new], 2)  # noqa: E731
    np.testing.assert_allclose(y, joined(attended(q, seen(past_key, k), seen(past_value, v), bias)), rtol=2e-5, atol=2e-5)
    for present, cache, new in ((present_key, past_key, k), (present_value, past_value, v)):
        np.testing.assert_array_equal(present[:, :, :past], cache[:, :, :past])
        np.testing.assert_array_equal(present[:, :, past : past + length], new)


def heads_case(mask=None, indirection=None, past=None, **attributes):
    (q, k, v), _ = multi_head_inputs(Source(7))
    inputs = [("q", q), ("k", k), ("v", v), ("b", None), ("m", mask), ("a", None), ("pk", None), ("pv", None), ("l", None if past is None else np.array([past], np.int32)), ("i", indirection)]
    return Case("MultiHeadAttention", inputs, ["y"], **{"num_heads": 2, **attributes})


def self_case(mask=None, weights=24, **attributes):
    r = Source(9)
    return Case("Attention", [("x", r.floats(2, 3, 5)), ("w", r.floats(5, weights)), ("b", r.floats(weights)), ("m", mask)], ["y"], num_heads=2, **attributes)


def rotary_case(ids=(0, 1, 2), **attributes):
    r = Source(11)
    inputs = [("x", r.floats(1, 3, 8)), ("ids", np.array([ids], np.int64)), ("cos", r.floats(4, 4)), ("sin", r.floats(4, 4))]
    return Case("RotaryEmbedding", inputs, ["y"], **attributes)


REFUSED = [
    (group(sliding_window_cache=1), "positive local_window_size; it is -1"),
    (group(sliding_window_cache=2, local_window_size=2), "sliding_window_cache is 2"),
    (group(sliding_window_cache=1, local_window_size=5), "room for 4 keys, fewer than local_window_size = 5"),
    (group(sliding_window_cache=1, local_window_size=2, ends=[7]), r"seqlens_k\[0\] = 7"),
    (group(sliding_window_cache=1, local_window_size=2, length=3, ends=[1]), r"seqlens_k\[0\] = 1"),
    (group(sliding_window_cache=1, local_window_size=2, batch=2, length=3), "either has to be 1"),
    (group(sliding_window_cache=1, local_window_size=2, length=0), "of no token"),
    (group(k_quant_type="PER_TENSOR"), "for keys alone"),
    (group(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=2), "kv_cache_bit_width = 2"),
    (group(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=8), "k_scale and v_scale"),
    (group(k_quant_type="EACH"), "k_quant_type is"),
    (group(causal=0, local_window_size=2), "local_window_size"),
    (group(causal=2), "causal"),
    (group(do_rotary=1), "cos_cache"),
    (group(heads=3), "num_heads = 3"),
    (group(value=False), "key and value"),
    (group(total=7), "total_sequence_length is 7"),
    (group(total=0), "total_sequence_length is 0"),
    (group(ends=[5]), r"seqlens_k\[0\] = 5"),
    (group(ends=[-1]), r"seqlens_k\[0\] = -1"),
    (group(length=3, ends=[1]), r"seqlens_k\[0\] = 1"),
    (group(ends=[4, 4]), "seqlens_k"),
    (group(batch=2, length=3), "either has to be 1"),
    (group(do_rotary=1, cos=np.ones((3, 8), np.float32)), "position_ids contains 4"),
    (group(bias=np.ones((1, 2, 2, 5), np.float32)), "attn_mask"),
    (heads_case(indirection=np.zeros((3, 1, 3), np.int32)), "cache_indirection, and the batch"),
    (heads_case(mask=np.ones((2, 2), np.int32)), "MultiHeadAttention|do not broadcast"),
    (heads_case(mask=np.ones((2, 1, 3, 3), np.int32)), "key_padding_mask of rank 4"),
    (heads_case(num_heads=3), "heads"),
    (heads_case(num_heads=0), "num_heads is 0"),
    (self_case(do_rotary=1), "do_rotary"),
    (self_case(past_present_share_buffer=1), "past_present_share_buffer"),
    (self_case(mask=np.ones((2, 1, 2, 2), np.int32)), "Reshape|elements"),
    (heads_case(past=2), "past_sequence_length is given without past_key"),
    (self_case(weights=22), "heads|Split"),
    (self_case(qkv_hidden_sizes=[8, 8]), "qkv_hidden_sizes"),
    (self_case(qkv_hidden_sizes=[8, 8, 7]), "qkv_hidden_sizes contains 7"),
    (rotary_case(scale=2.0), "scale"),
    (rotary_case(rotary_embedding_dim=4), "num_heads"),
    (rotary_case(ids=(0, 1, 4)), "position_ids contains 4"),
    (rotary_case(ids=(0, 1, -1)), "position_ids contains -1"),
]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("case, message", REFUSED, ids=lambda x: x if isinstance(x, str) else x.op)
def test_what_is_wrong_or_not_implemented_is_refused(case, message, fixed):
    with pytest.raises(treadle.Error, match=message):
        case.treadle(fixed)
