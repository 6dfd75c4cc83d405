"""Tests replacing the last layer, for another number of classes (`Trainer(head=...)`, `treadle train --head`)."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import treadle
from treadle.train import Trainer

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper, parser  # noqa: E402

RNG = np.random.default_rng(2)


def model(nodes: str, inputs: str, output: str, **initializers: np.ndarray):
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> agraph ({inputs}) => (float[{output}] y) {{ {nodes} }}')
    for name, value in initializers.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32) if value.dtype.kind == "f" else value, name))
    return proto


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


HEADS = {
    "gemm": ("h = Relu(x) y = Gemm <transB = 1> (h, w, b)", {"w": normal(7, 6), "b": normal(7)}, {"w": (3, 6), "b": (3,)}, 6),
    "gemm, not transposed": ("h = Relu(x) s = Gemm(h, w) y = Softmax(s)", {"w": normal(6, 7)}, {"w": (6, 3)}, 6),
    "matmul and add": ("h = Relu(x) m = MatMul(h, w) a = Add(b, m) y = LogSoftmax <axis = 1> (a)", {"w": normal(6, 7), "b": normal(7)}, {"w": (6, 3), "b": (3,)}, 6),
    "transposed weights": ("t = Transpose <perm = [1, 0]> (w) y = MatMul(x, t)", {"w": normal(7, 6)}, {"w": (3, 6)}, 6),
}


@pytest.mark.parametrize("name", HEADS)
def test_products_get_a_new_head(name: str, tmp_path) -> None:
    nodes, initializers, shapes, features = HEADS[name]
    proto = model(nodes, f"float[n, {features}] x", "n, 7", **initializers)
    loss = "negative_log_likelihood" if "LogSoftmax" in nodes else "softmax_cross_entropy"
    trainer = Trainer(proto, head=3, loss=loss, learning_rate=0.3)
    for parameter, shape in shapes.items():
        value = np.array(trainer.parameters[parameter])
        assert value.shape == shape
        assert np.abs(value).max() <= 1 / np.sqrt(features) and value.std() > 0.1 / np.sqrt(features)
    x, labels = normal(30, features), RNG.integers(0, 3, 30)
    x[np.arange(30), labels] += 4
    losses = [trainer.step({"x": x}, labels) for _ in range(150)]
    assert losses[-1] < 0.7 * losses[0]
    trainer.save(str(tmp_path / "new.onnx"))
    saved = onnx.load(str(tmp_path / "new.onnx"))
    onnx.checker.check_model(saved, full_check=True)
    (output,) = treadle.InferenceSession(str(tmp_path / "new.onnx")).get_outputs()
    assert output.shape[1] == 3
    np.testing.assert_allclose(treadle.InferenceSession(str(tmp_path / "new.onnx")).run(None, {"x": x})[0], trainer.predict({"x": x})[0], rtol=1e-4, atol=1e-5)


def test_a_convolution_before_a_pool_gets_new_filters(tmp_path) -> None:
    proto = model("h = Conv(x, w, b) r = Relu(h) p = GlobalAveragePool(r) y = Reshape(p, s)", "float[n, 4, 5, 5] x", "n, 7", w=normal(7, 4, 1, 1), b=normal(7), s=np.array([-1, 7]))
    trainer = Trainer(proto, head=2)
    assert np.array(trainer.parameters["w"]).shape == (2, 4, 1, 1)
    assert np.isfinite(trainer.step({"x": normal(3, 4, 5, 5)}, np.array([0, 1, 1])))
    assert trainer.predict({"x": normal(3, 4, 5, 5)})[0].shape == (3, 2)


def test_the_seed_decides_the_new_numbers() -> None:
    proto = model(HEADS["gemm"][0], "float[n, 6] x", "n, 7", **HEADS["gemm"][1])
    first, again, other = (np.array(Trainer(proto, head=3, initialization_seed=seed).parameters["w"]) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_what_no_new_head_fits_is_refused() -> None:
    gemm, weights = HEADS["gemm"][0], HEADS["gemm"][1]
    cases = [
        (model(gemm, "float[n, 6] x", "n, 7", **weights), {"head": -1}, 'the option head: "-1" is given, a whole number from 0 on'),
        (model(gemm, "float[n, 6] x", "n, 7", **weights), {"head": 3, "frozen": ["w"]}, '"w" is new'),
        (model(gemm, "float[n, 6] x", "n, 7", **weights), {"head": 3, "parameters": ["w"]}, '"b" is new'),
        (model("m = MatMul(x, w) y = Mul(m, x)", "float[n, 7] x", "n, 7", w=normal(7, 7)), {"head": 3}, "Mul node.*stands between"),
        (model("y = Relu(x)", "float[n, 7] x", "n, 7"), {"head": 3}, "no layer of constant weights"),
        (model("a = MatMul(x, w) y = MatMul(a, w)", "float[n, 7] x", "n, 7", w=normal(7, 7)), {"head": 3}, "2 readers"),
        (model("m = MatMul(x, w) y = Mul(m, s)", "float[n, 6] x", "n, 7", w=normal(6, 7), s=normal(7)), {"head": 3}, "does not fit 3 classes in place of 7"),
    ]
    for proto, options, message in cases:
        with pytest.raises(treadle.Error, match=f"(?s){message}"):
            Trainer(proto, **options)


def test_adapters_and_a_new_head() -> None:
    proto = model("h = MatMul(x, v) r = Relu(h) y = Gemm(r, w, b)", "float[n, 6] x", "n, 7", v=normal(6, 6), w=normal(6, 7), b=normal(7))
    trainer = Trainer(proto, head=3, lora={"rank": 2, "targets": ["v"]}, parameters=["w", "b"])
    assert {"w", "b"} < set(trainer.parameters)
    assert np.isfinite(trainer.step({"x": normal(4, 6)}, np.array([0, 1, 2, 0])))
    with pytest.raises(treadle.Error, match="would not be trained"):
        Trainer(proto, head=3, lora={"rank": 2, "targets": ["v"]})


def test_the_command_line_replaces_the_head(program: str, tmp_path) -> None:
    onnx.save(model(HEADS["gemm"][0], "float[n, 6] x", "n, 7", **HEADS["gemm"][1]), str(tmp_path / "old.onnx"))
    labels = RNG.integers(0, 3, 60)
    x = normal(60, 6)
    x[np.arange(60), labels] += 4
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    done = subprocess.run([program, "train", "old.onnx", "--data", "data.npz", "--labels", "labels", "--head", "3", "--epochs", "30", "--learning-rate", "0.1", "-o", "new.onnx"],
                          cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (y,) = treadle.InferenceSession(str(tmp_path / "new.onnx")).run(None, {"x": x})
    assert y.shape == (60, 3) and (y.argmax(1) == labels).mean() > 0.8
