"""Trains equal weights separately that an exporter merged (`untied`), and compares with PyTorch."""

from __future__ import annotations

import io
import logging
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle.train import JointModule, Trainer, untied

torch = pytest.importorskip("torch")


class Network(torch.nn.Module):
    """A network whose biases and scales are equal at first, as in new networks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.norm1, self.norm2 = torch.nn.LayerNorm(6), torch.nn.LayerNorm(6)
        for layer in (self.first, self.second):
            torch.nn.init.constant_(layer.bias, 0.1)  # the newer exporter omits biases of zeros

    def forward(self, x: "torch.Tensor") -> "torch.Tensor":
        return self.norm2(torch.relu(self.second(self.norm1(torch.relu(self.first(x))))))


def exported(dynamo: bool) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(Network().eval(), (torch.zeros(3, 6),), dynamo=True, verbose=False)
            return program.model_proto.SerializeToString()
        file = io.BytesIO()
        torch.onnx.export(Network().eval(), (torch.zeros(3, 6),), file, dynamo=False, input_names=["x"])
        return file.getvalue()


@pytest.fixture(params=[False, True], ids=["torchscript", "dynamo"])
def merged(request: pytest.FixtureRequest) -> bytes:
    if request.param:
        pytest.importorskip("onnxscript")
    return exported(request.param)


def steps(data: bytes, **options: object) -> list[float]:
    trainer = Trainer(data, loss="mean_squared_error", learning_rate=0.5, **options)  # type: ignore[arg-type]
    x, y = batch()
    return [trainer.step({"x": x}, y) for _ in range(6)]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 6)).astype(np.float32), rng.normal(size=(3, 6)).astype(np.float32)


def torch_steps() -> list[float]:
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    x, y = map(torch.tensor, batch())
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_untied_weights_train_as_in_pytorch(merged: bytes) -> None:
    np.testing.assert_allclose(steps(merged, untied=["*"]), torch_steps(), rtol=1e-4)
    assert abs(np.array(steps(merged)) - torch_steps()).max() > 1e-3  # without `untied`, the steps differ


def test_a_trainer_warns_of_merged_weights(merged: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Trainer(merged, loss="mean_squared_error", sess_options=treadle.SessionOptions())
    assert "train as one" in caplog.text and "untied" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Trainer(merged, loss="mean_squared_error", untied=["*"], sess_options=treadle.SessionOptions())
    assert "train as one" not in caplog.text


def test_names_are_those_of_the_layers() -> None:
    names = {i.name for i in onnx.load_from_string(exported(False)).graph.initializer}
    trainer = Trainer(exported(False), loss="mean_squared_error", untied=["*"])
    assert set(trainer.parameters) - names == {"first.bias", "second.bias", "norm1.bias", "norm2.bias", "norm2.weight"} - names


def shared(name: str = "") -> onnx.ModelProto:
    """Returns y = tanh(x w) w, where a body reads w too."""
    then = helper.make_graph([helper.make_node("MatMul", ["h", "w"], ["t"])], "then", [], [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["e"])], "else", [], [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name=name),
        helper.make_node("Mul", ["m", "m"], ["h"]),
        helper.make_node("If", ["yes"], ["b"], then_branch=then, else_branch=other),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    initializers = [numpy_helper.from_array(np.eye(2, dtype=np.float32) * 0.5, "w"), numpy_helper.from_array(np.array(True), "yes")]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in ("x", "y")]
    return helper.make_model(helper.make_graph(nodes, "g", info[:1], info[1:], initializers), opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_bodies_keep_the_initializer(tmp_path: object) -> None:
    path = str(tmp_path / "untied.onnx")  # type: ignore[operator]
    untied(shared("first"), ["w"]).save(path)
    x = np.array([[1.0, -2.0]], np.float32)
    for data in (path, shared("first").SerializeToString()):
        np.testing.assert_allclose(treadle.InferenceSession(data).run(None, {"x": x})[0], x * x * 0.25 * 0.25)
    trainer = Trainer(shared("first"), loss="mean_squared_error", untied=["w"])
    assert set(trainer.parameters) == {"w", "w/first", "w/y"}


def test_the_saved_model_has_what_was_told_apart(tmp_path: object) -> None:
    data = exported(False)
    trainer = Trainer(data, loss="mean_squared_error", learning_rate=0.5, untied=["*"])
    x, y = batch()
    trainer.step({"x": x}, y)
    path = str(tmp_path / "out.onnx")  # type: ignore[operator]
    trainer.save(path)
    saved = {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
    assert not np.array_equal(saved["first.bias"], saved["second.bias"])
    np.testing.assert_allclose(treadle.InferenceSession(path).run(None, {"x": x})[0], trainer.predict({"x": x})[0], rtol=1e-5, atol=1e-6)


def test_joint_modules_take_it() -> None:
    module = JointModule(untied(exported(False), ["*"]))
    assert {"first.bias", "second.bias", "norm1.bias", "norm2.bias"} <= set(module.parameters)


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(treadle.Error, match='untied: "bias".*the nearest'):
        untied(exported(False), ["bias"])
    with pytest.raises(treadle.Error, match='untied: "first.weight".*'):  # the weight has only one reader
        Trainer(exported(False), loss="mean_squared_error", untied=["first.weight"])
