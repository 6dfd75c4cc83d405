"""Tests artifacts: onnx can read their graphs, and training continues with the same bits, from Python and from the command line."""

import re
import subprocess

import numpy as np
import pytest

import treadle
from conftest import REPOSITORY
from treadle.train import CheckpointFolder, Trainer, generate_artifacts

DIGITS = REPOSITORY / "examples" / "digits" / "digits.onnx"
OPTIONS = {"optimizer": "adamw", "learning_rate": 1e-3, "schedule": {"kind": "cosine", "total_steps": 30}, "ema_decay": 0.9}


def batches(count, seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        labels = generator.integers(0, 10, 32)
        yield {"image": generator.random((32, 1, 8, 8), np.float32) + labels[:, None, None, None].astype(np.float32) / 10}, labels


def test_training_goes_on_with_the_same_bits(tmp_path):
    written = Trainer(DIGITS, **OPTIONS)
    for feeds, labels in batches(3):
        written.step(feeds, labels)
    written.write_artifacts(tmp_path / "artifacts")
    opened = Trainer.open_artifacts(tmp_path / "artifacts")
    assert opened.num_steps == 3
    for feeds, labels in batches(20, seed=1):
        assert opened.step(feeds, labels) == written.step(feeds, labels)
    with written.averaged(), opened.averaged():
        for feeds, labels in batches(2, seed=2):
            assert opened.evaluate(feeds, labels) == written.evaluate(feeds, labels)
            np.testing.assert_array_equal(opened.predict(feeds)[0], written.predict(feeds)[0])
    assert opened.to_bytes() == written.to_bytes()


def test_a_checkpoint_of_one_is_the_others(tmp_path):
    generate_artifacts(DIGITS, tmp_path / "artifacts", **OPTIONS)
    opened, whole = Trainer.open_artifacts(tmp_path / "artifacts"), Trainer(DIGITS, **OPTIONS)
    opened.fit(list(batches(5)), epochs=2)
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    checkpoints.save(opened)
    assert checkpoints.resume(whole)
    again = Trainer.open_artifacts(tmp_path / "artifacts")
    assert checkpoints.resume(again)
    for feeds, labels in batches(5, seed=3):
        assert opened.step(feeds, labels) == whole.step(feeds, labels) == again.step(feeds, labels)


def test_the_files_are_models_with_their_operators_declared(tmp_path):
    onnx = pytest.importorskip("onnx")
    generate_artifacts(DIGITS, tmp_path, accumulation_steps=2)
    listed = set()
    for line in (tmp_path / "required_operators.config").read_text().splitlines():
        if not line.startswith(("#", "!")):
            domain, _, names = line.split(";")
            listed |= {(domain, name) for name in names.split(",")}
    for name in ["training_model.onnx", "optimizer_model.onnx", "eval_model.onnx"]:
        model = onnx.load(tmp_path / name)
        assert not model.functions
        domains = {entry.domain for entry in model.opset_import}
        for node in model.graph.node:
            assert node.domain in domains
            assert (node.domain or "ai.onnx", node.op_type) in listed
    inputs = {value.name for value in onnx.load(tmp_path / "training_model.onnx").graph.input}
    whole = Trainer(DIGITS, accumulation_steps=2)
    assert set(whole.parameters) | {"image", "treadle.labels"} <= inputs
    onnx.checker.check_model(tmp_path / "inference_model.onnx")


def test_frozen_weights_are_written_once(tmp_path, ort):
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(0)
    weights = {"w1": rng.normal(size=(256, 1024)) / 16, "w2": rng.normal(size=(1024, 16)) / 32}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w1"], ["h"]), onnx.helper.make_node("Relu", ["h"], ["r"]), onnx.helper.make_node("MatMul", ["r", "w2"], ["y"])]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(nodes, "g", [value("x", 1, ["n", 256])], [value("y", 1, ["n", 16])],
                                   [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    options = {"lora": {"rank": 2}, "loss": "softmax_cross_entropy", "learning_rate": 0.1}
    feeds, labels = {"x": rng.normal(size=(8, 256)).astype(np.float32)}, rng.integers(0, 16, 8)

    def check(folder):
        files = list(folder.iterdir())
        assert len([file for file in files if file.name.startswith("frozen_weights-")]) == 1
        total = sum(file.stat().st_size for file in files)
        assert total < 1.2 * sum(array.size * 4 for array in weights.values()), {file.name: file.stat().st_size for file in files}
        onnx.checker.check_model(folder / "inference_model.onnx")
        inference = ort.InferenceSession(folder / "inference_model.onnx").run(None, feeds)[0]
        np.testing.assert_allclose(inference, np.maximum(feeds["x"] @ weights["w1"], 0) @ weights["w2"], rtol=1e-4, atol=1e-4)
        return Trainer.open_artifacts(folder)

    folder = tmp_path / "artifacts"
    generate_artifacts(model, folder, **options)
    whole, opened = Trainer(model, **options), check(folder)
    for _ in range(3):
        assert opened.step(feeds, labels) == whole.step(feeds, labels)
    opened.write_artifacts(folder)  # overwrites the files from which it reads weights
    again = check(folder)
    for _ in range(3):
        assert opened.step(feeds, labels) == again.step(feeds, labels)
    next(folder.glob("frozen_weights-*")).unlink()
    with pytest.raises(treadle.Error, match="frozen_weights-"):
        Trainer.open_artifacts(folder)


def test_what_does_not_belong_together_is_refused(tmp_path):
    with pytest.raises(treadle.Error, match="there is no such folder"):
        Trainer.open_artifacts(tmp_path / "absent")
    generate_artifacts(DIGITS, tmp_path / "one", momentum=0.9)
    generate_artifacts(DIGITS, tmp_path / "other")
    (tmp_path / "one" / "eval_model.onnx").write_bytes((tmp_path / "other" / "eval_model.onnx").read_bytes())
    with pytest.raises(treadle.Error, match="of other artifacts than"):
        Trainer.open_artifacts(tmp_path / "one")
    options = treadle.SessionOptions()
    options.precision = "bfloat16"
    with pytest.raises(treadle.Error, match="training from artifacts has no precision"):
        Trainer.open_artifacts(tmp_path / "other", options)
    feeds, labels = next(batches(1))
    with pytest.raises(treadle.Error, match="training from artifacts has no gradients"):
        Trainer.open_artifacts(tmp_path / "other").gradients(feeds, labels)


def test_the_command_line_writes_them_and_trains_from_them(program, tmp_path):
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 10, 200)
    np.savez(tmp_path / "data.npz", image=generator.random((200, 1, 8, 8), np.float32), labels=labels)

    def run(*arguments, status=0):
        made = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == status, made.stderr
        return made.stdout + made.stderr

    rates = ["--learning-rate", "0.01", "--momentum", "0.9"]
    text = run("artifacts", DIGITS, *rates, "-o", "artifacts")
    assert re.search(r"KB  artifacts/training_model.onnx", text)
    common = ["--data", "data.npz", "--epochs", "2", "--validation", "0.2"]
    run("train", "artifacts", *common, "-o", "small.onnx")
    run("train", DIGITS, *common, *rates, "-o", "whole.onnx")
    assert (tmp_path / "small.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert "--momentum is for `treadle artifacts`" in run("train", "artifacts", *common, "--momentum", "0.9", "-o", "x.onnx", status=1)
