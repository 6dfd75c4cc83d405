"""Builds the programs of examples/ against the library, as users build them, and checks that they agree with onnxruntime, learn, and resume
training."""

import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "train"
BUILD = REPOSITORY / "build" / "release"
FLAGS = ["-Wall", "-Wextra", "-Werror", "-O1"]


def spirals():
    i = np.arange(400)
    t = (i // 2) / 200
    angle = 6 * t + (i % 2) * np.pi
    return np.stack([(0.1 + t) * np.cos(angle), (0.1 + t) * np.sin(angle)], 1).astype(np.float32), i % 2


COMPILERS = {".c": ["cc", "-std=c11"], ".cpp": ["c++", "-std=c++20"]}


def build(source, program):
    compiler = COMPILERS[source.suffix]
    if not (BUILD / "libtreadle.so").exists() or not shutil.which(compiler[0]):
        pytest.skip("needs a compiler and build/release/libtreadle.so")
    flags = [*FLAGS, "-I", REPOSITORY / "include", "-L", BUILD, f"-Wl,-rpath,{BUILD}"]
    subprocess.run([*compiler, source, "-o", program, *flags, "-ltreadle", "-lm"], check=True)
    return [program]


@pytest.mark.parametrize("source", ["classify.py", "classify.c", "classify.cpp"])
def test_a_digit_is_read_in_three_languages(source, ort, tmp_path):
    path = REPOSITORY / "examples" / "classify" / source
    command = [sys.executable, path] if path.suffix == ".py" else build(path, tmp_path / "classify")
    model, small = REPOSITORY / "examples" / "digits" / "digits.onnx", tmp_path / "small.onnx"
    made = subprocess.run([*command, model, small], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    exact, rounded = re.findall(r"digit (\d), score (\S+?),?\s", made.stdout)
    pixels = re.search(r'PIXELS = """(.*?)"""', (path.parent / "classify.py").read_text(), re.DOTALL).group(1)
    image = np.array(pixels.split(), np.float32).reshape(1, 1, 8, 8) / 16
    # Both models are compared with the scores of the float model, because ONNX Runtime's products of bytes are wrong on some processors.
    scores = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"image": image})[0]
    for (digit, score), tolerance in ((exact, 1e-4), (rounded, 2e-2)):
        assert int(digit) == scores.argmax() == 0
        assert float(score) == pytest.approx(scores.max(), rel=tolerance)
    absent = subprocess.run([*command, tmp_path / "absent.onnx", small], capture_output=True, text=True)
    assert absent.returncode == 1 and "absent.onnx" in absent.stderr


@pytest.mark.parametrize("source", ["train.c", "train.cpp"])
def test_training_without_python(source, ort, tmp_path):
    (program,) = build(EXAMPLES / source, tmp_path / "train")

    def run(*arguments):
        made = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        return made.stdout

    model = EXAMPLES / "spirals.onnx"
    text = run(model, "first.onnx", "checkpoint")
    assert float(re.search(r"accuracy (\S+)", text).group(1)) > 0.97, text
    sorted((tmp_path / "checkpoint").iterdir())[-1].unlink()  # simulates that the process was killed before the last checkpoint
    again = run(model, "second.onnx", "checkpoint")
    assert "goes on after step" in again
    assert (tmp_path / "second.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()
    points, classes = spirals()
    scores = ort.InferenceSession(tmp_path / "first.onnx").run(None, {"point": points})[0]
    assert f"accuracy {np.mean(scores.argmax(1) == classes):.4f}" in text
    wrong = subprocess.run([program, tmp_path / "absent.onnx", "x", "y"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 1 and "absent.onnx" in wrong.stderr


def test_training_on_files_in_c_resumes_within_an_epoch(program, tmp_path):
    (files,) = build(EXAMPLES / "files.c", tmp_path / "files")
    generator = np.random.default_rng(3)
    labels = np.arange(300) % 10
    images = generator.random((300, 64)) * 4 + 12 * np.eye(64)[labels * 6 + 3]
    columns = ",".join(["target", *(f"p{i}" for i in range(64))])
    np.savetxt(tmp_path / "data.csv", np.column_stack([labels, images]), fmt="%.3f", delimiter=",", header=columns, comments="")
    np.savez_compressed(tmp_path / "data.npz", image=images.astype(np.float32).reshape(300, 1, 8, 8), labels=labels)
    model = REPOSITORY / "examples" / "digits" / "digits.onnx"
    subprocess.run([program, "artifacts", model, "--learning-rate", "0.01", "--momentum", "0.9", "-o", "artifacts"], cwd=tmp_path, check=True)

    def run(*arguments):
        made = subprocess.run([files, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        return made.stdout

    text = run("artifacts", "data.csv", "target", "0.0625", "6", "first.onnx", "one")
    assert float(re.findall(r"accuracy (\S+)", text)[-1]) > 0.9, text
    sorted((tmp_path / "one").iterdir())[-1].unlink()  # simulates that the process was killed before the last checkpoint
    again = run("artifacts", "data.csv", "target", "0.0625", "6", "second.onnx", "one")
    assert "goes on after step" in again
    assert (tmp_path / "second.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()
    run(model, "data.csv", "target", "0.0625", "6", "third.onnx", "two")  # if there are no artifacts, the program makes its graphs
    assert (tmp_path / "third.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()
    assert "240 samples" in run("artifacts", "data.npz", "labels", "0.0625", "1", "fourth.onnx", "three")


def test_a_loss_of_ones_own_in_c(ort, tmp_path):
    (program,) = build(EXAMPLES / "joint.c", tmp_path / "joint")
    made = subprocess.run([program, EXAMPLES / "spirals.onnx", tmp_path / "trained.onnx"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    points, classes = spirals()
    scores = ort.InferenceSession(tmp_path / "trained.onnx").run(None, {"point": points})[0]
    assert np.mean(scores.argmax(1) == classes) > 0.97, made.stdout
    assert float(re.search(r"accuracy (\S+)", made.stdout).group(1)) > 0.97


def test_an_executor_in_c_learns_with_gradients_of_two_batches(tmp_path):
    (program,) = build(EXAMPLES / "executor.c", tmp_path / "executor")
    made = subprocess.run([program, EXAMPLES / "spirals.onnx"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert float(re.search(r"accuracy (\S+)", made.stdout).group(1)) > 0.97, made.stdout


def test_the_model_is_what_its_script_writes(tmp_path):
    onnx = pytest.importorskip("onnx")
    shutil.copy(EXAMPLES / "make_model.py", tmp_path)
    subprocess.run([shutil.which("python3"), tmp_path / "make_model.py"], check=True)
    ours, theirs = (onnx.load(pathlib.Path(folder) / "spirals.onnx") for folder in (EXAMPLES, tmp_path))
    assert ours.graph == theirs.graph


def test_the_loop_of_pytorch_learns_digits():
    pytest.importorskip("onnxscript")
    made = subprocess.run([sys.executable, REPOSITORY / "examples" / "torch" / "train.py"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    accuracies = [float(number) for number in re.findall(r"accuracy (\S+)", made.stdout)]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.85, made.stdout
    assert made.stdout.count("exported: ") == 2, made.stdout
