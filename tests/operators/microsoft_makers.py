"""Draws float64 nodes of operators of com.microsoft for the gradients' fuzzer. onnx has no schemas of them; onnxruntime's ContribOperators.md
documents them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from draft import Case, Choices, Draft

DOMAIN = "com.microsoft"
SINGLE = {"CropAndResize", "RotaryEmbedding"}  # operators that do not support float64


class MicrosoftDraft(Draft):
    """Drafts cases in which all floats have one dtype and no edge values."""

    def __init__(self, name: str, choices: Choices, opset: int, floats: Any = np.float64) -> None:
        schema = SimpleNamespace(name=name, domain=DOMAIN, since_version=1, min_output=1, type_constraints=[], attributes={}, inputs=[])
        super().__init__(schema, choices, opset)  # type: ignore[arg-type]
        self.edges = False
        self.floats = np.float32 if name in SINGLE else floats

    def put(self, *shape: int, low: float = -2, high: float = 2) -> np.ndarray:
        values = np.random.default_rng(self.below(1 << 16)).uniform(low, high, shape)
        return self.add(np.asarray(values, self.floats))

    def put_or_none(self, *shape: int, chance: float = 0.5, low: float = -2, high: float = 2) -> None:
        if self.flip(chance):
            self.put(*shape, low=low, high=high)
        else:
            self.add(None)

    def put_ints(self, values: Any, dtype: Any = np.int32) -> None:
        self.add(np.asarray(values, dtype))


def _pointwise(d: MicrosoftDraft) -> None:
    d.put(*d.shape(0, 4, empty=False))
    if d.schema.name == "QuickGelu" and d.flip():
        d.attributes["alpha"] = d.fraction(0.5, 2)


def _bias_gelu(d: MicrosoftDraft) -> None:
    shape = d.shape(1, 3, empty=False)
    d.put(*shape)
    d.put(shape[-1])


def _fast_gelu(d: MicrosoftDraft) -> None:
    shape = d.shape(1, 3, empty=False)
    d.put(*shape)
    d.put_or_none(shape[-1])


def _bias_split_gelu(d: MicrosoftDraft) -> None:
    n, s, width = d.number(1, 2), d.number(1, 4), 2 * d.number(1, 5)
    d.put(n, s, width)
    d.put(width)


def _bias_add(d: MicrosoftDraft) -> None:
    n, s, c = d.number(1, 2), d.number(1, 4), d.number(1, 6)
    d.put(n, s, c), d.put(c), d.put(n, s, c)


def _fused_matmul(d: MicrosoftDraft) -> None:
    m, k, n, stack = d.number(1, 5), d.number(1, 5), d.number(1, 5), d.shape(0, 2, empty=False)
    ta, tb = d.below(2), d.below(2)
    d.put(*stack, *((k, m) if ta else (m, k)))
    d.put(*stack, *((n, k) if tb else (k, n)))
    d.attributes.update(transA=ta, transB=tb, alpha=d.fraction(0.5, 2))


def _fused_gemm(d: MicrosoftDraft) -> None:
    m, k, n, ta, tb = d.number(1, 5), d.number(1, 5), d.number(1, 5), d.below(2), d.below(2)
    d.put(*((k, m) if ta else (m, k)))
    d.put(*((n, k) if tb else (k, n)))
    d.put_or_none(*d.pick([(n,), (1, n), (m, n), ()]))
    d.attributes.update(transA=ta, transB=tb, activation=d.pick(["Relu", "Tanh", "Sigmoid", "LeakyRelu"]))
    if d.attributes["activation"] == "LeakyRelu":
        d.attributes["activation_alpha"] = d.fraction(0.01, 0.5)


def _fused_conv(d: MicrosoftDraft) -> None:
    n, c, m, h, w, k = d.number(1, 2), d.number(1, 3), d.number(1, 3), d.number(3, 6), d.number(3, 6), d.number(1, 3)
    d.put(n, c, h, w), d.put(m, c, k, k), d.put_or_none(m)
    d.attributes.update(activation=d.pick(["Relu", "Tanh", "Sigmoid"]), kernel_shape=[k, k])
    if d.flip():
        d.attributes["pads"] = [d.below(k) for _ in range(4)]


def _inverse(d: MicrosoftDraft) -> None:
    n, stack = d.number(1, 4), d.shape(0, 2, empty=False)
    matrix = d.put(*stack, n, n, low=-1, high=1)
    matrix += 3 * np.eye(n)


def _c_dist(d: MicrosoftDraft) -> None:
    k = d.number(1, 5)
    d.put(d.number(1, 4), k), d.put(d.number(1, 4), k)
    d.attributes["metric"] = d.pick(["sqeuclidean", "euclidean"])


def _crop_and_resize(d: MicrosoftDraft) -> None:
    n, c, boxes = d.number(1, 2), d.number(1, 2), d.number(1, 3)
    d.put(n, c, d.number(2, 6), d.number(2, 6))
    corner = np.random.default_rng(d.below(1000)).uniform(0, 0.5, (boxes, 2))
    d.add(np.concatenate([corner, corner + 0.4], 1).astype(np.float32))
    d.put_ints(np.random.default_rng(d.below(1000)).integers(0, n, boxes))
    d.put_ints([d.number(1, 4), d.number(1, 4)])


def _skip_layer_norm(d: MicrosoftDraft) -> None:
    n, s, c = d.number(1, 2), d.number(1, 4), d.number(2, 6)
    d.put(n, s, c)
    d.put(n, s, c)
    d.put(c)
    if d.schema.name == "SkipLayerNormalization":
        d.put_or_none(c)
    d.put_or_none(c)
    d.attributes["epsilon"] = d.fraction(1e-2, 1e-1)


def _embed_layer_norm(d: MicrosoftDraft) -> None:
    n, s, c, words, segments = d.number(1, 2), d.number(1, 4), d.number(2, 6), 7, d.flip()
    random = np.random.default_rng(d.below(1000))
    d.put_ints(random.integers(0, words, (n, s)))
    d.put_ints(random.integers(0, 2, (n, s))) if segments else d.add(None)
    d.put(words, c), d.put(s + 2, c)
    d.put(2, c) if segments else d.add(None)
    d.put(c), d.put(c)
    d.attributes["epsilon"] = d.fraction(1e-2, 1e-1)


def _group_norm(d: MicrosoftDraft) -> None:
    groups, each = d.number(1, 2), d.number(1, 3)
    c, n, h, w = groups * each, d.number(1, 2), d.number(1, 3), d.number(2, 3)
    d.put(n, h, w, c)
    d.add(np.random.default_rng(d.below(1000)).uniform(-2, 2, c))
    d.add(np.random.default_rng(d.below(1000)).uniform(-2, 2, c))
    d.attributes.update(groups=groups, activation=d.below(2), channels_last=1, epsilon=d.fraction(1e-2, 1e-1))
    if d.schema.name == "SkipGroupNorm":
        d.put(n, h, w, c)
        d.put_or_none(c)


def _rotary(d: MicrosoftDraft) -> None:
    n, heads, s, size = d.number(1, 2), d.number(1, 2), d.number(1, 4), 2 * d.number(1, 3)
    d.put(n, heads, s, size) if d.flip() else d.put(n, s, heads * size)
    if d.inputs[0].ndim == 3:
        d.attributes["num_heads"] = heads
    d.put_ints(np.random.default_rng(d.below(1000)).integers(0, 4, (n, s)), np.int64)
    angles = np.random.default_rng(d.below(1000)).uniform(-3, 3, (8, size // 2))
    d.add(np.cos(angles).astype(np.float32)), d.add(np.sin(angles).astype(np.float32))
    d.attributes["interleaved"] = d.below(2)


def _self_attention(d: MicrosoftDraft) -> None:
    n, s, heads, size, width = d.number(1, 2), d.number(1, 4), d.number(1, 2), d.number(1, 3), d.number(1, 4)
    d.put(n, s, width), d.put(width, 3 * heads * size), d.put(3 * heads * size)
    d.attributes.update(num_heads=heads, unidirectional=d.below(2))
    if d.flip(0.4):
        d.add(None), d.add(None)
        d.put(d.pick([1, n]), d.pick([1, heads]), s, s)
    if d.flip(0.3):
        d.attributes["scale"] = d.fraction(0.1, 1)


def _multi_head(d: MicrosoftDraft) -> None:
    n, s, t, heads, size, v_size = d.number(1, 2), d.number(1, 4), d.number(1, 4), d.number(1, 2), d.number(1, 3), d.number(1, 3)
    d.put(n, s, heads * size), d.put(n, t, heads * size), d.put(n, t, heads * v_size)
    d.put_or_none(heads * (2 * size + v_size))
    d.attributes["num_heads"] = heads
    if d.flip(0.4):
        d.add(None)
        d.put(d.pick([1, n]), d.pick([1, heads]), s, t)
    if d.flip(0.3):
        d.attributes["scale"] = d.fraction(0.1, 1)
    if s == t and d.flip(0.3):
        d.attributes["unidirectional"] = 1


def _grid_sample(d: MicrosoftDraft) -> None:
    n, c = d.number(1, 2), d.number(1, 2)
    d.put(n, c, d.number(1, 5), d.number(1, 5))
    d.put(n, d.number(1, 3), d.number(1, 3), 2, low=-1.3, high=1.3)
    d.attributes.update(mode=d.pick(["bilinear", "nearest", "bicubic"]), padding_mode=d.pick(["zeros", "border", "reflection"]), align_corners=d.below(2))


def _pad(d: MicrosoftDraft) -> None:
    shape = d.shape(1, 3, empty=False)
    d.put(*shape)
    d.put_ints([d.below(3) for _ in shape * 2], np.int64)
    d.add(np.asarray(d.fraction(-1, 1), np.float64) if d.flip() else None)
    d.attributes["mode"] = d.pick(["constant", "edge"])


def _trilu(d: MicrosoftDraft) -> None:
    d.put(*d.shape(2, 4, empty=False))
    d.add(np.array(d.number(-2, 2), np.int64) if d.flip() else None)
    d.attributes["upper"] = d.below(2)


def _expand_dims(d: MicrosoftDraft) -> None:
    shape = d.shape(1, 3, empty=False)
    d.put(*shape)
    d.put_ints(d.number(-len(shape) - 1, len(shape)))


def _gather_nd(d: MicrosoftDraft) -> None:
    a, b, c = d.number(1, 4), d.number(1, 4), d.number(1, 4)
    d.put(a, b, c)
    random, depth = np.random.default_rng(d.below(1000)), d.number(1, 3)
    d.put_ints(np.stack([random.integers(0, n, 3) for n in (a, b, c)[:depth]], -1), np.int64)


def _unfold(d: MicrosoftDraft) -> None:
    shape = list(d.shape(1, 3, empty=False))
    axis, size = d.below(len(shape)), d.number(1, 3)
    shape[axis] = size + d.number(0, 4)
    d.put(*shape)
    d.attributes.update(dim=axis, size=size, step=d.number(1, 2))


MAKERS: dict[str, Callable[[MicrosoftDraft], None]] = {
    "Gelu": _pointwise, "QuickGelu": _pointwise, "BiasGelu": _bias_gelu, "FastGelu": _fast_gelu, "BiasSplitGelu": _bias_split_gelu, "BiasAdd": _bias_add,
    "FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul, "FusedGemm": _fused_gemm, "FusedConv": _fused_conv, "Inverse": _inverse,
    "CDist": _c_dist, "CropAndResize": _crop_and_resize, "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm, "EmbedLayerNormalization": _embed_layer_norm, "GroupNorm": _group_norm,
    "SkipGroupNorm": _group_norm, "RotaryEmbedding": _rotary, "Attention": _self_attention, "MultiHeadAttention": _multi_head,
    "GridSample": _grid_sample, "Pad": _pad, "Trilu": _trilu, "ExpandDims": _expand_dims, "GatherND": _gather_nd, "UnfoldTensor": _unfold,
}  # fmt: skip


def make_case(op: str, opset: int, choices: Choices) -> Case:
    """Draws a node of the operator. @raises Rejected if the choices make no valid one"""
    draft = MicrosoftDraft(op, choices, opset)
    MAKERS[op](draft)
    return draft.finish(opset)
