"""Tests training on a GPU: gradients equal PyTorch's in float64, and trainers whose whole step is on the device learn as on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import treadle
from treadle import Trainer

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def options(device: str) -> treadle.SessionOptions:
    made = treadle.SessionOptions()
    made.device = device
    return made


def trainer(model: bytes, device: str = "gpu:0", **given: Any) -> Trainer:
    try:
        return Trainer(model, sess_options=options(device), **given)
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, list[Any]], weights: dict[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def on_host(of: Any) -> set[str]:
    """Returns the operators of the step that run on the host."""
    lines = [line.split("\t") for line in of.to_text("devices").splitlines()]
    return {op_type for device, op_type, *_ in lines if device == "cpu"}


def gradients(
    forward: list[onnx.NodeProto], feeds: dict[str, np.ndarray], by: list[str], weights: dict[str, np.ndarray] | None = None, output: str = "f"
) -> tuple[list[np.ndarray], np.ndarray, set[str]]:
    """Returns the gradients of sum(r output) by the inputs, the array r, and the operators that are on the host."""
    shape = onnx_shape(forward, feeds, weights or {}, output)
    r = floats(*shape, seed=9)
    nodes = [
        *forward,
        helper.make_node("Mul", [output, "r"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
        helper.make_node("Gradient", by, [f"d{name}" for name in by], domain="ai.onnx.preview.training", xs=by, y="loss"),
    ]
    graph = helper.make_graph(
        nodes,
        "gradients",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()],
        [helper.make_tensor_value_info(f"d{name}", FLOAT, feeds[name].shape) for name in by],
        [numpy_helper.from_array(value, name) for name, value in {**(weights or {}), "r": r}.items()],
    )
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.preview.training", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString()
    try:
        session = treadle.InferenceSession(model, options("gpu:0"))
    except treadle.Error as error:
        if any(reason in str(error) for reason in ("no Vulkan", "has no GPUs", "Vulkan finds none")):
            pytest.skip(str(error))
        raise
    return session.run(None, feeds), r, on_host(session)


def onnx_shape(forward: list[onnx.NodeProto], feeds: dict[str, np.ndarray], weights: dict[str, np.ndarray], output: str) -> tuple[int, ...]:
    graph = helper.make_graph(
        forward,
        "forward",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()],
        [helper.make_tensor_value_info(output, FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    return treadle.InferenceSession(model).run([output], feeds)[0].shape


def expect(forward: list[onnx.NodeProto], feeds: dict[str, np.ndarray], by: list[str], function: Callable[..., torch.Tensor], weights: Any = None, host: Any = ()) -> None:
    got, r, hosts = gradients(forward, feeds, by, weights)
    tensors = {name: torch.tensor(value.astype(np.float64) if value.dtype == np.float32 else value) for name, value in feeds.items()}
    for name in by:
        tensors[name].requires_grad_()
    loss = (function(**tensors) * torch.tensor(r.astype(np.float64))).sum()
    wanted = torch.autograd.grad(loss, [tensors[name] for name in by])
    for name, ours, theirs in zip(by, got, wanted):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-4, atol=2e-5, err_msg=name)
    assert hosts <= set(host), hosts


node = helper.make_node


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (1, 2, 1), (2, 1, 2), (6, 2, 1)])
def test_convolutions(groups: int, stride: int, dilation: int) -> None:
    feeds = {"x": floats(3, 6, 11, 9), "w": floats(12, 6 // groups, 3, 3, seed=2), "b": floats(12, seed=3)}
    forward = [node("Conv", ["x", "w", "b"], ["f"], pads=[1, 1, 1, 1], strides=[stride, stride], dilations=[dilation, dilation], group=groups)]
    expect(forward, feeds, ["x", "w", "b"], lambda x, w, b: nn.functional.conv2d(x, w, b, stride, 1, dilation, groups))


def test_a_convolution_over_many_positions() -> None:
    feeds = {"x": floats(8, 3, 40, 40), "w": floats(5, 3, 5, 5, seed=2)}
    expect([node("Conv", ["x", "w"], ["f"])], feeds, ["x", "w"], lambda x, w: nn.functional.conv2d(x, w))


def test_a_convolution_of_lines() -> None:
    feeds = {"x": floats(2, 4, 30), "w": floats(7, 4, 5, seed=2)}
    expect([node("Conv", ["x", "w"], ["f"], strides=[2])], feeds, ["x", "w"], lambda x, w: nn.functional.conv1d(x, w, stride=2))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_pools_of_maxima(stride: int) -> None:
    expect([node("MaxPool", ["x"], ["f"], kernel_shape=[3, 3], strides=[stride, stride], pads=[1, 1, 1, 1])], {"x": floats(2, 3, 10, 13)}, ["x"],
           lambda x: nn.functional.max_pool2d(x, 3, stride, 1))  # fmt: skip


@pytest.mark.parametrize("padded", [0, 1])
def test_pools_of_means(padded: int) -> None:
    forward = [node("AveragePool", ["x"], ["f"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1], count_include_pad=padded)]
    expect(forward, {"x": floats(2, 3, 10, 13)}, ["x"], lambda x: nn.functional.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=bool(padded)))


@pytest.mark.parametrize("rows", [(3, 5, 33), (300, 8), (2, 700)])
def test_normalizations_of_rows(rows: tuple[int, ...]) -> None:
    feeds = {"x": floats(*rows), "s": floats(rows[-1], seed=2), "b": floats(rows[-1], seed=3)}
    expect([node("LayerNormalization", ["x", "s", "b"], ["f"])], feeds, ["x", "s", "b"], lambda x, s, b: nn.functional.layer_norm(x, s.shape, s, b, 1e-5))


def test_softmax() -> None:
    expect([node("Softmax", ["x"], ["f"], axis=-1)], {"x": floats(4, 7, 300)}, ["x"], lambda x: x.softmax(-1))
    expect([node("LogSoftmax", ["x"], ["f"], axis=1)], {"x": floats(4, 30, 5)}, ["x"], lambda x: x.log_softmax(1))


@pytest.mark.parametrize("op_type", ["Gelu", "Relu", "Sigmoid", "Tanh", "Softplus"])
def test_functions(op_type: str) -> None:
    functions = {"Gelu": nn.functional.gelu, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Softplus": nn.functional.softplus}
    expect([node(op_type, ["x"], ["f"])], {"x": floats(40, 5)}, ["x"], functions[op_type])


def test_rows_that_are_gathered_several_times() -> None:
    feeds = {"table": floats(50, 9), "i": np.random.default_rng(3).integers(-50, 50, (4, 150))}
    expect([node("Gather", ["table", "i"], ["f"])], feeds, ["table"], lambda table, i: table[i])
    feeds = {"table": floats(5, 8, 3), "i": np.array([7, 0, 7, -1])}
    expect([node("Gather", ["table", "i"], ["f"], axis=1)], feeds, ["table"], lambda table, i: table[:, i])


def test_slices() -> None:
    weights = {"s": np.array([6, 1]), "e": np.array([-99, 5]), "a": np.array([0, 2]), "t": np.array([-2, 1])}
    expect([node("Slice", ["x", "s", "e", "a", "t"], ["f"])], {"x": floats(8, 3, 7)}, ["x"], lambda x: x.flip(0)[1::2, :, 1:5], weights)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [True, False])
def test_losses(reduction: str, weighted: bool) -> None:
    labels = np.random.default_rng(4).integers(0, 5, (3, 6))
    labels[1, 2] = -100
    weights = {"w": np.abs(floats(5)) + 0.5} if weighted else {}
    forward = [node("SoftmaxCrossEntropyLoss", ["x", "t", *weights], ["f"], reduction=reduction, ignore_index=-100)]

    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, t, torch.tensor(weights["w"].astype(np.float64)) if weighted else None, reduction=reduction)

    expect(forward, {"x": floats(3, 5, 6), "t": labels}, ["x"], function, weights)


def test_a_label_that_is_no_class_is_an_error() -> None:
    forward = [node("SoftmaxCrossEntropyLoss", ["x", "t"], ["f"])]
    with pytest.raises(treadle.Error, match=r"outside \[0, 5\)"):
        gradients(forward, {"x": floats(3, 5), "t": np.array([1, 5, 2])}, ["x"])


def network() -> tuple[bytes, np.ndarray, np.ndarray, nn.Module]:
    """Makes a network of two layers, with its inputs and labels, and the same network in PyTorch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 5)).double()
    weights = {name: value.detach().numpy().astype(np.float32) for name, value in module.state_dict().items()}
    nodes = [
        node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        node("Tanh", ["h"], ["t"]),
        node("Gemm", ["t", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    model = model_of(nodes, {"x": (FLOAT, ["n", 12])}, {"y": ["n", 5]}, weights)
    return model, floats(16, 12), np.random.default_rng(5).integers(0, 5, 16), module


@pytest.mark.parametrize(
    ("optimizer", "given", "theirs"),
    [
        ("sgd", {}, lambda p: torch.optim.SGD(p, 0.1)),
        ("sgd", {"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, 0.9)),
        ("adamw", {}, lambda p: torch.optim.AdamW(p, 0.1)),
        ("adam", {}, lambda p: torch.optim.Adam(p, 0.1)),
        ("rmsprop", {}, lambda p: torch.optim.RMSprop(p, 0.1)),
    ],
)
def test_optimizers_are_pytorchs(optimizer: str, given: dict[str, Any], theirs: Any) -> None:
    model, x, labels, module = network()
    ours = trainer(model, optimizer=optimizer, learning_rate=0.1, **given)
    optimizing = theirs(module.parameters())
    for _ in range(5):
        optimizing.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.tensor(x).double()), torch.tensor(labels))
        loss.backward()
        optimizing.step()
        assert ours.step({"x": x}, labels) == pytest.approx(loss.item(), rel=1e-4)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(ours.parameters[name], parameter.detach().numpy(), rtol=1e-3, atol=1e-4, err_msg=name)


def updated(op_type: str, feeds: dict[str, np.ndarray], device: str, **attributes: Any) -> list[np.ndarray]:
    """Runs one of ONNX's optimizers on a parameter, whose extents are known in the run only."""
    states = list(feeds)[4:]
    domain = "ai.onnx.preview.training"
    node = helper.make_node(op_type, list(feeds), ["new_x", *(f"new_{name}" for name in states)], "node", domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), [f"{k}{i}" for i in range(v.ndim)]) for k, v in feeds.items()]
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info(name, FLOAT, None) for name in node.output])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    return treadle.InferenceSession(model, options(device)).run(None, feeds)


@pytest.mark.parametrize("count", [0, 1, 3, 2000])
def test_adam_of_onnx(count: int) -> None:
    trainer(network()[0])  # skips the test where there is no device
    x, g, v, h = floats(64), floats(64, seed=2), floats(64, seed=3), np.abs(floats(64, seed=4))
    a, b = float(np.float32(0.9)), float(np.float32(0.999))
    mean, squares = a * v.astype(np.float64) + (1 - a) * g, b * h.astype(np.float64) + (1 - b) * g.astype(np.float64) ** 2
    rate = np.sqrt(1 - b**count) / (1 - a**count) if count > 0 else 1
    feeds = {"r": np.array(1, np.float32), "t": np.array(count), "x": x, "g": g, "v": v, "h": h}
    got = updated("Adam", feeds, "gpu:0", alpha=0.9, beta=0.999)
    for ours, theirs in zip(got, (x - rate * mean / (np.sqrt(squares) + 1e-6), mean, squares)):
        np.testing.assert_allclose(ours, theirs, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("device", ["gpu:0", "cpu"])
def test_a_gradient_of_another_shape_is_an_error(device: str) -> None:
    trainer(network()[0])  # skips the test where there is no device
    feeds = {"r": np.float32(0.1), "t": np.int64(1), "x": floats(2, 3), "g": floats(3, 2), "v": floats(2, 3)}
    with pytest.raises(treadle.Error, match="same type"):
        updated("Momentum", {k: np.asarray(v) for k, v in feeds.items()}, device, alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0)


def image_network() -> bytes:
    weights = {
        "w1": floats(8, 1, 3, 3) / 3, "b1": floats(8, seed=2) / 9, "s": np.ones(8, np.float32), "o": np.zeros(8, np.float32),
        "m": np.zeros(8, np.float32), "v": np.ones(8, np.float32), "w2": floats(16, 8, 3, 3, seed=3) / 9, "w3": floats(16, 4, seed=4) / 4,
        "b3": np.zeros(4, np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["h"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["h", "s", "o", "m", "v"], ["n"]),
        node("Relu", ["n"], ["a"]),
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2"], ["q"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["q"], ["c"]),
        node("GlobalAveragePool", ["c"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    return model_of(nodes, {"x": (FLOAT, ["n", 1, 12, 12])}, {"y": ["n", 4]}, weights)


def language_model(length: int = 8, width: int = 16, heads: int = 2, words: int = 20) -> bytes:
    """Makes one layer of a decoder: embedding, attention, a feed-forward network, and scores of the next word, [n, words, length]."""
    size = width // heads
    weights = {
        "table": floats(words, width) / 3, "places": floats(length, width, seed=2) / 3, "g1": np.ones(width, np.float32),
        "c1": np.zeros(width, np.float32), "qkv": floats(width, 3 * width, seed=3) / 4, "heads": np.array([0, length, heads, size]),
        "scale": np.array(size**-0.5, np.float32), "mask": np.tril(np.ones((length, length), bool)), "never": np.array(-1e9, np.float32),
        "rows": np.array([0, length, width]), "wo": floats(width, width, seed=4) / 4, "g2": np.ones(width, np.float32),
        "c2": np.zeros(width, np.float32), "wf": floats(width, 4 * width, seed=5) / 4, "bf": np.zeros(4 * width, np.float32),
        "wp": floats(4 * width, width, seed=6) / 8, "wv": floats(width, words, seed=7) / 4,
    }  # fmt: skip
    nodes = [
        node("Gather", ["table", "x"], ["e"]),
        node("Add", ["e", "places"], ["h0"]),
        node("LayerNormalization", ["h0", "g1", "c1"], ["n1"]),
        node("MatMul", ["n1", "qkv"], ["all"]),
        node("Split", ["all"], ["q", "k", "v"], axis=2, num_outputs=3),
    ]
    for part, turned in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("Reshape", [part, "heads"], [part + "r"]), node("Transpose", [part + "r"], [part + "t"], perm=turned)]
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Mul", ["s", "scale"], ["ss"]),
        node("Where", ["mask", "ss", "never"], ["masked"]),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", "rows"], ["or"]),
        node("MatMul", ["or", "wo"], ["ao"]),
        node("Dropout", ["ao"], ["ad"]),
        node("Add", ["h0", "ad"], ["h1"]),
        node("LayerNormalization", ["h1", "g2", "c2"], ["n2"]),
        node("MatMul", ["n2", "wf"], ["wide"]),
        node("Add", ["wide", "bf"], ["biased"]),
        node("Gelu", ["biased"], ["g"]),
        node("MatMul", ["g", "wp"], ["narrow"]),
        node("Add", ["h1", "narrow"], ["h2"]),
        node("MatMul", ["h2", "wv"], ["scores"]),
        node("Transpose", ["scores"], ["y"], perm=[0, 2, 1]),
    ]
    return model_of(nodes, {"x": (INT64, ["n", length])}, {"y": ["n", words, length]}, weights)


@pytest.mark.parametrize("kind", ["images", "words"])
def test_networks_learn_as_on_the_host(kind: str) -> None:
    random = np.random.default_rng(6)
    if kind == "images":
        model, x, labels = image_network(), floats(12, 1, 12, 12), random.integers(0, 4, 12)
    else:
        x = random.integers(0, 20, (6, 8))
        model, labels = language_model(), np.roll(x, -1, 1)
    on_gpu, on_cpu = (trainer(model, device, optimizer="adamw", learning_rate=0.01) for device in ("gpu:0", "cpu"))
    losses = [(on_gpu.step({"x": x}, labels), on_cpu.step({"x": x}, labels)) for _ in range(20)]
    np.testing.assert_allclose(*np.array(losses).T, rtol=2e-3)
    assert losses[-1][0] < 0.8 * losses[0][0]
    assert on_gpu.evaluate({"x": x}, labels) == pytest.approx(on_cpu.evaluate({"x": x}, labels), rel=5e-3)
