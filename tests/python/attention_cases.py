"""Random cases of com.microsoft's attention operators. TREADLE_CASES sets the number of cases per operator, TREADLE_SEED the first seed."""

import os

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

import treadle  # noqa: E402

CASES = int(os.environ.get("TREADLE_CASES", "40"))
SEED = int(os.environ.get("TREADLE_SEED", "0"))


class Case:
    """One node with its inputs by name (None: an absent operand) and attributes. `compared` removes parts of outputs that the operator does
    not define."""

    def __init__(self, op, inputs, outputs, compared=None, tolerance=2e-5, **attributes):
        self.op, self.inputs, self.outputs, self.attributes = op, inputs, outputs, attributes
        self.compared, self.tolerance = compared or (lambda results: results), tolerance

    def model(self, fixed=False):
        """Returns the model. `fixed`: True declares inputs with their extents, False with symbols, None without a rank."""
        names = [name if value is not None else "" for name, value in self.inputs]
        while names and not names[-1]:
            names.pop()
        node = helper.make_node(self.op, names, self.outputs, domain="com.microsoft", **self.attributes)
        feeds = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(value.dtype),
                # In models, the cos and sin tables of a rotary embedding are constants.
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
    """Makes random choices."""

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
        """Removes queries beyond a sample's end with their scores, and rows of caches that no sample has filled."""
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
    """Returns how many keys a windowed cache holds, by the operator's schema."""
    gap = capacity - window + 1
    return total if total <= capacity else total - gap * -(-(total - capacity) // gap)


def coded_query(r):
    """Makes a GroupQueryAttention whose caches hold codes of 8 or 4 bits."""
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
    """Makes a GroupQueryAttention whose caches are as short as their window allows."""
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
        """Removes rows of caches that hold no key."""
        assert results[1].shape == results[2].shape == (batch, kv_heads, capacity, size)
        rows = [resident(int(end), capacity, window) for end in ends]
        return [results[0], *(cache[b, :, :n] for cache in results[1:] for b, n in enumerate(rows))]

    outputs = ["output", "present_key", "present_value"]
    return Case("GroupQueryAttention", inputs, outputs, compared, 2e-2 if dtype == np.float16 else 2e-5, **attributes)


def padded_query(r):
    """Makes a GroupQueryAttention in which only the first query_seqlens[i] new tokens of sample i count."""
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
        """Removes padding, and rows of caches that hold no key."""
        assert results[1].shape == results[2].shape == (batch, kv_heads, room if windowed else max(room, total), size)
        rows = [resident(int(end), room, window) if windowed else int(end) for end in ends]
        return [*(results[0][b, :n] for b, n in enumerate(counts)), *(cache[b, :, :n] for cache in results[1:] for b, n in enumerate(rows))]

    return Case("GroupQueryAttention", inputs, ["output", "present_key", "present_value"], compared, **attributes)
