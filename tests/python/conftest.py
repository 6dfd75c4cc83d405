"""Fixtures that all tests share: ONNX Runtime to compare with, and small models."""

import functools
import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # set before anything imports onnxruntime

import pathlib
import shutil

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _find_shared_data():
    for folder in (os.environ.get("TREADLE_TEST_DATA"), REPOSITORY / "shared" / "data", REPOSITORY.parent / "shared" / "data"):
        if folder and (pathlib.Path(folder) / "manifest.json").exists():
            return pathlib.Path(folder)
    return None


SHARED_DATA = _find_shared_data()


@pytest.fixture(scope="module")
def ours():
    """Returns ONNX Runtime's C interface in Treadle's library."""
    from onnxruntime_c import LIBRARY, Api

    return Api(str(LIBRARY))


@pytest.fixture(scope="module")
def theirs():
    """Returns the C interface of onnxruntime's own library. Tests are skipped if it is not installed."""
    from onnxruntime_c import their_api

    return their_api()


@pytest.fixture(autouse=True, scope="session")
def own_sharing_folder(tmp_path_factory):
    # The first job of a process reads this variable, whichever test makes it; so it is set before all tests.
    os.environ.setdefault("TREADLE_SHARING_DIR", str(tmp_path_factory.mktemp("jobs")))


@pytest.fixture(scope="session")
def ort():
    """Returns the package onnxruntime itself."""
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


@functools.cache
def ort_saturates():
    """Returns True if ONNX Runtime's products of uint8 and int8 saturate at 16 bits, as on processors without VNNI. Then its results are
    wrong."""
    import numpy as np
    import onnx
    import onnxruntime

    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node("MatMulInteger", ["a", "w"], ["y"])
    weights = onnx.numpy_helper.from_array(np.full((8, 16), 127, np.int8), "w")
    inputs, outputs = [value("a", onnx.TensorProto.UINT8, [2, 8])], [value("y", onnx.TensorProto.INT32, [2, 16])]
    graph = onnx.helper.make_graph([node], "product", inputs, outputs, [weights])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return int(session.run(None, {"a": np.full((2, 8), 255, np.uint8)})[0][0, 0]) != 8 * 255 * 127


def need_exact_bytes():
    """Skips a test that compares with ONNX Runtime's products of bytes if these saturate."""
    if ort_saturates():
        pytest.skip("ONNX Runtime's products of bytes saturate on this processor")


@pytest.fixture(scope="session")
def program():
    """Returns the path of the command-line program: TREADLE_CLI, otherwise the built one, otherwise the installed one."""
    candidates = [os.environ.get("TREADLE_CLI"), REPOSITORY / "build/release/src/cli/treadle", shutil.which("treadle")]
    found = next((str(path) for path in candidates if path and pathlib.Path(path).exists()), None)
    if not found:
        pytest.skip("the program treadle is neither built nor installed")
    return found


@pytest.fixture(scope="session")
def mpi(tmp_path_factory):
    """Skips the test if MPI is not installed. Its plugin is TREADLE_MPI_PLUGIN, the package's, the built one, or a newly built one."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    from treadle import mpi

    built = REPOSITORY / "build/release/plugins/treadle_mpi.so"
    if os.environ.get("TREADLE_MPI_PLUGIN") or mpi.FILE.exists():
        return
    if built.exists():
        os.environ["TREADLE_MPI_PLUGIN"] = str(built)
        return
    if shutil.which(os.environ.get("MPICXX", "mpicxx")) is None:
        pytest.skip("there is no compiler of MPI to build the plugin")
    os.environ["TREADLE_MPI_PLUGIN"] = str(mpi.build(tmp_path_factory.mktemp("mpi") / "treadle_mpi.so"))
