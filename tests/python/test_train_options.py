"""Compares the trainer's losses, optimizers, schedules and options for gradients with PyTorch's."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import treadle
from treadle.train import Trainer

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

CLASSES = 5


def network(*, tokens: bool = False, log: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers, *([nn.LogSoftmax(-1)] if log else []))


def exported(module: nn.Module, x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.PRESERVE)
    return file.getvalue()


def inputs(*extents: int) -> torch.Tensor:
    return torch.randn(*extents, generator=torch.Generator().manual_seed(5))


def classes_of(*extents: int) -> torch.Tensor:
    return torch.randint(0, CLASSES, extents, generator=torch.Generator().manual_seed(6))


def follow(trainer: Trainer, module: nn.Module, optimizer: torch.optim.Optimizer, loss_of, x: torch.Tensor, labels, steps: int, *,
           after=lambda: None, scheduler=None, tolerance: float = 2e-5) -> None:
    """Takes the same steps with both, and checks losses and parameters."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(x), labels)
        loss.backward()
        after()
        optimizer.step()
        if scheduler:
            scheduler.step()
        ours = trainer.step({"x": x.numpy()}, None if labels is None else labels.numpy())
        assert ours == pytest.approx(loss.item(), rel=tolerance, abs=tolerance)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trainer.parameters[name], parameter.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


LOSSES = {
    "l1": (nn.L1Loss(), {}, lambda y: inputs(*y.shape)),
    "huber": (nn.HuberLoss(delta=0.4), {"huber_delta": 0.4}, lambda y: inputs(*y.shape)),
    "mean_squared_error": (nn.MSELoss(), {}, lambda y: inputs(*y.shape)),
    "binary_cross_entropy_with_logits": (nn.BCEWithLogitsLoss(), {}, lambda y: torch.sigmoid(inputs(*y.shape))),
    "kl_divergence": (nn.KLDivLoss(reduction="batchmean"), {}, lambda y: torch.cat([torch.zeros(len(y), 1), torch.softmax(inputs(len(y), CLASSES - 1), -1)], 1)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_values_are_pytorchs(loss: str) -> None:
    loss_of, options, labels_of = LOSSES[loss]
    module, x = network(log=loss == "kl_divergence"), inputs(7, 6)
    trainer = Trainer(exported(module, x), loss=loss, learning_rate=0.1, **options)
    follow(trainer, module, torch.optim.SGD(module.parameters(), lr=0.1), loss_of, x, labels_of(module(x)), 4)


CLASS_OPTIONS = [
    {},
    {"ignore_index": -100},
    {"label_smoothing": 0.2},
    {"class_weights": [0.5, 2, 1, 1, 3]},
    {"ignore_index": 2, "label_smoothing": 0.1, "class_weights": [0.5, 2, 1, 1, 3]},
]


@pytest.mark.parametrize("axis", [1, -1, 0])
@pytest.mark.parametrize("options", CLASS_OPTIONS, ids=lambda options: "+".join(options) or "plain")
def test_losses_over_classes_are_pytorchs(options: dict, axis: int) -> None:
    module = network()
    x = inputs(4, 6) if axis == 1 else inputs(3, 4, 6)
    permuted = module if axis != 0 else Permuted(module)
    labels = classes_of(*x.shape[:-1])
    if "ignore_index" in options:
        labels.view(-1)[0] = options["ignore_index"]
    kwargs = dict(options)
    if "class_weights" in kwargs:
        kwargs["weight"] = torch.tensor(kwargs.pop("class_weights"))
    entropy = nn.CrossEntropyLoss(**kwargs)
    loss_of = lambda y, t: entropy(y.movedim(axis, 1) if axis == 1 else y.movedim(axis, -1).reshape(-1, CLASSES), t.reshape(-1) if axis != 1 else t)
    trainer = Trainer(exported(permuted, x), loss="softmax_cross_entropy", class_axis=axis, learning_rate=0.2, **options)
    for name in list(trainer.parameters):
        assert name.split(".")[-1] in ("weight", "bias")
    follow(trainer, permuted, torch.optim.SGD(permuted.parameters(), lr=0.2), loss_of, x, labels, 3)


class Permuted(nn.Module):
    """A module that moves the classes to axis 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x).permute(2, 0, 1)


def test_negative_log_likelihood_of_logarithms() -> None:
    module, x, labels = network(log=True), inputs(9, 6), classes_of(9)
    trainer = Trainer(exported(module, x), loss="negative_log_likelihood", learning_rate=0.2)
    follow(trainer, module, torch.optim.SGD(module.parameters(), lr=0.2), nn.NLLLoss(), x, labels, 3)


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = network()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.module(x)
        return y, (y * y).sum() / 10


def test_a_model_may_have_its_loss_itself() -> None:
    module, x = OwnLoss(), inputs(5, 6)
    file = io.BytesIO()
    torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y", "own"], dynamo=False)
    trainer = Trainer(file.getvalue(), loss="output", output="own", learning_rate=0.05)
    follow(trainer, module, torch.optim.SGD(module.parameters(), lr=0.05), lambda outputs, _: outputs[1], x, None, 4)
    with pytest.raises(treadle.Error, match="one float32 number"):
        Trainer(file.getvalue(), loss="output", output="y")
    with pytest.raises(treadle.Error, match="labels"):
        Trainer(file.getvalue(), loss="l1", output="y").step({"x": x.numpy()}, None)


OPTIMIZERS = {
    "sgd": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adam": ({"weight_decay": 0.02}, lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02)),
    "adamw": ({"weight_decay": 0.1, "betas": (0.8, 0.95), "epsilon": 1e-4}, lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-4)),
    "adagrad": ({"epsilon": 1e-10, "weight_decay": 0.02}, lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.02)),
    "rmsprop": ({"momentum": 0.5, "smoothing": 0.9, "weight_decay": 0.02}, lambda p: torch.optim.RMSprop(p, lr=0.05, alpha=0.9, momentum=0.5, weight_decay=0.02)),
}


@pytest.mark.parametrize("where", ["host", "readiness", "sim"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_are_pytorchs(optimizer: str, where: str) -> None:
    options, make = OPTIMIZERS[optimizer]
    module, x, labels = network(), inputs(16, 6), classes_of(16)
    session = treadle.SessionOptions()
    if where == "readiness":
        session.execution_mode, session.inter_op_num_threads = treadle.ExecutionMode.ORT_PARALLEL, 2
    elif where == "sim":
        session.add_session_config_entry("treadle.device", "sim")
    trainer = Trainer(exported(module, x), optimizer=optimizer, learning_rate=0.05, sess_options=session, **options)
    follow(trainer, module, make(module.parameters()), nn.CrossEntropyLoss(), x, labels, 20, tolerance=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad", "rmsprop", "lion"])
def test_one_update_of_all_parameters_has_the_same_bits(optimizer: str) -> None:
    x, labels = inputs(16, 6), classes_of(16)
    model = exported(network(), x)
    apart, together = (Trainer(model, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1, fused_update=fused) for fused in (False, True))
    for _ in range(3):
        assert apart.step({"x": x.numpy()}, labels.numpy()) == together.step({"x": x.numpy()}, labels.numpy())
    for name, value in apart.optimizer_state.items():
        np.testing.assert_array_equal(value, together.optimizer_state[name])


def test_lion_and_lamb_follow_their_papers() -> None:
    x, labels = inputs(16, 6), classes_of(16)
    model = exported(network(), x)
    for optimizer in ("lion", "lamb"):
        trainer = Trainer(model, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1, betas=(0.9, 0.99))
        values = {name: value.astype(np.float64) for name, value in trainer.parameters.items()}
        mean = {name: np.zeros_like(value) for name, value in values.items()}
        squares = {name: np.zeros_like(value) for name, value in values.items()}
        for step in range(1, 6):
            gradients = trainer.gradients({"x": x.numpy()}, labels.numpy())
            trainer.step({"x": x.numpy()}, labels.numpy())
            for name, gradient in gradients.items():
                if optimizer == "lion":
                    direction = np.sign(0.9 * mean[name] + 0.1 * gradient)
                    mean[name] = 0.99 * mean[name] + 0.01 * gradient
                    values[name] -= 0.01 * (direction + 0.1 * values[name])
                    continue
                mean[name] = 0.9 * mean[name] + 0.1 * gradient
                squares[name] = 0.99 * squares[name] + 0.01 * np.square(gradient, dtype=np.float64)
                move = mean[name] / (1 - 0.9**step) / (np.sqrt(squares[name] / (1 - 0.99**step)) + 1e-6) + 0.1 * values[name]
                values[name] -= 0.01 * np.linalg.norm(values[name]) / np.linalg.norm(move) * move
            for name, value in values.items():
                np.testing.assert_allclose(trainer.parameters[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{optimizer} {name}")


def test_gradients_are_clipped_as_pytorch_does_it() -> None:
    for options, clip in (({"clip_norm": 0.3}, lambda p: nn.utils.clip_grad_norm_(p, 0.3)), ({"clip_value": 0.02}, lambda p: nn.utils.clip_grad_value_(p, 0.02))):
        module, x, labels = network(), inputs(16, 6), classes_of(16)
        trainer = Trainer(exported(module, x), learning_rate=0.5, momentum=0.9, **options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
        follow(trainer, module, optimizer, nn.CrossEntropyLoss(), x, labels, 10, after=lambda: clip(module.parameters()))


@pytest.mark.parametrize("where", ["host", "readiness"])
def test_steps_accumulate(where: str) -> None:
    module, x, labels = network(), inputs(12, 6), classes_of(12)
    session = treadle.SessionOptions()
    if where == "readiness":
        session.execution_mode, session.inter_op_num_threads = treadle.ExecutionMode.ORT_PARALLEL, 2
    trainer = Trainer(exported(module, x[:4]), optimizer="adamw", learning_rate=0.05, accumulation_steps=3, clip_norm=0.4, sess_options=session)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    for update in range(4):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(module(x), labels).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.4)
        optimizer.step()
        for i in range(3):
            assert trainer.num_updates == update
            trainer.step({"x": x[4 * i : 4 * i + 4].numpy()}, labels[4 * i : 4 * i + 4].numpy())
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trainer.parameters[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-5)
        assert not trainer.optimizer_state[f"{name}/gradient"].any()


@pytest.mark.parametrize("options, where", [({}, "host"), ({}, "readiness"), ({}, "sim"), ({"fused_update": True}, "host"), ({"early_updates": True}, "host"), ({"accumulation_steps": 2}, "host")])
def test_averages_are_pytorchs(options: dict, where: str) -> None:
    module, x, labels = network(), inputs(16, 6), classes_of(16)
    session = treadle.SessionOptions()
    if where == "readiness":
        session.execution_mode, session.inter_op_num_threads = treadle.ExecutionMode.ORT_PARALLEL, 2
    elif where == "sim":
        session.add_session_config_entry("treadle.device", "sim")
    trainer = Trainer(exported(module, x), optimizer="adamw", learning_rate=0.05, ema_decay=0.9, sess_options=session, **options)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    averaged = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    averaged.update_parameters(module)  # the first call copies the parameters
    for _ in range(8):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(module(x), labels).backward()
        optimizer.step()
        averaged.update_parameters(module)
        for _ in range(options.get("accumulation_steps", 1)):
            trainer.step({"x": x.numpy()}, labels.numpy())
    for name, average in averaged.module.named_parameters():
        np.testing.assert_allclose(trainer.averages[name], average.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    current = {name: value.copy() for name, value in trainer.parameters.items()}
    with trainer.averaged():
        np.testing.assert_allclose(trainer.predict({"x": x.numpy()})[0], averaged(x).detach().numpy(), rtol=1e-4, atol=1e-5)
        loss = nn.CrossEntropyLoss()(averaged(x), labels).item()
        assert trainer.evaluate({"x": x.numpy()}, labels.numpy()) == pytest.approx(loss, rel=1e-4)
        saved = trainer.to_bytes()
    for name, value in current.items():
        np.testing.assert_array_equal(trainer.parameters[name], value)
    again = treadle.InferenceSession(saved).run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(again, averaged(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("buffers", [False, True])
def test_averages_of_running_statistics_are_pytorchs(buffers: bool, tmp_path) -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))
    module[1].momentum = 0.25
    x, labels = inputs(16, 6), classes_of(16)
    model = exported(module.eval(), x)
    options = {"learning_rate": 0.05, "ema_decay": 0.8, "ema_statistics": buffers}
    trainer = Trainer(model, **options)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    averaged = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8), use_buffers=buffers)
    averaged.update_parameters(module)  # the first call copies the parameters
    module.train()
    mean, variance = torch.zeros(8), torch.ones(8)  # as in ONNX, the variance of the batch is divided by n
    for step in range(6):
        batch = x * (1 + step)
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(module(batch), labels).backward()
        with torch.no_grad():
            h = module[0](batch)
            mean = 0.75 * mean + 0.25 * h.mean(0)
            variance = 0.75 * variance + 0.25 * h.var(0, unbiased=False)
            module[1].running_mean.copy_(mean), module[1].running_var.copy_(variance)
        optimizer.step()
        averaged.update_parameters(module)
        trainer.step({"x": batch.numpy()}, labels.numpy())
    averaged.eval()
    with trainer.averaged():
        np.testing.assert_allclose(trainer.predict({"x": x.numpy()})[0], averaged(x).detach().numpy(), rtol=1e-4, atol=1e-5)
        again = treadle.InferenceSession(trainer.to_bytes()).run(None, {"x": x.numpy()})[0]
        np.testing.assert_allclose(again, averaged(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert ("1.running_mean" in trainer.averages) == buffers
    trainer.save_checkpoint(tmp_path / "c.safetensors")
    resumed = Trainer(model, **options)
    resumed.load_checkpoint(tmp_path / "c.safetensors")
    for each in (trainer, resumed):
        each.step({"x": x.numpy()}, labels.numpy())
    for name, average in trainer.averages.items():
        np.testing.assert_array_equal(resumed.averages[name], average, err_msg=name)
    with pytest.raises(treadle.Error, match="ema_statistics needs ema_decay"):
        Trainer(model, ema_statistics=True)
    with pytest.raises(treadle.Error, match="does not go with accumulation_steps"):
        Trainer(model, accumulation_steps=2, **{**options, "ema_statistics": True})


def test_averages_are_kept_apart_from_parameters(tmp_path) -> None:
    x, labels = inputs(16, 6), classes_of(16)
    model = exported(network(), x)
    trainer = Trainer(model, optimizer="adam", learning_rate=0.05, ema_decay=0.5)
    trainer.step({"x": x.numpy()}, labels.numpy())
    with trainer.averaged():
        with pytest.raises(treadle.Error, match=r"a step while the averages are in the parameters' place"):
            trainer.step({"x": x.numpy()}, labels.numpy())
        with pytest.raises(treadle.Error, match=r"a checkpoint while the averages"):
            trainer.save_checkpoint(tmp_path / "c.safetensors")
    trainer.save_checkpoint(tmp_path / "c.safetensors")
    resumed = Trainer(model, optimizer="adam", learning_rate=0.05, ema_decay=0.5)
    resumed.load_checkpoint(tmp_path / "c.safetensors")
    for each in (trainer, resumed):
        each.step({"x": x.numpy()}, labels.numpy())
    for name, average in trainer.averages.items():
        np.testing.assert_array_equal(resumed.averages[name], average)
    without = Trainer(model, optimizer="adam", learning_rate=0.05)
    assert without.averages == {}
    with pytest.raises(treadle.Error, match="without ema_decay"), without.averaged():
        pass
    with pytest.raises(treadle.Error, match="ema_decay|average"):
        without.load_checkpoint(tmp_path / "c.safetensors")


def test_loss_and_outputs_come_of_one_pass() -> None:
    x, labels = inputs(16, 6), classes_of(16)
    module = network()
    trainer = Trainer(exported(module, x))
    loss, outputs = trainer.evaluate_with_outputs({"x": x.numpy()}, labels.numpy())
    assert loss == pytest.approx(nn.CrossEntropyLoss()(module(x), labels).item(), rel=1e-5)
    assert len(outputs) == 1
    np.testing.assert_allclose(outputs[0], module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


SCHEDULES = {
    "step": ({"step_size": 3, "gamma": 0.5}, lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)),
    "cosine": ({"total_steps": 8, "final_factor": 0.1}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8, eta_min=0.01)),
    "linear": ({"total_steps": 8}, lambda o: torch.optim.lr_scheduler.LinearLR(o, 1, 0, 8)),
    "one_cycle": ({"total_steps": 10}, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False)),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_are_pytorchs(kind: str) -> None:
    settings, make = SCHEDULES[kind]
    module, x, labels = network(), inputs(16, 6), classes_of(16)
    trainer = Trainer(exported(module, x), learning_rate=0.1, schedule={"kind": kind, **settings})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    follow(trainer, module, optimizer, nn.CrossEntropyLoss(), x, labels, 8, scheduler=make(optimizer))


def test_a_schedule_warms_up() -> None:
    trainer = Trainer(exported(network(), inputs(4, 6)), learning_rate=1.0, schedule={"kind": "cosine", "warmup_steps": 4, "total_steps": 8})
    rates = []
    for _ in range(9):
        rates.append(trainer.scheduled_rate)
        trainer.step({"x": inputs(4, 6).numpy()}, classes_of(4).numpy())
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, *[(1 + math.cos(math.pi * i / 4)) / 2 for i in range(5)]])


def test_groups_have_rates_and_decays_of_their_own() -> None:
    module, x, labels = network(), inputs(16, 6), classes_of(16)
    groups = [{"parameters": ["*.bias"], "weight_decay": 0.0}, {"parameters": ["0.*"], "rate_factor": 0.1}]
    trainer = Trainer(exported(module, x), optimizer="adamw", learning_rate=0.05, weight_decay=0.3, groups=groups)
    named = dict(module.named_parameters())
    optimizer = torch.optim.AdamW([{"params": [named["0.bias"], named["2.bias"]], "weight_decay": 0}, {"params": [named["0.weight"]], "lr": 0.005},
                                   {"params": [named["2.weight"]]}], lr=0.05, weight_decay=0.3)
    follow(trainer, module, optimizer, nn.CrossEntropyLoss(), x, labels, 10, tolerance=1e-4)


def test_patterns_choose_parameters() -> None:
    model = exported(network(), inputs(4, 6))
    assert set(Trainer(model, parameters=["0.*"]).parameters) == {"0.weight", "0.bias"}
    assert set(Trainer(model, frozen=["*.bias"]).parameters) == {"0.weight", "2.weight"}


@pytest.mark.parametrize("options, message", [
    ({"loss": "cross_entropy"}, "softmax_cross_entropy"),
    ({"optimizer": "adamW"}, "adamw"),
    ({"learning_rate": math.nan}, 'the option learning_rate: "nan" is given'),
    ({"learning_rate": -0.1}, 'the option learning_rate: "-0.1" is given'),
    ({"optimizer": "adam", "momentum": 0.9}, "the optimizer adam has no use for momentum"),
    ({"optimizer": "sgd", "betas": (0.9, 0.99)}, "no use for beta1"),
    ({"optimizer": "lion", "epsilon": 1e-8}, "no use for epsilon"),
    ({"optimizer": "adagrad", "smoothing": 0.9}, "no use for smoothing"),
    ({"optimizer": "adam", "nesterov": True}, "no use for nesterov"),
    ({"optimizer": "sgd", "nesterov": True}, "momentum above 0"),
    ({"loss": "l1", "huber_delta": 2.0}, "the loss l1 has no use for huber_delta"),
    ({"loss": "l1", "int32_labels": True}, "no use for int32_labels"),
    ({"class_weights": [1, math.nan, 1, 1, 1]}, 'the option class_weights: "nan" is given'),
    ({"schedule": {"kind": "constant", "total_steps": 9}}, "the schedule constant has no use for total_steps"),
    ({"schedule": {"kind": "cosine", "total_steps": 9, "gamma": 0.5}}, "no use for gamma"),
    ({"schedule": {"kind": "step", "step_size": 9, "final_factor": 0.5}}, "no use for final_factor"),
    ({"schedule": {"kind": "one_cycle", "total_steps": 9, "warmup_steps": 2}}, "no use for warmup_steps"),
    ({"optimizer": "adam", "betas": (0.9, 1.0)}, 'the option beta2: "1" is given, a number from 0 and below 1'),
    ({"loss": "l1", "ignore_index": 3}, "the loss l1 has no use for ignore_index"),
    ({"schedule": {"kind": "cosine"}}, "total_steps"),
    ({"schedule": {"kind": "cosin"}}, "cosine"),
    ({"accumulation_steps": 0}, 'the option accumulation_steps: "0" is given'),
    ({"clip_norm": -1.0}, 'the option clip_norm: "-1" is given'),
    ({"ema_decay": 1.0}, 'the option ema_decay: "1" is given'),
    ({"ema_decay": -0.5}, 'the option ema_decay: "-0.5" is given'),
    ({"groups": [{"parameters": ["0.wight"]}]}, "0.weight"),
    ({"parameters": ["1.*"]}, "no initializer"),
    ({"fused_update": True, "clip_norm": 1.0}, "fused_update"),
    ({"early_updates": True, "clip_norm": 1.0}, "early_updates does not go with clip_norm"),
])
def test_options_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    with pytest.raises(treadle.Error, match=message):
        Trainer(exported(network(), inputs(4, 6)), **options)


def test_settings_that_do_not_exist_are_refused() -> None:
    model = exported(network(), inputs(4, 6))
    with pytest.raises(ValueError, match="no setting 'warmup'"):
        Trainer(model, schedule={"kind": "constant", "warmup": 3})
    trainer = Trainer(model)
    with pytest.raises(treadle.Error, match="learning_rate is inf|learning_rate"):
        trainer.learning_rate = math.inf


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_a_step_that_fails_changes_nothing(optimizer: str) -> None:
    x, labels = inputs(4, 6), classes_of(4)
    trainer = Trainer(exported(network(), x), optimizer=optimizer, learning_rate=0.1)
    trainer.step({"x": x.numpy()}, labels.numpy())
    before = {name: value.copy() for name, value in {**trainer.parameters, **trainer.optimizer_state}.items()}
    options = treadle.RunOptions()
    options.terminate = True
    with pytest.raises(treadle.Error):
        trainer.step({"x": x.numpy()}, labels.numpy(), options)
    with pytest.raises(treadle.Error):
        trainer.step({"x": x.numpy()}, np.full(4, CLASSES))
    for name, value in {**trainer.parameters, **trainer.optimizer_state}.items():
        np.testing.assert_array_equal(value, before[name])
    assert trainer.num_updates == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_accumulating_step_whose_update_fails_may_be_repeated(optimizer: str) -> None:
    """Gradients of 1e25 are finite, but the sum of their squares is not, so the update fails."""
    x = [inputs(4, 6), inputs(4, 6) * 2 + 1]
    options = {"loss": "l1", "optimizer": optimizer, "learning_rate": 0.1, "accumulation_steps": 2, "clip_norm": 1.0}
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = exported(net, x[0])
    trainer, untroubled = Trainer(model, **options), Trainer(model, **options)
    labels = np.zeros((4, 3), np.float32)
    for each in (trainer, untroubled):
        each.step({"x": x[0].numpy()}, labels)
    before = {name: value.copy() for name, value in {**trainer.parameters, **trainer.states, **trainer.optimizer_state}.items()}
    trainer.parameters["2.weight"][...] *= 1e25
    check = treadle.RunOptions()
    check.check_finite = "all"
    with pytest.raises(treadle.Error, match="clip"):
        trainer.step({"x": x[1].numpy()}, labels, check)
    trainer.parameters["2.weight"][...] = before["2.weight"]
    for name, value in {**trainer.parameters, **trainer.states, **trainer.optimizer_state}.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    for each in (trainer, untroubled):
        each.step({"x": x[1].numpy()}, labels)
        assert each.num_updates == 1
    for name, value in {**trainer.parameters, **trainer.states, **trainer.optimizer_state}.items():
        np.testing.assert_array_equal(value, {**untroubled.parameters, **untroubled.states, **untroubled.optimizer_state}[name], err_msg=name)


@pytest.mark.parametrize("weights", [[], [1.0, 2.0, 1.0, 0.5, 1.0]])
def test_a_batch_of_ignored_labels_changes_nothing(weights: list[float]) -> None:
    x = inputs(4, 6)
    trainer = Trainer(exported(network(), x), learning_rate=0.1, ignore_index=2, label_smoothing=0.1, class_weights=weights)
    before = {name: value.copy() for name, value in trainer.parameters.items()}
    assert math.isnan(trainer.step({"x": x.numpy()}, np.full(4, 2)))
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, before[name])


def test_parameters_begin_with_random_values_of_pytorchs_spread() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(8, 300, 3), nn.Flatten(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 100))
    model = exported(module, torch.zeros(1, 8, 3, 3))
    rules = {"0.weight": "kaiming_normal", "2.weight": ("xavier_uniform", 0.5), "4.weight": ("normal", 0.02), "*.bias": "zeros"}
    trainer = Trainer(model, initialize=rules, initialization_seed=3)
    started = {name: array.copy() for name, array in trainer.parameters.items()}
    for name, expected in {"0.weight": math.sqrt(2 / 72), "2.weight": 0.5 * math.sqrt(2 / 500), "4.weight": 0.02}.items():
        assert started[name].std() == pytest.approx(expected, rel=0.03) and abs(started[name].mean()) < 0.1 * expected, name
    assert np.abs(started["2.weight"]).max() <= 0.5 * math.sqrt(6 / 500) and not started["4.bias"].any()
    same, other = (Trainer(model, initialize=rules, initialization_seed=seed).parameters for seed in (3, 4))
    assert all(np.array_equal(same[name], array) for name, array in started.items())
    assert not np.array_equal(other["0.weight"], started["0.weight"])
    kept = Trainer(model, initialize={"0.bias": "ones"}).parameters
    assert (kept["0.bias"] == 1).all() and np.array_equal(kept["2.weight"], module[2].weight.detach().numpy())


def test_a_product_may_read_its_weight_either_way_round() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(400, 90))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.w

    trainer = Trainer(exported(Turned(), torch.zeros(2, 3, 400)), loss="l1", initialize={"w": "kaiming_uniform"})
    assert trainer.parameters["w"].std() == pytest.approx(math.sqrt(2 / 400), rel=0.03)


@pytest.mark.parametrize(("options", "message"), [
    ({"initialize": {"*.wieght": "zeros"}}, "matches no trained parameter; the nearest: 0.weight"),
    ({"initialize": {"*.weight": "kaiming"}}, 'no initializer "kaiming"; the nearest: .*kaiming_normal'),
    ({"initialize": {"*.bias": "xavier_normal"}}, "rank 2 or more"),
    ({"initialization_seed": 2}, "initialization_seed needs initialize or head"),
])
def test_initializers_that_make_no_sense_are_refused(options: dict, message: str) -> None:
    module, x = network(), inputs(7, 6)
    with pytest.raises(Exception, match=message):
        Trainer(exported(module, x), **options)
