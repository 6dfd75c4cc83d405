"""Changes cases within what the operators' contracts allow: dtypes, optional operands and outputs, ranks, extents, attributes.

Makers draw only valid nodes. A changed case may be invalid; then every runtime must refuse it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from contract import Contract
from draft import Case, Choices

_NUMBERS = [0, 1, 2, 3, -1, -2, 4, 8, 16]
# Attributes that are 0 or 1 in all models; runtimes treat other numbers differently.
_FLAGS = set(
    """align_corners allowzero antialias causal ceil_mode center_point_box channels_last count_include_pad do_rotary exclude_outside exclusive fmod input_forget
    interleaved inverse is_causal keepdims largest layout linear_before_reset mrope_layout new_axis noop_with_empty_axes normalize_routing_weights
    onesided output_qk past_present_share_buffer periodic positive reset_on_eos reverse rotary_interleaved saturate select_last_index smooth_softmax
    sorted training_mode transA transB transBatchA transBatchB unidirectional upper""".split()
)
_FRACTIONS = [1.0, 0.5, 0.0, 2.0, -0.5, 0.1, -1.0]


def varied(case: Case, choices: Choices, contract: Contract) -> Case:
    """Makes up to three changes to the case, and adds their descriptions to `case.changes`."""
    for _ in range(choices.below(4)):
        change = _CHANGES[choices.below(len(_CHANGES))]
        told = change(case, choices, contract)
        if told:
            case.changes.append(told)
    return case


def _pick(choices: Choices, options: Any) -> Any:
    return options[choices.below(len(options))]


def _tensors(case: Case) -> list[int]:
    return [i for i, x in enumerate(case.inputs) if isinstance(x, np.ndarray)]


def _cast(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(all="ignore"):
        if value.dtype == np.object_ and dtype == np.object_:
            return value
        if dtype == np.object_:
            return np.array([str(x) for x in value.reshape(-1)] + [""], object)[:-1].reshape(value.shape)
        if value.dtype == np.object_:
            return np.array([len(x) for x in value.reshape(-1)], np.int64).reshape(value.shape).astype(dtype)
        if dtype.kind == "u" and value.dtype.kind in "if":
            return np.abs(np.nan_to_num(value.astype(np.float64))).astype(dtype)
        narrow = value.dtype.isbuiltin != 1  # a dtype of ml_dtypes: these cannot be converted into one another
        return (value.astype(np.float32) if narrow else value).astype(dtype)


def _retype(case: Case, choices: Choices, contract: Contract) -> str:
    """Gives another dtype to an operand, and to all operands that must have the same dtype."""
    found = _tensors(case)
    if not found:
        return ""
    port = contract.port(_pick(choices, found))
    if port is None or not port.dtypes:
        return ""
    dtype = _pick(choices, port.dtypes)
    for i in found:
        other = contract.port(i)
        if other is port or (other is not None and other.type_name and other.type_name == port.type_name):
            case.inputs[i] = _cast(case.inputs[i], dtype)
    return f"{port.name} {dtype}"


def _drop(case: Case, choices: Choices, contract: Contract) -> str:
    """Removes an optional operand."""
    found = [i for i in _tensors(case) if (port := contract.port(i)) is not None and port.presence == "optional"]
    if not found:
        return ""
    i = _pick(choices, found)
    case.inputs[i], case.constant[i] = None, False
    return f"no {contract.inputs[i].name}"


def _give(case: Case, choices: Choices, contract: Contract) -> str:
    """Adds an optional operand, whose extents are those of another operand, or 1."""
    given = {i for i, x in enumerate(case.inputs) if x is not None}
    absent = [i for i, port in enumerate(contract.inputs) if port.presence == "optional" and i not in given and port.dtypes and port.name != "training_mode"]
    if not absent or not _tensors(case):
        return ""
    i = _pick(choices, absent)
    port = contract.inputs[i]
    bound = [case.inputs[k].dtype for k in _tensors(case) if port.type_name and (other := contract.port(k)) is not None and other.type_name == port.type_name]
    dtype = bound[0] if bound else _pick(choices, port.dtypes)
    shape = case.inputs[_pick(choices, _tensors(case))].shape
    kind = choices.below(4)
    if kind == 0:
        shape = (_pick(choices, shape),) if shape else ()
    elif kind == 1:
        shape = ()
    elif kind == 2:
        shape = (1,)
    while len(case.inputs) <= i:
        case.inputs.append(None)
        case.constant.append(False)
    values = np.random.default_rng(choices.below(1 << 16)).integers(0, 3, shape)
    case.inputs[i], case.constant[i] = _cast(np.asarray(values), dtype), choices.below(2) == 1
    return f"{port.name} given"


def _rank(case: Case, choices: Choices, contract: Contract) -> str:
    """Adds an axis to one operand or to all, or removes one."""
    found = _tensors(case)
    if not found:
        return ""
    chosen = found if choices.below(3) == 0 else [_pick(choices, found)]
    kind, place = choices.below(3), choices.below(4)
    for i in chosen:
        value = case.inputs[i]
        if kind == 0:
            case.inputs[i] = np.expand_dims(value, min(place, value.ndim))
        elif value.ndim and (kind == 1 or value.shape[min(place, value.ndim - 1)] == 1):
            axis = 0 if kind == 1 else min(place, value.ndim - 1)
            if value.shape[axis]:
                case.inputs[i] = np.ascontiguousarray(value.take(0, axis)) if value.ndim > 1 else np.array(value[0], value.dtype)
    return f"{'all' if len(chosen) > 1 else chosen[0]} {'one axis more' if kind == 0 else 'one axis less'}"


def _extent(case: Case, choices: Choices, contract: Contract) -> str:
    """Reduces an extent of one operand to 1 or to 0, or by one."""
    found = [i for i in _tensors(case) if case.inputs[i].ndim]
    if not found:
        return ""
    i = _pick(choices, found)
    value = case.inputs[i]
    axis = choices.below(value.ndim)
    count = min(value.shape[axis], _pick(choices, [1, 1, 1, 0, max(value.shape[axis] - 1, 0)]))
    case.inputs[i] = np.ascontiguousarray(value.take(range(count), axis))
    return f"{i} axis {axis} extent {count}"


def _integer(case: Case, choices: Choices, contract: Contract) -> str:
    """Changes one element of an integer operand by a small number."""
    found = [i for i in _tensors(case) if case.inputs[i].dtype in (np.int32, np.int64) and 0 < case.inputs[i].size <= 64]
    if not found:
        return ""
    i = _pick(choices, found)
    value = case.inputs[i].copy()
    value.reshape(-1)[choices.below(value.size)] += _pick(choices, [1, -1, 2, -2, -5])
    case.inputs[i] = value
    return f"an element of {i}"


def _attribute(case: Case, choices: Choices, contract: Contract) -> str:
    """Removes an attribute, or gives it another value that the contract allows."""
    defs = [a for a in contract.attributes if a["name"] in case.attributes or "default" in a or "words" in a]
    if not defs:
        return ""
    definition = _pick(choices, defs)
    name, default, now = definition["name"], definition.get("default"), case.attributes.get(definition["name"])
    kind = choices.below(4)
    if kind == 0 and now is not None:
        del case.attributes[name]
        return f"no {name}"
    if definition.get("words"):
        case.attributes[name] = _pick(choices, definition["words"].split("|"))
    elif isinstance(now, list) and now and isinstance(now[0], int):
        now = list(now)
        now[choices.below(len(now))] += _pick(choices, [1, -1, 2])
        case.attributes[name] = now
    elif isinstance(default if now is None else now, int) and "dtypes" not in definition:
        least, most = definition.get("least", -(2**63)), definition.get("most", 2**63)
        numbers = [n for n in ([0, 1] if name in _FLAGS else _NUMBERS) if least <= n <= most]
        if not numbers:
            return ""
        case.attributes[name] = _pick(choices, numbers)
    elif isinstance(default if now is None else now, float):
        case.attributes[name] = _pick(choices, _FRACTIONS)
    else:
        return ""
    return f"{name} = {case.attributes[name]}"


def _outputs(case: Case, choices: Choices, contract: Contract) -> str:
    """Requests other outputs of the node."""
    ports = contract.outputs
    if not ports or ports[-1].presence == "variadic" or len(ports) < 2:
        return ""
    case.num_outputs = 1 + choices.below(len(ports))
    case.unwanted = frozenset(i for i in range(case.num_outputs) if ports[i].presence == "optional" and choices.below(3) == 2)
    if len(case.unwanted) == case.num_outputs:
        case.unwanted = frozenset()
    case.compared = None
    return "other outputs"


_CHANGES = [_attribute, _give, _drop, _retype, _rank, _extent, _integer, _outputs]
