"""Training on features in CSR, compared with PyTorch on the same features as dense tensors."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import treadle
from treadle.train import JointModule, Trainer

FEATURES, HIDDEN, CLASSES = 40, 5, 3


class Wide(nn.Module):
    """A network with a product with the weight on the right, [features, hidden], and a layer with the weight [classes, features]."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = nn.Parameter(torch.randn(FEATURES, HIDDEN, generator=generator))
        self.wide, self.deep = nn.Linear(FEATURES, CLASSES), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(x) + self.deep(torch.tanh(x @ self.table))


def exported(module: nn.Module) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(2, FEATURES),), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False,
                          dynamic_axes={"x": {0: "N"}, "y": {0: "N"}}, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
    return file.getvalue()


def features(step: int, batch: int = 6) -> np.ndarray:
    """Returns sparse features with few elements, empty columns and an empty row."""
    rng = np.random.default_rng(step)
    dense = np.where(rng.random((batch, FEATURES)) < 0.1, rng.standard_normal((batch, FEATURES)), 0).astype(np.float32)
    dense[step % batch] = 0
    return dense


def csr(dense: np.ndarray) -> treadle.SparseTensor:
    rows, columns = np.nonzero(dense)
    offsets = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int64)
    return treadle.SparseTensor.sparse_csr_from_numpy(np.array(dense.shape), dense[rows, columns], columns.astype(np.int64), offsets)


def stored(**options: Any) -> treadle.SessionOptions:
    session = treadle.SessionOptions()
    session.add_session_config_entry("treadle.storage", "x=csr")
    for name, value in options.items():
        setattr(session, name, value)
    return session


def gradients_of(module: nn.Module, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    module.zero_grad()
    y = module(torch.from_numpy(x))
    y.square().sum().backward()
    return 2 * y.detach().numpy(), {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(("device", "threads"), [("", 1), ("", 2), ("sim", 1)])
@pytest.mark.parametrize("by_rows", [False, True])
def test_gradients_of_a_joint_module_are_pytorchs(by_rows: bool, device: str, threads: int) -> None:
    module = Wide()
    joint = JointModule(exported(module), sess_options=stored(verify_plans=True), num_threads=threads, device=device, sparse_gradients=["table"] if by_rows else [])
    for step in range(4):
        x = features(step, batch=step + 1)
        dy, expected = gradients_of(module, x)
        run = joint.forward({"x": csr(x)})
        np.testing.assert_allclose(run.outputs[0], dy / 2, rtol=1e-4, atol=1e-5)
        found = run.backward([dy])
        if by_rows:
            rows = found["table"]
            columns = np.flatnonzero(x.any(axis=0))
            np.testing.assert_array_equal(rows.as_coo_view().indices(), columns)
            np.testing.assert_allclose(rows.values(), expected["table"][columns], rtol=1e-4, atol=1e-5)
            del found["table"], expected["table"]
        for name, gradient in expected.items():
            np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("lazy", [[], ["table"]])
@pytest.mark.parametrize("where", ["host", "by readiness", "limit"])
def test_a_trainer_makes_pytorchs_steps(where: str, lazy: list[str]) -> None:
    module = Wide()
    options: dict[str, Any] = {"by readiness": {"execution_mode": treadle.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 2}}.get(where, {})
    limit = {"memory_limit_bytes": 1 << 20} if where == "limit" else {}
    trainer = Trainer(exported(module), loss="mean_squared_error", optimizer="sgd", learning_rate=0.1, lazy_updates=lazy, sess_options=stored(**options), **limit)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(4):
        x, wanted = features(step), np.random.default_rng(100 + step).standard_normal((6, CLASSES)).astype(np.float32)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(torch.from_numpy(x)), torch.from_numpy(wanted))
        loss.backward()
        optimizer.step()
        assert trainer.step({"x": csr(x)}, wanted) == pytest.approx(loss.item(), rel=1e-4)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trainer.parameters[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    with torch.no_grad():
        expected = module(torch.from_numpy(features(9))).numpy()
    np.testing.assert_allclose(trainer.predict({"x": csr(features(9))})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("request_", ["write", "add"])
def test_an_executors_argument_stays_sparse_in_training(request_: str, caplog: pytest.LogCaptureFixture) -> None:
    module = Wide()
    requests = {name: request_ for name, _ in module.named_parameters()} | {"x": "null"}
    executor = treadle.simple_bind(exported(module), requests, storage={"x": "csr"}, grad_storage={"table": "row_sparse"}, x=(6, FEATURES))
    total: dict[str, np.ndarray] = {}
    for step in range(3):
        x = features(step)
        dy, expected = gradients_of(module, x)
        for name, gradient in expected.items():
            total[name] = gradient + (total[name] if request_ == "add" and step > 0 else 0)
        executor.forward(is_train=True, x=x)
        executor.backward([dy])
    assert not caplog.records
    rows = executor.grad_dict["table"]
    dense = np.zeros((FEATURES, HIDDEN), np.float32)
    dense[rows.as_coo_view().indices()] = rows.values()
    np.testing.assert_allclose(dense, total["table"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(executor.grad_dict["wide.weight"], total["wide.weight"], rtol=1e-4, atol=1e-5)


def test_a_step_holds_no_dense_features() -> None:
    features_, batch = 200_000, 32
    table = nn.Module()
    table.weight = nn.Parameter(torch.zeros(features_, 4))
    table.forward = lambda x: x @ table.weight  # type: ignore[method-assign]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(table, (torch.zeros(batch, features_),), file, opset_version=17, input_names=["x"], dynamo=False)
    x = treadle.SparseTensor.sparse_csr_from_numpy(np.array([batch, features_]), np.ones(batch, np.float32), np.arange(batch) * 7, np.arange(batch + 1))
    joint = JointModule(file.getvalue(), sess_options=stored(), sparse_gradients=["*"])
    (gradient,) = joint.forward({"x": x}).backward([np.ones((batch, 4), np.float32)]).values()
    np.testing.assert_array_equal(gradient.as_coo_view().indices(), np.arange(batch) * 7)
    assert joint.memory().peak_bytes < 4 * features_ * batch / 4


@pytest.mark.parametrize(
    ("storage", "options", "named"),
    [
        ("q=csr", {}, 'names "q", which is no input'),
        ("table=csr", {}, 'names the parameter "table": those are dense in training'),
        ("x=csr", {"inputs": ["x"]}, '"x" is in CSR, which has no gradient'),
        ("x=csr", {"sparse_gradients": ["wide.weight"]}, "no matter of single rows"),
    ],
)
def test_what_cannot_be_is_refused(storage: str, options: dict[str, Any], named: str) -> None:
    session = treadle.SessionOptions()
    session.add_session_config_entry("treadle.storage", storage)
    with pytest.raises(treadle.Error, match=named):
        JointModule(exported(Wide()), sess_options=session, **options)


def test_a_matrix_of_another_width_is_an_error() -> None:
    joint = JointModule(exported(Wide()), sess_options=stored())
    with pytest.raises(treadle.Error, match="x"):
        joint.forward({"x": csr(np.eye(FEATURES + 1, dtype=np.float32))})
