"""What all tests share: ONNX Runtime to compare with, and small models."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before anything imports onnxruntime

import pathlib

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _find_shared_data():
    for folder in (os.environ.get("TREADLE_TEST_DATA"), REPOSITORY / "shared" / "data", REPOSITORY.parent / "shared" / "data"):
        if folder and (pathlib.Path(folder) / "manifest.json").exists():
            return pathlib.Path(folder)
    return None


SHARED_DATA = _find_shared_data()


@pytest.fixture(scope="session")
def ort():
    """ONNX Runtime itself."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


@pytest.fixture(scope="session")
def program():
    """The path of the command line."""
    candidates = [os.environ.get("TREADLE_CLI", ""), REPOSITORY / "build/release/src/cli/treadle"]
    found = next((str(path) for path in candidates if path and pathlib.Path(path).exists()), None)
    if not found:
        pytest.skip("the program treadle is not built; set TREADLE_CLI")
    return found
