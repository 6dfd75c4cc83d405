"""Compares second derivatives of RNN, GRU, LSTM and LinearAttention with PyTorch's double backward of ONNX's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import treadle

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from test_gradient_operator import DOMAIN, gradient  # noqa: E402
from test_gradient_rules import linear_attention  # noqa: E402

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
    """Computes Y, Y_h and Y_c by ONNX's specification, one sequence and one step at a time."""
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


CASES: list[tuple[str, dict[str, Any], bool]] = [  # tuples: kind, attributes, and True if sequences have different lengths
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
    operands = ["x", "w", "r", "b", "lengths" if has_lengths else "", "h", *(["c", "p"] if kind == "LSTM" else [])]
    functions = attributes.get("activations", [])
    parameters = {"activation_alpha": [a for name in functions for a in ALPHA.get(name, [])], "activation_beta": [a for name in functions for a in BETA.get(name, [])]}
    made = ["Y", "Y_h", "Y_c"][: len(outputs)]
    layer = helper.make_node(kind, operands, made, hidden_size=HIDDEN, **attributes, **{name: value for name, value in parameters.items() if value})
    free = {} if known else {"x": ["steps", "batch", FEATURES], "h": [directions, "batch", HIDDEN], "c": [directions, "batch", HIDDEN]}
    compare(layer, inputs, outputs, dtype, tolerance, free, [numpy_helper.from_array(lengths, "lengths")])


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "shared"), [((2, 2), False), ((4, 2), True), ((2, 4), False)], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_linear_attention(rule: str, heads: tuple[int, int], shared: bool, known: bool) -> None:
    """:param shared: whether all heads share one beta, and each key has a decay"""
    q_heads, kv_heads = heads
    key, value = 3, 2
    shapes = {"q": q_heads * key, "k": kv_heads * key, "v": kv_heads * value, "d": kv_heads * (key if shared else 1), "b": 1 if shared else kv_heads}
    rng = np.random.default_rng(3)
    arrays = {name: rng.normal(size=(BATCH, STEPS, width)) * 0.6 for name, width in shapes.items()} | {"p": rng.normal(size=(BATCH, kv_heads, key, value)) * 0.6}
    used = ["q", "k", "v", "p", *(["d"] if "gated" in rule else []), *(["b"] if "delta" in rule else [])]
    inputs = {name: torch.tensor(arrays[name].astype(np.float32).astype(np.float64), requires_grad=name in used) for name in arrays}
    outputs = linear_attention(*(inputs[name] for name in "qkvpdb"), rule, q_heads, kv_heads)
    operands = [name if name in used else "" for name in "qkvpdb"]
    while not operands[-1]:
        operands.pop()
    layer = helper.make_node("LinearAttention", operands, ["Y", "S"], q_num_heads=q_heads, kv_num_heads=kv_heads, update_rule=rule)
    free: dict[str, list[Any]] = {} if known else {name: ["batch", "steps", width] for name, width in shapes.items()} | {"p": ["batch", kv_heads, key, value]}
    compare(layer, {name: inputs[name] for name in used}, outputs, np.float32, 1e-4, free, [])


@pytest.mark.parametrize("window", [2, STEPS + 2])
def test_states_of_a_window(window: int) -> None:
    key, value = 3, 2
    rng = np.random.default_rng(4)
    shapes = {"q": (BATCH, STEPS, 2 * key), "k": (BATCH, STEPS, 2 * key), "v": (BATCH, STEPS, 2 * value), "p": (window, BATCH, 2, key, value), "d": (BATCH, STEPS, 2), "b": (BATCH, STEPS, 2)}
    inputs = {name: torch.tensor((rng.normal(size=shape) * 0.6).astype(np.float32).astype(np.float64), requires_grad=True) for name, shape in shapes.items()}
    q, k, v, past, decay, beta = inputs.values()

    def after(tokens: int) -> tuple[Any, Any]:
        return linear_attention(*(x[:, :tokens] for x in (q, k, v)), past[-1], *(x[:, :tokens] for x in (decay, beta)), "gated_delta", 2, 2)

    states = [after(tokens)[1] if tokens > 0 else torch.zeros_like(past[-1]) for tokens in range(STEPS - window + 1, STEPS + 1)]
    layer = helper.make_node("LinearAttention", list(inputs), ["Y", "S"], domain="com.microsoft", q_num_heads=2, kv_num_heads=2, state_window=window)
    compare(layer, inputs, (after(STEPS)[0], torch.stack(states)), np.float32, 1e-4, {}, [])


def compare(layer: Any, inputs: dict[str, Any], outputs: tuple[Any, ...], dtype: type, tolerance: float, free: dict[str, list[Any]], constants: list[Any]) -> None:
    """Gradients of a weighted sum of the layer's outputs, and those of their squares.

    :param outputs: PyTorch's, of these inputs
    :param free: shapes of inputs that the model leaves open
    """
    rng = np.random.default_rng(8)
    weights = [rng.normal(size=value.shape).astype(dtype).astype(np.float64) for value in outputs]
    y = sum((value * torch.tensor(weight)).sum() for value, weight in zip(outputs, weights))
    first = torch.autograd.grad(y, list(inputs.values()), create_graph=True)
    second = torch.autograd.grad(sum((value**2).sum() for value in first), list(inputs.values()))

    nodes, made, names = [layer], list(layer.output), list(inputs)
    for name in made:
        nodes += [helper.make_node("Mul", [name, f"{name}_weights"], [f"{name}_weighted"]), helper.make_node("ReduceSum", [f"{name}_weighted"], [f"{name}_sum"], keepdims=0)]
    nodes.append(helper.make_node("Sum", [f"{name}_sum" for name in made], ["y"]))
    firsts, seconds = [f"d_{name}" for name in names], [f"dd_{name}" for name in names]
    nodes.append(gradient(names, firsts, xs=names, y="y"))
    nodes += [helper.make_node("ReduceSumSquare", [name], [f"{name}_square"], keepdims=0) for name in firsts]
    nodes += [helper.make_node("Sum", [f"{name}_square" for name in firsts], ["length"]), gradient(names, seconds, xs=names, y="length")]
    initializers = [numpy_helper.from_array(weight.astype(dtype), f"{name}_weights") for name, weight in zip(made, weights)] + constants
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(name, element, free.get(name, list(value.shape))) for name, value in inputs.items()],
                              [helper.make_tensor_value_info(name, element, None) for name in firsts + seconds], initializers)
    opset = 27 if layer.op_type == "LinearAttention" else 22
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    ours = treadle.InferenceSession(model.SerializeToString()).run(None, {name: value.detach().numpy().astype(dtype) for name, value in inputs.items()})
    for name, array, theirs in zip(firsts + seconds, ours, [*first, *second], strict=True):
        wanted = theirs.detach().numpy()
        np.testing.assert_allclose(array.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * max(1e-1, float(np.abs(wanted).max())), err_msg=name)
