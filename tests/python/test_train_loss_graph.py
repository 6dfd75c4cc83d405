"""Compares losses that are given as ONNX graphs with PyTorch's autograd."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle.train import Trainer

torch = pytest.importorskip("torch")

OPSET = [helper.make_opsetid("", 18)]
CLASSES, FEATURES, BATCH = 5, 7, 6


def tensor(name: str, *shape: int | str, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(opset: int = 18) -> onnx.ModelProto:
    """Returns a model with two outputs of one hidden layer: scores [batch, 5] and a vector [batch, 3]."""
    rng = np.random.default_rng(0)
    weights = {"w1": (FEATURES, 8), "w2": (8, CLASSES), "w3": (8, 3)}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h0"]),
        helper.make_node("Tanh", ["h0"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w2"], ["scores"]),
        helper.make_node("MatMul", ["hidden", "w3"], ["vector"]),
    ]
    graph = helper.make_graph(
        nodes, "model", [tensor("x", "batch", FEATURES)], [tensor("scores", "batch", CLASSES), tensor("vector", "batch", 3)],
        [numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def loss_of(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], constants: dict[str, np.ndarray] | None = None, opset: int = 18) -> onnx.ModelProto:
    """Returns a loss model, whose output is named "loss"."""
    made = helper.make_graph(nodes, "loss", inputs, [tensor("loss")], [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def squared(**names: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Sub", ["y", "target"], ["d"]), helper.make_node("Mul", ["d", "d"], ["s"]), helper.make_node("ReduceMean", ["s"], ["loss"], keepdims=0)]
    return loss_of(nodes, [tensor("y", "N", "C"), tensor("target", "N", "C")])


def parameters() -> dict[str, "torch.Tensor"]:
    return {i.name: torch.tensor(numpy_helper.to_array(i).copy(), requires_grad=True) for i in model().graph.initializer}


def batch(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(BATCH, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, BATCH)


def check_gradients(trainer: Trainer, feeds: dict[str, np.ndarray], labels: np.ndarray | None, formula: Callable[..., "torch.Tensor"]) -> None:
    """Checks the loss and each parameter's gradient against a formula of (parameters, hidden, scores, vector)."""
    p = parameters()
    hidden = torch.tanh(torch.tensor(feeds["x"]) @ p["w1"])
    expected = formula(p, hidden, hidden @ p["w2"], hidden @ p["w3"])
    expected.backward()
    assert trainer.evaluate(feeds, labels) == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in trainer.gradients(feeds, labels).items():
        np.testing.assert_allclose(gradient, p[name].grad.numpy(), rtol=2e-4, atol=1e-6, err_msg=name)
    assert trainer.step(feeds, labels) == pytest.approx(expected.item(), rel=1e-5)


def test_a_graph_in_place_of_a_name_gives_the_same_steps() -> None:
    x, _ = batch()
    target = np.random.default_rng(2).normal(size=(BATCH, CLASSES)).astype(np.float32)
    by_name, by_graph = Trainer(model(), loss="mean_squared_error"), Trainer(model(), loss=squared())
    for _ in range(5):
        assert by_graph.step({"x": x}, target) == pytest.approx(by_name.step({"x": x}, target), rel=1e-6)


@pytest.mark.parametrize("opset", [9, 13, 21])  # the opset of the loss; that of the model is 18
def test_focal_loss(opset: int) -> None:
    nodes = [
        helper.make_node("LogSoftmax", ["scores"], ["log"], axis=1),
        helper.make_node("OneHot", ["labels", "depth", "values"], ["hot"], axis=1),
        helper.make_node("Mul", ["log", "hot"], ["picked"]),
        helper.make_node("Exp", ["log"], ["probabilities"]),
        helper.make_node("Sub", ["one", "probabilities"], ["rest"]),
        helper.make_node("Mul", ["rest", "rest"], ["weight"]),
        helper.make_node("Mul", ["weight", "picked"], ["each"]),
        helper.make_node("ReduceSum", ["each"], ["sum"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["loss"]),
    ]
    constants = {"depth": np.int64(CLASSES), "values": np.array([0, 1], np.float32), "one": np.float32(1), "count": np.float32(-BATCH)}
    loss = loss_of(nodes, [tensor("scores", "N", CLASSES), tensor("labels", "N", dtype=TensorProto.INT64)], {k: np.asarray(v) for k, v in constants.items()}, opset)
    x, labels = batch()

    def formula(p: object, hidden: object, scores: "torch.Tensor", vector: object) -> "torch.Tensor":
        log = torch.log_softmax(scores, 1)[torch.arange(BATCH), torch.tensor(labels)]
        return -((1 - log.exp()) ** 2 * log).mean()

    check_gradients(Trainer(model(), loss=loss), {"x": x}, labels, formula)


def test_inputs_take_values_parameters_labels_and_feeds() -> None:
    # The loss and the model do not share the names of extents: here "batch" is the loss's name for the classes.
    nodes = [
        helper.make_node("Sub", ["prediction", "target"], ["d"]),
        helper.make_node("Abs", ["d"], ["distance"]),
        helper.make_node("Mul", ["distance", "mask"], ["masked"]),
        helper.make_node("ReduceMean", ["masked"], ["first"], keepdims=0),
        helper.make_node("ReduceSumSquare", ["hidden"], ["second"], keepdims=0),
        helper.make_node("ReduceL1", ["w3"], ["third"], keepdims=0),
        helper.make_node("ReduceMean", ["vector"], ["fourth"], keepdims=0),
        helper.make_node("Sum", ["first", "second", "third", "fourth"], ["loss"]),
    ]
    inputs = [tensor("prediction", "rows", "batch"), tensor("hidden", "rows", 8), tensor("target", "rows", "batch"), tensor("vector", "rows", 3),
              tensor("w3", 8, 3), tensor("mask", "rows", 1)]  # fmt: skip
    x, _ = batch()
    rng = np.random.default_rng(3)
    target, mask = rng.normal(size=(BATCH, CLASSES)).astype(np.float32), rng.integers(0, 2, (BATCH, 1)).astype(np.float32)

    def formula(p: dict[str, "torch.Tensor"], hidden: "torch.Tensor", scores: "torch.Tensor", vector: "torch.Tensor") -> "torch.Tensor":
        first = ((scores - torch.tensor(target)).abs() * torch.tensor(mask)).mean()
        return first + (hidden**2).sum() + p["w3"].abs().sum() + vector.mean()

    trainer = Trainer(model(), output="scores", loss=loss_of(nodes, inputs))
    check_gradients(trainer, {"x": x, "mask": mask}, target, formula)
    with pytest.raises(treadle.Error, match='"mask" is missing'):
        trainer.step({"x": x}, target)


def test_a_loss_without_labels_and_with_a_branch() -> None:
    small = helper.make_graph([helper.make_node("Identity", ["square"], ["r"])], "small", [], [tensor("r")])
    large = helper.make_graph([helper.make_node("Sqrt", ["square"], ["r2"])], "large", [], [tensor("r2")])
    nodes = [
        helper.make_node("ReduceSumSquare", ["y"], ["square"], keepdims=0),
        helper.make_node("Less", ["square", "limit"], ["is_small"]),
        helper.make_node("If", ["is_small"], ["loss"], then_branch=small, else_branch=large),
    ]
    loss = loss_of(nodes, [tensor("y", "a", "b")], {"limit": np.array(1e-3, np.float32)})
    check_gradients(Trainer(model(), output="vector", loss=loss), {"x": batch()[0]}, None, lambda p, hidden, scores, vector: (vector**2).sum().sqrt())


def test_the_saved_model_has_no_loss(tmp_path: object) -> None:
    trainer = Trainer(model(), loss=squared())
    x, _ = batch()
    trainer.step({"x": x}, np.zeros((BATCH, CLASSES), np.float32))
    trainer.save(str(tmp_path / "out.onnx"))  # type: ignore[operator]
    saved = onnx.load(str(tmp_path / "out.onnx"))  # type: ignore[operator]
    assert [n.op_type for n in saved.graph.node] == [n.op_type for n in model().graph.node]
    np.testing.assert_array_equal(treadle.InferenceSession(saved.SerializeToString()).run(None, {"x": x})[0], trainer.predict({"x": x})[0])


def test_artifacts_keep_the_loss(tmp_path: object) -> None:
    x, labels = batch()[0], np.ones((BATCH, CLASSES), np.float32)
    for loss in (squared(), "l1"):  # the second time, the files of the first exist already
        written = Trainer(model(), loss=loss)
        written.write_artifacts(str(tmp_path))
        opened = Trainer.open_artifacts(str(tmp_path))
        for _ in range(3):
            assert opened.step({"x": x}, labels) == written.step({"x": x}, labels)
        assert opened.evaluate({"x": x}, labels) == written.evaluate({"x": x}, labels)


def test_a_checkpoint_is_of_its_loss(tmp_path: object) -> None:
    path = str(tmp_path / "c.safetensors")  # type: ignore[operator]
    Trainer(model(), loss=squared()).save_checkpoint(path)
    Trainer(model(), loss=squared()).load_checkpoint(path)
    other = squared()
    other.graph.node[2].op_type = "ReduceSum"
    with pytest.raises(treadle.Error, match="loss_model"):
        Trainer(model(), loss=other).load_checkpoint(path)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (loss_of([helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)], [tensor("y", "N", 9)]), r'input "y" is .*9.*"scores".*5'),
        (loss_of([helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)], [tensor("y", "N", 5, dtype=TensorProto.DOUBLE)]), 'input "y" is'),
        (loss_of([helper.make_node("ReduceMean", ["y"], ["loss"], axes=[1])], [tensor("y", "N", 5)], opset=13), "one float32 number"),
        ("no_such_loss", "no loss"),
        ("missing/loss.onnx", "missing/loss.onnx"),
    ],
)
def test_what_is_no_loss_is_refused(loss: onnx.ModelProto | str, message: str) -> None:
    with pytest.raises(treadle.Error, match=message):
        Trainer(model(), loss=loss)


def test_two_outputs_are_refused() -> None:
    two = squared()
    two.graph.output.append(tensor("s", "N", "C"))
    with pytest.raises(treadle.Error, match="one output"):
        Trainer(model(), loss=two)


def test_the_command_takes_a_file(tmp_path: object, program: str) -> None:
    folder = str(tmp_path)
    onnx.save(model(), f"{folder}/model.onnx")
    nodes = [
        helper.make_node("Sub", ["y", "target"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["s"]),
        helper.make_node("Mul", ["s", "mask"], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["loss"], keepdims=0),
    ]
    onnx.save(loss_of(nodes, [tensor("y", "N", "C"), tensor("target", "N", "C"), tensor("mask", "N", 1)]), f"{folder}/loss.onnx")
    rng = np.random.default_rng(4)
    x = rng.normal(size=(64, FEATURES)).astype(np.float32)
    np.savez(f"{folder}/data.npz", x=x, mask=np.ones((64, 1), np.float32), labels=np.tanh(x[:, :CLASSES]))
    arguments = ["train", "model.onnx", "--data", "data.npz", "--loss", "loss.onnx", "--epochs", "30", "--learning-rate", "0.3", "-o", "out.onnx", "--json"]
    made = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    before, after = (treadle.InferenceSession(f"{folder}/{name}").run(["scores"], {"x": x})[0] for name in ("model.onnx", "out.onnx"))
    assert ((after - np.tanh(x[:, :CLASSES])) ** 2).mean() < 0.5 * ((before - np.tanh(x[:, :CLASSES])) ** 2).mean()
