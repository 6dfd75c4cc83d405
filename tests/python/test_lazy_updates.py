"""Compares updates that only touch the rows of a table that were read with PyTorch's sparse gradients and with plain loops over rows."""

from __future__ import annotations

import io

import numpy as np
import pytest
import treadle
import treadle.train
from treadle.train import Trainer

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

ROWS, WIDTH, CLASSES = 50, 6, 4


class Bag(nn.Module):
    """A table that two Gathers read with repeated indices, and a small network."""

    def __init__(self, *, sparse: bool = False, gathers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.out = nn.Linear(WIDTH, CLASSES)
        self.gathers = gathers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.table(x)).sum(1)
        if self.gathers == 2:
            h = h + self.table(x[:, 0] + 1)
        return self.out(h)


class Tied(nn.Module):
    """A table that a product reads as well."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).sum(1) @ self.table.weight.T


def exported(module: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(module, (indices(0),), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False,
                      dynamic_axes={"x": {0: "batch"}})
    return file.getvalue()


def indices(step: int, batch: int = 5) -> torch.Tensor:
    """Returns random indices of a few rows, so that they repeat. The table's last rows are never read."""
    return torch.randint(0, 12, (batch, 3), generator=torch.Generator().manual_seed(step)) * 3


def labels_of(step: int, batch: int = 5) -> torch.Tensor:
    return torch.randint(0, CLASSES, (batch,), generator=torch.Generator().manual_seed(100 + step))


def session_of(where: str) -> treadle.SessionOptions:
    session = treadle.SessionOptions()
    if where == "readiness":
        session.execution_mode, session.inter_op_num_threads = treadle.ExecutionMode.ORT_PARALLEL, 2
    elif where == "sim":
        session.add_session_config_entry("treadle.device", "sim")
    elif where == "plain":
        session.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    return session


PYTORCHS = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adam": ({}, lambda p: torch.optim.SparseAdam(p, lr=0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
    "adagrad": ({}, lambda p: torch.optim.Adagrad(p, lr=0.1), lambda p: torch.optim.Adagrad(p, lr=0.1)),
}


@pytest.mark.parametrize("where", ["host", "readiness", "sim", "plain"])
@pytest.mark.parametrize("gathers", [1, 2])
@pytest.mark.parametrize("optimizer", PYTORCHS)
def test_updates_are_those_of_pytorchs_sparse_gradients(optimizer: str, gathers: int, where: str) -> None:
    options, of_rows, of_all = PYTORCHS[optimizer]
    module = Bag(sparse=True, gathers=gathers)
    trainer = Trainer(exported(Bag(gathers=gathers)), optimizer=optimizer, learning_rate=0.1, lazy_updates=["table.*"],
                      sess_options=session_of(where), **options)
    both = [of_rows([module.table.weight]), of_all(module.out.parameters())]
    for step in range(8):
        batch = 2 + step  # the number of rows changes from step to step
        for each in both:
            each.zero_grad()
        loss = nn.CrossEntropyLoss()(module(indices(step, batch)), labels_of(step, batch))
        loss.backward()
        for each in both:
            each.step()
        ours = trainer.step({"x": indices(step, batch).numpy()}, labels_of(step, batch).numpy())
        assert ours == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(trainer.parameters[name], parameter.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


class ByRows:
    """Updates one row at a time, like MXNet's lazy_update: for rows that were not read, state and weight decay do nothing."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table.astype(np.float64)
        self.first, self.second = np.zeros_like(self.table), np.zeros_like(self.table)
        self.count = 0

    def step(self, kind: str, gradient: np.ndarray, rows: np.ndarray) -> None:
        self.count += 1
        for row in np.unique(rows):
            x, g, m, v = self.table[row], gradient[row].astype(np.float64), self.first[row], self.second[row]
            if kind == "sgd":
                g = g + 0.05 * x
                m[:] = 0.9 * m + g
                x -= 0.1 * m
            elif kind == "adamw":
                m[:], v[:] = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                x *= 1 - 0.1 * 0.05
                x -= 0.1 * m / (1 - 0.9**self.count) / (np.sqrt(v / (1 - 0.999**self.count)) + 1e-8)
            elif kind == "rmsprop":
                g = g + 0.05 * x
                v[:] = 0.99 * v + 0.01 * g * g
                m[:] = 0.9 * m + g / (np.sqrt(v) + 1e-8)
                x -= 0.1 * m
            else:
                direction = np.sign(0.9 * m + 0.1 * g)
                m[:] = 0.99 * m + 0.01 * g
                x *= 1 - 0.1 * 0.05
                x -= 0.1 * direction


@pytest.mark.parametrize("kind", ["sgd", "adamw", "rmsprop", "lion"])
def test_state_and_decay_of_rows_that_were_not_read_stay(kind: str) -> None:
    momentum = {"momentum": 0.9} if kind in ("sgd", "rmsprop") else {}
    model = exported(Bag())
    trainer = Trainer(model, optimizer=kind, learning_rate=0.1, weight_decay=0.05, lazy_updates=True, **momentum)
    truth = ByRows(trainer.parameters["table.weight"])
    for step in range(6):
        x, labels = indices(step), labels_of(step)
        module = Bag()  # computes PyTorch's gradient at the trainer's parameters
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in trainer.parameters.items()})
        nn.CrossEntropyLoss()(module(x), labels).backward()
        truth.step(kind, module.table.weight.grad.numpy(), np.concatenate([x.numpy().ravel(), x[:, 0].numpy() + 1]))
        trainer.step({"x": x.numpy()}, labels.numpy())
        np.testing.assert_allclose(trainer.parameters["table.weight"], truth.table, rtol=1e-4, atol=1e-5)
    for name, state in trainer.optimizer_state.items():
        if name.startswith("table.weight/"):
            np.testing.assert_array_equal(state[40:], 0, err_msg=name)


def test_without_state_and_decay_the_bits_are_those_of_the_usual_update() -> None:
    model = exported(Bag(gathers=1))
    for options in ({"optimizer": "sgd"}, {"optimizer": "adagrad"}, {"optimizer": "adagrad", "clip_value": 0.01}):
        usual, lazy = Trainer(model, learning_rate=0.1, **options), Trainer(model, learning_rate=0.1, lazy_updates=["table.weight"], **options)
        for step in range(5):
            feeds = {"x": indices(step).numpy()}
            assert usual.step(feeds, labels_of(step).numpy()) == lazy.step(feeds, labels_of(step).numpy())
        for name, value in usual.parameters.items():
            np.testing.assert_array_equal(value, lazy.parameters[name], err_msg=name)


def test_clipping_groups_averages_and_checkpoints_go_with_lazy_updates(tmp_path) -> None:
    model = exported(Bag())
    options = {"learning_rate": 0.5, "clip_norm": 0.2, "ema_decay": 0.5, "groups": [{"parameters": ["table.*"], "rate_factor": 0.5}]}
    # Without weight decay both trainers give the same results, apart from rounding.
    usual, lazy = Trainer(model, **options), Trainer(model, lazy_updates=True, **options)
    for step in range(5):
        for trainer in (usual, lazy):
            trainer.step({"x": indices(step).numpy()}, labels_of(step).numpy())
    for name in usual.parameters:
        np.testing.assert_allclose(lazy.parameters[name], usual.parameters[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lazy.averages[name], usual.averages[name], rtol=1e-5, atol=1e-6)
    lazy.save_checkpoint(tmp_path / "lazy.safetensors")
    resumed = Trainer(model, lazy_updates=True, **options)
    resumed.load_checkpoint(tmp_path / "lazy.safetensors")
    for trainer in (lazy, resumed):
        trainer.step({"x": indices(9).numpy()}, labels_of(9).numpy())
    for name, value in lazy.parameters.items():
        np.testing.assert_array_equal(value, resumed.parameters[name])
    with pytest.raises(treadle.Error, match="lazy_updates"):
        usual.load_checkpoint(tmp_path / "lazy.safetensors")


# Tests com.microsoft's EmbedLayerNormalization. It contains three Gathers: of words, of positions by their ids, and of segments.
def test_tables_of_an_embedding_normalisation_are_updated_by_rows() -> None:
    onnx = pytest.importorskip("onnx")
    helper, rng = onnx.helper, np.random.default_rng(0)
    shapes = {"words": (50, 8), "places": (20, 8), "segments": (2, 8), "gamma": (8,), "beta": (8,), "head": (8, CLASSES)}
    initializers = [onnx.numpy_helper.from_array(rng.normal(1 if name == "gamma" else 0, 0.3, shape).astype(np.float32), name) for name, shape in shapes.items()]
    nodes = [helper.make_node("EmbedLayerNormalization", ["ids", "segment_ids", "words", "places", "segments", "gamma", "beta", "", "place_ids"], ["h"], domain="com.microsoft"),
             helper.make_node("ReduceMean", ["h"], ["mean"], axes=[1], keepdims=0), helper.make_node("MatMul", ["mean", "head"], ["scores"])]
    ids = [helper.make_tensor_value_info(name, onnx.TensorProto.INT32, ["n", 5]) for name in ("ids", "segment_ids", "place_ids")]
    graph = helper.make_graph(nodes, "g", ids, [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", CLASSES])], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)], ir_version=8).SerializeToString()
    usual, lazy = Trainer(model, learning_rate=0.1), Trainer(model, learning_rate=0.1, lazy_updates=["words", "places", "segments"])
    assert lazy.to_text().count("LazyMomentum") == 3
    for step in range(4):
        feeds = {"ids": rng.integers(0, 50, (3, 5), np.int32), "segment_ids": rng.integers(0, 2, (3, 5), np.int32), "place_ids": rng.integers(0, 20, (3, 5), np.int32)}
        labels = rng.integers(0, CLASSES, 3)
        assert usual.step(feeds, labels) == pytest.approx(lazy.step(feeds, labels), rel=1e-5)
    for name, value in usual.parameters.items():
        np.testing.assert_allclose(lazy.parameters[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_index_that_does_not_exist_changes_nothing() -> None:
    trainer = Trainer(exported(Bag()), optimizer="adam", lazy_updates=True)
    before = {name: value.copy() for name, value in (trainer.parameters | trainer.optimizer_state).items()}
    with pytest.raises(treadle.Error, match=f"{ROWS + 3}.*out of bounds"):
        trainer.step({"x": np.full((5, 3), ROWS + 3)}, labels_of(0).numpy())
    for name, value in (trainer.parameters | trainer.optimizer_state).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_negative_indices_are_counted_from_the_end() -> None:
    usual, lazy = (Trainer(exported(Bag(gathers=1)), learning_rate=0.1, lazy_updates=rows) for rows in (False, True))
    x = np.array([[-1, ROWS - 1, 0], [-ROWS, 3, -1]])
    for trainer in (usual, lazy):
        trainer.step({"x": x}, labels_of(0, 2).numpy())
    np.testing.assert_array_equal(lazy.parameters["table.weight"], usual.parameters["table.weight"])


def test_a_step_holds_rows_and_no_second_table() -> None:
    rows = 200_000
    module = Bag(gathers=1)
    module.table = nn.Embedding(rows, WIDTH * 8)
    module.out = nn.Linear(WIDTH * 8, CLASSES)
    table_bytes = 4 * module.table.weight.numel()
    peaks = {}
    for lazy in (False, True):
        trainer = Trainer(exported(module), optimizer="adam", lazy_updates=lazy)
        trainer.step({"x": indices(0).numpy()}, labels_of(0).numpy())
        peaks[lazy] = trainer.memory().peak_bytes
    assert peaks[False] - peaks[True] > 0.9 * table_bytes


REFUSALS = [
    (Bag, {"lazy_updates": ["tabel.weight"]}, 'names "tabel.weight", which is no trained parameter; the nearest: table.weight'),
    (Bag, {"lazy_updates": ["out.*"]}, 'the gradient of "out.weight" is no matter of single rows: Gemm'),
    (Tied, {"lazy_updates": True}, 'the gradient of "table.weight" is no matter of single rows: .* reads it'),
    (Bag, {"lazy_updates": True, "optimizer": "lamb"}, "optimizer lamb has no use for lazy_updates"),
    (Bag, {"lazy_updates": True, "accumulation_steps": 2}, "lazy_updates does not go with accumulation_steps"),
    (Bag, {"lazy_updates": True, "fused_update": True}, "lazy_updates does not go with fused_update"),
]


@pytest.mark.parametrize("module, options, message", REFUSALS)
def test_what_has_no_rows_is_refused(module: type[nn.Module], options: dict, message: str) -> None:
    with pytest.raises(treadle.Error, match=message):
        Trainer(exported(module()), **options)


def dense(gradient) -> np.ndarray:
    whole = np.zeros(gradient.dense_shape(), np.float32)
    whole[gradient.as_coo_view().indices()] = gradient.values()
    return whole


@pytest.mark.parametrize("gathers", [1, 2])
def test_a_joint_modules_gradients_have_rows(gathers: int) -> None:
    module, x = Bag(sparse=True, gathers=gathers), indices(3)
    scores = module(x)
    scores.backward(torch.ones_like(scores))
    theirs = module.table.weight.grad.coalesce()
    joint = treadle.train.JointModule(exported(Bag(gathers=gathers)), sparse_gradients=["*"])
    gradients = joint.forward({"x": x.numpy()}).backward([np.ones(scores.shape, np.float32)])
    ours = gradients["table.weight"]
    assert ours.storage == "row_sparse"
    np.testing.assert_array_equal(ours.as_coo_view().indices(), theirs.indices()[0].numpy())
    np.testing.assert_allclose(ours.values(), theirs.values().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients["out.weight"], module.out.weight.grad.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(treadle.Error, match='sparse_gradients names "out.bias"'):
        treadle.train.JointModule(exported(Bag()), sparse_gradients=["out.bias"])


@pytest.mark.parametrize("request_", ["write", "add"])
def test_an_executors_gradients_have_rows_that_add_up(request_: str) -> None:
    model = exported(Bag())
    usual, sparse = (treadle.simple_bind(model, request_, grad_storage=storage, x=(5, 3)) for storage in (None, {"table.weight": "row_sparse"}))
    for step in range(3):
        for executor in (usual, sparse):
            executor.forward(is_train=True, x=indices(step).numpy())
            executor.backward()
        gradient = sparse.grad_dict["table.weight"]
        rows = gradient.as_coo_view().indices()
        assert gradient.storage == "row_sparse" and (np.diff(rows) > 0).all() and len(rows) < ROWS
        np.testing.assert_allclose(dense(gradient), usual.grad_dict["table.weight"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(sparse.grad_dict["out.weight"], usual.grad_dict["out.weight"])
    with pytest.raises(ValueError, match="grad_storage"):
        treadle.simple_bind(model, shared_exec=usual, grad_storage={"table.weight": "row_sparse"}, x=(5, 3))
    with pytest.raises(ValueError, match="default, row_sparse"):
        treadle.simple_bind(model, grad_storage={"table.weight": "csr"}, x=(5, 3))
