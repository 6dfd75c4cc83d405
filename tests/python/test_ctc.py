"""Compares the loss "ctc" with PyTorch's, and trains a small text recogniser with it."""

from __future__ import annotations

import numpy as np
import pytest
import treadle
from treadle.train import Trainer

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper, TensorProto  # noqa: E402


def linear(steps: int | str, width: int, classes: int, forward: bool = False) -> tuple[bytes, np.ndarray]:
    """Returns a model from x [N, steps, width] to scores [N, steps, classes], or with `forward` to [N, classes, steps], and its weights."""
    weight = np.random.default_rng(1).normal(size=(width, classes)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["s"]), helper.make_node("Transpose", ["s"], ["y"], perm=[0, 2, 1] if forward else [0, 1, 2])]
    shape = ["n", classes, steps] if forward else ["n", steps, classes]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", steps, width])]
    graph = helper.make_graph(nodes, "linear", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString(), weight


def torch_loss(x: np.ndarray, weight: np.ndarray, labels: np.ndarray, blank: int) -> tuple[float, np.ndarray]:
    w = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
    scores = torch.log_softmax(torch.tensor(x, dtype=torch.float64) @ w, 2).transpose(0, 1)
    lengths = [next((i for i, label in enumerate(row) if label < 0), len(row)) for row in labels]
    loss = torch.nn.functional.ctc_loss(scores, torch.tensor(np.maximum(labels, 1)), torch.full((len(x),), x.shape[1]), torch.tensor(lengths), blank=blank)
    loss.backward()
    return float(loss), w.grad.numpy()


@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("steps", [9, "t"])
def test_loss_and_gradient_are_those_of_pytorch(steps: int | str, forward: bool, blank: int) -> None:
    model, weight = linear(steps, 6, 5, forward)
    random = np.random.default_rng(2)
    x = random.normal(size=(4, 9, 6)).astype(np.float32)
    labels = np.array([[1, 2, 2, 3], [3, 3, 3, -1], [2, -1, -1, -1], [-1, -1, -1, -1]])
    trainer = Trainer(model, loss="ctc", blank=blank, class_axis=1 if forward else 2)
    loss, grad = torch_loss(x, weight, labels, blank)
    assert trainer.evaluate({"x": x}, labels) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(trainer.gradients({"x": x}, labels)["w"], grad, rtol=1e-4, atol=1e-5)


def test_padding_and_int32() -> None:
    model, weight = linear(7, 6, 5)
    x = np.random.default_rng(3).normal(size=(2, 7, 6)).astype(np.float32)
    labels = np.array([[1, 2, 4], [3, 4, 4]])
    trainer = Trainer(model, loss="ctc", class_axis=-1, ignore_index=4, int32_labels=True)
    loss, _ = torch_loss(x, weight, np.where(labels == 4, -1, labels), 0)
    assert trainer.evaluate({"x": x}, labels.astype(np.int32)) == pytest.approx(loss, rel=1e-5)


def test_it_learns_to_read() -> None:
    """Each label appears in two steps, with noise. After training, greedy decoding must read the labels."""
    random = np.random.default_rng(4)
    model, _ = linear("t", 8, 8)
    trainer = Trainer(model, loss="ctc", class_axis=-1, optimizer="adam", learning_rate=0.05)
    for _ in range(150):
        labels = random.integers(1, 8, (16, 4))
        shown = np.zeros((16, 12, 8), np.float32)
        for j in range(4):
            shown[np.arange(16)[:, None], 3 * j + np.arange(2), labels[:, j, None]] = 1
        shown[:, 2::3, 0] = 1
        x = shown + random.normal(size=shown.shape).astype(np.float32) * 0.1
        trainer.step({"x": x}, labels)
    best = trainer.predict({"x": x})[0].argmax(2)
    read = [[int(c) for t, c in enumerate(row) if c and (t == 0 or row[t - 1] != c)] for row in best]
    assert np.mean([found == list(wanted) for found, wanted in zip(read, labels)]) > 0.9


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 1, 1, 1]], "the labels of sample 0 need 7 steps, and there are 5"),
        ([[1, 9, -1, -1]], "the label 9 of sample 0 is outside"),
        ([[1, 0, -1, -1]], "the label 0 of sample 0 is the blank"),
    ],
)
def test_labels_that_no_alignment_has(labels: list[list[int]], message: str) -> None:
    model, _ = linear(5, 6, 5)
    trainer = Trainer(model, loss="ctc", class_axis=-1)
    with pytest.raises(treadle.Error, match=message):
        trainer.step({"x": np.zeros((1, 5, 6), np.float32)}, np.array(labels))


def test_options_of_other_losses_are_refused() -> None:
    model, _ = linear(5, 6, 5)
    with pytest.raises(treadle.Error, match="ctc has no use for|label_smoothing"):
        Trainer(model, loss="ctc", class_axis=-1, label_smoothing=0.1)
    with pytest.raises(treadle.Error, match="blank"):
        Trainer(model, loss="softmax_cross_entropy", class_axis=-1, blank=1)
    with pytest.raises(treadle.Error, match="blank is class 7 of 5"):
        Trainer(model, loss="ctc", class_axis=-1, blank=7).evaluate({"x": np.zeros((1, 5, 6), np.float32)}, np.array([[1]]))
