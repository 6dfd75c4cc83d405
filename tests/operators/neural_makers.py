"""Draws nodes with operands for products, convolutions, pools, normalisations, recurrent networks, losses, signals and images."""

from __future__ import annotations

import numpy as np

from draft import Draft


def _values(d: Draft, shape: tuple[int, ...] | list[int], of: int | str = 0, edges: bool | None = None) -> np.ndarray:
    return d.add(d.array(d.dtype(of), shape, edges=edges))


def matmul(d: Draft) -> None:
    d.tolerance = 8
    m, k, n = d.extent(), d.extent(), d.extent()
    stack = d.shape(0, 2)
    a, b = (*stack, m, k), (*d.partner(stack), k, n)
    if d.flip(0.15):
        a = (k,)
    elif d.flip(0.15):
        b = (k,)
    _values(d, a, edges=False)
    _values(d, b, edges=False)


def gemm(d: Draft) -> None:
    d.tolerance = 8
    m, k, n = d.extent(), d.extent(), d.extent()
    ta, tb = d.maybe("transA", lambda: d.below(2), 0.5), d.maybe("transB", lambda: d.below(2), 0.5)
    _values(d, (k, m) if ta else (m, k), edges=False)
    _values(d, (n, k) if tb else (k, n), edges=False)
    if d.since < 11 or d.flip():
        _values(d, d.narrower((m, n)) if d.since >= 7 else (m, n), edges=False)
    d.maybe("alpha", lambda: d.fraction(-2, 2), 0.4)
    d.maybe("beta", lambda: d.fraction(-2, 2), 0.4)


def einsum(d: Draft) -> None:
    d.tolerance = 8
    equation = d.pick(["ij,jk->ik", "ij->ji", "ii->i", "ij->", "bij,bjk->bik", "i,j->ij", "...ij,...jk->...ik", "ij,ij->i", "bhqd,bhkd->bhqk", "ij,jk", "abc->cba"])
    extents = {c: d.extent() for c in "abcdhijkq"}
    extra = d.shape(0, 1)
    for term in equation.split("->")[0].split(","):
        shape = [*(extra if "..." in term else ()), *(extents[c] for c in term.replace("...", ""))]
        d.reject_if(np.prod(shape) > 20000)
        _values(d, shape, edges=False)
    d.attributes["equation"] = equation


def det(d: Draft) -> None:
    d.tolerance = 30
    n = d.number(1, 5)
    _values(d, (*d.shape(0, 2), n, n), edges=False)


def _window(d: Draft, space: list[int], kernel: list[int], dilations: list[int], allow_same: bool = True) -> None:
    """Draws strides, and pads or auto_pad, of a window that fits into the padded space."""
    rank = len(space)
    reach = [(k - 1) * s + 1 for k, s in zip(kernel, dilations)]
    kind = d.below(4 if allow_same else 2)
    if kind >= 2:
        d.attributes["auto_pad"] = d.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
        d.reject_if(d.attributes["auto_pad"] == "VALID" and any(s < r for s, r in zip(space, reach)))
    elif kind == 1:
        pads = [d.below(max(1, min(3, k))) for k in kernel * 2]
        d.attributes["pads"] = pads
        d.reject_if(any(space[i] + pads[i] + pads[i + rank] < reach[i] for i in range(rank)))
    else:
        d.reject_if(any(s < r for s, r in zip(space, reach)))
    if d.flip(0.6):
        d.attributes["strides"] = [d.number(1, 3) for _ in range(rank)]
    if any(s != 1 for s in dilations):
        d.attributes["dilations"] = dilations


def _space(d: Draft, high: int = 3) -> tuple[list[int], list[int], list[int]]:
    rank = d.pick([2, 1, 2, 3][: high + 1])
    space = [d.number(1, 9 if rank < 3 else 5) for _ in range(rank)]
    kernel = [d.number(1, 4 if rank < 3 else 2) for _ in range(rank)]
    dilations = [d.pick([1, 1, 1, 2]) for _ in range(rank)]
    return space, kernel, dilations


def conv(d: Draft) -> None:
    d.tolerance = 16
    space, kernel, dilations = _space(d)
    group = d.pick([1, 1, 2, 3])
    c, m = d.pick([1, 2, 3, 8, 17]), d.pick([1, 2, 3, 8, 17])
    n = d.pick([1, 2, 3, 0])
    _values(d, (n, c * group, *space), edges=False)
    _values(d, (m * group, c, *kernel), edges=False)
    if d.flip():
        _values(d, (m * group,), edges=False)
    _window(d, space, kernel, dilations)
    if group > 1:
        d.attributes["group"] = group
    if d.flip():
        d.attributes["kernel_shape"] = kernel


def conv_integer(d: Draft) -> None:
    space, kernel, dilations = _space(d)
    group = d.pick([1, 1, 2])
    c, m, n = d.pick([1, 2, 3, 8]), d.pick([1, 2, 3, 8]), d.pick([1, 2])
    quantised = d.schema.name == "QLinearConv"
    types = [p.type_str for p in d.schema.inputs]
    x, w = d.dtype(types[0]), d.dtype(types[3 if quantised else 1])
    x_values, w_values = d.array(x, (n, c * group, *space), -100, 100), d.array(w, (m * group, c, *kernel), -100, 100)
    if quantised:
        y = d.dtype(types[7])
        per_channel = d.flip()
        d.inputs += [x_values, np.array(d.fraction(0.25, 2), np.float32), d.array(x, (), -7, 7), w_values]
        d.add(np.abs(d.array(np.float32, (m * group,) if per_channel else (), 0.1, 2, edges=False)) + np.float32(0.25))
        d.inputs[-1] = np.asarray(d.inputs[-1], np.float32)
        d.add(d.array(w, (m * group,) if per_channel else (), -7, 7))
        d.inputs += [np.array(50.0 * c, np.float32), d.array(y, (), -7, 7)]
        d.add(d.array(np.int32, (m * group,), -50, 50) if d.flip() else None)
    else:
        d.inputs += [x_values, w_values]
        d.add(d.array(x, (), -7, 7) if d.flip() else None)
        d.add(d.array(w, () if d.flip() else (m * group,), -7, 7) if d.flip() else None)
    _window(d, space, kernel, dilations)
    if group > 1:
        d.attributes["group"] = group


def conv_transpose(d: Draft) -> None:
    d.tolerance = 16
    space, kernel, dilations = _space(d)
    rank = len(space)
    group = d.pick([1, 1, 2])
    c, m, n = d.pick([1, 2, 3, 8]), d.pick([1, 2, 3, 8]), d.pick([1, 2])
    _values(d, (n, c * group, *space), edges=False)
    _values(d, (c * group, m, *kernel), edges=False)
    if d.flip():
        _values(d, (m * group,), edges=False)
    strides = [d.number(1, 3) for _ in range(rank)]
    d.attributes["strides"] = strides
    if group > 1:
        d.attributes["group"] = group
    if any(s != 1 for s in dilations):
        d.attributes["dilations"] = dilations
    kind = d.below(4)
    if kind == 1:
        d.attributes["pads"] = [d.below(max(1, min(2, k))) for k in kernel * 2]
    elif kind == 2:
        d.attributes["auto_pad"] = d.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if d.flip(0.4):
        d.attributes["output_padding"] = [d.below(s) for s in strides]
    pads = d.attributes.get("pads", [0] * 2 * rank)
    d.reject_if(any((space[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - pads[i] - pads[i + rank] < 1 for i in range(rank)))
    if kind == 2:  # a window smaller than its stride cannot produce the extent that auto_pad requires
        d.reject_if(any((kernel[i] - 1) * dilations[i] + 1 < strides[i] for i in range(rank)))


def pool(d: Draft) -> None:
    d.tolerance = 4
    space, kernel, dilations = _space(d)
    if not d.has_attribute("dilations"):
        dilations = [1] * len(space)
    _values(d, (d.pick([1, 2, 0]), d.pick([1, 2, 3, 8, 17]), *space), edges=False)
    d.attributes["kernel_shape"] = kernel
    _window(d, space, kernel, dilations)
    if "auto_pad" not in d.attributes:
        d.maybe("ceil_mode", lambda: d.below(2), 0.4)
    d.maybe("count_include_pad", lambda: d.below(2))
    d.maybe("p", lambda: d.pick([2, 1, 3]) if d.since > 1 else d.pick([2.0, 1.0]))
    if d.schema.name == "MaxPool" and d.since >= 8 and d.flip(0.4):
        d.num_outputs = 2
        d.maybe("storage_order", lambda: d.below(2), 0.3)


def global_pool(d: Draft) -> None:
    d.tolerance = 4
    _values(d, d.shape(3, 5, empty=False), edges=False)
    d.maybe("p", lambda: d.pick([2, 1, 3]) if d.since > 1 else d.pick([2.0, 1.0]))


def batch_normalization(d: Draft) -> None:
    d.tolerance = 8
    shape = d.shape(2, 5)
    c = shape[1]
    names = [i.type_str for i in d.schema.inputs]
    _values(d, shape, edges=False)
    for i in range(1, 5):
        value = d.array(d.dtype(names[i]), (c,), -2, 2, edges=False)
        d.add((np.abs(value) + value.dtype.type(0.5)).astype(value.dtype) if i == 4 else value)
    d.maybe("epsilon", lambda: d.fraction(1e-3, 1e-1))
    if d.since < 7:
        d.attributes["is_test"] = 1
    d.maybe("momentum", lambda: d.fraction(0.1, 0.9), 0.3)
    if d.since >= 14 and d.flip(0.3) and 0 not in shape:
        d.attributes["training_mode"] = 1
        d.num_outputs = 3


def instance_normalization(d: Draft) -> None:
    d.tolerance = 30
    shape = d.shape(3, 5, empty=False)
    _values(d, shape, edges=False)
    _values(d, (shape[1],), edges=False)
    _values(d, (shape[1],), edges=False)
    d.maybe("epsilon", lambda: d.fraction(1e-2, 1e-1))


def group_normalization(d: Draft) -> None:
    d.tolerance = 30
    groups, each = d.pick([1, 2, 3]), d.pick([1, 2, 4])
    _values(d, (d.pick([1, 2]), groups * each, *d.shape(1, 3, empty=False)), edges=False)
    scales = groups if d.since < 21 else groups * each
    _values(d, (scales,), edges=False)
    _values(d, (scales,), edges=False)
    d.attributes["num_groups"] = groups
    d.attributes["epsilon"] = d.fraction(1e-2, 1e-1)


def layer_normalization(d: Draft) -> None:
    d.tolerance = 30
    shape = d.shape(1, 4, empty=False)
    axis = d.axis(len(shape))
    inner = shape[axis:] if axis else shape
    _values(d, shape, edges=False)
    second = d.schema.inputs[1].type_str

    def parameter() -> tuple[int, ...]:
        return inner if d.flip(0.6) else d.narrower(shape)

    _values(d, parameter(), second, edges=False)
    if d.schema.name == "LayerNormalization":
        if d.flip():
            _values(d, parameter(), second, edges=False)
        d.num_outputs = d.pick([1, 1, 2, 3])
    d.attributes["axis"] = axis
    d.attributes["epsilon"] = d.fraction(1e-2, 1e-1)


def lp_normalization(d: Draft) -> None:
    d.tolerance = 8
    shape = d.shape(1, 4)
    _values(d, shape, edges=False)
    d.attributes["axis"] = d.axis(len(shape))
    d.maybe("p", lambda: d.number(1, 2))


def mean_variance_normalization(d: Draft) -> None:
    d.tolerance = 100
    shape = d.shape(4, 4, empty=False)
    _values(d, shape, edges=False)
    d.maybe("axes", lambda: d.axes(4, negative=False))


def lrn(d: Draft) -> None:
    d.tolerance = 8
    _values(d, d.shape(4, 4), edges=False)
    d.attributes["size"] = d.pick([1, 2, 3, 4, 5])
    for name, low, high in (("alpha", 1e-3, 1), ("beta", 0.5, 1), ("bias", 1, 2)):
        d.maybe(name, lambda low=low, high=high: d.fraction(low, high))


def recurrent(d: Draft) -> None:
    d.tolerance = 30
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[d.schema.name]
    steps, batch, features, hidden = d.number(1, 5), d.number(1, 4), d.number(1, 5), d.number(1, 9)
    direction = d.pick(["forward", "reverse", "bidirectional"])
    both = 2 if direction == "bidirectional" else 1
    layout = int(d.maybe("layout", lambda: d.below(2), 0.2) or 0)
    half = 0.4

    def put(shape: tuple[int, ...]) -> None:
        d.add((d.array(d.dtype(0), shape, -2, 2, edges=False) * np.array(half, d.dtype(0))).astype(d.dtype(0)))

    put((batch, steps, features) if layout else (steps, batch, features))
    put((both, gates * hidden, features))
    put((both, gates * hidden, hidden))
    put((both, 2 * gates * hidden)) if d.flip() else d.add(None)
    d.add(d.array(np.int32, (batch,), 1, steps, edges=False) if d.flip(0.3) else None)
    state = (batch, both, hidden) if layout else (both, batch, hidden)
    put(state) if d.flip() else d.add(None)
    if d.schema.name == "LSTM":
        put(state) if d.flip() else d.add(None)
        put((both, 3 * hidden)) if d.flip(0.3) else d.add(None)
        d.maybe("input_forget", lambda: d.below(2), 0.2)
    d.attributes["hidden_size"] = hidden
    d.maybe("direction", direction) if both == 1 and direction == "forward" else d.attributes.update(direction=direction)
    if d.schema.name == "GRU":
        d.maybe("linear_before_reset", lambda: d.below(2))
    if d.flip(0.2):
        d.attributes["clip"] = d.fraction(0.5, 2)
    if d.flip(0.3):
        per = {"RNN": 1, "GRU": 2, "LSTM": 3}[d.schema.name]
        d.attributes["activations"] = [d.pick(["Tanh", "Sigmoid", "Relu", "Softsign", "HardSigmoid"]) for _ in range(per * both)]
    d.num_outputs = 3 if d.schema.name == "LSTM" else 2
    if d.since < 7:
        d.attributes.setdefault("output_sequence", 1)


def nll_loss(d: Draft) -> None:
    d.tolerance = 8
    n, c, inner = d.pick([1, 2, 3]), d.number(1, 5), d.shape(0, 2, empty=False)
    dtype = d.dtype(0)
    d.add(d.array(dtype, (n, c, *inner), edges=False))
    target = d.array(d.dtype(1), (n, *inner), 0, c - 1, edges=False)
    if d.flip(0.3):
        ignore = d.pick([0, -1, 255])
        d.attributes["ignore_index"] = ignore
        if ignore:
            target = np.where(np.random.default_rng(d.below(100)).random(target.shape) < 0.3, ignore, target).astype(target.dtype)
            target.reshape(-1)[0] = 0
    d.add(target)
    if d.flip(0.4):
        d.add((np.abs(d.array(dtype, (c,), edges=False)) + np.array(0.5, dtype)).astype(dtype))
    d.maybe("reduction", lambda: d.pick(["mean", "sum", "none"]))
    if d.schema.name == "SoftmaxCrossEntropyLoss":
        d.num_outputs = d.pick([1, 2])


def non_max_suppression(d: Draft) -> None:
    n, boxes, classes = d.pick([1, 2]), d.number(1, 8), d.pick([1, 2, 3])
    random_values = np.random.default_rng(d.below(10000))
    corner = random_values.uniform(0, 1, (n, boxes, 2))
    d.add(np.concatenate([corner, corner + random_values.uniform(0.05, 0.6, (n, boxes, 2))], -1).astype(np.float32))
    d.add(random_values.random((n, classes, boxes)).astype(np.float32))
    d.add(np.array(d.number(0, 4), np.int64) if d.flip(0.8) else None)
    d.add(np.array(d.fraction(0, 1), np.float32) if d.flip(0.8) else None)
    d.add(np.array(d.fraction(0, 1), np.float32) if d.flip(0.6) else None)
    d.maybe("center_point_box", lambda: d.below(2), 0.3)


def roi_align(d: Draft) -> None:
    d.tolerance = 16
    n, c, h, w = d.pick([1, 2]), d.pick([1, 2]), d.number(2, 8), d.number(2, 8)
    rois = d.number(1, 3)
    random_values = np.random.default_rng(d.below(10000))
    corner = random_values.uniform(0, 4, (rois, 2))
    dtype = d.dtype(0)
    d.add(d.array(dtype, (n, c, h, w), edges=False))
    d.add(np.concatenate([corner, corner + random_values.uniform(0.5, 5, (rois, 2))], -1).astype(dtype))
    d.add(random_values.integers(0, n, rois).astype(np.int64))
    d.maybe("mode", lambda: d.pick(["avg", "max"]))
    d.maybe("coordinate_transformation_mode", lambda: d.pick(["half_pixel", "output_half_pixel"]))
    d.attributes.update(output_height=d.number(1, 3), output_width=d.number(1, 3), sampling_ratio=d.number(0, 2))
    d.maybe("spatial_scale", lambda: d.pick([1.0, 0.5]))


def resize(d: Draft) -> None:
    d.tolerance = 30
    shape = d.shape(4, 4, empty=False)
    mode = d.pick(["nearest", "linear", "cubic"] if d.since >= 11 else ["nearest", "linear"])
    fixed = 2 if mode != "nearest" or d.flip() else 0
    scales = [1.0 if i < fixed else d.pick([1.0, 2.0, 0.5, 1.5, 3.0, 0.7]) for i in range(4)]
    d.reject_if(any(int(n * s) == 0 for n, s in zip(shape, scales)))
    _values(d, shape, edges=False)
    d.attributes["mode"] = mode
    if d.since < 11:
        if d.has_attribute("scales"):
            d.attributes["scales"] = scales
        elif d.has_attribute("height_scale"):
            d.attributes.update(height_scale=scales[2], width_scale=scales[3])
        else:
            d.add(np.array(scales, np.float32))
        return
    mode_of = d.maybe("coordinate_transformation_mode", lambda: d.pick(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", *(["half_pixel_symmetric"] if d.since >= 19 else [])]))
    del mode_of
    d.maybe("nearest_mode", lambda: d.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])) if mode == "nearest" else None
    d.maybe("cubic_coeff_a", lambda: d.fraction(-0.75, -0.5), 0.3) if mode == "cubic" else None
    d.maybe("exclude_outside", lambda: d.below(2), 0.3) if mode == "cubic" else None
    if mode != "nearest" and d.since >= 18:
        d.maybe("antialias", lambda: d.below(2), 0.3)
    d.add(np.zeros(0, np.float32) if d.since < 13 else None)
    if d.flip():
        d.add(np.zeros(0, np.float32) if d.since < 13 else None)
        d.add(d.ints([n if i < fixed else d.number(1, 9) for i, n in enumerate(shape)]))
    else:
        d.add(np.array(scales, np.float32))


def upsample(d: Draft) -> None:
    d.tolerance = 16
    shape = d.shape(4, 4, empty=False)
    scales = [1.0, 1.0, float(d.number(1, 3)), float(d.number(1, 3))]
    _values(d, shape, edges=False)
    d.maybe("mode", lambda: d.pick(["nearest", "linear"] if d.since >= 7 else ["nearest"]))
    if d.has_attribute("scales"):
        d.attributes["scales"] = scales
    elif d.has_attribute("height_scale"):
        d.attributes.update(height_scale=scales[2], width_scale=scales[3])
    else:
        d.add(np.array(scales, np.float32))


def grid_sample(d: Draft) -> None:
    d.tolerance = 60
    rank = d.pick([2, 2, 3]) if d.since >= 20 else 2
    n, c = d.pick([1, 2]), d.pick([1, 2])
    _values(d, (n, c, *(d.number(1, 5) for _ in range(rank))), edges=False)
    d.add((d.array(d.dtype(1), (n, *(d.number(1, 4) for _ in range(rank)), rank), -1, 1, edges=False) * np.array(1.3, d.dtype(1))).astype(d.dtype(1)))
    modes = ["bilinear", "nearest", "bicubic"] if d.since < 20 else ["linear", "nearest", "cubic"]
    d.maybe("mode", lambda: d.pick(modes if rank == 2 else modes[:2]))
    d.maybe("padding_mode", lambda: d.pick(["zeros", "border", "reflection"]))
    d.maybe("align_corners", lambda: d.below(2))


def affine_grid(d: Draft) -> None:
    d.tolerance = 16
    rank = d.pick([2, 3])
    n = d.pick([1, 2])
    _values(d, (n, rank, rank + 1), edges=False)
    d.add(d.ints([n, 1, *(d.number(1, 4) for _ in range(rank))]))
    d.maybe("align_corners", lambda: d.below(2))


def dft(d: Draft) -> None:
    d.tolerance = 60
    shape = d.shape(1, 3, empty=False)
    inverse, one_sided = d.flip(0.3), d.flip(0.3)
    axis = d.below(len(shape))
    parts = 2 if inverse or (d.flip(0.3) and not one_sided) else 1
    d.reject_if(inverse and one_sided)
    _values(d, (*shape, parts), edges=False)
    d.add(np.array(d.number(1, 9), np.int64) if d.flip(0.4) else None)
    if d.since >= 20:
        d.add(np.array(axis - len(shape) - 1 if d.flip(0.4) else axis, np.int64))
    else:
        d.attributes["axis"] = axis
    d.attributes.update(inverse=int(inverse), onesided=int(one_sided))


def window(d: Draft) -> None:
    d.add(np.array(d.number(1, 20), d.dtype(0)))
    d.maybe("periodic", lambda: d.below(2))
    d.maybe("output_datatype", lambda: d.pick([1, 11]), 0.3)


def stft(d: Draft) -> None:
    d.tolerance = 60
    length, frame, step = d.number(8, 40), d.number(2, 8), d.number(1, 4)
    _values(d, (d.pick([1, 2]), length, 1), edges=False)
    d.add(np.array(step, np.int64))
    windowed = d.flip()
    d.add(d.array(d.dtype(0), (frame,), 0, 1, edges=False) if windowed else None)
    d.add(np.array(frame, np.int64) if not windowed or d.flip() else None)
    d.maybe("onesided", lambda: d.below(2))


def rotary(d: Draft) -> None:
    d.tolerance = 8
    n, heads, length, size = d.pick([1, 2]), d.number(1, 3), d.number(1, 4), 2 * d.number(1, 4)
    flat = d.flip(0.4)
    _values(d, (n, length, heads * size) if flat else (n, heads, length, size), edges=False)
    turned = size if d.flip(0.6) else 2 * d.number(1, size // 2)
    cached = d.flip()
    rows = length + 2
    for _ in range(2):
        d.add(d.array(d.dtype(0), (rows, turned // 2) if cached else (n, length, turned // 2), -1, 1, edges=False))
    if cached:
        d.add(d.array(np.int64, (n, length), 0, rows - 1, edges=False))
    if flat:
        d.attributes["num_heads"] = heads
    if turned != size:
        d.attributes["rotary_embedding_dim"] = turned
    d.maybe("interleaved", lambda: d.below(2))


def attention(d: Draft) -> None:
    d.tolerance = 30
    n, kv, group, q_len, size, v_size = d.pick([1, 2]), d.pick([1, 2]), d.pick([1, 1, 2]), d.number(1, 4), d.pick([1, 2, 4, 8]), d.pick([1, 2, 4, 8])
    k_len, past = d.number(1, 6), d.number(1, 3) if d.flip(0.3) else 0
    flat = d.flip(0.3)
    heads = kv * group
    t = d.dtype(0)
    v_type = d.schema.inputs[2].type_str
    d.set_dtype(v_type, t)

    def put(count: int, length: int, width: int) -> None:
        d.add(d.array(t, (n, length, count * width) if flat else (n, count, length, width), -2, 2, edges=False))

    put(heads, q_len, size)
    put(kv, k_len, size)
    put(kv, k_len, v_size)
    total = k_len + past
    if d.flip(0.4):
        shape = d.pick([(q_len, total), (n, 1, q_len, total), (1, heads, q_len, total)])
        d.add(np.random.default_rng(d.below(99)).random(shape) < 0.8 if d.flip() else d.array(t, shape, -2, 2, edges=False))
        if d.inputs[-1].dtype == np.bool_:
            d.inputs[-1][..., 0] = True
    else:
        d.add(None)
    if past:
        d.add(d.array(t, (n, kv, past, size), -2, 2, edges=False))
        d.add(d.array(t, (n, kv, past, v_size), -2, 2, edges=False))
    if flat:
        d.attributes.update(q_num_heads=heads, kv_num_heads=kv)
    d.maybe("is_causal", lambda: d.below(2), 0.4)
    if d.flip(0.3):
        d.attributes["scale"] = d.fraction(0.1, 1)
    if d.flip(0.2):
        d.attributes["softcap"] = d.fraction(1, 4)
    d.num_outputs = 3 if past else 1


def max_unpool(d: Draft) -> None:
    n, c, h, w = d.pick([1, 2]), d.pick([1, 2]), d.number(1, 4), d.number(1, 4)
    random_values = np.random.default_rng(d.below(1000))
    _values(d, (n, c, h, w), edges=False)
    plane = 4 * h * w
    places = np.stack([random_values.permutation(plane)[: h * w] for _ in range(n * c)]) + np.arange(n * c)[:, None] * plane
    d.add(places.reshape(n, c, h, w).astype(np.int64))
    d.attributes.update(kernel_shape=[2, 2], strides=[2, 2])


def max_roi_pool(d: Draft) -> None:
    n, rois = d.pick([1, 2]), d.number(1, 3)
    _values(d, (n, d.pick([1, 2]), d.number(2, 8), d.number(2, 8)), edges=False)
    random_values = np.random.default_rng(d.below(1000))
    low = random_values.integers(0, 3, (rois, 2))
    d.add(np.concatenate([random_values.integers(0, n, (rois, 1)), low, low + random_values.integers(0, 5, (rois, 2))], 1).astype(d.dtype(0)))
    d.attributes["pooled_shape"] = [d.number(1, 3), d.number(1, 3)]


def deform_conv(d: Draft) -> None:
    d.tolerance = 30
    c, m, k, n = d.pick([1, 2]), d.pick([1, 2, 3]), d.number(1, 3), d.pick([1, 2])
    h, w = d.number(3, 6), d.number(3, 6)
    oh, ow = h - k + 1, w - k + 1
    _values(d, (n, c, h, w), edges=False)
    _values(d, (m, c, k, k), edges=False)
    d.add(d.array(d.dtype(0), (n, 2 * k * k, oh, ow), -1, 1, edges=False))
    _values(d, (m,), edges=False) if d.flip() else d.add(None)
    d.add(d.array(d.dtype(0), (n, k * k, oh, ow), 0, 1, edges=False) if d.flip() else None)


MAKERS = {
    "MatMul": matmul, "Gemm": gemm, "Einsum": einsum, "Det": det, "Conv": conv, "ConvInteger": conv_integer, "QLinearConv": conv_integer,
    "ConvTranspose": conv_transpose, "MaxPool": pool, "AveragePool": pool, "LpPool": pool, "GlobalAveragePool": global_pool,
    "GlobalMaxPool": global_pool, "GlobalLpPool": global_pool, "BatchNormalization": batch_normalization,
    "InstanceNormalization": instance_normalization, "GroupNormalization": group_normalization, "LayerNormalization": layer_normalization,
    "RMSNormalization": layer_normalization, "LpNormalization": lp_normalization, "MeanVarianceNormalization": mean_variance_normalization,
    "LRN": lrn, "RNN": recurrent, "GRU": recurrent, "LSTM": recurrent, "NegativeLogLikelihoodLoss": nll_loss,
    "SoftmaxCrossEntropyLoss": nll_loss, "NonMaxSuppression": non_max_suppression, "RoiAlign": roi_align, "Resize": resize,
    "Upsample": upsample, "GridSample": grid_sample, "AffineGrid": affine_grid, "DFT": dft, "HannWindow": window, "HammingWindow": window,
    "BlackmanWindow": window, "STFT": stft, "RotaryEmbedding": rotary, "Attention": attention, "MaxUnpool": max_unpool,
    "MaxRoiPool": max_roi_pool, "DeformConv": deform_conv,
}  # fmt: skip
