"""Computes ONNX's convolutions, pools, normalisations, samplers and transforms by PyTorch's functions, like torch_definitions.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torch_definitions import Operands, functional, torch


def _pads(op: Operands, space: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the pads before and after each axis."""
    auto, rank = op.get("auto_pad", "NOTSET"), len(space)
    if auto == "NOTSET":
        pads = op.get("pads", [0] * 2 * rank)
        return list(zip(pads[:rank], pads[rank:]))
    if auto == "VALID":
        return [(0, 0)] * rank
    found = []
    for n, k, s, d in zip(space, kernel, strides, dilations):
        total = max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        found.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
    return found


def _padded(x, pads: Sequence[tuple[int, int]], value: float = 0.0):
    flat = [n for pair in reversed(pads) for n in pair]
    return functional.pad(x, flat, value=value) if any(flat) else x


def _window(op: Operands, space: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    rank = len(space)
    strides, dilations = op.get("strides", [1] * rank), op.get("dilations", [1] * rank)
    return strides, dilations, _pads(op, space, kernel, strides, dilations)


def _conv(op: Operands) -> list | None:
    x, w = op[0], op[1]
    if 0 in x.shape:
        return None
    strides, dilations, pads = _window(op, x.shape[2:], w.shape[2:])
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[x.dim() - 2]
    return [convolve(_padded(x, pads), w, op[2], strides, 0, dilations, op.get("group", 1))]


def _conv_transpose(op: Operands) -> list | None:
    x, w = op[0], op[1]
    rank = x.dim() - 2
    strides, dilations = op.get("strides", [1] * rank), op.get("dilations", [1] * rank)
    if op.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in op.case.attributes:
        return None
    pads, extra = op.get("pads", [0] * 2 * rank), op.get("output_padding", [0] * rank)
    turn = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}[rank]
    whole = turn(x, w, None, strides, 0, 0, op.get("group", 1), dilations)
    whole = functional.pad(whole, [n for after in reversed(extra) for n in (0, after)])
    for axis in range(rank):
        whole = whole.narrow(axis + 2, pads[axis], whole.shape[axis + 2] - pads[axis] - pads[axis + rank])
    return [whole if op[2] is None else whole + op[2].reshape(-1, *[1] * rank)]


def _patches(x, kernel, strides, dilations, pads, value: float, ceil: bool):
    """Returns the windows' elements [N, C, out ..., taps] and, for each tap, 1 if it is within the image, and 1 if it is within the image or
    its pads."""
    rank = len(kernel)
    inside = torch.ones(x.shape[2:], dtype=x.dtype)
    padded, inside = _padded(x, pads, value), _padded(inside, pads, 0.0)
    bordered = torch.ones(padded.shape[2:], dtype=x.dtype)
    for axis in range(rank):
        n, reach = padded.shape[axis + 2], (kernel[axis] - 1) * dilations[axis] + 1
        count = (n - reach) // strides[axis] + 1
        if ceil:
            count = -(-(n - reach) // strides[axis]) + 1
            if (count - 1) * strides[axis] >= x.shape[axis + 2] + pads[axis][0]:
                count -= 1
        missing = max((count - 1) * strides[axis] + reach - n, 0)
        if missing:
            grow = [0, 0] * rank
            grow[2 * (rank - 1 - axis) + 1] = missing
            padded, inside, bordered = functional.pad(padded, grow, value=value), functional.pad(inside, grow), functional.pad(bordered, grow)
        places = (np.arange(count)[:, None] * strides[axis] + np.arange(kernel[axis])[None] * dilations[axis]).reshape(-1)
        index = torch.tensor(places)
        padded, inside, bordered = padded.index_select(axis + 2, index), inside.index_select(axis, index), bordered.index_select(axis, index)
    counts = [padded.shape[a + 2] // kernel[a] for a in range(rank)]
    pairs = [n for a in range(rank) for n in (counts[a], kernel[a])]
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    split = padded.reshape(*x.shape[:2], *pairs).permute(0, 1, *(o + 2 for o in order)).flatten(2 + rank)
    return split, *(v.reshape(pairs).permute(order).flatten(rank) for v in (inside, bordered))


def _pool(op: Operands) -> list | None:
    x = op[0]
    if 0 in x.shape:
        return None
    kernel = op.get("kernel_shape")
    strides, dilations, pads = _window(op, x.shape[2:], kernel)
    ceil, kind = bool(op.get("ceil_mode", 0)), op.case.op
    if ceil and kind != "MaxPool" or op.get("storage_order"):
        return None  # opsets differ in how far a window may extend beyond the pads
    values, inside, bordered = _patches(x, kernel, strides, dilations, pads, -np.inf if kind == "MaxPool" else 0.0, ceil)
    if kind == "MaxPool":
        return [values.amax(-1)] if op.case.num_outputs == 1 else [values.amax(-1), None]
    if kind == "AveragePool":
        return [values.sum(-1) / (bordered if op.get("count_include_pad", 0) else inside).sum(-1)]
    p = op.get("p", 2)
    return [(values.abs() ** p).sum(-1) ** (1 / p)]


def _global_pool(op: Operands) -> list:
    x, axes = op[0], tuple(range(2, op[0].dim()))
    if op.case.op == "GlobalAveragePool":
        return [x.mean(axes, keepdim=True)]
    if op.case.op == "GlobalMaxPool":
        return [x.amax(axes, keepdim=True)]
    p = op.get("p", 2)
    return [(x.abs() ** p).sum(axes, keepdim=True) ** (1 / p)]


def _max_unpool(op: Operands) -> list | None:
    x = op[0]
    if op.array(2) is not None:
        return None
    shape = [x.shape[0], x.shape[1], 2 * x.shape[2], 2 * x.shape[3]]
    places = torch.tensor(op.array(1).reshape(-1))
    return [torch.zeros(int(np.prod(shape)), dtype=x.dtype).index_put((places,), x.reshape(-1)).reshape(shape)]


def _normalised(x, axes: Sequence[int], epsilon: float):
    mean = x.mean(tuple(axes), keepdim=True)
    variance = ((x - mean) ** 2).mean(tuple(axes), keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon), mean, 1 / torch.sqrt(variance + epsilon)


def _per_channel(value, rank: int):
    return value.reshape(-1, *[1] * (rank - 2))


def _batch_norm(op: Operands) -> list | None:
    """Normalises by the statistics of the batch, as trainers do."""
    x = op[0]
    if x.numel() == 0:
        return None
    y, _, _ = _normalised(x, [a for a in range(x.dim()) if a != 1], op.get("epsilon", 1e-5))
    return [y * _per_channel(op[1], x.dim()) + _per_channel(op[2], x.dim())]


def _instance_norm(op: Operands) -> list:
    y, _, _ = _normalised(op[0], range(2, op[0].dim()), op.get("epsilon", 1e-5))
    return [y * _per_channel(op[1], op[0].dim()) + _per_channel(op[2], op[0].dim())]


def _group_norm(op: Operands) -> list:
    x, groups = op[0], op.get("num_groups")
    y, _, _ = _normalised(x.reshape(x.shape[0], groups, -1), [2], op.get("epsilon", 1e-5))
    scale, bias = op[1], op[2]
    if op.case.since < 21:
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return [y.reshape(x.shape) * _per_channel(scale, x.dim()) + _per_channel(bias, x.dim())]


def _layer_norm(op: Operands) -> list:
    x = op[0]
    axes = range(op.get("axis", -1) % x.dim(), x.dim())
    if op.case.op == "RMSNormalization":
        return [x / torch.sqrt((x * x).mean(tuple(axes), keepdim=True) + op.get("epsilon", 1e-5)) * op[1]]
    y, mean, deviation = _normalised(x, axes, op.get("epsilon", 1e-5))
    return [y * op[1] + (op[2] if op[2] is not None else 0), mean, deviation]


def _lp_norm(op: Operands) -> list:
    x, axis, p = op[0], op.get("axis", -1), op.get("p", 2)
    size = (x.abs() if p == 1 else x * x).sum(axis, keepdim=True)
    return [x / (size if p == 1 else torch.sqrt(size))]


def _mean_variance(op: Operands) -> list | None:
    x, axes = op[0], tuple(op.get("axes", [0, 2, 3]))
    mean = x.mean(axes, keepdim=True)
    return [(x - mean) / (torch.sqrt(((x - mean) ** 2).mean(axes, keepdim=True)) + 1e-9)]


def _lrn(op: Operands) -> list:
    x, size = op[0], op.get("size")
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = functional.pad(x * x, [0, 0, 0, 0, low, high])
    total = sum(squares[:, i : i + x.shape[1]] for i in range(size))
    return [x / (op.get("bias", 1.0) + op.get("alpha", 1e-4) / size * total) ** op.get("beta", 0.75)]


def _grid_sample(op: Operands) -> list | None:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(op.get("mode", "bilinear"), op.get("mode", "bilinear"))
    return [functional.grid_sample(op[0], op[1], mode, op.get("padding_mode", "zeros"), bool(op.get("align_corners", 0)))]


def _affine_grid(op: Operands) -> list | None:
    if op.get("align_corners", 0) and 1 in op.ints(1):
        return None  # for an output of one pixel, PyTorch's versions differ in its position
    return [functional.affine_grid(op[0], op.ints(1), bool(op.get("align_corners", 0)))]


def _dft(op: Operands) -> list | None:
    x, rank = op[0], op[0].dim()
    axis = (int(op.array(2)) if op.array(2) is not None else -2) if op.case.since >= 20 else op.get("axis", 1)
    axis %= rank
    length = int(op.array(1)) if op.array(1) is not None else x.shape[axis]
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    if axis == rank - 1:
        return None
    if op.get("inverse", 0):
        found = torch.fft.ifft(signal, length, axis)
    else:
        found = torch.fft.fft(signal, length, axis)
    found = found.narrow(axis, 0, length // 2 + 1) if op.get("onesided", 0) else found
    return [torch.view_as_real(found.resolve_conj())]


def _stft(op: Operands) -> list | None:
    signal, step = op[0][..., 0], int(op.array(1))
    length = int(op.array(3)) if op.array(3) is not None else op[2].shape[0]
    frames = signal.unfold(1, length, step)
    frames = frames if op[2] is None else frames * op[2]
    found = torch.fft.fft(frames, dim=-1)
    return [torch.view_as_real(found[..., : length // 2 + 1] if op.get("onesided", 1) else found)]


def _causal_conv(op: Operands) -> list | None:
    x, w = op[0], op[1]
    past = op[3] if op[3] is not None else torch.zeros(*x.shape[:2], w.shape[2] - 1, dtype=x.dtype)
    both = torch.cat([past, x], 2)
    y = functional.conv1d(both, w, op[2], groups=w.shape[0])
    return [y if op.get("activation", "none") == "none" else functional.silu(y), both[:, :, both.shape[2] - w.shape[2] + 1 :]]


def _linear_attention(op: Operands) -> list:
    q, k, v, past, decay, beta = (op[i] for i in range(6))
    heads, kv, rule = op.get("q_num_heads"), op.get("kv_num_heads"), op.get("update_rule", "gated_delta")
    batch, length = q.shape[:2]
    q, k, v = (x.reshape(batch, length, n, -1) for x, n in ((q, heads), (k, kv), (v, kv)))
    state = past if past is not None else torch.zeros(batch, kv, k.shape[-1], v.shape[-1], dtype=q.dtype)
    scale, rows = op.get("scale") or 1 / np.sqrt(k.shape[-1]), []
    for t in range(length):
        if "gated" in rule:
            state = state * torch.exp(decay[:, t].reshape(batch, kv, -1, 1))
        update = v[:, t]
        if "delta" in rule:
            update = beta[:, t].reshape(batch, -1, 1) * (update - (k[:, t, :, None] @ state).squeeze(2))
        state = state + k[:, t, :, :, None] * update[:, :, None]
        wide = state.repeat_interleave(heads // kv, 1)
        rows.append((q[:, t, :, None] @ wide).reshape(batch, -1) * scale)
    return [torch.stack(rows, 1), state]


NETWORKS: dict[str, Callable[[Operands], list | None]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool, "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool, "GlobalLpPool": _global_pool, "MaxUnpool": _max_unpool, "BatchNormalization": _batch_norm,
    "InstanceNormalization": _instance_norm, "GroupNormalization": _group_norm, "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm, "LpNormalization": _lp_norm, "MeanVarianceNormalization": _mean_variance, "LRN": _lrn,
    "GridSample": _grid_sample, "AffineGrid": _affine_grid, "DFT": _dft, "STFT": _stft, "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
}  # fmt: skip
