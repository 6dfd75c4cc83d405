"""Draws nodes with operands for operators on sequences of rows (linear attention, causal convolutions), on text and sound, and for steps of
optimisers."""

from __future__ import annotations

import numpy as np
import onnx

from draft import WORDS, Draft


def dropout(d: Draft) -> None:
    d.add(d.array(d.dtype(0), d.shape()))
    if d.since >= 12:
        d.add(np.array(d.fraction(0, 0.9), d.dtype("T1")) if d.flip() else None)
        d.add(np.array(False) if d.flip(0.3) else None)
        if d.inputs[2] is None:
            d.inputs.pop()
    else:
        d.maybe("ratio", lambda: d.fraction(0, 0.9))
        if d.has_attribute("is_test"):
            d.attributes["is_test"] = 1


def constant(d: Draft) -> None:
    dtype = d.pick([np.float32, np.int64, np.float64, np.bool_, np.uint8, np.float16, np.int32])
    d.attributes["value"] = onnx.numpy_helper.from_array(np.asarray(d.array(dtype, d.shape())))


def swiglu(d: Draft) -> None:
    d.tolerance = 8
    shape = d.shape()
    for _ in range(2):
        d.add(d.array(d.dtype(0), shape))
    d.maybe("alpha", lambda: d.fraction(-1, 2), 0.4)


def causal_conv(d: Draft) -> None:
    d.tolerance = 16
    batch, channels, length, kernel = d.pick([1, 2]), d.pick([1, 2, 3, 8, 17]), d.number(1, 9), d.number(1, 4)
    dtype = d.dtype(0)

    def put(*shape: int) -> None:
        d.add(d.array(dtype, shape, -2, 2, edges=False))

    put(batch, channels, length)
    put(channels, 1, kernel)
    put(channels) if d.flip() else d.add(None)
    if d.flip() and kernel > 1:
        put(batch, channels, kernel - 1)
    d.maybe("activation", lambda: d.pick(["none", "silu", "swish"]))
    d.num_outputs = 2


def linear_attention(d: Draft) -> None:
    d.tolerance = 60
    batch, steps, heads, group, keys, values = d.pick([1, 2]), d.number(1, 5), d.pick([1, 2]), d.pick([1, 1, 2]), d.pick([1, 2, 4, 8]), d.pick([1, 2, 4, 9])
    rule = d.pick(["linear", "gated", "delta", "gated_delta"])
    d.set_dtype("S", d.dtype(0))

    def put(*shape: int, low: float = -1, high: float = 1) -> None:
        d.add(d.array(d.dtype(0), shape, low, high, edges=False))

    put(batch, steps, heads * group * keys)
    put(batch, steps, heads * keys, low=-0.5, high=0.5)
    put(batch, steps, heads * values)
    put(batch, heads, keys, values) if d.flip() else d.add(None)
    put(batch, steps, heads * keys if d.flip() else heads, low=-1, high=0) if "gated" in rule else d.add(None)
    put(batch, steps, heads if d.flip() else 1, low=0, high=1) if "delta" in rule else d.add(None)
    d.attributes.update(q_num_heads=heads * group, kv_num_heads=heads, update_rule=rule)
    d.maybe("scale", lambda: d.fraction(0.1, 1), 0.4)
    d.maybe("chunk_size", lambda: d.pick([1, 2, 64]), 0.3)
    d.num_outputs = 2


def mel_weights(d: Draft) -> None:
    d.tolerance = 8
    index, edge = d.dtype(0), d.dtype(3)
    d.add(np.array(d.number(1, 8), index))
    d.add(np.array(d.pick([16, 32, 64]), index))
    d.add(np.array(d.pick([8000, 16000]), index))
    d.add(np.array(d.pick([0, 20, 100]), edge))
    d.add(np.array(d.pick([2000, 3500, 4000]), edge))


def string_normalizer(d: Draft) -> None:
    d.add(d.array(object, (d.number(1, 6),) if d.flip(0.7) else (1, d.number(1, 6))))
    d.maybe("case_change_action", lambda: d.pick(["NONE", "LOWER", "UPPER"]))
    d.maybe("is_case_sensitive", lambda: d.below(2))
    d.attributes["locale"] = "C.UTF-8"
    if d.flip():
        d.attributes["stopwords"] = d.pick([["a"], ["the", "BC"], ["a", "bc", "the"]])


def tf_idf(d: Draft) -> None:
    dtype = d.pick([np.int64, np.int32, object])
    d.set_dtype("T", dtype)
    shape = (d.number(1, 9),) if d.flip() else (d.number(1, 3), d.number(1, 7))
    d.add(d.array(object, shape) if dtype is object else d.array(dtype, shape, 0, 4, edges=False))
    pool = WORDS[:5] if dtype is object else [0, 1, 2, 3, 4]
    singles, pairs = pool[: d.number(1, 5)], d.number(0, 3)
    grams = [*singles, *(pool[(i + j) % 5] for i in range(pairs) for j in range(2))]
    d.attributes["pool_strings" if dtype is object else "pool_int64s"] = grams
    d.attributes.update(
        ngram_counts=[0, len(singles)], ngram_indexes=list(range(len(singles) + pairs)), mode=d.pick(["TF", "IDF", "TFIDF"]), min_gram_length=1,
        max_gram_length=d.number(1, 2), max_skip_count=d.below(3),
    )  # fmt: skip
    if d.flip():
        d.attributes["weights"] = [d.fraction(0.5, 2) for _ in range(len(singles) + pairs)]


def optimizer_step(d: Draft) -> None:
    d.tolerance = 16
    dtype = d.dtype(2)
    count = d.number(1, 2)
    shapes = [d.shape(0, 3) for _ in range(count)]
    d.add(np.array(d.fraction(0.01, 0.5), d.dtype(0)))
    d.add(np.array(d.number(0, 5), np.int64))
    for kind in range({"Adagrad": 3, "Momentum": 3, "Adam": 4}[d.schema.name]):
        for shape in shapes:
            value = d.array(dtype, shape, edges=False)
            d.add(np.abs(value) if kind == 3 or (kind == 2 and d.schema.name == "Adagrad") else value)
    d.num_outputs = count * (3 if d.schema.name == "Adam" else 2)
    for name in ("norm_coefficient", "decay_factor", "norm_coefficient_post"):
        d.maybe(name, lambda: d.fraction(0, 0.5), 0.5)
    if d.schema.name == "Momentum":
        d.attributes.update(alpha=d.fraction(0.1, 1), beta=d.fraction(0.1, 1), mode=d.pick(["standard", "nesterov"]), norm_coefficient=d.fraction(0, 0.5))
    if d.schema.name == "Adam":
        d.attributes.update(alpha=d.fraction(0.1, 0.9), beta=d.fraction(0.1, 0.9))


MAKERS = {
    "Dropout": dropout, "Constant": constant, "SwiGLU": swiglu, "CausalConvWithState": causal_conv, "LinearAttention": linear_attention,
    "MelWeightMatrix": mel_weights, "StringNormalizer": string_normalizer, "TfIdfVectorizer": tf_idf,
}  # fmt: skip
TRAINING_MAKERS = dict.fromkeys(["Adagrad", "Adam", "Momentum"], optimizer_step)
