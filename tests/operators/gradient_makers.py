"""Makers that only the gradients' fuzzer uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draft import Draft


def deform_conv(d: Draft) -> None:
    """Draws strides, pads, dilations, groups, and groups of offsets."""
    d.tolerance = 30
    group, offset_group = d.pick([1, 1, 2]), d.pick([1, 1, 2])
    c, m, n = group * offset_group * d.pick([1, 1, 2]), group * d.pick([1, 2]), d.pick([1, 2])
    kernel, space = [d.number(1, 3), d.number(1, 3)], [d.number(2, 5), d.number(2, 5)]
    strides, dilations = [d.number(1, 2), d.number(1, 2)], [d.pick([1, 1, 2]), d.pick([1, 1, 2])]
    pads = [d.below(2) for _ in range(4)] if d.flip() else [0] * 4
    out = [(space[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(2)]
    d.reject_if(min(out) < 1)

    def put(*shape: int, low: float = -2, high: float = 2) -> None:
        d.add(d.array(d.dtype(0), shape, low, high, edges=False))

    taps = kernel[0] * kernel[1]
    put(n, c, *space)
    put(m, c // group, *kernel)
    put(n, offset_group * 2 * taps, *out)
    put(m) if d.flip() else d.add(None)
    put(n, offset_group * taps, *out, low=0, high=1) if d.flip() else d.add(None)
    d.attributes.update(group=group, offset_group=offset_group, strides=strides, dilations=dilations, pads=pads)
    if d.flip():
        d.attributes["kernel_shape"] = kernel


def dequantize(d: Draft) -> None:
    """Draws one scale, a scale per index of an axis, or a scale per block. The integers become constants."""
    shape = d.shape(1, 3, empty=False)
    axis, kind = d.axis(len(shape)), d.below(3)
    scales: tuple[int, ...] = ()
    if kind == 1 and d.has_attribute("axis"):
        scales = (shape[axis],)
    elif kind == 2 and d.has_attribute("block_size"):
        block = d.pick([n for n in (1, 2, 3, 4) if shape[axis] % n == 0])
        d.attributes["block_size"] = block
        scales = tuple(n // block if i == axis % len(shape) else n for i, n in enumerate(shape))
    source = np.dtype(d.pick([np.int8, np.uint8, np.int32] if d.since < 21 else [np.int8, np.uint8, np.int16, np.uint16]))
    d.add(d.array(source, shape, -100, 100, edges=False))
    d.add(np.asarray(np.abs(d.array(np.float32, scales, 0.1, 2, edges=False)) + 0.25, np.float32))
    if d.flip(0.7) and source != np.int32:
        d.add(d.array(source, scales, -7, 7, edges=False))
    if scales:
        d.attributes["axis"] = axis


MAKERS: dict[str, Callable[[Draft], None]] = {"DeformConv": deform_conv, "DequantizeLinear": dequantize}
