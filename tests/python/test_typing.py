"""Checks the package and its stubs with mypy: the package itself has no errors, and users' programs get the right types."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

import treadle

# nanobind's stubs say "list" and "dict" without element types.
STRICT = ("--strict", "--allow-any-generics", "--allow-untyped-defs", "--allow-incomplete-defs")
PACKAGE = pathlib.Path(treadle.__file__).parent

pytest.importorskip("mypy")
if not (PACKAGE / "_treadle.pyi").exists():
    pytest.skip("this build of the package has no stubs", allow_module_level=True)


def mypy(*arguments, cwd):
    """Returns mypy's output; empty if it finds nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--cache-dir", str(cwd / "cache"), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


def check(program, folder):
    (folder / "treadle").symlink_to(PACKAGE)
    (folder / "program.py").write_text(textwrap.dedent(program))
    return mypy(*STRICT, "program.py", cwd=folder)


def test_the_package_keeps_to_its_own_types(tmp_path):
    (tmp_path / "treadle").symlink_to(PACKAGE)
    assert mypy(*STRICT, "-p", "treadle", cwd=tmp_path) == ""


def test_a_program_that_uses_it_rightly_passes(tmp_path):
    program = """
        import numpy as np

        import treadle
        from treadle.train import Trainer

        options = treadle.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = treadle.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
        names: list[str] = [argument.name for argument in session.get_inputs()]
        outputs = session.run(None, {names[0]: np.zeros((1, 2), np.float32)})
        binding = session.io_binding()
        binding.bind_cpu_input(names[0], np.zeros((1, 2), np.float32))
        session.run_with_iobinding(binding)
        runs = session.stateful({"past": "present"}, {"past": np.zeros((0, 2), np.float32)})
        runs.run(None, {names[0]: outputs[0]})
        weights: int = session.memory().weight_bytes
        called = treadle.Session("model.onnx", num_threads=1, execution_mode="parallel", dimensions={"batch": 2})
        y = called(np.zeros((1, 2), np.float32))
        called.run({"x": np.zeros((1, 2), np.float32)}, ["y"], deadline_ms=10)
        with treadle.profile(called) as profile:
            called(y)
        slowest: treadle.ProfiledNode = profile.nodes[0]
        treadle.quantize("model.onnx", "small.onnx", mode="weights", bits=4)
        device: treadle.OrtDevice = treadle.onnxruntime.OrtDevice()
        executor: treadle.Executor = treadle.mxnet.simple_bind("model.onnx", x=(1, 2))
        trainer = Trainer("model.onnx", learning_rate=0.1)
        loss: float = trainer.step({"x": np.zeros((1, 2), np.float32)}, np.zeros(1, np.int64))
    """
    assert check(program, tmp_path) == ""


def test_mistakes_are_found(tmp_path):
    mistakes = {
        "treadle.InferenceSession(3)": "arg-type",
        "treadle.SessionOptions().intra_op_num_threads = 'four'": "assignment",
        "treadle.InferenceSession('m.onnx').runs": "attr-defined",
        "treadle.Session('m.onnx', num_thread=1)": "call-arg",
        "treadle.Session('m.onnx').run(1, deadline_ms='soon')": "arg-type",
        "treadle.quantize('m.onnx', mode='dynamic', bits=4)": "call-overload",
        "treadle.no_such_name": "attr-defined",
    }
    printed = check("\n".join(["import treadle", *mistakes]), tmp_path).splitlines()
    for number, (line, said) in enumerate(mistakes.items(), start=2):
        assert any(text.startswith(f"program.py:{number}: error:") and said in text for text in printed), line
