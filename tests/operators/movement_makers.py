"""Draws nodes with operands for operators that move, select or create elements."""

from __future__ import annotations

import numpy as np

from draft import Draft
from elementwise_makers import onnx_kinds


def _data(d: Draft, shape: tuple[int, ...], of: int | str = 0) -> None:
    d.add(d.array(d.dtype(of), shape))


def reshape(d: Draft) -> None:
    shape = d.shape()
    _data(d, shape)
    factors = [n for n in shape for n in ([2, n // 2] if n and n % 2 == 0 and d.flip() else [n])]
    target = [*factors]
    while len(target) > 1 and d.flip():
        i = d.below(len(target) - 1)
        target[i : i + 2] = [target[i] * target[i + 1]]
    allow_zero = bool(d.maybe("allowzero", lambda: d.below(2), 0.3))
    if not allow_zero:
        for i, n in enumerate(target):
            if i < len(shape) and n == shape[i] and d.flip(0.2):
                target[i] = 0
        d.reject_if(any(n == 0 and (i >= len(shape) or shape[i] != 0) for i, n in enumerate(target)) and 0 in shape)
    if target and d.flip(0.4) and 0 not in shape:
        target[d.below(len(target))] = -1
    if d.has_attribute("shape"):
        d.attributes["shape"] = target
        d.reject_if(not target)
    else:
        d.add(d.ints(target))


def flatten(d: Draft) -> None:
    shape = d.shape(1 if d.since < 9 else 0)
    _data(d, shape)
    axis = d.number(0, len(shape))
    d.maybe("axis", axis - len(shape) if d.since >= 11 and d.flip(0.3) and axis < len(shape) else axis) if shape else d.attributes.update(axis=0)


def transpose(d: Draft) -> None:
    shape = d.shape(0, 5)
    _data(d, shape)
    if shape:
        d.maybe("perm", lambda: d.axes(len(shape), len(shape), negative=False), 0.8)


def _axes(d: Draft, axes: list[int]) -> None:
    if d.has_attribute("axes"):
        d.attributes["axes"] = axes
    else:
        d.add(d.ints(axes))


def squeeze(d: Draft) -> None:
    shape = list(d.shape())
    ones = [i for i, n in enumerate(shape) if n == 1]
    _data(d, tuple(shape))
    if ones and d.flip(0.7):
        chosen = [i for i in ones if d.flip(0.6)] or ones[:1]
        _axes(d, [i - len(shape) if d.since >= 11 and d.flip(0.4) else i for i in chosen])


def unsqueeze(d: Draft) -> None:
    shape = d.shape()
    _data(d, shape)
    rank = len(shape) + d.number(1, 2)
    axes = []
    for _ in range(rank - len(shape)):
        rest = [a for a in range(rank) if a not in axes]
        axes.append(d.pick(rest))
    _axes(d, [a - rank if d.since >= 11 and d.flip(0.4) else a for a in axes])


def expand(d: Draft) -> None:
    shape = d.shape()
    _data(d, shape)
    d.add(d.ints(d.partner(shape)))


def tile(d: Draft) -> None:
    shape = d.shape(1, 3)
    _data(d, shape)
    if d.since >= 6:
        d.add(d.ints([d.below(4) for _ in shape]))
    else:
        d.add(np.array(2, d.dtype(1)))
        d.add(np.array(d.below(len(shape)), d.dtype(2)))


def concat(d: Draft) -> None:
    shape = list(d.shape(1))
    axis = d.axis(len(shape), d.since >= 11)
    dtype = d.dtype(0)
    for _ in range(d.number(1, 4)):
        shape[axis] = d.extent()
        d.add(d.array(dtype, shape))
    d.attributes["axis"] = axis
    d.reject_if(np.prod(shape) > 40000)


def split(d: Draft) -> None:
    shape = list(d.shape(1))
    axis = d.axis(len(shape), d.since >= 11)
    parts = d.number(1, 4)
    sizes = [d.extent() for _ in range(parts)]
    equal = d.flip(0.4) or d.since == 1
    if equal:
        sizes = [sizes[0]] * parts
    shape[axis] = sum(sizes)
    d.reject_if(np.prod(shape) > 40000)
    _data(d, tuple(shape))
    if not equal or (d.flip() and d.since >= 2):
        if d.has_input("split"):
            d.add(d.ints(sizes))
        else:
            d.attributes["split"] = sizes
    elif d.has_attribute("num_outputs"):
        d.attributes["num_outputs"] = parts
    d.attributes["axis"] = axis
    d.num_outputs = parts


def slice_(d: Draft) -> None:
    shape = d.shape(1)
    _data(d, shape)
    axes = d.axes(len(shape), 1, d.since >= 10)
    starts, ends, steps = [], [], []
    for a in axes:
        n = shape[a]
        starts.append(d.number(-n - 2, n + 2))
        ends.append(d.pick([n, 2**31 - 1, -(2**31), n - 1, 1, 0, -1, -n, n + 3, 2**63 - 1, -(2**63)] if d.since >= 10 else [n, 2**31 - 1, n - 1, 1, -1]))
        steps.append(d.pick([1, 2, -1, 3, -2]) if d.since >= 10 else 1)
    if d.since < 10:
        d.attributes.update(starts=starts, ends=ends)
        if axes != list(range(len(axes))) or d.flip():
            d.attributes["axes"] = axes
        return
    index = d.pick([np.int64, np.int32])
    if index == np.int32:
        ends = [max(-(2**31), min(2**31 - 1, e)) for e in ends]
    d.add(d.ints(starts, index))
    d.add(d.ints(ends, index))
    with_steps = any(s != 1 for s in steps)
    if with_steps or axes != list(range(len(axes))) or d.flip():
        d.add(d.ints(axes, index))
        if with_steps or d.flip():
            d.add(d.ints(steps, index))


def pad(d: Draft) -> None:
    shape = d.shape(1)
    mode = d.pick(["constant", "reflect", "edge", "wrap"] if d.since >= 19 else ["constant", "reflect", "edge"])
    low = -1 if mode == "constant" else 0
    rank = len(shape)
    axes = d.axes(rank) if d.since >= 18 and d.flip(0.4) else list(range(rank))
    if mode == "constant":
        pads = [max(d.number(0, 4) + low, -(shape[a] // 2)) for a in axes * 2]
    else:
        d.reject_if(0 in shape)
        pads = [min(d.number(0, 3), shape[a] - (mode == "reflect")) for a in axes * 2]
    dtype = d.dtype(0)
    d.add(d.array(dtype, shape))
    d.maybe("mode", mode) if mode == "constant" else d.attributes.update(mode=mode)
    if d.since >= 11:
        d.add(d.ints(pads))
        d.add(d.array(dtype, ()) if d.flip() else None)
        if axes != list(range(rank)) or (d.since >= 18 and d.flip(0.3)):
            d.add(d.ints(axes, d.pick([np.int64, np.int32])))
    else:
        d.attributes["paddings" if d.since == 1 else "pads"] = pads
        d.maybe("value", lambda: d.fraction(-2, 2))


def gather(d: Draft) -> None:
    shape = d.shape(1)
    axis = d.axis(len(shape), d.since >= 11)
    _data(d, shape)
    d.add(d.indices(d.dtype(1), d.shape(0, 2), shape[axis], d.since >= 11))
    d.maybe("axis", axis) if axis == 0 else d.attributes.update(axis=axis)


def gather_elements(d: Draft) -> None:
    shape = d.shape(1)
    axis = d.axis(len(shape))
    wanted = [n if i != axis % len(shape) else d.extent() for i, n in enumerate(shape)]
    wanted = [n if i == axis % len(shape) else d.number(0, n) if d.flip(0.3) else n for i, n in enumerate(wanted)]
    _data(d, shape)
    d.add(d.indices(d.dtype(1), wanted, shape[axis]))
    d.attributes["axis"] = axis


def scatter_elements(d: Draft) -> None:
    shape = d.shape(1)
    axis = d.axis(len(shape), d.since >= 11)
    place = axis % len(shape)
    wanted = [d.number(0, n) if d.flip(0.4) else n for n in shape]
    dtype = d.dtype(0)
    reduction = d.maybe("reduction", lambda: d.pick(["none", "add", "mul", "max", "min"] if d.since >= 18 else ["none", "add", "mul"]))
    if reduction in (None, "none", b"none"):  # the value of an element that is written twice is not defined, so indices do not repeat
        order = np.random.default_rng(d.below(1000)).permuted(np.broadcast_to(np.arange(shape[place]).reshape([-1 if i == place else 1 for i in range(len(shape))]), shape), axis=place)
        indices = order[tuple(slice(n) for n in wanted)].astype(d.dtype(1))
        if d.since >= 11 and d.flip(0.3):
            indices = np.where(indices % 2, indices - shape[place], indices).astype(d.dtype(1))
    else:
        indices = d.indices(d.dtype(1), wanted, shape[place])
    d.add(d.array(dtype, shape, edges=False))
    d.add(indices)
    d.add(d.array(dtype, wanted, edges=False))
    d.attributes["axis"] = axis


def gather_nd(d: Draft) -> None:
    shape = d.shape(1)
    batch = d.number(0, len(shape) - 1) if d.has_attribute("batch_dims") else 0
    depth = d.number(1, len(shape) - batch)
    lead = (*shape[:batch], *d.shape(0, 2))
    reach = shape[batch : batch + depth]
    d.reject_if(0 in reach)
    _data(d, shape)
    columns = [d.indices(np.int64, lead, n, d.since >= 12) for n in reach]
    d.add(np.stack(columns, -1).astype(np.int64))
    if batch:
        d.attributes["batch_dims"] = batch


def scatter_nd(d: Draft) -> None:
    shape = d.shape(1)
    depth = d.number(1, len(shape))
    d.reject_if(0 in shape[:depth])
    reduction = d.maybe("reduction", lambda: d.pick(["none", "add", "mul", "max", "min"] if d.since >= 18 else ["none", "add", "mul"]))
    reach = shape[:depth]
    places = int(np.prod(reach))
    if reduction in (None, "none", b"none"):
        flat = np.random.default_rng(d.below(1000)).permutation(places)[: d.number(0, min(places, 6))]
    else:
        flat = np.random.default_rng(d.below(1000)).integers(0, places, d.number(0, 8))
    indices = np.stack(np.unravel_index(flat, reach), -1).astype(np.int64).reshape(len(flat), depth)
    if d.since >= 13 and d.flip(0.3):
        indices = np.where(indices % 2 == 1, indices - np.array(reach), indices)
    dtype = d.dtype(0)
    d.add(d.array(dtype, shape, edges=False))
    d.add(indices)
    d.add(d.array(dtype, (len(flat), *shape[depth:]), edges=False))


def trilu(d: Draft) -> None:
    shape = d.shape(2)
    _data(d, shape)
    if d.flip(0.6):
        d.add(np.array(d.number(-5, 5), np.int64))
    d.maybe("upper", lambda: d.below(2))


def depth_to_space(d: Draft) -> None:
    block = d.pick([2, 1, 3])
    n, c, h, w = d.extent(), d.pick([1, 2, 3]), d.pick([1, 2, 3, 0]), d.pick([1, 2, 4])
    if d.schema.name == "DepthToSpace":
        _data(d, (n, c * block * block, h, w))
        d.maybe("mode", lambda: d.pick(["DCR", "CRD"]))
    else:
        _data(d, (n, c, h * block, w * block))
    d.attributes["blocksize"] = block


def reverse_sequence(d: Draft) -> None:
    time_axis = d.below(2)
    shape = d.shape(2)
    d.reject_if(shape[time_axis] == 0)
    _data(d, shape)
    d.add(d.array(np.int64, (shape[1 - time_axis],), 1, shape[time_axis], edges=False))
    if time_axis or d.flip():
        d.attributes.update(time_axis=time_axis, batch_axis=1 - time_axis)


def compress(d: Draft) -> None:
    shape = d.shape(1)
    if d.flip(0.6):
        axis = d.axis(len(shape), d.since >= 11)
        d.attributes["axis"] = axis
        extent = shape[axis]
    else:
        extent = int(np.prod(shape))
    _data(d, shape)
    d.add(d.array(np.bool_, (d.number(0, min(extent, 40)) if d.flip(0.4) else extent,)))


def non_zero(d: Draft) -> None:
    _data(d, d.shape(1))


def one_hot(d: Draft) -> None:
    index, depth, values = d.dtype(0), d.dtype(1), d.dtype(2)
    shape = d.shape(0, 3)
    classes = d.number(1, 6)
    d.add(d.array(index, shape, -classes - 1 if d.since >= 11 else 0, classes + 1, edges=False))
    d.add(np.array(classes, depth) if d.flip(0.6) else np.array([classes], depth))
    d.add(d.array(values, (2,)))
    d.maybe("axis", lambda: d.axis(len(shape) + 1, d.since >= 11))


def eye_like(d: Draft) -> None:
    _data(d, d.shape(2, 2))
    d.maybe("k", lambda: d.number(-4, 4))
    if d.flip(0.4):
        d.attributes["dtype"] = d.pick([1, 11, 7, 6, 10])


def shape_of(d: Draft) -> None:
    shape = d.shape()
    _data(d, shape)
    d.maybe("start", lambda: d.number(-5, 5))
    d.maybe("end", lambda: d.number(-5, 5))


def range_(d: Draft) -> None:
    dtype = d.dtype(0)
    start, delta = d.number(-5, 5), d.pick([1, 2, -1, 3, -2])
    if dtype.kind == "f" and d.flip(0.4):
        delta = delta / 4
    for value in (start, d.number(-8, 8), delta):
        d.add(np.array(value, dtype))


def constant_of_shape(d: Draft) -> None:
    import onnx

    d.add(d.ints(d.shape()))
    if d.flip(0.7):
        dtype = d.pick([np.float32, np.int64, np.float64, np.int32, np.bool_, np.float16, np.uint8, np.int8])
        d.attributes["value"] = onnx.numpy_helper.from_array(d.array(dtype, (1,)))


def center_crop_pad(d: Draft) -> None:
    shape = d.shape(1)
    _data(d, shape)
    axes = d.axes(len(shape)) if d.flip() else None
    d.add(d.ints([d.number(1, 8) for _ in (axes if axes is not None else shape)], d.dtype(1)))
    if axes is not None:
        d.attributes["axes"] = axes


def top_k(d: Draft) -> None:
    shape = d.shape(1)
    axis = d.axis(len(shape), d.since >= 11)
    dtype = d.dtype(0)
    # All values differ, because ONNX does not define the order of equal values.
    count = int(np.prod(shape))
    d.reject_if(dtype.itemsize == 1 and count > 200)
    values = np.random.default_rng(d.below(1000)).permutation(count).reshape(shape)
    d.add((values - (0 if dtype.kind == "u" else count // 2)).astype(dtype))
    d.reject_if(dtype.name in ("bfloat16", "float16") and count > 200)
    k = d.number(0, shape[axis])
    if d.since >= 10:
        d.add(d.ints([k]))
    else:
        d.attributes["k"] = k
        d.reject_if(k == 0)
    d.attributes["axis"] = axis
    d.maybe("largest", lambda: d.below(2))
    d.num_outputs = 2


def unique(d: Draft) -> None:
    shape = d.shape(1, 3)
    d.reject_if(0 in shape)
    d.add(d.array(d.dtype(0), shape, 0, 3, edges=False))
    if d.flip():
        d.attributes["axis"] = d.axis(len(shape))
    d.maybe("sorted", lambda: d.below(2))
    d.num_outputs = d.number(1, 4)


def col2im(d: Draft) -> None:
    d.tolerance = 8
    rank = d.number(1, 2)
    image = [d.number(3, 7) for _ in range(rank)]
    block = [d.number(1, 3) for _ in range(rank)]
    dilations = [d.pick([1, 1, 2]) for _ in range(rank)]
    strides = [d.pick([1, 2]) for _ in range(rank)]
    pads = [d.below(2) for _ in range(2 * rank)]
    steps = [(image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    d.reject_if(min(steps) < 1)
    n, c = d.extent(False), d.pick([1, 2, 3])
    d.add(d.array(d.dtype(0), (n, c * int(np.prod(block)), int(np.prod(steps)))))
    d.add(d.ints(image))
    d.add(d.ints(block))
    for name, value in (("dilations", dilations), ("strides", strides), ("pads", pads)):
        d.attributes[name] = value


def bit_cast(d: Draft) -> None:
    source = d.dtype(0)
    d.reject_if(source == np.object_ or source == np.bool_ or source.name.startswith(("float4", "int4", "uint4", "int2", "uint2")))
    same = [t for t in (np.float32, np.int32, np.uint32, np.float64, np.int64, np.uint64, np.float16, np.int16, np.uint16, np.int8, np.uint8) if np.dtype(t).itemsize == source.itemsize]
    _data(d, d.shape())
    d.attributes["to"] = onnx_kinds()[np.dtype(d.pick(same))]


def tensor_scatter(d: Draft) -> None:
    shape = d.shape(3, 4, empty=False)
    axis = d.number(1, len(shape) - 1)
    update = list(shape)
    update[axis] = d.number(1, shape[axis])
    dtype = d.dtype(0)
    d.add(d.array(dtype, shape))
    d.add(d.array(dtype, update))
    circular = d.flip(0.3)
    if d.flip(0.7):
        d.add(d.array(np.int64, (shape[0],), 0, shape[axis] - 1 if circular else shape[axis] - update[axis], edges=False))
    d.attributes["axis"] = axis - len(shape) if d.flip(0.5) else axis
    if circular:
        d.attributes["mode"] = "circular"


MAKERS = {
    "Reshape": reshape, "Flatten": flatten, "Transpose": transpose, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Expand": expand, "Tile": tile,
    "Concat": concat, "Split": split, "Slice": slice_, "Pad": pad, "Gather": gather, "GatherElements": gather_elements,
    "ScatterElements": scatter_elements, "Scatter": scatter_elements, "GatherND": gather_nd, "ScatterND": scatter_nd, "Trilu": trilu,
    "DepthToSpace": depth_to_space, "SpaceToDepth": depth_to_space, "ReverseSequence": reverse_sequence, "Compress": compress, "NonZero": non_zero,
    "OneHot": one_hot, "EyeLike": eye_like, "Shape": shape_of, "Range": range_, "ConstantOfShape": constant_of_shape,
    "CenterCropPad": center_crop_pad, "TopK": top_k, "Unique": unique, "Col2Im": col2im, "BitCast": bit_cast, "TensorScatter": tensor_scatter,
}  # fmt: skip
