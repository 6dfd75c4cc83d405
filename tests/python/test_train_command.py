"""`treadle train`: other runtimes run its models, resumed training has the same bits, and wrong data are errors."""

import importlib.util
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import time
from xml.etree import ElementTree

import numpy as np
import pytest
import treadle

onnx = pytest.importorskip("onnx")
datasets = pytest.importorskip("sklearn.datasets")

from conftest import REPOSITORY  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from treadle.train import CheckpointFolder, Trainer  # noqa: E402

SETTINGS = ["--batch-size", "64", "--learning-rate", "0.05", "--momentum", "0.9", "--weight-decay", "5e-4", "--schedule", "cosine"]
CSV = ["--labels", "target", "--scale", "0.0625"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a folder with the untrained digits network, and scikit-learn's digits in every format."""
    spec = importlib.util.spec_from_file_location("train_digits", REPOSITORY / "scripts" / "train_digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("digits")
    onnx.save(module.build_model(), path / "cnn.onnx")
    digits = datasets.load_digits()
    header = [f"pixel_{i}" for i in range(64)]
    rows = [[*(f"{value:g}" for value in row), str(label)] for row, label in zip(digits.data, digits.target)]
    (path / "digits.csv").write_text("\n".join(",".join(row) for row in [[*header, "target"], *rows]) + "\n")
    np.savez(path / "digits.npz", image=digits.images[:, None].astype(np.uint8), labels=digits.target)
    np.savez_compressed(path / "packed.npz", image=digits.images[:, None].astype(np.uint8), labels=digits.target)
    np.save(path / "images.npy", digits.data)
    np.save(path / "targets.npy", digits.target.astype(np.int32))
    return path


@pytest.fixture
def train(program, folder):
    def run(*arguments, model="cnn.onnx", ok=True):
        made = subprocess.run([program, "train", model, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
        assert not ok or made.returncode == 0, made.stderr + made.stdout
        return made

    return run


def initializers(path):
    return {i.name: numpy_helper.to_array(i).tobytes() for i in onnx.load(path).graph.initializer}


def without_times(text):
    return [re.sub(r"\d+\.\d s", "", line) for line in text.splitlines()]


def test_some_steps_are_profiled(train, folder, tmp_path):
    page, trace, short = tmp_path / "p.html", tmp_path / "p.json.gz", tmp_path / "short.json"
    arguments = ["--data", "digits.csv", *CSV, "--validation", 0.2, *SETTINGS, "--epochs", 1, "-o", tmp_path / "out.onnx"]
    made = train(*arguments, "--profile", trace, "--profile-steps", 7)
    assert f"{trace} has a profile of steps 6 to 12" in made.stdout
    p = treadle.Profile.load(trace)
    assert p.data["runs"]["recorded"] == 7
    assert [phase["phase"] for phase in p.data["phases"]] == ["forward", "backward", "optimizer"]
    held = {name for name, kind, _ in p.memory().measured.holders if kind == "parameters"}
    assert held and held - {None} <= set(initializers(folder / "cnn.onnx"))
    train(*arguments, "--profile", page)
    assert "Training step" in page.read_text()
    # With fewer steps than asked for, the profile covers all steps, or a message says that there are none.
    few = [160 if argument == "64" else argument for argument in arguments]  # the file then has 1,438 samples
    assert "steps 6 to 9" in train(*few, "--profile", short).stdout
    fewer = [500 if argument == "64" else argument for argument in arguments]
    assert "was not written" in train(*fewer, "--profile", tmp_path / "none.json").stdout
    assert not (tmp_path / "none.json").exists()
    assert ".pftrace" in train(*arguments, "--profile", "p.pdf", ok=False).stderr
    assert train(*arguments, "--profile-steps", 3, ok=False).returncode != 0


def test_the_digits_network_reaches_985_and_runs_in_onnxruntime_as_the_trainer_predicts(train, folder, ort, tmp_path):
    out = tmp_path / "digits.onnx"
    run = train("--data", "digits.csv", *CSV, "--validation", 0.2, "--epochs", 20, *SETTINGS, "--checkpoint", tmp_path / "runs", "-o", out)
    accuracy = float(re.search(r"accuracy (\S+)\n$", run.stdout).group(1))
    assert accuracy >= 0.985, run.stdout
    assert len(run.stdout.splitlines()) == 22 and "\r" not in run.stdout
    model = onnx.load(out)
    onnx.checker.check_model(model)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert float(metadata["validation_accuracy"]) == accuracy
    assert all(node.op_type != "BatchNormalization" or not any(a.name == "training_mode" for a in node.attribute) for node in model.graph.node)

    trainer = Trainer(folder / "cnn.onnx", learning_rate=0.05, momentum=0.9, weight_decay=5e-4, schedule={"kind": "cosine", "total_steps": 460})
    CheckpointFolder(tmp_path / "runs").resume(trainer)
    images = (datasets.load_digits().images / 16).astype(np.float32)[:, None]
    expected = trainer.predict({"image": images})[0]
    scores = ort.InferenceSession(out, providers=["CPUExecutionProvider"]).run(None, {"image": images})[0]
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    assert np.mean(scores.argmax(1) == datasets.load_digits().target) > 0.99


def test_every_format_trains_the_same(train, folder, tmp_path):
    tensors = pytest.importorskip("safetensors.numpy")
    digits = datasets.load_digits()
    tensors.save_file({"image": digits.data.astype(np.float16), "labels": digits.target.astype(np.uint8)}, folder / "digits.safetensors")
    common = ["--scale", 0.0625, "--epochs", 1, *SETTINGS]
    results = []
    for i, data in enumerate(
        [
            ["--data", "digits.csv", "--labels", "target"],
            ["--data", "digits.csv", "--labels", "target", "--features", "pixel_*", "--prefetch", 0],
            ["--data", "digits.npz"],
            ["--data", "packed.npz", "--labels", "labels"],
            ["--data", "image=images.npy", "--labels", "targets.npy"],
            ["--data", "digits.safetensors", "--prefetch", 5],
        ]
    ):
        train(*data, *common, "-o", tmp_path / f"{i}.onnx")
        results.append(initializers(tmp_path / f"{i}.onnx"))
    assert all(result == results[0] for result in results[1:])
    train("--data", "digits.csv", "--labels", "target", *common, "--seed", 1, "-o", tmp_path / "other.onnx")
    assert initializers(tmp_path / "other.onnx") != results[0]


def test_adapters_are_trained_merged_and_written(train, folder, tmp_path):
    tensors = pytest.importorskip("safetensors.numpy")
    common = ["--data", "digits.csv", *CSV, "--epochs", 2, "--optimizer", "adamw", "--lora-rank", 2, "--lora-targets", "head.*,block2.conv.weight", "--option", "precision=bfloat16"]
    train(*common, "--adapters", tmp_path / "a.safetensors", "-o", tmp_path / "merged.onnx")
    before, after = initializers(folder / "cnn.onnx"), initializers(tmp_path / "merged.onnx")
    assert before.keys() == after.keys()
    statistics = {name for name in before if name.endswith((".mean", ".var"))}
    assert {name for name in before if before[name] != after[name]} == {"head.weight", "block2.conv.weight"} | statistics
    adapters = tensors.load_file(tmp_path / "a.safetensors")
    assert {name: array.shape[1 if "_B" in name else 0] for name, array in adapters.items()} == {
        f"{layer}.lora_{part}.weight": 2 for layer in ("head", "block2.conv") for part in "AB"}
    made = train("--data", "digits.csv", *CSV, "--adapters", tmp_path / "b.safetensors", "-o", tmp_path / "b.onnx", ok=False)
    assert made.returncode != 0 and "--lora-rank" in made.stderr


def test_what_is_resumed_has_the_same_bits(train, program, folder, tmp_path):
    arguments = ["--data", "digits.csv", *CSV, "--validation", "0.1", "--epochs", "20", "--optimizer", "adamw", "--schedule", "linear"]
    straight = train(*arguments, "-o", tmp_path / "straight.onnx")
    log = tmp_path / "log.jsonl"
    command = [program, "train", "cnn.onnx", *arguments, "-o", tmp_path / "out.onnx", "--checkpoint", tmp_path / "runs"]
    command += ["--checkpoint-steps", "7", "--resume", "--log", log]
    statuses = []
    for how in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM, None):
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline() for _ in range(4)]
        if how:
            process.send_signal(how)
        rest = process.stdout.read()
        statuses.append(process.wait())
        if statuses[-1] == 130:
            assert "checkpoint" in rest and "--resume goes on" in rest
    assert statuses == [130, -signal.SIGKILL, 130, 0]
    assert initializers(tmp_path / "out.onnx") == initializers(tmp_path / "straight.onnx")
    last = without_times(straight.stdout)[-2]
    assert last in without_times("".join(lines) + rest), "the epoch's loss counts the steps before the interruption as well"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["event"] for event in events].count("start") == 4
    assert [event["event"] for event in events].count("interrupted") == 2
    assert events[-1]["event"] == "end" and events[-1]["step"] == 20 * 51
    epochs = {event["epoch"]: event for event in events if event["event"] == "epoch"}
    assert sorted(epochs) == list(range(1, 21)) and {"loss", "validation_loss", "validation_accuracy", "learning_rate"} <= set(epochs[20])


def test_the_average_of_the_parameters_is_validated_and_saved(train, folder, ort, tmp_path):
    arguments = ["--data", "digits.npz", "--scale", "0.0625", "--validation", "digits.npz", "--epochs", "2", "--learning-rate", "0.05"]
    averaged = train(*arguments, "--ema-decay", "0.98", "--checkpoint", tmp_path / "runs", "-o", tmp_path / "averaged.onnx")
    train(*arguments, "-o", tmp_path / "last.onnx")
    assert initializers(tmp_path / "averaged.onnx") != initializers(tmp_path / "last.onnx")
    trainer = Trainer(folder / "cnn.onnx", learning_rate=0.05, ema_decay=0.98)
    CheckpointFolder(tmp_path / "runs").resume(trainer)
    saved = initializers(tmp_path / "averaged.onnx")
    for name, average in trainer.averages.items():
        assert saved[name] == average.tobytes()
    digits = datasets.load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    scores = ort.InferenceSession(tmp_path / "averaged.onnx", providers=["CPUExecutionProvider"]).run(None, {"image": images})[0].astype(np.float64)
    chosen = scores[np.arange(len(scores)), digits.target]
    loss = np.mean(np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1) - chosen)
    assert float(re.search(r"validation loss (\S+),", averaged.stdout.splitlines()[-1]).group(1)) == pytest.approx(loss, abs=1e-4)


def test_the_curve_has_all_epochs_after_a_resumed_run_too(train, tmp_path):
    def curve(path):
        root = ElementTree.parse(path).getroot()
        lines = {}
        for group in root.findall("{http://www.w3.org/2000/svg}g"):
            titles = [title.text for title in group.iter("{http://www.w3.org/2000/svg}title")]
            lines[group.get("class")] = [(int(found[1]), float(found[2])) for found in (re.match(r"epoch (\d+), \w+ (\S+)$", title) for title in titles)]
        return lines

    arguments = ["--data", "digits.csv", *CSV, "--validation", "0.2", "--checkpoint", tmp_path / "runs", "-o", tmp_path / "out.onnx"]
    train(*arguments, "--epochs", "2", "--log", tmp_path / "first.jsonl")
    train(*arguments, "--epochs", "4", "--resume", "--curve", tmp_path / "curve.svg", "--log", tmp_path / "second.jsonl")
    events = [json.loads(line) for name in ("first", "second") for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    epochs = [event for event in events if event["event"] == "epoch"]
    lines = curve(tmp_path / "curve.svg")
    for name, key in (("training", "loss"), ("validation", "validation_loss")):
        assert [epoch for epoch, _ in lines[name]] == [1, 2, 3, 4]
        assert [loss for _, loss in lines[name]] == pytest.approx([epoch[key] for epoch in epochs], rel=1e-5)


def crc32c(data):
    """Computes the checksum bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def events_of(path):
    """Returns the records of an event file, parsed by google.protobuf, after checking their checksums."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"double": 1, "float": 2, "int64": 3, "string": 9, "message": 11}
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto2")
    messages = {
        "Event": [("wall_time", 1, "double"), ("step", 2, "int64"), ("file_version", 3, "string"), ("summary", 5, "Summary")],
        "Summary": [("value", 1, "Value")],
        "Value": [("tag", 1, "string"), ("simple_value", 2, "float")],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, label=3 if field == "value" else 1, type=kinds.get(kind, 11))
            if kind in messages:
                made.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    event = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    data, events = path.read_bytes(), []
    while data:
        (length,), (checked,) = struct.unpack_from("<Q", data), struct.unpack_from("<I", data, 8)
        assert checked == masked(data[:8])
        assert struct.unpack_from("<I", data, 12 + length)[0] == masked(data[12 : 12 + length])
        events.append(event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return events


def test_tensorboards_events_have_the_logs_numbers(train, tmp_path):
    assert crc32c(b"123456789") == 0xE3069283  # this is an example of RFC 3720
    arguments = ["--data", "digits.csv", *CSV, "--validation", "0.2", "--epochs", "2", "-o", tmp_path / "out.onnx"]
    train(*arguments, "--tensorboard", tmp_path / "deep" / "events", "--log", tmp_path / "log.jsonl")
    (path,) = (tmp_path / "deep" / "events").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, *events = events_of(path)
    assert first.file_version == "brain.Event:2" and abs(first.wall_time - time.time()) < 3600
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["event"] in ("step", "epoch")]
    assert len(events) == len(lines) > 2
    for event, line in zip(events, lines):
        assert event.step == line["step"]
        numbers = {f"{line['event']}/{name}": number for name, number in line.items() if name not in ("event", "step", "epoch")}
        assert {value.tag: value.simple_value for value in event.summary.value} == pytest.approx(numbers, rel=1e-6)
    assert "epoch/validation_accuracy" in [value.tag for value in events[-1].summary.value]
    refused = train(*arguments, "--tensorboard", "digits.csv/events", ok=False)
    assert refused.returncode != 0 and "cannot write the events" in refused.stderr


def test_a_loop_of_ones_own_writes_events(tmp_path):
    events = treadle.train.EventFile(tmp_path / "runs")
    for step in range(3):
        events.write(step, {"step/loss": 0.5 * step, "rate": np.float32(1e-3)})
    first, *written = events_of(pathlib.Path(events.path))
    assert first.file_version == "brain.Event:2" and [event.step for event in written] == [0, 1, 2]
    assert {value.tag: value.simple_value for value in written[2].summary.value} == pytest.approx({"step/loss": 1.0, "rate": 1e-3})
    (tmp_path / "file").write_text("")
    with pytest.raises(treadle.Error, match="cannot write the events"):
        treadle.train.EventFile(tmp_path / "file" / "runs")


def test_an_interruption_without_a_folder_leaves_the_model(program, folder, tmp_path):
    command = [program, "train", "cnn.onnx", "--data", "digits.csv", *CSV, "--epochs", "500", "-o", tmp_path / "out.onnx"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "has the model as it is" in process.stdout.read() and process.wait() == 130
    onnx.checker.check_model(str(tmp_path / "out.onnx"))


def test_a_folder_of_checkpoints_is_not_overwritten(train, tmp_path):
    arguments = ["--data", "digits.csv", *CSV, "--epochs", 1, "--checkpoint", tmp_path / "runs", "-o", tmp_path / "out.onnx"]
    train(*arguments)
    again = train(*arguments, ok=False)
    assert again.returncode == 1 and "--resume goes on from the newest" in again.stderr
    before = (tmp_path / "out.onnx").read_bytes()
    train(*arguments, "--resume")
    assert (tmp_path / "out.onnx").read_bytes() == before, "nothing was left to do"
    other = train(*arguments, "--resume", "--optimizer", "adam", ok=False)
    assert other.returncode == 1 and "optimizer is sgd there, adam here" in other.stderr
    other = train(*arguments, "--resume", "--batch-size", 16, ok=False)
    assert other.returncode == 1 and "data.batch_size is 32 in the checkpoint, 16 here" in other.stderr


def test_patience_keeps_the_best_epoch(train, tmp_path):
    log = tmp_path / "log.jsonl"
    run = train(
        "--data", "digits.csv", *CSV, "--validation", 0.3, "--epochs", 60, "--learning-rate", 0.3, "--patience", 4, "--log", log, "-o", tmp_path / "out.onnx"
    )
    losses = [event["validation_loss"] for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "epoch"]
    assert len(losses) < 60 and int(np.argmin(losses)) == len(losses) - 5
    assert "stopped after 4 epochs" in run.stdout
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert float(metadata["validation_loss"]) == pytest.approx(min(losses), rel=1e-4)


def test_a_nan_names_the_node_and_ends_unless_told_to_go_on(train, folder, tmp_path):
    digits = datasets.load_digits()
    images = digits.data.astype(np.float32)
    images[70, 3] = np.nan
    np.save(folder / "spoilt.npy", images)
    arguments = ["--data", "spoilt.npy", "--labels", "targets.npy", "--epochs", 1, "--batch-size", 64, "--no-shuffle", "-o", tmp_path / "out.onnx"]
    run = train(*arguments, ok=False)
    assert run.returncode == 1 and not (tmp_path / "out.onnx").exists()
    assert "step 2:" in run.stderr and "block1" in run.stderr and "is NaN at" in run.stderr and "--skip-nan" in run.stderr
    run = train(*arguments, "--skip-nan", "--log", tmp_path / "log")
    assert "batch 2 of epoch 1 left out" in run.stdout and "1 steps left out for NaN" in run.stdout
    skipped = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if '"skipped"' in line and '"text"' in line]
    assert skipped[0]["step"] == 1
    assert all(np.isfinite(np.frombuffer(value, np.float32)).all() for value in initializers(tmp_path / "out.onnx").values())
    run = train(*arguments, "--no-check", ok=False)
    assert run.returncode == 1 and "the loss is NaN" in run.stderr


def test_steps_that_overflow_in_float16_are_left_out(train, tmp_path):
    arguments = ["--data", "digits.csv", *CSV, "--epochs", 2, "--batch-size", 64, "--option", "precision=float16", "--init-scale", 2.0**100, "--backoff-factor", 2.0**-20]
    run = train(*arguments, "--log", tmp_path / "log", "-o", tmp_path / "out.onnx")
    assert "batch 1 of epoch 1 left out: a gradient is infinite or NaN; the loss is scaled by" in run.stdout
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    skipped = sum(event["event"] == "skipped" for event in events)
    assert 2 < skipped < 8 and f"{skipped} steps left out for overflow" in run.stdout and events[-1]["skipped"] == skipped
    run = train(*arguments[:-4], "--growth-factor", 0.5, "-o", tmp_path / "out.onnx", ok=False)
    assert run.returncode == 1 and "the option growth_factor: \"0.5\" is given" in run.stderr


def test_a_model_of_one_batch_takes_any_with_dynamic_batch(train, folder, ort, tmp_path):
    model = onnx.load(folder / "cnn.onnx")
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, tmp_path / "fixed.onnx")
    arguments = ["--data", "digits.csv", *CSV, "--validation", 0.2, *SETTINGS, "--epochs", 1]
    refused = train(*arguments, "-o", tmp_path / "out.onnx", model=tmp_path / "fixed.onnx", ok=False)
    assert refused.returncode == 1 and 'the input "image" takes batches of 2 only' in refused.stderr and "--dynamic-batch" in refused.stderr
    train(*arguments, "--dynamic-batch", "-o", tmp_path / "out.onnx", model=tmp_path / "fixed.onnx")
    train(*arguments, "-o", tmp_path / "symbolic.onnx")
    trained = onnx.load(tmp_path / "out.onnx")
    assert [info.type.tensor_type.shape.dim[0].dim_value for info in (*trained.graph.input, *trained.graph.output)] == [0, 0]
    assert initializers(tmp_path / "out.onnx") == initializers(tmp_path / "symbolic.onnx"), "trained as the model with a symbol"
    images = np.zeros((5, 1, 8, 8), np.float32)
    assert ort.InferenceSession(tmp_path / "out.onnx").run(None, {"image": images})[0].shape == (5, 10)


def test_labels_are_of_the_new_heads_classes(train, folder, tmp_path):
    """The loss compares labels with the output of the new last layer, whose shape differs from that of the model's output."""
    digits = datasets.load_digits()
    labels = (digits.target[:, None] == np.arange(3)).astype(np.float32)
    np.savez(tmp_path / "three.npz", image=digits.images[:, None].astype(np.float32), labels=labels)
    made = train("--data", tmp_path / "three.npz", "--head", 3, "--loss", "binary_cross_entropy_with_logits", "--epochs", 1, "-o", tmp_path / "out.onnx")
    assert "steps" in made.stdout
    assert onnx.load(tmp_path / "out.onnx").graph.output[0].type.tensor_type.shape.dim[1].dim_value == 3


def test_folders_of_pictures(train, folder, program, ort, tmp_path):
    image = pytest.importorskip("PIL.Image")
    digits = datasets.load_digits()
    for i, (pixels, label) in enumerate(zip(digits.images[:400], digits.target)):
        (tmp_path / "pictures" / f"digit {label}").mkdir(parents=True, exist_ok=True)
        image.fromarray((pixels * 15).astype(np.uint8)).save(tmp_path / "pictures" / f"digit {label}" / f"{i}.png")
    run = train("--data", tmp_path / "pictures", "--validation", 0.2, "--epochs", 15, *SETTINGS, "-o", tmp_path / "out.onnx")
    assert float(re.search(r"accuracy (\S+)\n$", run.stdout).group(1)) > 0.9
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata["classes"].split("\n") == [f"digit {i}" for i in range(10)]
    (tmp_path / "pictures" / "digit 3" / "broken.png").write_bytes(b"\x89PNG no")
    run = train("--data", tmp_path / "pictures", "--epochs", 1, "-o", tmp_path / "out.onnx", ok=False)
    assert run.returncode == 1 and "broken.png" in run.stderr


def mlp(path, inputs, outputs, hidden=16):
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(0, 0.3, (inputs, hidden)),
        "b1": np.zeros(hidden),
        "w2": rng.normal(0, 0.3, (hidden, outputs)),
        "b2": np.zeros(outputs),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "w2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_labels_of_text_and_of_numbers(train, ort, tmp_path):
    iris = datasets.load_iris()
    names = ['set"osa', "versi,color", "virginica"]
    quoted = ['"set""osa"', '"versi,color"', "virginica"]
    lines = ["a,b,c,d,kind", *(",".join([*map(str, row), quoted[label]]) for row, label in zip(iris.data, iris.target))]
    (tmp_path / "iris.csv").write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    mlp(tmp_path / "iris.onnx", 4, 3)
    data = ["--data", tmp_path / "iris.csv", "--labels", "kind"]
    settings = ["--epochs", 60, "--optimizer", "adam", "--learning-rate", 0.01, "-o", tmp_path / "out.onnx"]
    run = train(*data, *settings, "--validation", tmp_path / "iris.csv", model=tmp_path / "iris.onnx")
    scores = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"x": iris.data.astype(np.float32)})[0]
    accuracy = np.mean(scores.argmax(1) == iris.target)
    assert accuracy > 0.95 and f"accuracy {accuracy:.4f}" in run.stdout
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata["classes"].split("\n") == names

    # The model is a regression on two columns. Labels [n] are reshaped to [n, 1], like the output.
    mlp(tmp_path / "width.onnx", 2, 1)
    columns = [*data[:2], "--labels", "d", "--features", "a", "--features", "c"]
    train(*columns, *settings, "--loss", "mean_squared_error", model=tmp_path / "width.onnx")
    widths = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"x": iris.data[:, [0, 2]].astype(np.float32)})[0]
    assert np.mean((widths[:, 0] - iris.data[:, 3]) ** 2) < 0.06


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data", "absent.csv", "--labels", "target"], "absent.csv"),
        (["--data", "digits.csv", "--labels", "tarjet"], 'no column "tarjet"; the nearest: target'),
        (["--data", "digits.csv"], "labels names the column"),
        (["--data", "digits.csv", "--labels", "target", "--features", "pixel_1*"], "a sample takes [1,8,8], the data are f32[32,11]"),
        (["--data", "digits.npz", "--labels", "label"], 'no labels "label"'),
        (["--data", "picture=images.npy", "--labels", "targets.npy"], 'no input "picture"; it has: image'),
        (["--data", "images.npy", "--labels", "images.npy"], "labels"),
        (["--data", "cnn.onnx"], "data are .npz, .npy, .csv"),
        (["--data", "digits.npz", "--validation", "1.5"], "between 0 and 1"),
        (["--data", "digits.npz", "--batch-size", "0"], '--batch-size takes a number from 1, not "0"'),
        (["--data", "digits.npz", "--batch-size", "2000", "--drop-last"], "1797 samples make no batch of 2000"),
        (["--data", "digits.npz", "--optimizer", "sdg"], 'no optimizer "sdg"; the nearest: sgd'),
        (["--data", "digits.npz", "--learning-rate", "fast"], 'the option learning_rate: "fast" is given, a number from 0 to 1e+30 is expected'),
        (["--data", "digits.npz", "--learning-rate", "nan"], 'the option learning_rate: "nan" is given'),
        (["--data", "digits.npz", "--nesterov"], "nesterov needs a momentum"),
        (["--data", "digits.npz", "--resume"], "--resume needs --checkpoint"),
        (["--data", "digits.npz", "--patience", "3"], "--patience needs --validation"),
        (["--data", "digits.npz", "--group", "x"], 'a parameter group names "x"'),
        (["--data", "digits.npz", "--log", "/nowhere/log"], "cannot write the log"),
        (["--data", "digits.npz", "--checkpoint-steps", "5"], "--checkpoint-steps requires --checkpoint"),
        (["--data", "digits.npz", "--keep-last", "5"], "--keep-last requires --checkpoint"),
        (["--data", "digits.npz", "--asynchronous"], "--asynchronous requires --checkpoint"),
        (["--data", "digits.npz", "--skip-nan", "--no-check"], "--skip-nan excludes --no-check"),
        (["--data", "digits.npz", "--option", "precision=float16", "--no-check"], "--no-check needs a loss that is not scaled"),
        (["--data", "digits.npz", "--curve", "nowhere/curve.svg"], "--curve nowhere/curve.svg: there is no such folder"),
        (["--data", "digits.npz", "--adapters", "nowhere/a.safetensors", "--lora-rank", "2"], "there is no such folder"),
        (["--data", "digits.npz", "--blank", "1"], "the loss softmax_cross_entropy has no use for blank"),
        (["--data", "digits.npz", "--log-steps", "5"], "--log-steps needs --log, --json or --tensorboard"),
        (["--data", "digits.npz", "--bucket-bytes", "4194304"], "--bucket-bytes needs several processes"),
        (["--data", "digits.npz", "--communicator-deadline", "5"], "--communicator-deadline needs several processes"),
        (["--data", "digits.npz", "--reduction", "bfloat16"], "--reduction needs several processes"),
        (["--data", "digits.npz", "--communicator", "none", "--shard-optimizer"], "--shard-optimizer needs several processes"),
        (["--data", "digits.npz", "--features", "pixel_1"], "--features needs a .csv file"),
        (["--data", "digits.npz", "--validation-labels", "labels"], "--validation-labels needs --validation"),
        (["--data", "digits.npz", "--validation", "0.2", "--validation-labels", "labels"], "--validation-labels needs files"),
        (["--data", "digits.npz", "--no-shuffle", "--seed", "2"], "--seed needs samples to draw"),
        (["--data", "digits.npz", "--loss", "output", "--labels", "labels"], "--labels needs a loss that has labels"),
        (["--data", ".", "--labels", "labels"], "--labels needs files"),
        (["--data", "digits.npz", "--profile-steps", "5"], "--profile-steps requires --profile"),
        (["--data", "digits.npz", "--lora-alpha", "5"], "lora_alpha"),
        (["--data", "digits.npz", "--ema-statistics"], "ema_statistics"),
        (["--data", "digits.npz", "--initialization-seed", "5"], "initialization_seed needs initialize or head"),
        (["--data", "digits.npz", "--growth-factor", "5"], "growth_factor"),
        (["--data", "digits.npz", "--step-size", "5"], "step_size"),
        (["--data", "digits.npz", "--total-steps", "5"], "total_steps"),
    ],
)
def test_wrong_calls_end_with_a_message(train, arguments, expected, tmp_path):
    run = train(*arguments, "--epochs", 1, "-o", tmp_path / "out.onnx", ok=False)
    assert run.returncode > 0, "an error, not a signal"
    assert expected in run.stderr and not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("output", "why"), [("nowhere/out.onnx", "there is no such folder"), (".", "it is a folder")])
def test_an_output_that_cannot_be_written_is_told_before_training(train, output, why):
    run = train("--data", "digits.npz", "--epochs", 1, "-o", output, ok=False)
    assert run.returncode > 0
    assert f"--output {output}: {why}" in run.stderr
    assert "epoch" not in run.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n3\n", "line 3: 1 fields, where the first line names 2"),
        ("a,b\n1,2\nx,4\n", 'line 3: "x" is no number, in the column "a"'),
        ('a,b\n"1,2\n', "line 2: a quoted field has no end"),
        ('a,b\n"1"2,3\n', "line 2: something stands behind a quoted field"),
    ],
)
def test_broken_tables_name_the_line(train, folder, text, expected, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    run = train("--data", tmp_path / "table.csv", "--labels", "b", "--epochs", 1, "-o", tmp_path / "out.onnx", ok=False)
    assert run.returncode == 1 and expected in run.stderr


def test_labels_out_of_range_end_with_a_message(train, folder, tmp_path):
    np.save(folder / "wrong.npy", np.full(1797, 10))
    run = train("--data", "images.npy", "--labels", "wrong.npy", "--epochs", 1, "-o", tmp_path / "out.onnx", ok=False)
    assert run.returncode == 1 and "10" in run.stderr


def test_a_terminal_has_a_bar_with_the_time_left(program, folder, tmp_path):
    ours, theirs = pty.openpty()
    command = [program, "train", "cnn.onnx", "--data", "digits.csv", *CSV, "--epochs", "12", "-o", tmp_path / "out.onnx"]
    process = subprocess.Popen(command, cwd=folder, stdout=theirs)
    os.close(theirs)
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        try:
            text += os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
    os.close(ours)
    assert process.wait() == 0
    assert re.search(rb"\[=+ *\] \d+/57  loss [\d.]+  \d+ s left", text), text[-500:]
    assert b"epoch 12/12  loss" in text


@pytest.fixture
def iris(tmp_path):
    mlp(tmp_path / "iris.onnx", 4, 3)
    samples = datasets.load_iris()

    def write(name, labels):
        lines = ["a,b,c,d,kind", *(",".join([*map(str, row), str(label)]) for row, label in zip(samples.data, labels))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    return tmp_path / "iris.onnx", samples.target, write


def test_class_names_go_with_the_model(train, program, iris, tmp_path):
    model, target, write = iris
    names = np.array(["setosa", "versicolor", "virginica"])
    data = write("named.csv", names[target])
    train("--data", data, "--labels", "kind", "--epochs", 40, "--optimizer", "adam", "--learning-rate", 0.01, "-o", tmp_path / "out.onnx", model=model)

    def call(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=True).stdout

    assert "classes   3: setosa, versicolor, virginica" in call("inspect", tmp_path / "out.onnx")
    assert json.loads(call("inspect", tmp_path / "out.onnx", "--json"))["classes"] == list(names)
    (output,) = json.loads(call("run", tmp_path / "out.onnx", "x=5.1,3.5,1.4,0.2", "--top", 1, "--json"))["outputs"]
    assert output["top"][0]["label"] == "setosa"
    (tmp_path / "other.txt").write_text("a\nb\nc\n")
    (output,) = json.loads(call("run", tmp_path / "out.onnx", "x=5.1,3.5,1.4,0.2", "--top", 1, "--labels", tmp_path / "other.txt", "--json"))["outputs"]
    assert output["top"][0]["label"] == "a", "the file's labels come first"


def test_labels_that_are_no_classes_name_file_line_and_label(train, iris, tmp_path):
    model, target, write = iris
    common = ["--labels", "kind", "--epochs", 1, "-o", tmp_path / "out.onnx"]

    def refused(*arguments):
        run = train(*arguments, *common, model=model, ok=False)
        assert run.returncode == 1
        return run.stderr

    wrong = target.copy()
    wrong[6] = 3
    data = write("wrong.csv", wrong)
    assert f'{data}, line 8: the label "3" of the column "kind" is outside [0, 3): the model has 3 classes' in refused("--data", data)
    wrong[6] = -1
    data = write("wrong.csv", wrong)
    assert ', line 8: the label "-1"' in refused("--data", data)
    assert "loss" in train("--data", data, *common, "--ignore-index", -1, model=model).stdout, "a label that the loss leaves out"
    data = write("four.csv", np.array(["a", "b", "c", "d"])[(target + np.arange(len(target)) % 2)])
    assert 'the label "d" of the column "kind" is number 3 of the 4 classes, counted from 0: the model has 3 classes' in refused("--data", data)
    data, other = write("known.csv", np.array(["a", "b", "c"])[target]), write("other.csv", np.array(["a", "b", "x"])[target])
    assert 'other.csv, line 102: the label "x" of the column "kind" is no class; the classes: a, b, c' in refused("--data", data, "--validation", other)
    np.savez(tmp_path / "wrong.npz", x=datasets.load_iris().data.astype(np.float32), kind=np.where(np.arange(150) == 9, 7, target))
    assert "wrong.npz: the label 7 of sample 9, counted from 0, is outside [0, 3)" in refused("--data", tmp_path / "wrong.npz")
