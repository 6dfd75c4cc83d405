"""Compares low-rank adapters with a layer written by hand in PyTorch, and tests saved files."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from treadle.train import Trainer

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

RANK, ALPHA = 2, 6.0


class Adapted(nn.Module):
    """A layer with a low-rank addition B A."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, first: np.ndarray) -> None:
        super().__init__()
        self.layer = layer
        rows, *rest = layer.weight.shape
        self.lora_A = nn.Parameter(torch.tensor(first))
        self.lora_B = nn.Parameter(torch.zeros(rows, RANK, *(1 for _ in rest[1:])))

    def weight(self) -> torch.Tensor:
        return self.layer.weight + ALPHA / RANK * (self.lora_B.flatten(1) @ self.lora_A.flatten(1)).reshape(self.layer.weight.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.layer, nn.Linear):
            return nn.functional.linear(x, self.weight(), self.layer.bias)
        return nn.functional.conv2d(x, self.weight(), self.layer.bias, self.layer.stride, self.layer.padding)


class Network(nn.Module):
    """A network with a convolution, two products with adapters of rank 3 and 2, and a weight shared with an embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.wide, self.head = nn.Linear(16, 12), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv(x)).flatten(2)
        return self.head(torch.tanh(self.wide(x)).mean(1))


def exported(module: nn.Module, x: torch.Tensor, **options) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False,
                      training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, **options)
    return file.getvalue()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))


LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
LORA = {"rank": RANK, "alpha": ALPHA, "targets": ["conv.weight", "wide.weight", "/head/*"], "seed": 4}


def adapt(module: nn.Module, trainer: Trainer) -> list[nn.Parameter]:
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for name in ("conv", "wide", "head"):
        setattr(module, name, Adapted(getattr(module, name), trainer.parameters[f"{name}.lora_A.weight"]))
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def test_steps_are_those_of_a_layer_with_adapters(images: torch.Tensor, ort, tmp_path) -> None:
    module = Network()
    model = exported(module, images, dynamic_axes={"x": {0: "n"}})
    trainer = Trainer(model, optimizer="adamw", learning_rate=0.02, lora=LORA)
    before = trainer.predict({"x": images.numpy()})[0]
    np.testing.assert_allclose(before, module(images).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert sorted(trainer.parameters) == sorted(f"{name}.lora_{part}.weight" for name in ("conv", "wide", "head") for part in "AB")
    optimizer = torch.optim.AdamW(adapt(module, trainer), lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(images), LABELS)
        loss.backward()
        optimizer.step()
        assert trainer.step({"x": images.numpy()}, LABELS.numpy()) == pytest.approx(loss.item(), rel=2e-5)
    for name in ("conv", "wide", "head"):
        for part in "AB":
            expected = getattr(getattr(module, name), f"lora_{part}").detach().numpy()
            np.testing.assert_allclose(trainer.parameters[f"{name}.lora_{part}.weight"], expected, rtol=1e-3, atol=1e-5, err_msg=name + part)
    # The saved model contains no adapters, and computes the same result.
    after = trainer.predict({"x": images.numpy()})[0]
    assert np.abs(after - before).max() > 0.1
    np.testing.assert_allclose(ort.InferenceSession(trainer.to_bytes()).run(None, {"x": images.numpy()})[0], after, rtol=1e-4, atol=1e-5)
    # Another trainer gets the same result from the adapters alone.
    trainer.save_adapters(tmp_path / "adapters.safetensors")
    other = Trainer(model, lora={**LORA, "seed": 5})
    other.load_adapters(tmp_path / "adapters.safetensors")
    np.testing.assert_array_equal(other.predict({"x": images.numpy()})[0], after)


def test_the_base_stays_and_named_parameters_train_beside(images: torch.Tensor) -> None:
    trainer = Trainer(exported(Network(), images), learning_rate=0.1, parameters=["head.bias"], lora={"rank": 1})
    # By default, adapters are added to products, not to convolutions.
    assert "head.bias" in trainer.parameters and len(trainer.parameters) == 5
    assert not any(name.startswith("conv") for name in trainer.parameters)
    bias = trainer.parameters["head.bias"].copy()
    for _ in range(3):
        trainer.step({"x": images.numpy()}, LABELS.numpy())
    assert not np.array_equal(bias, trainer.parameters["head.bias"])


def test_checkpoints_and_averages_hold_the_adapters(images: torch.Tensor, tmp_path) -> None:
    model = exported(Network(), images)
    options = {"optimizer": "adam", "ema_decay": 0.5, "lora": {**LORA, "dropout": 0.3}}
    first, second = Trainer(model, **options), Trainer(model, **options)
    for _ in range(3):
        first.step({"x": images.numpy()}, LABELS.numpy())
    first.save_checkpoint(tmp_path / "step.safetensors")
    second.load_checkpoint(tmp_path / "step.safetensors")
    assert [first.step({"x": images.numpy()}, LABELS.numpy()) for _ in range(2)] == [second.step({"x": images.numpy()}, LABELS.numpy()) for _ in range(2)]
    plain = first.to_bytes()
    with first.averaged():
        assert first.to_bytes() != plain
    with pytest.raises(Exception, match="lora is rank 2"):
        Trainer(model, **{**options, "lora": {**LORA, "dropout": 0.3, "alpha": 1.0}}).load_checkpoint(tmp_path / "step.safetensors")


def test_the_first_adapters_are_as_documented(images: torch.Tensor) -> None:
    trainer = Trainer(exported(Network(), images), lora=LORA)
    a = trainer.parameters["wide.lora_A.weight"]
    assert a.shape == (RANK, 16) and 0 < np.abs(a).max() <= 1 / math.sqrt(16)
    assert not trainer.parameters["wide.lora_B.weight"].any()
    same, other = (Trainer(exported(Network(), images), lora={**LORA, "seed": seed}) for seed in (4, 5))
    np.testing.assert_array_equal(a, same.parameters["wide.lora_A.weight"])
    assert not np.array_equal(a, other.parameters["wide.lora_A.weight"])


@pytest.mark.parametrize(("lora", "message"), [
    ({"rank": -1}, 'the option lora_rank: "-1" is given, a whole number from 0 to 65536'),
    ({"alpha": 3.0}, "lora_alpha needs lora_rank"),
    ({"rank": 2, "dropout": 1.0}, 'the option lora_dropout: "1" is given'),
    ({"rank": 2, "targets": ["wide.wieght"]}, "wide.wieght.*nearest: wide.weight"),
    ({"rank": 2, "targets": ["head.bias"]}, "head.bias"),
    ({"rank": 2, "target": []}, "no setting 'target'"),
])
def test_what_makes_no_sense_is_refused(images: torch.Tensor, lora: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        Trainer(exported(Network(), images), lora=lora)


def test_adapters_of_another_trainer_are_refused(images: torch.Tensor, tmp_path) -> None:
    model = exported(Network(), images)
    trainer = Trainer(model, lora=LORA)
    trainer.save_adapters(tmp_path / "a.safetensors")
    with pytest.raises(Exception, match="lora_A.weight.* is .* there"):
        Trainer(model, lora={**LORA, "rank": 3}).load_adapters(tmp_path / "a.safetensors")
    with pytest.raises(Exception, match="alpha is 6 there, 1 here"):
        Trainer(model, lora={**LORA, "alpha": 1.0}).load_adapters(tmp_path / "a.safetensors")
    with pytest.raises(Exception, match="the trainer has no"):
        Trainer(model, lora={**LORA, "targets": ["wide.weight"]}).load_adapters(tmp_path / "a.safetensors")
    with pytest.raises(Exception, match="made without a lora_rank"):
        Trainer(model).save_adapters(tmp_path / "b.safetensors")
