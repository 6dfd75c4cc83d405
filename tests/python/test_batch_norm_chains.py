"""Tests chains around batch normalisations in training: which node computes the gradient, and that the gradient equals PyTorch's."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import treadle
import treadle.torch
from torch import nn
from treadle.train import Trainer

ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.25, 0.75),
    "low only": lambda: Clamp(min=-0.1),
    "high only": lambda: Clamp(max=0.2),
    "leaky": lambda: nn.LeakyReLU(0.1),
    "silu": nn.SiLU,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}


class Clamp(nn.Module):
    def __init__(self, **bounds):
        super().__init__()
        self.bounds = bounds

    def forward(self, x):
        return torch.clamp(x, **self.bounds)


class Network(nn.Module):
    """An inverted residual, a plain block with a sum in front of its activation, and a block whose normalised image has two readers."""

    def __init__(self, activation, channels=12):
        super().__init__()

        def block(into, out, **options):
            return nn.Sequential(nn.Conv2d(into, out, bias=False, **options), nn.BatchNorm2d(out), activation())

        self.first = block(3, channels, kernel_size=3, stride=2, padding=1)
        self.expand = nn.Sequential(
            block(channels, 24, kernel_size=1),
            block(24, 24, kernel_size=3, padding=1, groups=24),
            nn.Conv2d(24, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.plain = nn.Sequential(
            block(channels, channels, kernel_size=3, padding=1), nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        )
        self.activation = activation()
        self.last = nn.Linear(channels, 4)

    def forward(self, x):
        x = self.first(x)
        x = x + self.expand(x)
        x = self.activation(x + self.plain(x))
        return self.last(x.mean((2, 3)))


def made(activation):
    torch.manual_seed(3)
    network = Network(ACTIVATIONS[activation])
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5), module.bias.uniform_(-0.5, 0.5)
    return network


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("recompute_fraction", [0, 0.5])
def test_gradients_are_those_of_doubles(activation, recompute_fraction):
    theirs = made(activation)
    ours = treadle.torch.Module(copy.deepcopy(theirs), recompute_fraction=recompute_fraction)
    exact = copy.deepcopy(theirs).double()
    x, weights = torch.randn(5, 3, 18, 14), torch.randn(5, 4)
    for _ in range(3):
        for network, dtype in ((ours, torch.float32), (theirs, torch.float32), (exact, torch.float64)):
            network.zero_grad()
            (network(x.to(dtype)) * weights.to(dtype)).sum().backward()
    buffers = dict(exact.named_buffers())
    for name, value in ours.named_buffers():
        np.testing.assert_allclose(value, buffers[name.removeprefix("module.")], rtol=1e-5, atol=1e-6, err_msg=name)
    of_theirs = dict(theirs.named_parameters())
    largest = max(parameter.grad.abs().max().item() for parameter in exact.parameters())
    for name, parameter in exact.named_parameters():
        found = dict(ours.named_parameters())
        mine = found.get(name, found.get(f"module.{name}")).grad
        size = max(parameter.grad.abs().max().item(), 0.05 * largest)  # before a normalisation, large terms of the gradient cancel
        error = (mine.double() - parameter.grad).abs().max().item() / size
        error_of_theirs = (of_theirs[name].grad.double() - parameter.grad).abs().max().item() / size
        assert error < max(2e-5, 4 * error_of_theirs), (name, error, error_of_theirs)


def nodes_of_a_step(activation, tmp_path):
    path = tmp_path / "model.onnx"
    torch.onnx.export(made(activation).train(), (torch.randn(5, 3, 18, 14),), path, input_names=["x"], output_names=["y"], dynamo=False,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17)  # fmt: skip
    trainer = Trainer(path, num_threads=1)
    with treadle.profile(trainer) as profile:
        trainer.step({"x": torch.randn(5, 3, 18, 14).numpy()}, np.arange(5) % 4)
    return [(node.op_type, node.phase) for node in profile.nodes if len(node.output_shapes[0]) == 4 or node.op_type == "NhwcBatchStatistics"]


@pytest.mark.parametrize("activation", ["relu", "relu6", "silu"])
def test_the_activation_costs_the_gradient_no_node(activation, tmp_path):
    nodes = nodes_of_a_step(activation, tmp_path)
    assert sum(op == "NhwcBatchStatistics" for op, _ in nodes) == 6
    assert sum(op == "NhwcBatchNormalizationGrad" for op, _ in nodes) == 6
    # Only the activation after a sum of two images needs a node of its own, because both branches and the sums read its gradient.
    pointwise = [op for op, phase in nodes if phase == "backward" and op in ("FusedElementwise", "Where", "Mul", "Greater")]
    assert len(pointwise) <= 1, nodes
