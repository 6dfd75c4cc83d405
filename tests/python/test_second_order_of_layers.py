"""Second derivatives of RNN, GRU and LSTM, against PyTorch's double backward through ONNX's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import treadle

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from test_gradient_operator import DOMAIN, gradient  # noqa: E402

STEPS, BATCH, FEATURES, HIDDEN = 4, 3, 2, 3
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Softsign": torch.nn.functional.softsign,
    "Softplus": torch.nn.functional.softplus,
    "Elu": lambda x: torch.nn.functional.elu(x, 0.75),
    "ScaledTanh": lambda x: 1.25 * torch.tanh(0.5 * x),
    "Affine": lambda x: 0.75 * x + 0.125,
}
ALPHA = {"Elu": [0.75], "ScaledTanh": [1.25], "Affine": [0.75]}
BETA = {"ScaledTanh": [0.5], "Affine": [0.125]}


def formula(kind: str, attributes: dict[str, Any], x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, p: Any) -> tuple[Any, ...]:
    """Y, Y_h and Y_c of ONNX's specification, one sequence and one step at a time."""
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[kind]
    directions = w.shape[0]
    names = attributes.get("activations", usual * directions)
    clip = attributes.get("clip")
    if attributes.get("layout"):
        x, h, c = x.transpose(0, 1), h.transpose(0, 1), None if c is None else c.transpose(0, 1)
    ys_rows: dict[tuple[int, int, int], Any] = {}
    last: list[list[Any]] = [[], []]
    for d in range(directions):
        reverse = d == 1 or attributes.get("direction") == "reverse"

        def f(which: int, value: Any, d: int = d) -> Any:
            return FUNCTIONS[names[d * len(usual) + which]](value if clip is None else value.clamp(-clip, clip))

        gates = GATES[kind]
        ws, rs = w[d].reshape(gates, HIDDEN, -1), r[d].reshape(gates, HIDDEN, HIDDEN)
        bw, br = b[d].reshape(2, gates, HIDDEN)
        for n in range(BATCH):
            state, cell = h[d, n], None if c is None else c[d, n]
            steps = range(int(lengths[n]))
            for t in reversed(steps) if reverse else steps:
                of_input = [ws[g] @ x[t, n] + bw[g] for g in range(gates)]
                whole = [of_input[g] + rs[g] @ state + br[g] for g in range(gates)]
                if kind == "RNN":
                    state = f(0, whole[0])
                elif kind == "GRU":
                    z, reset = f(0, whole[0]), f(0, whole[1])
                    inner = reset * (rs[2] @ state + br[2]) if attributes.get("linear_before_reset") else rs[2] @ (reset * state) + br[2]
                    state = (1 - z) * f(1, of_input[2] + inner) + z * state
                else:
                    peep = p[d].reshape(3, HIDDEN)
                    i = f(0, whole[0] + peep[0] * cell)
                    forget = 1 - i if attributes.get("input_forget") else f(0, whole[2] + peep[2] * cell)
                    cell = forget * cell + i * f(1, whole[3])
                    state = f(0, whole[1] + peep[1] * cell) * f(2, cell)
                ys_rows[t, d, n] = state
            last[0].append(state), last[1].append(cell)
    zero = torch.zeros(HIDDEN, dtype=torch.float64)
    ys = torch.stack([torch.stack([torch.stack([ys_rows.get((t, d, n), zero) for n in range(BATCH)]) for d in range(directions)]) for t in range(STEPS)])
    outputs = [ys] + [torch.stack(values).reshape(directions, BATCH, HIDDEN) for values in last[: 2 if kind == "LSTM" else 1]]
    if attributes.get("layout"):
        outputs = [ys.permute(2, 0, 1, 3)] + [value.transpose(0, 1) for value in outputs[1:]]
    return tuple(outputs)


CASES: list[tuple[str, dict[str, Any], bool]] = [  # kind, attributes, whether sequences have lengths of their own
    *[(kind, {"direction": direction}, lengths) for kind in GATES for direction in ("forward", "reverse", "bidirectional") for lengths in (False, True)],
    *[(kind, {"layout": 1, "direction": "bidirectional"}, True) for kind in GATES],
    *[(kind, {"clip": 0.5}, False) for kind in GATES],
    ("GRU", {"linear_before_reset": 1}, False),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}, True),
    ("LSTM", {"input_forget": 1}, False),
    ("RNN", {"activations": ["ScaledTanh", "Elu"], "direction": "bidirectional"}, False),
    ("GRU", {"activations": ["Softsign", "Affine"]}, False),
    ("LSTM", {"activations": ["Sigmoid", "ScaledTanh", "Softplus"]}, True),
]


@pytest.mark.parametrize(("kind", "attributes", "has_lengths"), CASES, ids=str)
def test_second_derivatives_are_pytorchs(kind: str, attributes: dict[str, Any], has_lengths: bool) -> None:
    check(kind, attributes, has_lengths, np.float64, 1e-9)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 4e-2)])
def test_steps_and_batch_need_not_be_known_ahead(kind: str, dtype: type, tolerance: float) -> None:
    check(kind, {"direction": "bidirectional"}, True, dtype, tolerance, known=False)


def check(kind: str, attributes: dict[str, Any], has_lengths: bool, dtype: type, tolerance: float, known: bool = True) -> None:
    rng = np.random.default_rng(7)
    directions, gates = 2 if attributes.get("direction") == "bidirectional" else 1, GATES[kind]
    states = [(directions, BATCH, HIDDEN)] * (2 if kind == "LSTM" else 1)
    shapes = {"x": (STEPS, BATCH, FEATURES), "w": (directions, gates * HIDDEN, FEATURES), "r": (directions, gates * HIDDEN, HIDDEN), "b": (directions, 2 * gates * HIDDEN)}
    for name, shape in zip(["h", "c"], states):
        shapes[name] = shape
    if attributes.get("layout"):
        shapes |= {name: (shapes[name][1], shapes[name][0], shapes[name][2]) for name in ("x", "h", "c") if name in shapes}
    if kind == "LSTM":
        shapes["p"] = (directions, 3 * HIDDEN)
    arrays = {name: (rng.normal(size=shape) * 0.6).astype(dtype).astype(np.float64) for name, shape in shapes.items()}
    lengths = np.array([STEPS, 0, 2] if has_lengths else [STEPS] * BATCH, np.int32)
    inputs = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    outputs = formula(kind, attributes, inputs["x"], inputs["w"], inputs["r"], inputs["b"], lengths, inputs["h"], inputs.get("c"), inputs.get("p"))
    weights = [rng.normal(size=value.shape).astype(dtype).astype(np.float64) for value in outputs]
    y = sum((value * torch.tensor(weight)).sum() for value, weight in zip(outputs, weights))
    first = torch.autograd.grad(y, list(inputs.values()), create_graph=True)
    second = torch.autograd.grad(sum((value**2).sum() for value in first), list(inputs.values()))

    made = ["Y", "Y_h", "Y_c"][: len(outputs)]
    functions = attributes.get("activations", [])
    parameters = {"activation_alpha": [a for name in functions for a in ALPHA.get(name, [])], "activation_beta": [a for name in functions for a in BETA.get(name, [])]}
    operands = ["x", "w", "r", "b", "lengths" if has_lengths else "", "h", *(["c", "p"] if kind == "LSTM" else [])]
    nodes = [helper.make_node(kind, operands, made, hidden_size=HIDDEN, **attributes, **{name: value for name, value in parameters.items() if value})]
    for name in made:
        nodes += [helper.make_node("Mul", [name, f"{name}_weights"], [f"{name}_weighted"]), helper.make_node("ReduceSum", [f"{name}_weighted"], [f"{name}_sum"], keepdims=0)]
    nodes.append(helper.make_node("Sum", [f"{name}_sum" for name in made], ["y"]))
    names = list(arrays)
    firsts, seconds = [f"d_{name}" for name in names], [f"dd_{name}" for name in names]
    nodes.append(gradient(names, firsts, xs=names, y="y"))
    nodes += [helper.make_node("ReduceSumSquare", [name], [f"{name}_square"], keepdims=0) for name in firsts]
    nodes += [helper.make_node("Sum", [f"{name}_square" for name in firsts], ["length"]), gradient(names, seconds, xs=names, y="length")]
    initializers = [numpy_helper.from_array(weight.astype(dtype), f"{name}_weights") for name, weight in zip(made, weights)] + [numpy_helper.from_array(lengths, "lengths")]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    free = {} if known else {"x": ["steps", "batch", FEATURES], "h": [directions, "batch", HIDDEN], "c": [directions, "batch", HIDDEN]}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, element, free.get(name, array.shape)) for name, array in arrays.items()],
                              [helper.make_tensor_value_info(name, element, None) for name in firsts + seconds], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid(DOMAIN, 1)], ir_version=10)
    ours = treadle.InferenceSession(model.SerializeToString()).run(None, {name: array.astype(dtype) for name, array in arrays.items()})
    for name, array, theirs in zip(firsts + seconds, ours, [*first, *second], strict=True):
        wanted = theirs.detach().numpy()
        np.testing.assert_allclose(array.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * max(1e-1, float(np.abs(wanted).max())), err_msg=name)
