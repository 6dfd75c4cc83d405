"""Tests the repr() of objects, and the advice in errors of wrong calls."""

import importlib
import re

import numpy as np
import pytest

import small_models as small
import treadle
from conftest import REPOSITORY
from treadle.backend import TreadleBackend  # this class has only class methods, so there are no objects of it

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture(scope="module")
def session():
    return treadle.InferenceSession(small.affine())


def test_a_session_shows_its_inputs_and_outputs(session):
    text = repr(session)
    assert text.startswith("InferenceSession(") and "x tensor(float) ['N', 3]" in text and "y tensor(float)" in text


def test_options_show_what_was_set():
    options = treadle.SessionOptions()
    assert repr(options) == "SessionOptions()"
    options.intra_op_num_threads = 3
    assert repr(options) == "SessionOptions(intra_op_num_threads=3)"


def test_every_class_has_a_repr(session):
    def check(namespace, within):
        for name, value in namespace.items():
            if isinstance(value, type) and value.__module__.startswith("treadle") and not name.startswith("_") and value is not TreadleBackend:
                assert value.__repr__ is not object.__repr__, f"{within}.{name}"
                check(vars(value), f"{within}.{name}")

    for name in ("backend", "data", "engine", "executor", "explaining", "hooks", "memory", "mxnet", "onnxruntime", "profiling", "quantization", "session", "train"):
        check(vars(importlib.import_module(f"treadle.{name}")), name)
    check(vars(treadle), "treadle")
    with treadle.profile(session) as profile:
        session.run(None, {"x": X})
    value = treadle.OrtValue.ortvalue_from_numpy(X)
    for instance in (value, treadle.RunOptions(), session.io_binding(), session.memory(), profile, session.get_modelmeta(), treadle.CancelToken()):
        assert not re.search(r" at 0x[0-9a-f]+>", repr(instance)), type(instance).__name__


def test_a_binding_shows_its_outputs(session):
    binding = session.io_binding()
    binding.bind_output("y")
    assert binding.output_names == ["y"]
    assert repr(binding) == "IOBinding(output_names=['y'])"


def test_values_without_names_are_told_the_names(session):
    for call in (session.run, session.run_with_ort_values):
        with pytest.raises(TypeError, match=re.escape('session.run(None, {"x": ...})')):
            call(None, [X])
    with pytest.raises(TypeError, match=re.escape('write ["y"]')):
        session.run("y", {"x": X})


def test_a_wrong_dtype_is_told_the_conversion(session):
    with pytest.raises(treadle.errors.InvalidArgument, match=re.escape('write "x": array.astype(np.float32)')):
        session.run(None, {"x": X.astype(np.float64)})
    with pytest.raises(treadle.errors.InvalidArgument) as error:  # an error of another kind must not mention a conversion
        session.run(None, {"x": X[0]})
    assert "astype" not in str(error.value)


def test_training_is_told_names_and_conversions():
    from treadle.train import JointModule, Trainer

    model = REPOSITORY / "examples" / "train" / "spirals.onnx"
    trainer, module = Trainer(model), JointModule(model)
    point, labels = np.zeros((2, 2), np.float32), np.array([0, 1])
    for call in (lambda feeds: trainer.step(feeds, labels), trainer.predict, module.forward):
        with pytest.raises(TypeError, match=re.escape("values go by the inputs' names: {\"point\": ...}")):
            call([point])
        with pytest.raises(treadle.errors.InvalidArgument, match=re.escape('write "point": array.astype(np.float32)')):
            call({"point": point.astype(np.float64)})
    with pytest.raises(treadle.errors.InvalidArgument, match=re.escape("write labels.astype(np.int64)")):
        trainer.step({"point": point}, labels.astype(np.float32))
    assert trainer.num_steps == 0


def test_trainers_and_loaders_say_where_they_are(tmp_path):
    from treadle.train import CheckpointFolder, DataLoader, JointModule, Trainer

    trainer = Trainer(REPOSITORY / "examples" / "train" / "spirals.onnx", learning_rate=0.25)
    trainer.step({"point": np.zeros((2, 2), np.float32)}, np.array([0, 1]))
    assert re.fullmatch(r"Trainer\(outputs=\['\w+'\], learning_rate=0.25, num_steps=1\)", repr(trainer))
    assert repr(DataLoader({"x": np.zeros((10, 1))}, batch_size=3)) == "DataLoader(batches=4, epoch=0, batch=0)"
    assert repr(CheckpointFolder(tmp_path)) == "CheckpointFolder([])"
    assert repr(JointModule(REPOSITORY / "examples" / "train" / "spirals.onnx")).startswith("JointModule(outputs=[")
