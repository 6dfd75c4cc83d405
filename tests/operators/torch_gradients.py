"""Computes gradients of a case with PyTorch's autograd in float64, from the definitions of the operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draft import Case
from gradient_models import Trial
from torch_definitions import DEFINITIONS, Operands
from torch_networks import NETWORKS

try:
    import torch
    import torch.nn.functional as functional

    torch.set_num_threads(1)
except ImportError:  # tests also run without PyTorch
    torch = None

_NATIVE = {"float64", "float32", "int64", "int32", "bool", "uint8", "int8"}


def _activation(name: str) -> Callable:
    return {
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "relu": torch.relu,
        "softsign": functional.softsign,
        "hardsigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
        "softplus": functional.softplus,
        "elu": functional.elu,
    }[name.lower()]


def _recurrent(case: Case, inputs: list) -> list:
    """Computes RNN, GRU and LSTM step by step, as ONNX defines them."""
    x, w, r = inputs[:3]
    bias, lengths, h0, c0, peepholes = (list(inputs[3:]) + [None] * 5)[:5]
    a = case.attributes
    kind, layout, hidden = case.op, a.get("layout", 0), r.shape[2]
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    if layout:
        x, h0, c0 = (None if v is None else v.transpose(0, 1) for v in (x, h0, c0))
    steps, batch = x.shape[:2]
    direction = a.get("direction", "forward")
    per = {"RNN": 1, "GRU": 2, "LSTM": 3}[kind]
    names = a.get("activations") or {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}[kind] * 2
    clip = a.get("clip", 0)

    def zeros(*shape: int):
        return torch.zeros(*shape, dtype=x.dtype)

    def bounded(f):
        return (lambda v: f(torch.clamp(v, -clip, clip))) if clip else f

    outputs, lasts, cells = [], [], []
    for d in range(w.shape[0]):
        functions = [bounded(_activation(n)) for n in names[d * per : (d + 1) * per]]
        wb, rb = (bias[d, : gates * hidden], bias[d, gates * hidden :]) if bias is not None else (zeros(gates * hidden), zeros(gates * hidden))
        rows, h_rows, c_rows = [], [], []
        for b in range(batch):
            length = steps if lengths is None else int(lengths[b])
            h = h0[d, b] if h0 is not None else zeros(hidden)
            c = c0[d, b] if c0 is not None else zeros(hidden)
            y = [zeros(hidden)] * steps
            order = range(length - 1, -1, -1) if direction == "reverse" or d == 1 else range(length)
            for t in order:
                z = w[d] @ x[t, b] + wb
                if kind == "RNN":
                    h = functions[0](z + r[d] @ h + rb)
                elif kind == "GRU":
                    n = 2 * hidden
                    both = functions[0](z[:n] + r[d][:n] @ h + rb[:n])
                    update, reset = both[:hidden], both[hidden:]
                    last = reset * (r[d][n:] @ h + rb[n:]) if a.get("linear_before_reset", 0) else r[d][n:] @ (reset * h) + rb[n:]
                    h = (1 - update) * functions[1](z[n:] + last) + update * h
                else:
                    i, o, f, g = (z + r[d] @ h + rb).reshape(4, hidden)
                    p = peepholes[d].reshape(3, hidden) if peepholes is not None else zeros(3, hidden)
                    i = functions[0](i + p[0] * c)
                    f = 1 - i if a.get("input_forget", 0) else functions[0](f + p[2] * c)
                    c = f * c + i * functions[1](g)
                    o = functions[0](o + p[1] * c)
                    h = o * functions[2](c)
                y[t] = h
            rows.append(torch.stack(y)), h_rows.append(h), c_rows.append(c)
        outputs.append(torch.stack(rows, 1)), lasts.append(torch.stack(h_rows)), cells.append(torch.stack(c_rows))
    y, h, c = torch.stack(outputs, 1), torch.stack(lasts), torch.stack(cells)
    found = [y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)] if layout else [y, h, c]
    return found[: 3 if kind == "LSTM" else 2]


_UNARY = {
    "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Log": "log", "Neg": "neg", "Reciprocal": "reciprocal", "Sigmoid": "sigmoid", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh", "Abs": "abs", "Det": "det",
}  # fmt: skip
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "MatMul": "matmul"}
_FUNCTIONAL = {"Mish": "mish", "HardSwish": "hardswish", "Softplus": "softplus", "Softsign": "softsign"}


def _outputs(case: Case, inputs: list) -> list | None:
    op = case.op
    if op in ("RNN", "GRU", "LSTM"):
        return _recurrent(case, inputs)
    if op in _UNARY:
        return [getattr(torch, _UNARY[op])(inputs[0])]
    if op in _FUNCTIONAL:
        return [getattr(functional, _FUNCTIONAL[op])(inputs[0])]
    if op in _BINARY and len(inputs) == 2 and not case.attributes:
        return [getattr(torch, _BINARY[op])(*inputs)]
    if op == "Gemm":
        a, b = (x.T if case.attributes.get(name, 0) else x for x, name in zip(inputs, ("transA", "transB")))
        y = case.attributes.get("alpha", 1.0) * (a @ b)
        return [y + case.attributes.get("beta", 1.0) * inputs[2] if len(inputs) > 2 and inputs[2] is not None else y]
    if op == "Einsum":
        return [torch.einsum(case.attributes["equation"], *inputs)]
    if op == "Trilu":
        k = int(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else 0
        return [(torch.triu if case.attributes.get("upper", 1) else torch.tril)(inputs[0], k)]
    define = DEFINITIONS.get(op) or NETWORKS.get(op)
    return define(Operands(case, inputs)) if define else None


def gradients(trial: Trial) -> dict[str, np.ndarray] | None:
    """Returns the gradients of the weighted sum of outputs by the operands; None if the operator has no definition here, or a gradient is not
    finite."""
    case = trial.case
    if torch is None or case.domain or case.captured or any(w is None for w in trial.weights):
        return None
    if any(isinstance(v, list) or (v is not None and v.dtype.name not in _NATIVE) for v in case.inputs):
        return None
    tensors = [None if v is None else torch.tensor(v.astype(np.float64) if v.dtype.kind == "f" else v) for v in case.inputs]
    by = {name: tensors[int(name[1:])].requires_grad_() for name in trial.wanted}
    try:
        made = _outputs(case, tensors)
    except (RuntimeError, IndexError):
        return None
    if made is None:
        return None
    total = sum((y * torch.tensor(w)).sum() for y, w in zip([y for y in made if y is not None and y.is_floating_point()], trial.weights))
    if not total.requires_grad:
        return {name: np.zeros(x.shape) for name, x in by.items()}
    if not bool(torch.isfinite(total)):
        return None
    found = torch.autograd.grad(total, list(by.values()), allow_unused=True)
    grads = {name: np.zeros(x.shape) if f is None else f.numpy() for (name, x), f in zip(by.items(), found)}
    return grads if all(np.isfinite(grad).all() for grad in grads.values()) else None  # if a gradient is not finite, the point is a pole
