"""Trains models that were exported with a fixed batch size with another one (`Trainer(dynamic_batch=True)`)."""

from __future__ import annotations

import numpy as np
import pytest
import treadle
from treadle.train import Trainer

onnx = pytest.importorskip("onnx")
from test_train_head import model, normal  # noqa: E402

NETWORK = "c = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu(c) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) f = Reshape(p, s) y = Gemm(f, w, b)"


def network(batch: int, shape: list[int]):
    return model(NETWORK, f"float[{batch}, 2, 4, 4] x", f"{batch}, 5", k=normal(3, 2, 3, 3), w=normal(12, 5), b=normal(5), s=np.array(shape))


@pytest.mark.parametrize("batch, shape", [(1, [1, 12]), (1, [1, -1]), (4, [4, 12]), (4, [-1, 12])])
def test_any_batch_trains(batch: int, shape: list[int], tmp_path) -> None:
    proto = network(batch, shape)
    trainer = Trainer(proto, dynamic_batch=True, learning_rate=0.1)
    x, labels = normal(7, 2, 4, 4), np.arange(7) % 5
    losses = [trainer.step({"x": x[:n]}, labels[:n]) for n in (7, 3, 1)]
    assert np.isfinite(losses).all()
    trainer.save(str(tmp_path / "any.onnx"))
    session = treadle.InferenceSession(str(tmp_path / "any.onnx"))
    assert isinstance(session.get_inputs()[0].shape[0], str) and session.get_outputs()[0].shape[1] == 5
    onnx.checker.check_model(onnx.load(str(tmp_path / "any.onnx")), full_check=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], trainer.predict({"x": x})[0], rtol=1e-4, atol=1e-5)
    # The gradients equal those of a model exported with this batch size.
    written = {name: np.array(value) for name, value in trainer.parameters.items()}
    other = Trainer(network(7, [7, 12]))
    for name, value in written.items():
        other.parameters[name][...] = value
    for name, value in other.gradients({"x": x}, labels).items():
        np.testing.assert_allclose(trainer.gradients({"x": x}, labels)[name], value, rtol=1e-4, atol=1e-6)


def test_a_dynamic_model_stays_as_it_is() -> None:
    proto = model("y = Gemm(x, w)", "float[n, 3] x", "n, 2", w=normal(3, 2))
    assert np.isfinite(Trainer(proto, dynamic_batch=True).step({"x": normal(4, 3)}, np.array([0, 1, 0, 1])))


def test_without_the_option_the_batch_is_the_models() -> None:
    with pytest.raises(treadle.Error):
        Trainer(network(1, [1, 12])).step({"x": normal(7, 2, 4, 4)}, np.arange(7) % 5)


def test_a_new_head_of_a_dynamic_batch() -> None:
    trainer = Trainer(network(1, [1, 12]), dynamic_batch=True, head=3)
    trainer.step({"x": normal(6, 2, 4, 4)}, np.arange(6) % 3)
    assert trainer.predict({"x": normal(6, 2, 4, 4)})[0].shape == (6, 3)


def test_models_that_hold_to_their_batch_are_refused() -> None:
    token = model("t = Concat <axis = 1> (x, c) m = MatMul(t, w) y = ReduceMean <keepdims = 0> (m, a)", "float[2, 3, 4] x", "2, 5", c=normal(2, 1, 4), w=normal(4, 5), a=np.array([1]))
    with pytest.raises(treadle.Error, match="(?s)dynamic_batch: the model holds to its batch of 2.*Concat node"):
        Trainer(token, dynamic_batch=True)
    constant = model("m = MatMul(x, w) f = Reshape(m, s) y = Reshape(f, t)", "float[2, 3, 4] x", "2, 15", w=normal(4, 5), s=np.array([30]), t=np.array([2, 15]))
    with pytest.raises(treadle.Error, match='(?s)dynamic_batch: the model holds to its batch of 2.*"y" still has it: Reshape node'):
        Trainer(constant, dynamic_batch=True)
