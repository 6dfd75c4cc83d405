"""Computes ONNX operators by PyTorch's functions, as the operators are defined. A function returns the outputs, or None for attributes or
operands that it does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from draft import Case

try:
    import torch
    import torch.nn.functional as functional
except ImportError:  # tests also run without PyTorch
    torch = None


class Operands:
    """The operands of a case as float64 tensors, by number; operands that are counts or indices are NumPy arrays. Also its attributes, with
    defaults."""

    def __init__(self, case: Case, tensors: list) -> None:
        self.case, self.tensors = case, tensors

    def __getitem__(self, i: int) -> Any:
        return self.tensors[i] if i < len(self.tensors) else None

    def __len__(self) -> int:
        return len(self.tensors)

    def array(self, i: int) -> np.ndarray | None:
        return self.case.inputs[i] if i < len(self.case.inputs) else None

    def ints(self, i: int, attribute: str = "") -> list[int] | None:
        """Returns the integers of an operand or, if it is absent, of the attribute that older opsets have in its place."""
        value = self.array(i) if self.array(i) is not None else self.case.attributes.get(attribute)
        return None if value is None else [int(n) for n in np.asarray(value).reshape(-1)]

    def get(self, name: str, default: Any = None) -> Any:
        value = self.case.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value


# Elementwise operators.


def _by_opset(op: Operands, since: int, newer: Any, older: Any) -> Any:
    return newer if op.case.since >= since else older


def _pow(op: Operands) -> list:
    return [op[0] ** op[1]]


def _extreme(join: str) -> Callable:
    def run(op: Operands) -> list:
        value = op[0]
        for other in op.tensors[1:]:
            value = getattr(torch, join)(value, other)
        return [value]

    return run


def _sum(op: Operands) -> list:
    value = op[0]
    for other in op.tensors[1:]:
        value = value + other
    return [value / len(op) if op.case.op == "Mean" else value]


def _clip(op: Operands) -> list:
    low = op[1] if op[1] is not None else op.get("min")
    high = op[2] if op[2] is not None else op.get("max")
    value = op[0]
    if low is not None:
        value = torch.where(value < low, torch.as_tensor(low, dtype=value.dtype), value)
    if high is not None:
        value = torch.where(value > high, torch.as_tensor(high, dtype=value.dtype), value)
    return [value]


def _shrink(op: Operands) -> list:
    x, bias, edge = op[0], op.get("bias", 0.0), op.get("lambd", 0.5)
    return [torch.where(x < -edge, x + bias, torch.where(x > edge, x - bias, torch.zeros_like(x)))]


def _prelu(op: Operands) -> list:
    return [torch.where(op[0] < 0, op[0] * op[1], op[0])]


def _gelu(op: Operands) -> list:
    return [functional.gelu(op[0], approximate=op.get("approximate", "none"))]


_ACTIVATIONS: dict[str, Callable] = {
    "Relu": lambda op: [functional.relu(op[0])],
    "LeakyRelu": lambda op: [torch.where(op[0] < 0, op.get("alpha", 0.01) * op[0], op[0])],
    "Elu": lambda op: [torch.where(op[0] < 0, op.get("alpha", 1.0) * torch.expm1(op[0]), op[0])],
    "Celu": lambda op: [torch.relu(op[0]) + torch.clamp(op.get("alpha", 1.0) * torch.expm1(op[0] / op.get("alpha", 1.0)), max=0)],
    "Selu": lambda op: [op.get("gamma", 1.05070102214813232421875) * torch.where(op[0] > 0, op[0], op.get("alpha", 1.67326319217681884765625) * torch.expm1(op[0]))],
    "HardSigmoid": lambda op: [torch.clamp(op.get("alpha", 0.2) * op[0] + op.get("beta", 0.5), 0, 1)],
    "ThresholdedRelu": lambda op: [torch.where(op[0] > op.get("alpha", 1.0), op[0], torch.zeros_like(op[0]))],
    "Swish": lambda op: [op[0] * torch.sigmoid(op.get("alpha", 1.0) * op[0])],
    "SwiGLU": lambda op: [op[0] * torch.sigmoid(op.get("alpha", 1.0) * op[0]) * op[1]],
    "Mod": lambda op: [torch.fmod(op[0], op[1])] if op.get("fmod") else None,
    "Where": lambda op: [torch.where(op[0], op[1], op[2])],
    "Identity": lambda op: [op[0]],
    "Shrink": _shrink, "PRelu": _prelu, "Gelu": _gelu, "Pow": _pow, "Clip": _clip, "Sum": _sum, "Mean": _sum,
}  # fmt: skip


def _softmax(op: Operands) -> list:
    function = torch.softmax if op.case.op == "Softmax" else torch.log_softmax
    if op.case.since >= 13:
        return [function(op[0], op.get("axis", -1))]
    axis = op.get("axis", 1) % max(op[0].dim(), 1)
    rows = op[0].reshape(int(np.prod(op[0].shape[:axis])), -1)
    return [function(rows, 1).reshape(op[0].shape)]


# Reductions and cumulative operators.


def _axes(op: Operands) -> list[int] | None:
    """Returns the axes to reduce; None: nothing is reduced."""
    axes = op.ints(1, "axes")
    if axes:
        return axes
    return None if op.get("noop_with_empty_axes", 0) else list(range(op[0].dim()))


def _product(x: Any, axes: Sequence[int], keep: bool) -> Any:
    axes = sorted((a % x.dim() for a in axes), reverse=True)
    for axis in axes:
        x = x.prod(axis, keepdim=keep)
    return x


def _reduction(op: Operands) -> list | None:
    x, axes, keep, kind = op[0], _axes(op), bool(op.get("keepdims", 1)), op.case.op[6:]
    if axes is None or not axes:  # without axes, each element is reduced alone
        one = {"SumSquare": lambda v: v * v, "L1": torch.abs, "L2": torch.abs, "LogSum": torch.log}
        return [one[kind](x) if kind in one else x]
    total: dict[str, Callable] = {
        "Sum": lambda: x.sum(axes, keepdim=keep), "Mean": lambda: x.mean(axes, keepdim=keep), "SumSquare": lambda: (x * x).sum(axes, keepdim=keep),
        "L1": lambda: x.abs().sum(axes, keepdim=keep), "L2": lambda: (x * x).sum(axes, keepdim=keep).sqrt(),
        "LogSum": lambda: x.sum(axes, keepdim=keep).log(), "LogSumExp": lambda: torch.logsumexp(x, axes, keepdim=keep),
        "Max": lambda: torch.amax(x, axes, keepdim=keep), "Min": lambda: torch.amin(x, axes, keepdim=keep), "Prod": lambda: _product(x, axes, keep),
    }  # fmt: skip
    return [total[kind]()]


def _cumulation(op: Operands) -> list:
    x, axis = op[0], int(op.array(1).reshape(-1)[0])
    if op.get("reverse"):
        x = x.flip(axis)
    if op.get("exclusive"):
        first = (torch.zeros_like if op.case.op == "CumSum" else torch.ones_like)(x.narrow(axis, 0, min(1, x.shape[axis])))
        x = torch.cat([first, x.narrow(axis, 0, max(0, x.shape[axis] - 1))], axis)
    x = (torch.cumsum if op.case.op == "CumSum" else torch.cumprod)(x, axis)
    return [x.flip(axis) if op.get("reverse") else x]


# Operators that move elements.


def _reshape(op: Operands) -> list:
    shape = op.ints(1, "shape")
    if not op.get("allowzero", 0):
        shape = [op[0].shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return [op[0].reshape(shape)]


def _flatten(op: Operands) -> list:
    axis = op.get("axis", 1)
    axis = axis + op[0].dim() if axis < 0 else axis
    return [op[0].reshape(int(np.prod(op[0].shape[:axis])), int(np.prod(op[0].shape[axis:])))]


def _squeeze(op: Operands) -> list:
    axes = op.ints(1, "axes")
    return [op[0].squeeze() if axes is None else op[0].squeeze(tuple(axes))]


def _unsqueeze(op: Operands) -> list:
    axes = op.ints(1, "axes")
    value = op[0]
    for axis in sorted(a % (op[0].dim() + len(axes)) for a in axes):
        value = value.unsqueeze(axis)
    return [value]


def _split(op: Operands) -> list:
    axis, sizes = op.get("axis", 0), op.ints(1, "split")
    return list(torch.split(op[0], sizes if sizes else -(-op[0].shape[axis] // op.case.num_outputs), axis))


def _places(op: Operands) -> list[np.ndarray]:
    """Returns, for each axis, the indices of the elements that a Slice keeps."""
    starts, ends = op.ints(1, "starts"), op.ints(2, "ends")
    axes = op.ints(3, "axes") or list(range(len(starts)))
    steps = op.ints(4) or [1] * len(starts)
    found = [np.arange(n) for n in op[0].shape]
    for start, end, axis, step in zip(starts, ends, axes, steps):
        n = op[0].shape[axis]
        if step > 0:
            low, high = (min(max(v + n if v < 0 else v, 0), n) for v in (start, end))
        else:
            low = min(max(start + n if start < 0 else start, 0), n - 1)
            high = min(max(end + n if end < 0 else end, -1), n - 1)
        found[axis % op[0].dim()] = np.arange(low, high, step)
    return found


def _slice(op: Operands) -> list:
    value = op[0]
    for axis, places in enumerate(_places(op)):
        value = value.index_select(axis, torch.tensor(places.copy()))
    return [value]


def _pad(op: Operands) -> list | None:
    pads, mode, rank = op.ints(1, "pads") or op.get("paddings"), op.get("mode", "constant"), op[0].dim()
    axes = [a % rank for a in (op.ints(3) or range(rank))]
    value = op[0]
    fill = op[2] if op[2] is not None else torch.tensor(op.get("value", 0.0), dtype=value.dtype)
    for before, after, axis in zip(pads, pads[len(axes) :], axes):
        n = value.shape[axis]
        places = np.arange(-before, n + after)
        if mode == "constant":
            inside = torch.tensor((places >= 0) & (places < n)).reshape([-1 if a == axis else 1 for a in range(rank)])
            if n:
                value = torch.where(inside, value.index_select(axis, torch.tensor(np.clip(places, 0, n - 1))), fill)
            else:
                value = fill.expand([len(places) if a == axis else s for a, s in enumerate(value.shape)])
            continue
        if mode == "reflect":
            around = max(2 * (n - 1), 1)
            places = np.abs((places + n - 1) % around - (n - 1)) if n > 1 else places * 0
        elif mode == "edge":
            places = np.clip(places, 0, n - 1)
        else:
            places = places % n
        value = value.index_select(axis, torch.tensor(places))
    return [value]


def _gather(op: Operands) -> list:
    axis = op.get("axis", 0) % op[0].dim()
    indices = np.asarray(op.array(1)).astype(np.int64) % max(op[0].shape[axis], 1)
    flat = op[0].index_select(axis, torch.tensor(indices.reshape(-1)))
    return [flat.reshape([*op[0].shape[:axis], *indices.shape, *op[0].shape[axis + 1 :]])]


def _along(op: Operands, indices: np.ndarray) -> tuple:
    """Returns an index array for each axis: the given indices for the attribute's `axis`, each position's own coordinate for the others."""
    axis = op.get("axis", 0) % op[0].dim()
    grid = np.indices(indices.shape)
    return tuple(torch.tensor(indices.astype(np.int64) % op[0].shape[axis] if a == axis else grid[a]) for a in range(indices.ndim))


def _gather_elements(op: Operands) -> list:
    return [op[0][_along(op, op.array(1))]]


def _scattered(data: Any, where: tuple, updates: Any, kind: str) -> list | None:
    if kind in ("none", "add"):
        return [data.index_put(where, updates, accumulate=kind == "add")]
    return None


def _scatter_elements(op: Operands) -> list | None:
    return _scattered(op[0], _along(op, op.array(1)), op[2], op.get("reduction", "none"))


def _gather_nd(op: Operands) -> list:
    batch, indices = op.get("batch_dims", 0), np.asarray(op.array(1))
    grid = np.indices(indices.shape[:-1])
    reach = op[0].shape[batch : batch + indices.shape[-1]]
    where = [torch.tensor(grid[b]) for b in range(batch)] + [torch.tensor(indices[..., k] % n) for k, n in enumerate(reach)]
    return [op[0][tuple(where)]]


def _scatter_nd(op: Operands) -> list | None:
    indices = np.asarray(op.array(1))
    where = tuple(torch.tensor(indices[..., k] % op[0].shape[k]) for k in range(indices.shape[-1]))
    return _scattered(op[0], where, op[2], op.get("reduction", "none"))


def _depth_to_space(op: Operands) -> list:
    n, c, h, w = op[0].shape
    b = op.get("blocksize")
    if op.case.op == "SpaceToDepth":
        return [op[0].reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)]
    if op.get("mode", "DCR") == "DCR":
        parts = op[0].reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = op[0].reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return [parts.reshape(n, c // (b * b), h * b, w * b)]


def _reverse_sequence(op: Operands) -> list:
    time, batch = op.get("time_axis", 0), op.get("batch_axis", 1)
    steps = np.arange(op[0].shape[time])
    places = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in op.array(1)], 1)  # the shape is [time, batch]
    moved = op[0].movedim((time, batch), (0, 1))
    found = moved[torch.tensor(places), torch.arange(places.shape[1])[None, :]]
    return [found.movedim((0, 1), (time, batch))]


def _compress(op: Operands) -> list:
    axis, chosen = op.get("axis"), torch.tensor(np.flatnonzero(op.array(1)))
    return [op[0].reshape(-1)[chosen] if axis is None else op[0].index_select(axis, chosen)]


def _top_k(op: Operands) -> list:
    k = op.ints(1, "k")[0]
    values, places = torch.topk(op[0], k, op.get("axis", -1), bool(op.get("largest", 1)), True)
    return [values, places]


def _col2im(op: Operands) -> list | None:
    image, block = op.ints(1), op.ints(2)
    pads, rank = op.get("pads", [0, 0, 0, 0]), len(image)
    if rank != 2 or pads[:2] != pads[2:]:
        return None
    return [functional.fold(op[0], image, block, op.get("dilations", [1, 1]), pads[:2], op.get("strides", [1, 1]))]


_MOVEMENTS: dict[str, Callable] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Split": _split, "Slice": _slice, "Pad": _pad,
    "Gather": _gather, "GatherElements": _gather_elements, "ScatterElements": _scatter_elements, "Scatter": _scatter_elements,
    "GatherND": _gather_nd, "ScatterND": _scatter_nd, "DepthToSpace": _depth_to_space, "SpaceToDepth": _depth_to_space,
    "ReverseSequence": _reverse_sequence, "Compress": _compress, "TopK": _top_k, "Col2Im": _col2im,
    "Transpose": lambda op: [op[0].permute(op.get("perm", list(range(op[0].dim()))[::-1]))],
    "Expand": lambda op: [op[0].expand(np.broadcast_shapes(tuple(op[0].shape), tuple(op.ints(1))))],
    "Tile": lambda op: [op[0].repeat(op.ints(1))] if op.case.since >= 6 else None,
    "Concat": lambda op: [torch.cat(op.tensors, op.get("axis"))],
}  # fmt: skip


# Losses and attention.


def _nll(op: Operands) -> list:
    scores, target = op[0], op.array(1).astype(np.int64)
    logs = torch.log_softmax(scores, 1) if op.case.op == "SoftmaxCrossEntropyLoss" else scores
    ignore = op.get("ignore_index")
    kept = np.ones(target.shape, bool) if ignore is None else target != ignore
    safe = torch.tensor(np.where(kept, target, 0))
    weights = (op[2] if op[2] is not None else torch.ones(scores.shape[1], dtype=scores.dtype))[safe] * torch.tensor(kept, dtype=scores.dtype)
    loss = -logs.gather(1, safe[:, None]).squeeze(1) * weights
    kind = op.get("reduction", "mean")
    value = loss if kind == "none" else loss.sum() if kind == "sum" else loss.sum() / weights.sum()
    return [value, logs]


def _rotary(op: Operands) -> list:
    x, heads = op[0], op.get("num_heads", 0)
    shape = x.shape
    if x.dim() == 3:
        x = x.reshape(shape[0], shape[1], heads, -1).transpose(1, 2)
    cos, sin = op[1], op[2]
    if op.array(3) is not None:
        cos, sin = cos[torch.tensor(op.array(3))], sin[torch.tensor(op.array(3))]
    turned = op.get("rotary_embedding_dim", 0) or x.shape[-1]
    first, rest = x[..., :turned], x[..., turned:]
    cos, sin = cos[:, None], sin[:, None]
    if op.get("interleaved", 0):
        a, b = first[..., 0::2], first[..., 1::2]
        first = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = first.chunk(2, -1)
        first = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    y = torch.cat([first, rest], -1)
    return [y.transpose(1, 2).reshape(shape) if len(shape) == 3 else y]


def _attention(op: Operands) -> list | None:
    q, k, v, mask, past_k, past_v = (op[i] for i in range(6))
    if op.get("softcap") and op.case.since < 24 or op.get("qk_matmul_output_mode") or op[6] is not None:
        return None
    flat, heads, kv = q.dim() == 3, op.get("q_num_heads"), op.get("kv_num_heads")
    if flat:
        q, k, v = (x.reshape(x.shape[0], x.shape[1], n, -1).transpose(1, 2) for x, n in ((q, heads), (k, kv), (v, kv)))
    if past_k is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    outputs = [k, v]
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ wide_k.transpose(-1, -2) * op.get("scale", 1 / np.sqrt(q.shape[-1]))
    if op.get("softcap"):
        scores = op.get("softcap") * torch.tanh(scores / op.get("softcap"))
    if op.get("is_causal"):
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        scores = scores.masked_fill(columns > rows + (0 if past_k is None else past_k.shape[2]), -np.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -np.inf) if mask.dtype == torch.bool else scores + mask
    if bool(torch.isinf(scores).all(-1).any()):
        return None  # the query of a row sees no key
    y = torch.softmax(scores, -1) @ wide_v
    return [y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1) if flat else y, *outputs]


DEFINITIONS: dict[str, Callable[[Operands], list | None]] = {
    **_ACTIVATIONS, **_MOVEMENTS, "Max": _extreme("maximum"), "Min": _extreme("minimum"), "Softmax": _softmax, "LogSoftmax": _softmax,
    **{"Reduce" + kind: _reduction for kind in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()}, "CumSum": _cumulation,
    "CumProd": _cumulation, "NegativeLogLikelihoodLoss": _nll, "SoftmaxCrossEntropyLoss": _nll, "RotaryEmbedding": _rotary, "Attention": _attention,
}  # fmt: skip
