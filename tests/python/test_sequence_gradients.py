"""Tests gradients through sequences, also in loops, and through bodies that draw random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import treadle

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from test_gradient_rules import bind, floats, gradients_of, model, tensors  # noqa: E402

# Sequences

SEQUENCES = {
    "construct and take": ("s = SequenceConstruct(a, b, c) p = Constant <value = int64 {-2}> () q = Constant <value = int64 {0}> () t = SequenceAt(s, p) u = SequenceAt(s, q) y = Mul(t, u)",
                           lambda a, b, c: b * a),
    "insert and erase": ("""s = SequenceConstruct(a, b) p = Constant <value = int64 {-1}> () s2 = SequenceInsert(s, c, p) s3 = SequenceErase(s2, p) s4 = SequenceInsert(s3, b)
                            y = ConcatFromSequence <axis = 0> (s4)""", lambda a, b, c: torch.cat([a, c, b])),
    "erase the last": ("s = SequenceConstruct(a, b, c) s2 = SequenceErase(s) z = Constant <value = int32 {1}> () d = SequenceAt(s2, z) y = Mul(d, d)", lambda a, b, c: b * b),
    "erase from the end": ("s = SequenceConstruct(a, b, c) z = Constant <value = int64 {-2}> () s2 = SequenceErase(s, z) y = ConcatFromSequence <axis = 1> (s2)", lambda a, b, c: torch.cat([a, c], 1)),
    "split and stack": ("m = Concat <axis = 0> (a, b, c) s = SplitToSequence <axis = 0, keepdims = 0> (m) y = ConcatFromSequence <axis = 1, new_axis = 1> (s)",
                        lambda a, b, c: torch.stack(list(torch.cat([a, b, c]).unbind(0)), 1)),
    "split unevenly": ("""m = Concat <axis = 0> (a, b, c) l = Constant <value = int64[3] {1, 4, 1}> () s = SplitToSequence <axis = 0> (m, l) z = Constant <value = int64 {1}> ()
                          d = SequenceAt(s, z) y = Mul(d, d)""", lambda a, b, c: torch.cat([a, b, c])[1:5] ** 2),
    "two readers": ("s = SequenceConstruct(a, b) t = ConcatFromSequence <axis = 0> (s) u = ConcatFromSequence <axis = 0> (s) y = Mul(t, u)", lambda a, b, c: torch.cat([a, b]) ** 2),
    "an optional": ("o = Optional(a) d = OptionalGetElement(o) y = Mul(d, b)", lambda a, b, c: a * b),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str) -> None:
    nodes, function = SEQUENCES[name]
    proto = model(f"agraph (float[2, 3] a, float[2, 3] b, float[2, 3] c) => (float y) {{ {nodes} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    arrays = floats((2, 3), (2, 3), (2, 3))
    expected = tensors(*arrays)
    y = function(*expected)
    flow = np.random.default_rng(0).uniform(0.5, 1.5, tuple(y.shape)).astype(np.float32)
    (y * torch.tensor(flow)).sum().backward()
    ours, grads = gradients_of(proto, [flow], **dict(zip("abc", arrays)))
    np.testing.assert_allclose(ours[0], y.detach(), rtol=1e-5)
    for key, want in zip("abc", expected):
        np.testing.assert_allclose(grads[key], np.zeros((2, 3)) if want.grad is None else want.grad, rtol=1e-5, atol=1e-6)


def test_elements_that_a_loop_appends() -> None:
    proto = model("""agraph (int64 n, float[2, 3] x, float[3, 3] w) => (float[a, 3] y) {
      yes = Constant <value = bool {1}> ()
      none = SequenceEmpty()
      s, h = Loop(n, yes, none, x) <body = step (int64 i, bool go, seq(float[2, 3]) grown, float[2, 3] h) => (go2, grown2, h2) {
        go2 = Identity(go)
        p = MatMul(h, w)
        h2 = Tanh(p)
        grown2 = SequenceInsert(grown, h2)
      }>
      y = ConcatFromSequence <axis = 0> (s)
    }""")
    x, w = floats((2, 3), (3, 3))
    xt, wt = tensors(x, w)
    states, h = [], xt
    for _ in range(4):
        h = torch.tanh(h @ wt)
        states.append(h)
    (torch.cat(states) ** 1).sum().backward()
    _, grads = gradients_of(proto, n=np.array(4), x=x, w=w)
    np.testing.assert_allclose(grads["x"], xt.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads["w"], wt.grad, rtol=1e-4, atol=1e-5)


def test_a_body_for_each_element_of_a_sequence() -> None:
    proto = model("""agraph (float[4, 3] x, float[3] w) => (float[n, 3] y) {
      s = SplitToSequence(x)
      m = SequenceMap(s) <body = each (float[1, 3] e) => (float[1, 3] f) { p = Mul(e, w) f = Sin(p) }>
      y = ConcatFromSequence <axis = 0> (m)
    }""")
    x, w = floats((4, 3), (3,))
    xt, wt = tensors(x, w)
    torch.sin(xt * wt).sum().backward()
    _, grads = gradients_of(proto, x=x, w=w)
    np.testing.assert_allclose(grads["x"], xt.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads["w"], wt.grad, rtol=1e-4, atol=1e-5)


def test_a_sequence_that_each_iteration_reads_is_refused() -> None:
    proto = model("""agraph (int64 n, float[2] x) => (float[2] y) {
      yes = Constant <value = bool {1}> ()
      s0 = SequenceConstruct(x)
      s = Loop(n, yes, s0) <body = step (int64 i, bool go, seq(float[2]) grown) => (go2, grown2) {
        go2 = Identity(go)
        last = Constant <value = int64 {-1}> ()
        e = SequenceAt(grown, last)
        f = Mul(e, e)
        grown2 = SequenceInsert(grown, f)
      }>
      at = Constant <value = int64 {-1}> ()
      y = SequenceAt(s, at)
    }""")
    with pytest.raises(treadle.Error, match='Loop node.*(.|\n)*reads the sequence "grown"'):
        gradients_of(proto, n=np.array(2), x=floats((2,))[0])


# Random numbers in bodies: the backward pass reuses those of the forward pass.

def test_random_numbers_in_a_branch() -> None:
    proto = model("""agraph (bool c, float[4, 300] x, float[300] w) => (float[4, 300] y) {
      y = If(c) <then_branch = yes () => (a) { z = Mul(x, w) r = RandomUniformLike(z) a = Mul(z, r) }, else_branch = no () => (b) { b = Mul(x, x) }>
    }""")
    x, w = floats((4, 300), (300,))
    (y,), grads = gradients_of(proto, c=np.array(True), x=x, w=w)
    np.testing.assert_allclose(grads["x"] * x, y, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads["w"] * w, y.sum(0), rtol=1e-3, atol=1e-5)
    assert np.std(y / (x * w)) > 0.2
    _, grads = gradients_of(proto, c=np.array(False), x=x, w=w)
    np.testing.assert_allclose(grads["x"], 2 * x, rtol=1e-5)


def test_dropout_in_a_loop() -> None:
    proto = model("""agraph (int64 n, float[200] x, float[200] w) => (float[200] y, float[t, 200] ys) {
      yes = Constant <value = bool {1}> ()
      ratio = Constant <value = float {0.4}> ()
      y, ys = Loop(n, yes, x) <body = step (int64 i, bool go, float[200] h) => (go2, h2, h3) {
        go2 = Identity(go)
        p = Mul(h, w)
        h2 = Dropout(p, ratio, yes)
        h3 = Identity(h2)
      }>
    }""")
    x, w = floats((200,), (200,))
    x, w = np.abs(x) + 0.5, np.abs(w) + 0.5
    bound = bind(proto, n=np.array(3), x=x, w=w)
    y, ys = (np.array(v) for v in bound.forward(is_train=True))
    bound.backward([np.ones_like(y), np.zeros_like(ys)])
    # Elements that are kept are multiplied by w / 0.6 in each of three iterations.
    stays = ys[-1] != 0
    assert 10 < stays.sum() < 90 and not np.array_equal(ys[0] == 0, ys[1] == 0)
    np.testing.assert_allclose(y, np.where(stays, x * (w / 0.6) ** 3, 0), rtol=1e-4)
    np.testing.assert_allclose(bound.grad_dict["x"], np.where(stays, (w / 0.6) ** 3, 0), rtol=1e-4)
    np.testing.assert_allclose(bound.grad_dict["w"], np.where(stays, 3 * x * w**2 / 0.6**3, 0), rtol=1e-4)


def test_random_numbers_in_a_scan_with_axes() -> None:
    proto = model("""agraph (float[5] h0, float[5, 6] x) => (float[5] y, float[5, 6] ys) {
      y, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], scan_input_directions = [1], scan_output_directions = [1],
                    body = step (float[5] h, float[5] t) => (h2, s) { r = RandomNormal <shape = [5]> () q = Mul(t, r) h2 = Add(h, q) s = Mul(q, q) }> (h0, x)
    }""")
    h0, x = floats((5,), (5, 6))
    bound = bind(proto, h0=h0, x=x)
    y, ys = (np.array(v) for v in bound.forward(is_train=True))
    bound.backward([np.zeros_like(y), np.ones_like(ys)])
    np.testing.assert_allclose(bound.grad_dict["x"] * x, 2 * ys, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(bound.grad_dict["h0"], 0)


def test_random_numbers_in_a_body_within_a_body_are_refused() -> None:
    proto = model("""agraph (bool c, float[3] x) => (float[3] y) {
      y = If(c) <then_branch = yes () => (a) {
        a = If(c) <then_branch = in () => (d) { r = RandomUniformLike(x) d = Mul(x, r) }, else_branch = out () => (e) { e = Identity(x) }>
      }, else_branch = no () => (b) { b = Mul(x, x) }>
    }""")
    with pytest.raises(treadle.Error, match="RandomUniformLike.*within a body"):
        gradients_of(proto, c=np.array(True), x=floats((3,))[0])
