"""Trainers, modules and executors on a GPU: they learn as on the host, and nothing of a step but its outputs comes to the host."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from test_gpu_training import FLOAT, INT64, floats, image_network, language_model, model_of, network, node, options, trainer
from torch import nn

import treadle
import treadle.torch
from treadle import Trainer
from treadle.joint_module import JointModule


def copied(of: Any, step: Any) -> set[str]:
    """The values, besides the loss and new parameters, that come from the device to the host in a step: operands of nodes there."""
    with treadle.profile(of, peaks=False) as profile:
        step()
    names = [node.name for node in profile.nodes if node.op_type == "Memcpy"]
    values = {name.split(":", 1)[0] for name in names if name.endswith("to cpu")}
    return {value for value in values if "/update" not in value and not value.startswith("loss")}


def classes(batch: int, seed: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, batch)


def case(kind: str) -> tuple[bytes, np.ndarray, np.ndarray]:
    if kind == "images":
        return image_network(), floats(12, 1, 12, 12), classes(12)
    x = np.random.default_rng(6).integers(0, 20, (6, 8))
    return language_model(), x, np.roll(x, -1, 1)


@pytest.mark.parametrize("kind", ["images", "words"])
def test_a_step_stays_on_the_device(kind: str) -> None:
    model, x, labels = case(kind)
    made = trainer(model, optimizer="adamw", learning_rate=0.01)
    made.step({"x": x}, labels)
    assert copied(made, lambda: made.step({"x": x}, labels)) == set()
    assert "Nhwc" not in made.to_text()
    if kind == "words":
        assert "FusedAttentionGrad" in made.to_text()


def same_parameters(a: Trainer, b: Trainer, **tolerance: float) -> None:
    for name, value in a.parameters.items():
        np.testing.assert_allclose(value, b.parameters[name], err_msg=name, **tolerance)


def test_lamb() -> None:
    model, x, labels, _ = network()
    on_gpu, on_cpu = (trainer(model, device, optimizer="lamb", learning_rate=0.02, weight_decay=0.01) for device in ("gpu:0", "cpu"))
    for _ in range(6):
        assert on_gpu.step({"x": x}, labels) == pytest.approx(on_cpu.step({"x": x}, labels), rel=1e-4)
    same_parameters(on_gpu, on_cpu, rtol=1e-3, atol=1e-5)
    assert copied(on_gpu, lambda: on_gpu.step({"x": x}, labels)) == set()


def table_network() -> bytes:
    nodes = [
        node("Gather", ["table", "x"], ["e"]),
        node("ReduceSum", ["e", "axis"], ["s"], keepdims=0),
        node("Tanh", ["s"], ["t"]),
        node("Gemm", ["t", "w", "b"], ["y"]),
    ]
    weights = {"table": floats(50, 6), "axis": np.array([1]), "w": floats(6, 4, seed=2), "b": np.zeros(4, np.float32)}
    return model_of(nodes, {"x": (INT64, ["n", 3])}, {"y": ["n", 4]}, weights)


@pytest.mark.parametrize(("optimizer", "given"), [("sgd", {"momentum": 0.9}), ("adagrad", {}), ("adam", {}), ("adamw", {}), ("rmsprop", {}), ("lion", {})])
def test_updates_of_the_rows_that_were_read(optimizer: str, given: dict[str, Any]) -> None:
    on_gpu, on_cpu = (trainer(table_network(), device, optimizer=optimizer, learning_rate=0.05, lazy_updates=["table"], **given) for device in ("gpu:0", "cpu"))
    assert "GatherGradRows" in on_gpu.to_text()
    random = np.random.default_rng(4)
    for seed in range(5):
        x = random.integers(0, 12, (7, 3)) * 3  # rows repeat
        x[0, 0] = -3
        labels = classes(7, seed)
        assert on_gpu.step({"x": x}, labels) == pytest.approx(on_cpu.step({"x": x}, labels), rel=1e-4)
    same_parameters(on_gpu, on_cpu, rtol=1e-3, atol=1e-5)
    read = np.zeros(50, bool)
    read[0:36:3] = read[47] = True
    np.testing.assert_array_equal(on_gpu.parameters["table"][~read], floats(50, 6)[~read])
    assert copied(on_gpu, lambda: on_gpu.step({"x": x}, labels)) == set()


def test_an_index_outside_of_the_table_is_an_error() -> None:
    made = trainer(table_network(), optimizer="adagrad", learning_rate=0.05, lazy_updates=["table"])
    with pytest.raises(treadle.Error, match="outside of the axis"):
        made.step({"x": np.array([[1, 50, 2]])}, np.array([1]))


@pytest.mark.parametrize("kind", ["images", "words"])
@pytest.mark.parametrize("precision", ["bfloat16", "bfloat16x3", "float16"])
def test_mixed_precision(kind: str, precision: str) -> None:
    model, x, labels = case(kind)

    def made(device: str, precision: str) -> Trainer:
        settings = options(device)
        settings.precision = precision
        return Trainer(model, sess_options=settings, optimizer="adamw", learning_rate=0.01)

    trainer(model)  # skips the test where there is no device
    on_gpu, wide = made("gpu:0", precision), made("cpu", "float32")
    assert "Rounded" in on_gpu.to_text()
    losses = np.array([(on_gpu.step({"x": x}, labels), wide.step({"x": x}, labels)) for _ in range(12)])
    np.testing.assert_allclose(*losses.T, rtol=0.03)
    assert losses[-1][0] < 0.9 * losses[0][0]


def test_gradients_that_overflow_skip_the_update() -> None:
    model, x, labels = case("words")
    settings = options("gpu:0")
    settings.precision = "float16"
    trainer(model)
    scaling = {"init_scale": 2.0**40, "growth_factor": 4.0, "backoff_factor": 0.125, "growth_interval": 3}
    made = Trainer(model, sess_options=settings, optimizer="sgd", learning_rate=0.01, loss_scaling=scaling)
    before = {name: value.copy() for name, value in made.parameters.items()}
    loss = made.step({"x": x}, labels)
    assert np.isfinite(loss) and made.num_skipped == 1 and made.loss_scale == 2.0**37
    for name, value in before.items():
        np.testing.assert_array_equal(made.parameters[name], value, err_msg=name)
    for _ in range(12):
        made.step({"x": x}, labels)
    assert 1 < made.num_skipped < 12
    assert made.evaluate({"x": x}, labels) < loss


@pytest.mark.parametrize("kind", ["images", "words"])
def test_modules_and_executors(kind: str) -> None:
    model, x, _ = case(kind)
    trainer(model)
    runs = [JointModule(model, device=device).forward({"x": x}) for device in ("gpu:0", "cpu")]
    np.testing.assert_allclose(runs[0].outputs[0], runs[1].outputs[0], rtol=1e-4, atol=1e-4)
    ours, theirs = (run.backward([floats(*runs[1].outputs[0].shape, seed=9)]) for run in runs)
    for name, gradient in theirs.items():
        np.testing.assert_allclose(ours[name], gradient, rtol=2e-3, atol=2e-4, err_msg=name)
    if kind == "words":
        return
    grads = []
    for device in ("gpu:0", "cpu"):
        arrays = {"x": x.copy()}
        executor = treadle.bind(model, arrays, {"x": np.zeros_like(x)}, device=device)
        (y,) = executor.forward(is_train=True)
        executor.backward([floats(*y.shape, seed=9)])
        grads.append(executor.grad_dict["x"])
    np.testing.assert_allclose(grads[0], grads[1], rtol=2e-3, atol=2e-4)


def residual_network() -> bytes:
    """A small ResNet: a convolution, two blocks of which the second halves the image, and a linear layer."""
    weights: dict[str, np.ndarray] = {}
    nodes: list[Any] = []

    def convolution(x: str, name: str, inputs: int, outputs: int, size: int, stride: int = 1) -> str:
        weights[f"{name}.w"] = floats(outputs, inputs, size, size, seed=len(weights) + 1) / np.sqrt(inputs * size * size).astype(np.float32)
        statistics = {"s": np.ones, "o": np.zeros, "m": np.zeros, "v": np.ones}
        weights.update({f"{name}.{part}": make(outputs, np.float32) for part, make in statistics.items()})
        nodes.append(node("Conv", [x, f"{name}.w"], [f"{name}.c"], pads=[size // 2] * 4, strides=[stride, stride]))
        nodes.append(node("BatchNormalization", [f"{name}.c", *(f"{name}.{part}" for part in "somv")], [name]))
        return name

    def relu(x: str) -> str:
        nodes.append(node("Relu", [x], [x + ".r"]))
        return x + ".r"

    def block(x: str, name: str, inputs: int, outputs: int, stride: int) -> str:
        inner = convolution(relu(convolution(x, name + "a", inputs, outputs, 3, stride)), name + "b", outputs, outputs, 3)
        beside = x if inputs == outputs else convolution(x, name + "d", inputs, outputs, 1, stride)
        nodes.append(node("Add", [inner, beside], [name]))
        return relu(name)

    x = relu(convolution("x", "stem", 1, 8, 3))
    x = block(block(x, "one", 8, 8, 1), "two", 8, 16, 2)
    weights |= {"w": floats(16, 4, seed=99) / 4, "b": np.zeros(4, np.float32)}
    nodes += [node("GlobalAveragePool", [x], ["g"]), node("Flatten", ["g"], ["f"]), node("Gemm", ["f", "w", "b"], ["y"])]
    return model_of(nodes, {"x": (FLOAT, ["n", 1, 12, 12])}, {"y": ["n", 4]}, weights)


def test_a_residual_network_learns_as_on_the_host() -> None:
    model, x, labels = residual_network(), floats(12, 1, 12, 12), classes(12)
    on_gpu, on_cpu = (trainer(model, device, optimizer="sgd", learning_rate=0.05, momentum=0.9) for device in ("gpu:0", "cpu"))
    losses = np.array([(on_gpu.step({"x": x}, labels), on_cpu.step({"x": x}, labels)) for _ in range(12)])
    np.testing.assert_allclose(*losses.T, rtol=5e-3)
    assert losses[-1][0] < 0.5 * losses[0][0]
    assert copied(on_gpu, lambda: on_gpu.step({"x": x}, labels)) == set()


def test_a_network_learns_digits() -> None:
    data = pytest.importorskip("sklearn.datasets").load_digits()
    images, labels = (data.images / 16).astype(np.float32)[:, None], data.target.astype(np.int64)
    weights = {
        "w1": floats(8, 1, 3, 3) / 3, "b1": np.zeros(8, np.float32), "w2": floats(128, 10, seed=2) / 11, "b2": np.zeros(10, np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["m"], ["f"]),
        node("Gemm", ["f", "w2", "b2"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["n", 1, 8, 8])}, {"y": ["n", 10]}, weights)
    losses = []
    for device in ("gpu:0", "cpu"):
        made = trainer(model, device, optimizer="adam", learning_rate=0.01)
        for i in [*range(0, 1280, 64)] * 3:
            made.step({"x": images[i : i + 64]}, labels[i : i + 64])
        losses.append(made.evaluate({"x": images[1280:]}, labels[1280:]))
    assert losses[0] < 0.7
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("pack_weights", [False, True])
def test_modules_of_pytorch(pack_weights: bool) -> None:
    trainer(network()[0])  # skips the test where there is no device
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    ours = treadle.torch.Module(copy.deepcopy(theirs), device="gpu:0", pack_weights=pack_weights)
    x, labels = torch.tensor(floats(6, 1, 8, 8)), torch.tensor(classes(6))
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in (ours, theirs)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", treadle.torch.FallbackWarning)
        for _ in range(5):
            losses = []
            for module, optimizer in zip((ours, theirs), optimizers):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(x), labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], rel=1e-4)
        ours.eval(), theirs.eval()
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)
            with torch.autocast("cpu", torch.bfloat16):
                for _ in range(3):
                    torch.testing.assert_close(ours(x).float(), theirs(x).float(), rtol=0.02, atol=0.02)
