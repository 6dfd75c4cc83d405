"""Tests training with products and convolutions in bfloat16 and float16: it reaches float32's loss, and unsupported settings are
refused."""

from __future__ import annotations

import importlib.util
import io
import re

import numpy as np
import pytest
import treadle
from conftest import REPOSITORY
from treadle.train import JointModule, Trainer

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
from torch import nn  # noqa: E402


def options(precision: str) -> treadle.SessionOptions:
    made = treadle.SessionOptions()
    made.precision = precision
    return made


@pytest.fixture(scope="module")
def digits():
    spec = importlib.util.spec_from_file_location("train_digits", REPOSITORY / "scripts" / "train_digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels, *_ = module.load_split()
    return module.build_model(), images[:1024], labels[:1024]


class Transformer(nn.Module):
    """A small transformer that sorts sixteen digits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(10, 64), nn.Parameter(0.1 * torch.randn(16, 64))
        self.query, self.key, self.value, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.first, self.second, self.head = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)
        with torch.no_grad():  # makes parameters differ; otherwise the exporter would merge equal ones
            for norm in self.norms:
                norm.weight += 0.01 * torch.randn(64)
                norm.bias += 0.01 * torch.randn(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places
        n = self.norms[0](h)
        q, k, v = (layer(n).reshape(-1, 16, 4, 16).transpose(1, 2) for layer in (self.query, self.key, self.value))
        h = h + self.out((torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v).transpose(1, 2).reshape(-1, 16, 64))
        h = h + self.second(torch.relu(self.first(self.norms[1](h))))
        return self.head(self.norms[2](h))


@pytest.fixture(scope="module")
def sorting():
    file, x = io.BytesIO(), torch.zeros(32, 16, dtype=torch.int64)
    torch.onnx.export(Transformer(), (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 10, (60, 32, 16))
    return file.getvalue(), tokens, np.sort(tokens, -1)


def mean_losses(trainer: Trainer, batches, epochs: int) -> list[float]:
    return [float(np.mean([trainer.step(feeds, labels) for feeds, labels in batches])) for _ in range(epochs)]


def test_a_convolution_network_reaches_the_loss_of_float32(digits) -> None:
    model, images, labels = digits
    batches = [({"image": images[i : i + 64]}, labels[i : i + 64]) for i in range(0, len(images), 64)]
    losses = {}
    for precision in ("float32", "bfloat16", "float16"):
        trainer = Trainer(model, learning_rate=0.02, momentum=0.9, sess_options=options(precision))
        losses[precision] = mean_losses(trainer, batches, 6)
        text = trainer.to_text()
        for operator in ("NhwcConv", "NhwcConvGradInput", "NhwcConvGradWeights", "RoundedGemm"):
            for narrow in ("bfloat16", "float16"):
                assert bool(re.search(rf"treadle\.{operator}\(.*precision=.{narrow}", text)) == (precision == narrow), operator
        assert trainer.num_skipped == 0
    assert losses["float32"][-1] < 0.2 * losses["float32"][0]
    for precision in ("bfloat16", "float16"):
        assert sum(losses[precision]) == pytest.approx(sum(losses["float32"]), rel=0.01)


def test_float16_reaches_the_loss_of_pytorch_in_float32(digits) -> None:
    onnx = pytest.importorskip("onnx")
    model, images, labels = digits
    starts = range(0, len(images), 64)
    trainer = Trainer(model, learning_rate=0.02, momentum=0.9, sess_options=options("float16"))
    ours = mean_losses(trainer, [({"image": images[i : i + 64]}, labels[i : i + 64]) for i in starts], 6)
    w = {i.name: torch.tensor(onnx.numpy_helper.to_array(i).copy()) for i in model.graph.initializer}
    trained = [value.requires_grad_() for name, value in w.items() if not name.endswith((".mean", ".var"))]
    optimizer = torch.optim.SGD(trained, 0.02, 0.9)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in ("block1", "block2"):
            x = nn.functional.conv2d(x, w[f"{block}.conv.weight"], padding=1)
            x = torch.relu(nn.functional.batch_norm(x, None, None, w[f"{block}.bn.scale"], w[f"{block}.bn.bias"], training=True))
        return nn.functional.linear(nn.functional.max_pool2d(x, 2).flatten(1), w["head.weight"], w["head.bias"])

    theirs = []
    for _ in range(6):
        losses = []
        for i in starts:
            loss = nn.functional.cross_entropy(forward(torch.tensor(images[i : i + 64])), torch.tensor(labels[i : i + 64]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        theirs.append(float(np.mean(losses)))
    assert sum(ours) == pytest.approx(sum(theirs), rel=0.01), (ours, theirs)
    assert trainer.num_skipped == 0


# The arithmetic decides which steps overflow, but not how the scale changes after them.
def test_the_scale_moves_as_that_of_pytorch(digits) -> None:
    model, images, labels = digits
    numbers = {"init_scale": 2.0**40, "growth_factor": 4.0, "backoff_factor": 0.125, "growth_interval": 3}
    trainer = Trainer(model, learning_rate=0.01, sess_options=options("float16"), loss_scaling=numbers)
    scaler = torch.amp.GradScaler("cpu", **numbers)
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], 0.1)
    skipped = 0
    for _ in range(40):
        assert trainer.loss_scale == scaler.get_scale()
        assert np.isfinite(trainer.step({"image": images[:64]}, labels[:64]))
        overflows = trainer.num_skipped > skipped
        skipped = trainer.num_skipped
        scaler.scale(parameter.sum()).backward()
        if overflows:
            parameter.grad.fill_(float("inf"))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert 4 < skipped < 36
    assert trainer.num_steps == trainer.num_updates == 40 - skipped


def test_a_transformer_reaches_the_loss_of_float32(sorting) -> None:
    model, tokens, labels = sorting
    batches = [({"x": x}, y) for x, y in zip(tokens, labels)]
    losses = {}
    for precision in ("float32", "bfloat16", "bfloat16x3", "float16"):
        trainer = Trainer(model, class_axis=-1, optimizer="adamw", learning_rate=3e-3, sess_options=options(precision))
        losses[precision] = mean_losses(trainer, batches, 4)
        assert ("RoundedMatMul" in trainer.to_text()) == (precision != "float32")
    assert losses["float32"][-1] < 0.6 * losses["float32"][0]
    for precision in ("bfloat16", "bfloat16x3", "float16"):
        assert sum(losses[precision]) == pytest.approx(sum(losses["float32"]), rel=0.01), losses


def test_gradients_are_as_near_as_bfloat16_is(sorting) -> None:
    model, tokens, labels = sorting
    made = {name: Trainer(model, class_axis=-1, sess_options=options(name)).gradients({"x": tokens[0]}, labels[0]) for name in ("float32", "bfloat16", "bfloat16x3", "float16")}
    # Returns a distance over all parameters together. Near the 0 of a ReLU, rounding may switch it, which changes a single bias more.
    def distance(ours, theirs) -> float:
        return sum(float(np.sum((ours[name] - theirs[name]) ** 2)) for name in theirs) ** 0.5

    length = distance(made["float32"], {name: np.zeros_like(array) for name, array in made["float32"].items()})
    assert 1e-4 * length < distance(made["bfloat16"], made["float32"]) < 0.03 * length
    assert 1e-5 * length < distance(made["float16"], made["float32"]) < 4e-3 * length
    assert 1e-8 * length < distance(made["bfloat16x3"], made["float32"]) < 1e-3 * length


def test_nodes_are_chosen_by_pattern_with_their_gradients(sorting) -> None:
    text = Trainer(sorting[0], class_axis=-1, sess_options=options("float32;/first/*=bfloat16")).to_text()
    assert len(re.findall(r"precision=.bfloat16", text)) == 3  # the product, and the gradients of its two operands


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_steps_have_the_same_bits_with_any_number_of_threads(sorting, precision: str) -> None:
    model, tokens, labels = sorting
    losses = [[trainer.step({"x": x}, y) for x, y in zip(tokens[:5], labels[:5])]
              for trainer in (Trainer(model, class_axis=-1, num_threads=n, sess_options=options(precision)) for n in (1, 3))]
    assert losses[0] == losses[1]


def test_joint_modules_have_it_too(sorting) -> None:
    module = JointModule(sorting[0], sess_options=options("bfloat16"))
    outputs = module.forward({"x": sorting[1][0]})
    exact = JointModule(sorting[0]).forward({"x": sorting[1][0]})
    difference = np.abs(np.asarray(outputs.outputs[0]) - np.asarray(exact.outputs[0])).max()
    assert 0 < difference < 0.1


def test_adapters_beside_a_frozen_base_in_bfloat16(sorting) -> None:
    model, tokens, labels = sorting
    trainer = Trainer(model, class_axis=-1, optimizer="adamw", learning_rate=3e-3, lora={"rank": 4}, sess_options=options("bfloat16"))
    losses = mean_losses(trainer, [({"x": x}, y) for x, y in zip(tokens, labels)], 2)
    assert losses[1] < losses[0]
    assert "FusedMatMul" in trainer.to_text()  # the trainer uses weights that were packed once


@pytest.mark.parametrize(("precision", "level", "message"), [
    ("int8_weights", None, "no precision of int8_weights"),
    ("bfloat17", None, "bfloat17"),
    ("bfloat16", treadle.GraphOptimizationLevel.ORT_ENABLE_BASIC, "graph_optimization_level"),
])
def test_what_cannot_be_is_refused(sorting, precision: str, level, message: str) -> None:
    with pytest.raises(Exception, match=message):
        made = options(precision)
        if level is not None:
            made.graph_optimization_level = level
        Trainer(sorting[0], class_axis=-1, sess_options=made)


def test_numbers_of_the_scale_without_float16_are_refused(sorting) -> None:
    with pytest.raises(Exception, match="init_scale needs precision float16"):
        Trainer(sorting[0], class_axis=-1, loss_scaling={"init_scale": 8.0}, sess_options=options("bfloat16"))
    with pytest.raises(ValueError, match="growth_rate"):
        Trainer(sorting[0], class_axis=-1, loss_scaling={"growth_rate": 8.0}, sess_options=options("float16"))


def test_a_checkpoint_says_its_precision(sorting, tmp_path) -> None:
    Trainer(sorting[0], class_axis=-1, sess_options=options("bfloat16")).save_checkpoint(tmp_path / "c")
    with pytest.raises(Exception, match="precision"):
        Trainer(sorting[0], class_axis=-1).load_checkpoint(tmp_path / "c")
