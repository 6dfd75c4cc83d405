"""Runs a fixed part of the gradient fuzzer (tests/operators), with the same cases in every run."""

import sys

import numpy as np
import pytest

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))

import fuzz_gradients  # noqa: E402
import torch_gradients  # noqa: E402
import treadle  # noqa: E402
from treadle import executor  # noqa: E402


def test_rules_follow_finite_differences_and_pytorch():
    tally = fuzz_gradients.fuzz(range(0, 400))
    assert not [f for f in tally.findings if f.startswith("wrong")]
    assert tally.verdicts["same"] > 4000
    assert tally.verdicts["float32"] > 1000
    if torch_gradients.torch is not None:
        assert tally.verdicts["torch"] > 2500


def test_recurrent_layers_agree_with_both():
    pytest.importorskip("torch")
    tally = fuzz_gradients.fuzz(range(100, 110), frozenset({"RNN", "GRU", "LSTM"}))
    assert not tally.findings
    assert tally.verdicts["same"] > 100
    assert tally.verdicts["torch"] > 100


def bodies_model(text):
    from onnx import parser

    return parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)


def gradients_of(model, **arrays):
    bound = executor.bind(model, arrays, grad_req={name: "write" if value.dtype == np.float32 else "null" for name, value in arrays.items()})
    (y, *_) = bound.forward(is_train=True)
    bound.backward([np.ones_like(output) for output in bound.outputs])
    return np.array(y), {name: np.array(grad) for name, grad in bound.grad_dict.items() if grad is not None}


IF = """agraph (bool c, float[2, 3] x, float[3] w) => (float[2, 3] y) {
  z = Mul(x, w)
  y = If(c) <then_branch = yes () => (a) { a = Mul(z, w) }, else_branch = no () => (b) { b = Sin(x) }>
}"""

LOOP = """agraph (int64 n, float[3] x, float[3, 3] w) => (float[3] y, float[k, 3] steps) {
  yes = Constant <value = bool {1}> ()
  y, steps = Loop(n, yes, x) <body = step (int64 i, bool go, float[3] h) => (go2, h2, s) {
    go2 = Identity(go)
    p = MatMul(h, w)
    f = Cast <to = 1> (i)
    q = Add(p, f)
    h2 = Tanh(q)
    s = Mul(h2, h)
  }>
}"""

SCAN = """agraph (float[3] h0, float[5, 3] x, float[3, 3] w) => (float[3] y, float[5, 3] ys) {
  y, ys = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], body = step (float[3] h, float[3] t) => (h2, s) {
    p = MatMul(h, w)
    q = Add(p, t)
    h2 = Tanh(q)
    s = Mul(h2, h2)
  }> (h0, x)
}"""


def float_arrays(*shapes):
    random = np.random.default_rng(5)
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("condition", [True, False])
def test_branches_that_are_taken_give_gradients(condition):
    x, w = float_arrays((2, 3), (3,))
    _, grads = gradients_of(bodies_model(IF), c=np.array(condition), x=x, w=w)
    np.testing.assert_allclose(grads["x"], np.broadcast_to(w * w, (2, 3)) if condition else np.cos(x), rtol=1e-5)
    np.testing.assert_allclose(grads["w"], (2 * x * w).sum(0) if condition else np.zeros(3), rtol=1e-5)


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_loops_are_gone_back_through(trips):
    torch = pytest.importorskip("torch")
    x, w = float_arrays((3,), (3, 3))
    h, weights = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w))
    state, total = h, 0
    for i in range(trips):
        before, state = state, torch.tanh(state @ weights + i)
        total = total + (state * before).sum()
    expected = torch.autograd.grad(state.sum() + total, [h, weights], allow_unused=True)
    _, grads = gradients_of(bodies_model(LOOP), n=np.array(trips), x=x, w=w)
    np.testing.assert_allclose(grads["x"], expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads["w"], np.zeros((3, 3)) if expected[1] is None else expected[1], rtol=1e-4, atol=1e-6)


def test_scans_are_gone_back_through():
    torch = pytest.importorskip("torch")
    h0, x, w = float_arrays((3,), (5, 3), (3, 3))
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (h0, x, w)]
    state, total = tensors[0], 0
    for t in range(4, -1, -1):
        state = torch.tanh(state @ tensors[2] + tensors[1][t])
        total = total + (state * state * (1 + t)).sum()
    expected = torch.autograd.grad(state.sum() + total, tensors)
    model = bodies_model(SCAN)
    bound = executor.bind(model, {"h0": h0, "x": x, "w": w})
    bound.forward(is_train=True)
    bound.backward([np.ones(3, np.float32), np.repeat(np.arange(1, 6, dtype=np.float32)[:, None], 3, axis=1)])
    for name, want in zip(("h0", "x", "w"), expected):
        np.testing.assert_allclose(bound.grad_dict[name], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [10, 16])
def test_gradients_of_16_bit_floats_follow_those_of_float32(dtype):
    def model(to):
        return bodies_model(f"""agraph (float[4, 6] x, float[6] w, float[3, 6] r) => (float[3, 6] y) {{
          xs = Cast <to = {to}> (x)
          ws = Cast <to = {to}> (w)
          rs = Cast <to = {to}> (r)
          n = LayerNormalization(xs, ws)
          i = Constant <value = int64[3] {{1, 3, 1}}> ()
          g = Gather(n, i)
          m = Mul(g, rs)
          y = Cast <to = 1> (m)
        }}""")

    x, w, r = float_arrays((4, 6), (6,), (3, 6))
    _, wanted = gradients_of(model(1), x=x, w=w, r=r)
    _, found = gradients_of(model(dtype), x=x, w=w, r=r)
    for name, grad in wanted.items():
        np.testing.assert_allclose(found[name], grad, atol=0.03 * np.abs(grad).max())
