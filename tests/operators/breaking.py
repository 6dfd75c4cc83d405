"""Makes cases invalid: gives them attributes, indices, shapes, dtypes and numbers of operands that no valid model has."""

from __future__ import annotations

import numpy as np

from draft import Case, Choices

_NUMBERS = [-1, 0, 1, 7, 1000, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63)]


def broken(case: Case, choices: Choices) -> Case:
    """Changes one to three attributes or operands of the case, so that it becomes invalid, and returns it."""
    for _ in range(1 + choices.below(3)):
        (_break_attribute if case.attributes and choices.below(2) else _break_operand)(case, choices)
    return case


def _pick(choices: Choices, options):
    return options[choices.below(len(options))]


def _break_attribute(case: Case, choices: Choices) -> None:
    name = _pick(choices, sorted(case.attributes))
    value = case.attributes[name]
    kind = choices.below(5)
    if kind == 0:
        del case.attributes[name]
    elif isinstance(value, (list, tuple)) and value:
        value = list(value)
        if kind == 1:
            value.append(_pick(choices, value))
        elif kind == 2 and len(value) > 1:
            value.pop()
        elif isinstance(value[0], int):
            value[choices.below(len(value))] = _pick(choices, _NUMBERS)
        case.attributes[name] = value
    elif isinstance(value, int):
        case.attributes[name] = _pick(choices, _NUMBERS)
    elif isinstance(value, float):
        case.attributes[name] = _pick(choices, [float("nan"), float("inf"), -1.0, 0.0, 1e30])
    elif isinstance(value, str):
        case.attributes[name] = _pick(choices, ["", "x", value + " ", value.lower()])


def _break_operand(case: Case, choices: Choices) -> None:
    if not case.inputs:
        return
    i = choices.below(len(case.inputs))
    value = case.inputs[i]
    kind = choices.below(7)
    if value is None:
        return
    if case.op == "Loop" and i < 2:  # these are the iteration count and the condition, without which the loop would never end
        return
    if isinstance(value, list):  # a sequence loses its first element, or is omitted if that was the only one
        case.inputs[i] = value[1:] or None
        return
    if kind == 0:
        case.inputs[i] = None
        case.constant[i] = False
    elif kind == 1 and value.dtype.kind in "iu" and value.size:
        value = value.copy()
        info = np.iinfo(value.dtype)
        number = max(info.min, min(info.max, _pick(choices, _NUMBERS)))
        value.reshape(-1)[choices.below(value.size)] = number
        case.inputs[i] = value
    elif kind == 2:
        case.inputs[i] = value[None]
    elif kind == 3 and value.ndim:
        case.inputs[i] = value[0] if value.shape[0] else value.reshape(value.shape[1:] if 0 in value.shape[1:] else value.shape)
        case.inputs[i] = np.asarray(case.inputs[i], value.dtype)
    elif kind == 4 and value.ndim:
        axis = choices.below(value.ndim)
        keep = choices.below(value.shape[axis] + 1)
        case.inputs[i] = np.ascontiguousarray(np.take(value, range(keep), axis))
    elif kind == 5 and value.ndim and value.size:
        axis = choices.below(value.ndim)
        case.inputs[i] = np.concatenate([value, value], axis)
    elif kind == 6 and value.dtype != np.object_:
        with np.errstate(all="ignore"):
            case.inputs[i] = value.astype(_pick(choices, [np.float32, np.int64, np.int32, np.bool_, np.float64, np.uint8]))
