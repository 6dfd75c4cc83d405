"""Tests checkpoints: resumed training has the same bits as uninterrupted training. Damaged checkpoints, other models and other settings are
refused."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import treadle  # noqa: E402
from treadle.train import CheckpointFolder, DataLoader, Trainer  # noqa: E402

OPTIMIZERS = {
    "sgd": {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    "adam": {},
    "adamw": {"clip_norm": 1.0},
    "adagrad": {},
    "rmsprop": {"momentum": 0.5},
    "lion": {"learning_rate": 1e-3},
    "lamb": {"groups": [{"parameters": ["bias*"], "weight_decay": 0.0}], "weight_decay": 0.01},
}


def small_model(hidden=5, slope=0.1):
    """Returns a model of Gemm, BatchNormalization, LeakyRelu, Dropout, Gemm: with parameters, running statistics and random numbers."""
    rng = np.random.default_rng(3)
    weights = {
        "weight1": rng.normal(0, 0.5, (4, hidden)),
        "bias1": np.zeros(hidden),
        "scale": np.ones(hidden),
        "shift": np.zeros(hidden),
        "mean": np.zeros(hidden),
        "variance": np.ones(hidden),
        "weight2": rng.normal(0, 0.5, (hidden, 3)),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "weight1", "bias1"], ["h1"]),
        helper.make_node("BatchNormalization", ["h1", "scale", "shift", "mean", "variance"], ["h2"]),
        helper.make_node("LeakyRelu", ["h2"], ["h3"], alpha=slope),
        helper.make_node("Dropout", ["h3", "ratio"], ["h4"]),
        helper.make_node("MatMul", ["h4", "weight2"], ["scores"]),
    ]
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    initializers.append(numpy_helper.from_array(np.float32(0.3), "ratio"))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def make_trainer(optimizer="adamw", model=None, **settings):
    given = {"accumulation_steps": 2, "schedule": {"kind": "cosine", "total_steps": 50, "warmup_steps": 3}, "num_threads": 1}
    return Trainer(model or small_model(), optimizer=optimizer, **{**given, **OPTIMIZERS[optimizer], **settings})


def train(trainer, last, first=0):
    """Runs the steps from `first` to `last` - 1, each with its own batch. Returns the losses."""
    losses = []
    for step in range(first, last):
        rng = np.random.default_rng(step)
        losses.append(trainer.step({"x": rng.normal(size=(6, 4)).astype(np.float32)}, rng.integers(0, 3, 6)))
    return losses


def bits(trainer):
    kept = {"parameter": trainer.parameters, "state": trainer.states, "optimizer": trainer.optimizer_state}
    return {f"{kind}/{name}": array.tobytes() for kind, arrays in kept.items() for name, array in arrays.items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [6, 7], ids=["after an update", "between accumulated steps"])
def test_resumed_training_has_the_same_bits(optimizer, steps, tmp_path):
    straight = make_trainer(optimizer)
    expected = train(straight, 20)
    first = make_trainer(optimizer)
    train(first, steps)
    first.save_checkpoint(tmp_path / "checkpoint", {"epoch": "3", "é": "ü"})
    second = make_trainer(optimizer)
    train(second, 3)  # loading replaces these steps
    assert second.load_checkpoint(tmp_path / "checkpoint") == {"epoch": "3", "é": "ü"}
    assert (second.num_steps, second.num_updates) == (steps, steps // 2)
    assert train(second, 20, steps) == expected[steps:]
    assert bits(second) == bits(straight)
    assert bits(first) != bits(straight)


def test_resumed_training_has_the_same_bits_with_a_fused_update_and_in_another_process(tmp_path):
    settings = {"accumulation_steps": 1, "fused_update": True, "clip_norm": 0.0}
    straight = make_trainer(**settings)
    train(straight, 12)
    first = make_trainer(**settings)
    first.learning_rate = 0.005
    straight_changed = make_trainer(**settings)
    straight_changed.learning_rate = 0.005
    train(straight_changed, 12)
    train(first, 5)
    first.save_checkpoint(tmp_path / "checkpoint")
    code = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_checkpoints import *
trainer = make_trainer(**{settings!r})
trainer.load_checkpoint({str(tmp_path / "checkpoint")!r})
train(trainer, 12, 5)
trainer.save_checkpoint({str(tmp_path / "last")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    first.load_checkpoint(tmp_path / "last")
    assert first.learning_rate == 0.005
    assert bits(first) == bits(straight_changed) != bits(straight)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"optimizer": "adam", "clip_norm": 1.0}, "optimizer is adamw there, adam here"),
        ({"schedule": {"kind": "linear", "total_steps": 50}}, "schedule is cosine there, linear here"),
        ({"clip_norm": 2.0}, "clip_norm is 1 there, 2 here"),
        ({"betas": (0.8, 0.999)}, "beta1 is 0.9 there, 0.8 here"),
        ({"accumulation_steps": 3}, "accumulation_steps is 2 there, 3 here"),
        ({"groups": [{"parameters": ["bias*"]}]}, "group is set here only"),
        ({"frozen": ["bias1"]}, 'it has the parameter "bias1", the trainer has not'),
        ({"model": small_model(hidden=6)}, 'parameter "bias1" is f32[5] there, f32[6] here'),
        ({"model": small_model(slope=0.2)}, "nodes or frozen weights differ"),
        ({"loss": "softmax_cross_entropy", "label_smoothing": 0.1}, "label_smoothing is 0 there, 0.1 here"),
    ],
)
def test_another_trainers_checkpoint_is_refused(change, expected, tmp_path):
    first = make_trainer()
    train(first, 3)
    first.save_checkpoint(tmp_path / "checkpoint")
    other = make_trainer(**change)
    before = bits(other)
    with pytest.raises(treadle.Error) as failure:
        other.load_checkpoint(tmp_path / "checkpoint")
    assert expected in str(failure.value)
    assert bits(other) == before and other.num_steps == 0


def test_settings_of_ones_own_stay(tmp_path):
    first = make_trainer()
    train(first, 4)
    first.save_checkpoint(tmp_path / "checkpoint")
    longer = make_trainer(schedule={"kind": "cosine", "total_steps": 90}, learning_rate=0.003)
    longer.load_checkpoint(tmp_path / "checkpoint", own_settings=True)
    assert longer.learning_rate == 0.003 and longer.num_updates == 2
    assert bits(longer) == bits(first)
    with pytest.raises(treadle.Error, match="optimizer is adamw there, sgd here"):
        make_trainer("sgd").load_checkpoint(tmp_path / "checkpoint", own_settings=True)


def test_every_damaged_byte_is_refused_or_harmless(tmp_path):
    trainer = make_trainer(model=small_model(hidden=2))
    train(trainer, 3)
    path = tmp_path / "checkpoint"
    trainer.save_checkpoint(path, {"epoch": "1"})
    whole = path.read_bytes()
    other = make_trainer(model=small_model(hidden=2))
    before = bits(other)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(treadle.Error) as failure:
            other.load_checkpoint(path)
        assert failure.value.code == "invalid_model"
    for length in range(0, len(whole), 23):
        path.write_bytes(whole[:length])
        with pytest.raises(treadle.Error):
            other.load_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(treadle.Error):
        other.load_checkpoint(path)
    assert bits(other) == before
    path.write_bytes(whole)
    other.load_checkpoint(path)
    assert bits(other) == bits(trainer)


def test_safetensors_own_package_reads_the_tensors(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    numpy_reader = pytest.importorskip("safetensors.numpy")
    trainer = make_trainer("rmsprop")
    train(trainer, 5)
    path = tmp_path / "checkpoint.safetensors"
    trainer.save_checkpoint(path, {"epoch": "1"})
    read = numpy_reader.load_file(path)
    assert {name: array.tobytes() for name, array in read.items()} == bits(trainer)
    assert all(read[f"parameter/{name}"].shape == array.shape for name, array in trainer.parameters.items())
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert metadata["user.epoch"] == "1" and metadata["treadle.num_steps"] == "5"
    assert ["optimizer", "rmsprop"] in json.loads(metadata["treadle.settings"])
    numpy_reader.save_file(read, path, metadata)
    with pytest.raises(treadle.Error, match="no checkpoint|damaged"):  # the file is from another writer, with entries in another order
        trainer.load_checkpoint(path)


def test_a_folder_keeps_the_last_ones_and_resumes_from_the_newest_whole_one(tmp_path):
    folder = tmp_path / "runs" / "1"
    trainer = make_trainer()
    for asynchronous in (False, True):
        checkpoints = CheckpointFolder(folder, keep_last=2, asynchronous=asynchronous)
        for step in range(trainer.num_steps, trainer.num_steps + 5):
            train(trainer, step + 1, step)
            checkpoints.save(trainer, {"step": str(step + 1)})
        checkpoints.wait()
        names = [pathlib.Path(path).name for path in checkpoints.files()]
        assert names == [f"checkpoint-{step:012}.safetensors" for step in (trainer.num_steps - 1, trainer.num_steps)]
    (folder / f"{names[-1]}.tmp-77-0").write_bytes(b"half")
    (folder / "mine.txt").write_text("not a checkpoint")
    checkpoints = CheckpointFolder(folder, keep_last=2)
    assert sorted(path.name for path in folder.iterdir()) == [*names, "mine.txt"]
    other = make_trainer()
    path, metadata = checkpoints.resume(other)
    assert pathlib.Path(path).name == names[-1] and metadata == {"step": "10"} and bits(other) == bits(trainer)
    damaged = bytearray((folder / names[-1]).read_bytes())
    damaged[-1] ^= 1
    (folder / names[-1]).write_bytes(damaged)
    assert checkpoints.resume(other)[1] == {"step": "9"} and other.num_steps == 9
    (folder / names[0]).write_bytes(b"")
    with pytest.raises(treadle.Error, match="none of the 2 checkpoints"):
        checkpoints.resume(other)
    assert CheckpointFolder(tmp_path / "empty").resume(other) is None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(treadle.Error, match="cannot make the folder"):
        CheckpointFolder(tmp_path / "file" / "folder")
    trainer = make_trainer()
    for asynchronous in (False, True):
        folder = tmp_path / f"gone{asynchronous}"
        checkpoints = CheckpointFolder(folder, asynchronous=asynchronous)
        folder.rmdir()
        with pytest.raises(treadle.Error, match="cannot create"):
            checkpoints.save(trainer)
            checkpoints.wait()


def test_a_loader_goes_on_where_the_checkpoint_says(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(50, 4)).astype(np.float32), "label": rng.integers(0, 3, 50)}
    where = {tuple(row): i for i, row in enumerate(arrays["x"])}

    def run(trainer, loader, last=None):
        seen = []
        while loader.epoch < 3:
            for batch in loader:
                seen.append([where[tuple(row)] for row in batch["x"]])
                assert (arrays["label"][seen[-1]] == batch["label"]).all()
                trainer.step({"x": batch["x"]}, batch["label"])
                if len(seen) == last:
                    return seen
        return seen

    straight, loader = make_trainer(), DataLoader(arrays, batch_size=8, seed=4)
    order = run(straight, loader)
    assert len(loader) == 7 and len(order) == 21
    assert all(sorted(sum(order[first : first + 7], [])) == list(range(50)) for first in (0, 7, 14)) and order[0] != order[7]
    for taken in (5, 7, 16):
        trainer, loader = make_trainer(), DataLoader(arrays, batch_size=8, seed=4, prefetch=taken % 3)
        run(trainer, loader, taken)
        trainer.save_checkpoint(tmp_path / "checkpoint", loader.to_metadata())
        trainer, loader = make_trainer(), DataLoader(arrays, batch_size=8, seed=4)
        loader.resume(trainer.load_checkpoint(tmp_path / "checkpoint"))
        assert (loader.epoch, loader.batch) == divmod(taken, 7) or loader.batch == 7
        assert run(trainer, loader) == order[taken:]
        assert bits(trainer) == bits(straight)
    with pytest.raises(treadle.Error, match="data.seed is 4 in the checkpoint, 0 here"):
        DataLoader(arrays, batch_size=8).resume(loader.to_metadata())
    with pytest.raises(treadle.Error, match="has 50 samples"):
        DataLoader({"a": arrays["x"][:3], "b": arrays["label"]})


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    """A limit on file sizes has the effect of a full disk."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_checkpoints import *
trainer = make_trainer()
for asynchronous in (False, True):
    checkpoints = CheckpointFolder({str(tmp_path)!r}, keep_last=1, asynchronous=asynchronous)
    train(trainer, trainer.num_steps + 1, trainer.num_steps)
    checkpoints.save(trainer, {{"step": str(trainer.num_steps)}})
    checkpoints.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    train(trainer, trainer.num_steps + 1, trainer.num_steps)
    try:
        checkpoints.save(trainer)
        checkpoints.wait()
        sys.exit("no error")
    except treadle.Error as error:
        assert "cannot write" in str(error), error
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000000000003.safetensors"], "no half-written file"
    assert CheckpointFolder(tmp_path).resume(make_trainer())[1] == {"step": "3"}


STEPS = 400


def train_until_killed(folder, asynchronous):
    """Runs in a child process: resumes, and saves every few steps."""
    trainer = make_trainer()
    checkpoints = CheckpointFolder(folder, keep_last=2, asynchronous=asynchronous)
    resumed = checkpoints.resume(trainer)
    first = int(resumed[1]["step"]) if resumed else 0
    print("begins", flush=True)
    for step in range(first, STEPS):
        train(trainer, step + 1, step)
        if step % 2 == 0:
            checkpoints.save(trainer, {"step": str(step + 1)})


def test_a_killed_process_always_leaves_a_checkpoint_to_go_on_from(tmp_path):
    """TREADLE_KILLS sets the number of kills; 200 for a full run."""
    kills = int(os.environ.get("TREADLE_KILLS", "10"))
    straight = make_trainer()
    train(straight, STEPS)
    randomness = random.Random(5)
    here = str(pathlib.Path(__file__).parent)
    round_, killed = 0, 0
    while killed < kills:
        folder, round_ = tmp_path / str(round_), round_ + 1
        while killed < kills:
            code = f"import sys; sys.path.insert(0, {here!r}); import test_checkpoints as t; t.train_until_killed({str(folder)!r}, {killed % 2 == 1})"
            child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            assert child.stdout.readline() == b"begins\n", "the last checkpoint loads"
            time.sleep(randomness.uniform(0, 0.12))
            child.send_signal(signal.SIGKILL)
            child.stdout.close()
            finished = child.wait() == 0
            if finished:
                break
            killed += 1
        trainer = make_trainer()
        resumed = CheckpointFolder(folder).resume(trainer)
        first = int(resumed[1]["step"]) if resumed else 0
        assert trainer.num_steps == first
        train(trainer, STEPS, first)
        assert bits(trainer) == bits(straight), f"after {killed} kills"
