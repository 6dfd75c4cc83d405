"""optimum-onnx and sentence-transformers run unchanged with Treadle in onnxruntime's place: each job of jobs.py gives the same answers.

They need an older version of transformers than the other tests: `scripts/setup --optimum` makes `.venv-optimum` with it.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

for package in ("optimum.onnxruntime", "sentence_transformers", "onnxruntime", "treadle"):
    pytest.importorskip(package)

HERE = pathlib.Path(__file__).resolve().parent
JOBS = re.findall(r"^@job\ndef (\w+)", (HERE / "jobs.py").read_text(), re.MULTILINE)


def script():
    spec = importlib.util.spec_from_file_location("onnxruntime_suites", HERE.parents[1] / "scripts/onnxruntime_suites.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


difference = script().difference


def run(*arguments):
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Returns the answers of all jobs on onnxruntime and on Treadle."""
    folder = tmp_path_factory.mktemp("optimum")
    run("models.py", folder / "models")
    found = []
    for name, program in (("onnxruntime", ["jobs.py"]), ("treadle", ["-m", "treadle.onnxruntime_shim", "jobs.py"])):
        work = folder / name
        work.mkdir()
        found.append(json.loads(run(*program, folder / "models", work).splitlines()[-1]))
        assert found[-1]["module"].startswith(name)
    return found


@pytest.mark.parametrize("job", JOBS)
def test_the_answers_are_the_same(answers, job):
    theirs, ours = (answer[job] for answer in answers)
    assert "failed" not in theirs, theirs["failed"]
    assert "failed" not in ours, ours["failed"]
    assert difference(ours["answer"], theirs["answer"], 1e-3, job) is None
