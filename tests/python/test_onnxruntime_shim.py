"""The shim: `import onnxruntime` imports Treadle.

Each test runs in a separate process, as the shim changes what a process imports. The results of a program on Treadle are compared with those on ONNX
Runtime. test_onnxruntime_packages.py tests packages from PyPI.
"""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import treadle

SHIM = "import treadle.onnxruntime_shim\n"


def run_python(*arguments):
    """Runs a Python program, and returns the JSON that it prints last."""
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_code(code):
    return run_python("-c", textwrap.dedent(code))


def shimmed(code):
    return run_code(SHIM + textwrap.dedent(code))


def test_imports_give_treadle():
    seen = shimmed(
        """
        import json
        import onnxruntime, treadle
        import onnxruntime as ort
        from onnxruntime import InferenceSession, SessionOptions, GraphOptimizationLevel
        from onnxruntime.capi import _pybind_state as C
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile, NotImplemented, RuntimeException
        from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as Collected, OrtValue, OrtDevice
        import onnxruntime.capi.onnxruntime_validation
        assert ort.InferenceSession is InferenceSession is Collected is treadle.InferenceSession
        assert C.get_available_providers() == ort.get_available_providers() == ["CPUExecutionProvider"]
        assert C.SessionOptions is SessionOptions is treadle.SessionOptions
        assert Fail is treadle.errors.Fail
        assert "onnxruntime" not in treadle.__name__
        try:
            ort.InferenceSession("/nowhere.onnx")
        except C.NoSuchFile as error:
            caught = str(error)
        print(json.dumps([ort.__version__, ort.get_version_string(), ort.__doc__, caught]))
        """
    )
    version, version_string, text, caught = seen
    assert version == version_string
    assert tuple(map(int, version.split("."))) >= (1, 31)
    assert treadle.__version__ in text
    assert "/nowhere.onnx" in caught


def test_what_was_imported_before_is_replaced():
    pytest.importorskip("onnxruntime")
    before, after, back = run_code(
        """
        import json
        import onnxruntime
        names = [onnxruntime.InferenceSession.__module__]
        import treadle.onnxruntime_shim as shim
        import onnxruntime
        names.append(onnxruntime.InferenceSession.__module__)
        shim.uninstall()
        import onnxruntime
        names.append(onnxruntime.InferenceSession.__module__)
        print(json.dumps(names))
        """
    )
    assert before == back
    assert before.startswith("onnxruntime.")
    assert after.startswith("treadle.")


def test_parts_in_plain_python_use_treadle():
    pytest.importorskip("onnxruntime")
    assert shimmed(
        """
        import json
        import numpy as np
        import onnxruntime, treadle
        from onnxruntime.datasets import get_example
        session = onnxruntime.InferenceSession(get_example("sigmoid.onnx"))
        assert isinstance(session, treadle.InferenceSession)
        x = np.zeros(session.get_inputs()[0].shape, np.float32)
        print(json.dumps(session.run(None, {session.get_inputs()[0].name: x})[0].ravel()[:2].tolist()))
        """
    ) == [0.5, 0.5]


def test_a_program_may_be_started_on_treadle(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys, onnxruntime\nprint(json.dumps([onnxruntime.InferenceSession.__module__, sys.argv[1:], __name__]))\n"
    )
    assert run_python("-m", "treadle.onnxruntime_shim", str(program), "--flag", "value") == [
        "treadle.onnxruntime._session",
        ["--flag", "value"],
        "__main__",
    ]


def on_both(code):
    """Returns what the program prints on Treadle and on ONNX Runtime."""
    guard = "import onnxruntime; assert onnxruntime.InferenceSession.__module__.startswith({!r})\n"
    code = textwrap.dedent(code)
    return run_code(SHIM + guard.format("treadle") + code), run_code(guard.format("onnxruntime") + code)


def test_devices_enums_and_errors_look_alike():
    pytest.importorskip("onnxruntime")
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        from onnxruntime.capi import _pybind_state as C
        said = [[d.ep_name, str(d.device.type), d.device.vendor, d.device.vendor_id, d.device.device_id, sorted(d.ep_metadata), dict(d.ep_options)] for d in ort.get_ep_devices()]
        said.append([device.vendor for device in C.get_hardware_devices()])
        said += [str(ort.GraphOptimizationLevel.ORT_ENABLE_ALL), f"{ort.ExecutionMode.ORT_PARALLEL}", int(ort.ExecutionMode.ORT_PARALLEL)]
        x = helper.make_tensor_value_info("x", 1, [2, 3])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [helper.make_tensor_value_info("y", 1, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        for feeds in ({"x": np.ones((2, 3))}, {"x": np.ones((2, 4), np.float32)}):
            try:
                session.run(None, feeds)
            except ort.capi.onnxruntime_pybind11_state.InvalidArgument as error:
                said.append([str(error)[:41], str(error).count("ONNXRuntimeError")])
        binding = session.io_binding()
        binding.bind_cpu_input("x", np.array([[-1, 2, 3]] * 2, np.float32))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        said.append([value.numpy().tolist() for value in binding._iobinding.get_outputs()])
        print(json.dumps(said))
        """
    )
    assert ours == theirs


def test_negative_numbers_of_threads_are_the_default():
    pytest.importorskip("onnxruntime")
    ours, theirs = on_both(
        """
        import json
        import numpy as np
        import onnxruntime as ort
        from onnx import helper
        x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, [2])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
        said = []
        for intra, inter, mode in ((-1, -1, ort.ExecutionMode.ORT_SEQUENTIAL), (-5, 2, ort.ExecutionMode.ORT_PARALLEL), (2, -3, ort.ExecutionMode.ORT_PARALLEL)):
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads, options.execution_mode = intra, inter, mode
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            said.append([options.intra_op_num_threads, options.inter_op_num_threads, session.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist()])
        print(json.dumps(said))
        """
    )
    assert ours == theirs


WITHOUT_ONNXRUNTIME = """
    import importlib.machinery as machinery
    find = machinery.PathFinder.find_spec
    machinery.PathFinder.find_spec = classmethod(lambda cls, name, path=None, target=None: None if name == "onnxruntime" else find(name, path, target))
    import treadle.onnxruntime_shim
"""


@pytest.mark.parametrize("part", ["quantization", "quantization.calibrate", "tools", "datasets", "transformers"])
def test_a_missing_part_names_the_package_to_install(part):
    text = run_code(
        WITHOUT_ONNXRUNTIME
        + f"""
    import json
    import onnxruntime
    try:
        import onnxruntime.{part}
    except ModuleNotFoundError as error:
        print(json.dumps([str(error), error.name]))
    """
    )
    assert "`pip install onnxruntime`" in text[0]
    assert text[1] == f"onnxruntime.{part.split('.')[0]}"


def test_the_backend_is_there_without_onnxruntime():
    assert run_code(
        WITHOUT_ONNXRUNTIME
        + """
    import json
    import numpy as np
    import onnxruntime.backend as backend
    from onnx import helper
    x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, [2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = np.array([-1, 2], np.float32)
    print(json.dumps([backend.supports_device("CPU"), np.asarray(backend.prepare(model).run([feeds])[0]).tolist(), np.asarray(backend.run(model, [feeds])[0]).tolist()]))
    """
    ) == [True, [0.0, 2.0], [0.0, 2.0]]


# Names of onnxruntime's package that the shim does not have, each with the reason. If a newer onnxruntime adds names, the failing test
# lists them.
LEFT_OUT = {
    "ModelPackage": "packages of models are chosen among by execution providers, of which there is one",
    "ModelPackageComponentContext": "as ModelPackage",
    "ModelPackageContext": "as ModelPackage",
    "ModelPackageOptions": "as ModelPackage",
    "ModelPackageWriteMode": "as ModelPackage",
    "OrtEpContextData.read": "there are no nodes that hold what an execution provider has compiled",
    "OrtEpContextDataBuffer.allocate": "as OrtEpContextData.read",
    "OrtEpContextDataBuffer.write": "as OrtEpContextData.read",
    "OrtSyncStream.get_handle": "the CPU has no streams",
}


def test_the_names_are_those_of_the_version_that_is_followed():
    ours, theirs = on_both(
        """
        import inspect, json
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        def public(owner):
            return [name for name in dir(owner) if not name.startswith("_")]

        def names(is_wanted):
            for module in (onnxruntime, state):
                for name in public(module):
                    value = getattr(module, name)
                    if inspect.ismodule(value):
                        continue
                    yield name
                    # Enums have other attributes in each version of Python.
                    if inspect.isclass(value) and module is onnxruntime and not issubclass(value, BaseException) and not hasattr(value, "__members__"):
                        yield from (f"{name}.{member}" for member in public(value) if is_wanted(getattr(value, member)))
        # Attributes of instances are in no class.
        print(json.dumps([onnxruntime.__version__, sorted(set(names(lambda value: True))), sorted(set(names(inspect.isroutine)))]))
        """
    )
    assert ours[0] == theirs[0], "follow the newer one: ONNXRUNTIME_VERSION, and the names below"
    missing = {name for name in set(theirs[2]) - set(ours[1]) if name.split(".")[0] not in LEFT_OUT}
    assert missing == {name for name in LEFT_OUT if "." in name}
