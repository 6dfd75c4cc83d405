"""The attention operators of com.microsoft against ONNX Runtime, over random shapes and attributes.

TREADLE_CASES says how many cases each operator gets, TREADLE_SEED where they begin.
"""

import os

import numpy as np
import pytest

import contrib

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

import treadle  # noqa: E402

CASES = int(os.environ.get("TREADLE_CASES", "40"))
SEED = int(os.environ.get("TREADLE_SEED", "0"))


class Case:
    """One node with its inputs by name (None: absent) and attributes; `compared` cuts outputs to what both define."""

    def __init__(self, op, inputs, outputs, compared=None, tolerance=2e-5, **attributes):
        self.op, self.inputs, self.outputs, self.attributes = op, inputs, outputs, attributes
        self.compared, self.tolerance = compared or (lambda results: results), tolerance

    def model(self, fixed=False):
        """`fixed`: inputs are declared with their extents; False: with symbols; None: not even with a rank."""
        names = [name if value is not None else "" for name, value in self.inputs]
        while names and not names[-1]:
            names.pop()
        node = helper.make_node(self.op, names, self.outputs, domain="com.microsoft", **self.attributes)
        feeds = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(value.dtype),
                # The caches of a rotary embedding are constants in models.
                None if fixed is None else list(value.shape) if fixed or name in ("cos", "sin") else [f"{name}{i}" for i in range(value.ndim)],
            )
            for name, value in self.inputs
            if value is not None
        ]
        results = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) if name == "qk" else helper.make_empty_tensor_value_info(name)
            for name in self.outputs
            if name
        ]
        graph = helper.make_graph([node], "case", feeds, results)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def feeds(self):
        return {name: value for name, value in self.inputs if value is not None}

    def treadle(self, fixed=False):
        return treadle.InferenceSession(self.model(fixed)).run(None, self.feeds())

    def ort(self, ort):
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        return ort.InferenceSession(self.model(fixed=True), options, providers=["CPUExecutionProvider"]).run(None, self.feeds())

    def describe(self):
        shapes = ", ".join(f"{n} {v.dtype}{list(v.shape)}" for n, v in self.inputs if v is not None)
        return f"{self.op}({shapes}) {self.attributes}"


class Source:
    """Random choices."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape, dtype=np.float32):
        return self.rng.standard_normal(shape).astype(dtype)

    def between(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def coin(self, p=0.5):
        return bool(self.rng.random() < p)

    def one_of(self, *values):
        return values[self.rng.integers(len(values))]


def group_query(r):
    kv_heads, group, size = r.between(1, 3), r.between(1, 3), r.one_of(16, 32)
    heads = kv_heads * group
    form = r.one_of("prompt", "prompt in a buffer", "decode", "decode in a buffer", "more")
    batch = 1 if form == "more" else r.between(1, 3)
    length = r.between(1, 6) if form.startswith("prompt") else 1 if form.startswith("decode") else r.between(2, 5)
    dtype = np.float16 if r.coin(0.15) else np.float32
    past = {"prompt": 0, "prompt in a buffer": length + r.between(0, 6), "decode in a buffer": r.between(2, 9)}.get(form, r.between(1, 9))
    if form.startswith("prompt"):
        total = length
    elif form == "decode in a buffer":
        total = r.between(2, past)
    else:
        total = past + length
    ends = np.array([total] * batch)
    if batch > 1 and form != "more":
        ends[1:] = r.rng.integers(1, total + 1, batch - 1)
    causal = 0 if r.coin(0.15) and not form == "more" else 1
    floats = lambda *shape: r.floats(*shape, dtype=dtype)  # noqa: E731
    packed = r.coin(0.3)
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
    rotary = r.coin()
    caches = (None, None)
    if rotary:
        width = r.one_of(size // 2, 8)
        caches = (floats(32, width), floats(32, width))
        attributes.update(do_rotary=1, rotary_interleaved=int(r.coin()))
    positions = r.rng.integers(0, 26, (batch, length)).astype(np.int64) if rotary and r.coin(0.3) else None
    if causal and r.coin(0.3):
        attributes["local_window_size"] = r.between(1, 6)
    if not causal:
        attributes["causal"] = 0
    if r.coin(0.3):
        attributes["softcap"] = r.one_of(0.5, 5.0)
    if r.coin(0.3):
        attributes["scale"] = r.one_of(0.3, 1.0)
    if r.coin(0.15):
        attributes["smooth_softmax"] = 1
    shown = r.one_of(1, 2) if r.coin(0.2) else 0
    if shown:
        attributes["qk_output"] = shown
    bias = floats(r.one_of(1, batch), r.one_of(1, heads), length, total) if r.coin(0.25) else None
    has_past = past > 0
    inputs = [
        ("query", floats(batch, length, (heads + 2 * kv_heads if packed else heads) * size)),
        ("key", None if packed else floats(batch, length, kv_heads * size)),
        ("value", None if packed else floats(batch, length, kv_heads * size)),
        ("past_key", floats(batch, kv_heads, past, size) if has_past else None),
        ("past_value", floats(batch, kv_heads, past, size) if has_past else None),
        ("seqlens_k", (ends - 1).astype(np.int32)),
        ("total", np.array(total, np.int32) if r.coin() else np.array([total], np.int32)),
        ("cos", caches[0]),
        ("sin", caches[1]),
        ("position_ids", positions),
        ("attention_bias", bias),
        ("head_sink", floats(heads) if r.coin(0.15) else None),
    ]

    def compared(results):
        """Without the queries behind a sample's own end, what they show of their scores, and the rows of caches that no sample has yet."""
        y, key, value = results[:3]
        shown_scores = results[3:]
        assert key.shape == value.shape == (batch, kv_heads, max(past, total), size)
        cut = []
        for b in range(batch):
            rows = min(length, int(ends[b])) if form.startswith("prompt") else length
            cut += [y[b, :rows], key[b, :, : int(ends[b])], value[b, :, : int(ends[b])]]
            for scores in shown_scores:
                cut.append(scores[b, :, :rows, : int(ends[b])])
        return cut

    outputs = ["output", "present_key", "present_value"] + (["qk"] if shown and dtype == np.float32 else [])
    if shown and dtype != np.float32:
        del attributes["qk_output"]
    return Case("GroupQueryAttention", inputs, outputs, compared, 2e-2 if dtype == np.float16 else 2e-5, **attributes)


def resident(total, capacity, window):
    """How many keys a windowed cache holds, as the operator's schema defines it."""
    gap = capacity - window + 1
    return total if total <= capacity else total - gap * -(-(total - capacity) // gap)


def coded_query(r):
    """GroupQueryAttention whose caches are codes of 8 or 4 bits."""
    kv_heads, group, size, bits = r.between(1, 3), r.between(1, 3), r.one_of(16, 32), r.one_of(8, 4)
    heads, form = kv_heads * group, r.one_of("prompt", "decode", "more")
    batch, length = 1 if form == "more" else r.between(1, 3), 1 if form == "decode" else r.between(2, 5)
    past = 0 if form == "prompt" else r.between(1, 6)
    total = past + length
    room = r.one_of(past, total + r.between(0, 4)) if form != "prompt" else total + r.between(0, 4)
    kind, dtype = r.one_of("PER_TENSOR", "PER_CHANNEL"), np.int8 if bits == 8 else np.uint8
    scale = lambda: ((r.rng.random(kv_heads * size if kind == "PER_CHANNEL" else 1) * 0.04 + 0.01) * (1 if bits == 8 else 8)).astype(np.float32)  # noqa: E731
    cache = lambda: r.rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (batch, kv_heads, room, size * bits // 8)).astype(dtype)  # noqa: E731
    rotary = r.coin()
    inputs = [
        ("query", r.floats(batch, length, heads * size)),
        ("key", r.floats(batch, length, kv_heads * size)),
        ("value", r.floats(batch, length, kv_heads * size)),
        ("past_key", cache()),
        ("past_value", cache()),
        ("seqlens_k", np.full(batch, total - 1, np.int32)),
        ("total", np.array(total, np.int32)),
        ("cos", r.floats(16, size // 2) if rotary else None),
        ("sin", r.floats(16, size // 2) if rotary else None),
        ("ids", None),
        ("bias", None),
        ("sink", None),
        ("k_scale", scale()),
        ("v_scale", scale()),
    ]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    if rotary:
        attributes["do_rotary"] = 1
    compared = lambda results: [results[0], *(codes[:, :, :total] for codes in results[1:])]  # noqa: E731
    return Case("GroupQueryAttention", inputs, ["y", "present_key", "present_value"], compared, **attributes)


def windowed_query(r):
    """GroupQueryAttention over caches that are no longer than their window has to be."""
    kv_heads, group, size, window = r.between(1, 2), r.between(1, 3), r.one_of(16, 32), r.between(1, 5)
    heads, capacity = kv_heads * group, window + r.one_of(0, 0, r.between(1, 4))
    form = r.one_of("prompt", "decode", "more")
    batch = 1 if form == "more" else r.between(1, 3)
    length = 1 if form == "decode" else r.between(2, 12)
    ends = r.rng.integers(length, length + 12, batch) if form != "prompt" else np.array([length] * batch)
    total, dtype = int(ends.max()), np.float16 if r.coin(0.15) else np.float32
    floats = lambda *shape: r.floats(*shape, dtype=dtype)  # noqa: E731
    packed = r.coin(0.3)
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "local_window_size": window, "sliding_window_cache": 1}
    rotary = r.coin()
    if rotary:
        attributes.update(do_rotary=1, rotary_interleaved=int(r.coin()))
    if r.coin(0.3):
        attributes["softcap"] = 5.0
    if r.coin(0.15):
        attributes["smooth_softmax"] = 1
    inputs = [
        ("query", floats(batch, length, (heads + 2 * kv_heads if packed else heads) * size)),
        ("key", None if packed else floats(batch, length, kv_heads * size)),
        ("value", None if packed else floats(batch, length, kv_heads * size)),
        ("past_key", floats(batch, kv_heads, capacity, size)),
        ("past_value", floats(batch, kv_heads, capacity, size)),
        ("seqlens_k", (ends - 1).astype(np.int32)),
        ("total", np.array(total, np.int32)),
        ("cos", floats(40, size // 2) if rotary else None),
        ("sin", floats(40, size // 2) if rotary else None),
        ("position_ids", r.rng.integers(0, 26, (batch, length)).astype(np.int64) if rotary and r.coin(0.3) else None),
        ("attention_bias", floats(r.one_of(1, batch), r.one_of(1, heads), length, total) if r.coin(0.25) else None),
        ("head_sink", floats(heads) if r.coin(0.2) else None),
    ]

    def compared(results):
        """Without the rows of caches that no key has."""
        assert results[1].shape == results[2].shape == (batch, kv_heads, capacity, size)
        rows = [resident(int(end), capacity, window) for end in ends]
        return [results[0], *(cache[b, :, :n] for cache in results[1:] for b, n in enumerate(rows))]

    outputs = ["output", "present_key", "present_value"]
    return Case("GroupQueryAttention", inputs, outputs, compared, 2e-2 if dtype == np.float16 else 2e-5, **attributes)


def padded_query(r):
    """GroupQueryAttention over new tokens of which only the first ones count, as many for each sample as query_seqlens says."""
    kv_heads, group, size, batch, length = r.between(1, 2), r.between(1, 3), r.one_of(16, 32), r.between(1, 3), r.between(1, 5)
    heads, windowed, window = kv_heads * group, r.coin(0.4), r.between(1, 5)
    counts = r.rng.integers(0, length + 1, batch)
    before = r.rng.integers(0, 9, batch)
    before += (counts + before) == 0
    ends = before + counts
    total = max(length, int(ends.max())) + r.between(0, 2)
    room = window + r.between(0, 4) if windowed else r.one_of(int(before.max()) + length, int(before.max()) + length + r.between(0, 3), int(before.max()))
    if not windowed and room < before.max() + length:
        total = max(total, int(before.max()) + length)
    packed, rotary = r.coin(0.3), r.coin()
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads} | ({"local_window_size": window} if windowed or r.coin(0.3) else {})
    if windowed:
        attributes["sliding_window_cache"] = 1
    if rotary:
        attributes.update(do_rotary=1, rotary_interleaved=int(r.coin()))
    inputs = [
        ("query", r.floats(batch, length, (heads + 2 * kv_heads if packed else heads) * size)),
        ("key", None if packed else r.floats(batch, length, kv_heads * size)),
        ("value", None if packed else r.floats(batch, length, kv_heads * size)),
        ("past_key", r.floats(batch, kv_heads, room, size)),
        ("past_value", r.floats(batch, kv_heads, room, size)),
        ("seqlens_k", (ends - 1).astype(np.int32)),
        ("total", np.array(total, np.int32)),
        ("cos", r.floats(40, size // 2) if rotary else None),
        ("sin", r.floats(40, size // 2) if rotary else None),
        ("position_ids", r.rng.integers(0, 26, (batch, length)).astype(np.int64) if rotary and r.coin(0.3) else None),
        ("attention_bias", r.floats(r.one_of(1, batch), r.one_of(1, heads), length, total) if r.coin(0.25) else None),
        ("head_sink", r.floats(heads) if r.coin(0.2) else None),
        *[(name, None) for name in ("k_scale", "v_scale", "q_norm", "k_norm")],
        ("query_seqlens", counts.astype(np.int32)),
    ]

    def compared(results):
        """Without padding, and the rows of caches that no key has."""
        assert results[1].shape == results[2].shape == (batch, kv_heads, room if windowed else max(room, total), size)
        rows = [resident(int(end), room, window) if windowed else int(end) for end in ends]
        return [*(results[0][b, :n] for b, n in enumerate(counts)), *(cache[b, :, :n] for cache in results[1:] for b, n in enumerate(rows))]

    return Case("GroupQueryAttention", inputs, ["output", "present_key", "present_value"], compared, **attributes)


def key_mask(r, batch, length, keys, lengths_only=()):
    """A mask of every rank, and none."""
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
        mask[..., 0] = 1  # where nothing is seen, scores have lost their digits to the mask
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
    # Where a past is given and no present asked for, ONNX Runtime reads keys that are not there.
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
    """MultiHeadAttention whose past and present are one buffer, that beams may share.

    With beams, onnxruntime's kernel takes the biases of other samples than a query's own, and is wrong for several new tokens, and for masks
    of ranks 1 and 3.
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
        """Without the rows of the buffers behind the last key."""
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


@pytest.mark.parametrize("form", ["one sample", "several", "a prompt", "by readiness", "verified"])
def test_a_cache_that_past_and_present_share_is_onnxruntimes(ort, form):
    """Bound to the memory of its past, a cache gets its new rows and nothing else, over several steps. What lies behind them is not read."""
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


@pytest.mark.parametrize("past", [0, 2])
@pytest.mark.parametrize("fixed", [False, None])
def test_a_mask_of_rank_four_holds_a_row_for_each_query_that_there_may_be(ort, past, fixed):
    """onnxruntime's CPU kernel takes none; the rows and columns of the queries and keys that there are make its mask of rank 3."""
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
    """However the tokens are cut into steps, and in memory that past and present share; onnxruntime's whole cache is the truth."""
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
    """ONNX Runtime's CPU kernel takes no packed layouts; what they mean is what it computes from the parts."""
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
    """softmax(q k' / sqrt(size) + bias) v, [batch, heads, ...] each."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("fixed", [True, False, None])
@pytest.mark.parametrize("buffer", [True, False], ids=["in a buffer", "grows"])
@pytest.mark.parametrize("length", [1, 3])
def test_rows_of_the_past_are_those_of_the_beams_that_an_indirection_names(length, buffer, fixed):
    """By NumPy: where onnxruntime is wrong, too, which are several new tokens and a bias for each sample."""
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


def block_layouts(r, layouts, blocks):
    """CSR rows and columns, lower triangles with the diagonal."""
    chosen = [[[j for j in range(i + 1) if j == i or r.coin()] for i in range(blocks)] for _ in range(layouts)]
    rows = [np.cumsum([0] + [len(row) for row in layout]) for layout in chosen]
    width = max(int(row[-1]) for row in rows)
    columns = [sum(layout, []) for layout in chosen]
    return np.array(rows, np.int32), np.array([c + [-1] * (width - len(c)) for c in columns], np.int32)


def sparse_case(r):
    shared, block, size, batch, blocks = r.between(1, 2), r.one_of(4, 8), 16, r.between(1, 3), r.between(2, 4)
    heads = shared * r.between(1, 3)
    most = block * blocks
    prompt = r.coin()
    length = r.between(2, most) if prompt else 1
    total = length if prompt else r.between(2, most)
    ends = [total] + [total if prompt else r.between(1, total) for _ in range(batch - 1)]
    rows, columns = block_layouts(r, r.one_of(*[n for n in range(1, heads + 1) if heads % n == 0]), blocks)
    rotary = r.coin()
    packed = r.coin(0.3)
    new = [r.floats(batch, length, (heads + 2 * shared) * size), None, None]
    if not packed:
        new = [r.floats(batch, length, n * size) for n in (heads, shared, shared)]
    angles = r.floats(most, 8) if rotary else None
    inputs = {
        **dict(zip(("query", "key", "value"), new)),
        "past_key": r.floats(batch, shared, most, size),
        "past_value": r.floats(batch, shared, most, size),
        "block_row_indices": rows,
        "block_col_indices": columns,
        "total_sequence_length": np.array([total], np.int32),
        "key_total_sequence_lengths": np.array(ends, np.int32),
        "cos_cache": np.cos(angles) if rotary else None,
        "sin_cache": np.sin(angles) if rotary else None,
    }
    attributes = {"num_heads": heads, "kv_num_heads": shared, "sparse_block_size": block, "do_rotary": int(rotary)}
    if rotary and r.coin():
        attributes["rotary_interleaved"] = 1
    return inputs, attributes, ends, prompt


SPARSE_OUTPUTS = ["output", "present_key", "present_value"]


def run_one_sample(ort, inputs, attributes, b, end):
    """ONNX Runtime, which weighs the values wrongly where the samples of a batch have different lengths."""
    batched = ("query", "key", "value", "past_key", "past_value")
    own = {name: array[b : b + 1].copy() if name in batched and array is not None else array for name, array in inputs.items()}
    own["total_sequence_length"] = own["key_total_sequence_lengths"] = np.array([end], np.int32)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    made = contrib.model("SparseAttention", own, SPARSE_OUTPUTS, attributes)
    session = ort.InferenceSession(made, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array.copy()) for name, array in contrib.feeds_of(own, ()).items()}
    for name, value in bound.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("output")
    for name in ("key", "value"):  # the caches have to share their memory
        binding.bind_ortvalue_output(f"present_{name}", bound[f"past_{name}"])
    session.run_with_iobinding(binding)
    outputs = binding.get_outputs()
    return [value.numpy()[0].copy() for value in outputs]


@pytest.mark.parametrize("seed", range(CASES))
def test_sparse_attention_is_onnxruntimes(ort, seed):
    inputs, attributes, ends, prompt = sparse_case(Source(seed + SEED))
    actual = contrib.run(contrib.model("SparseAttention", inputs, SPARSE_OUTPUTS, attributes), contrib.feeds_of(inputs, ()))
    for b, end in enumerate(ends):
        if not prompt and end == 1:
            continue  # which one sample alone takes for a prompt
        expected = run_one_sample(ort, inputs, attributes, b, end)
        np.testing.assert_allclose(actual[0][b], expected[0], rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(actual[1:], expected[1:]):
            np.testing.assert_allclose(mine[b, :, :end], theirs[:, :end], rtol=1e-5, atol=1e-6)
