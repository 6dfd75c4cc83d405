"""Compares LoRA adapters with onnxruntime's: the file format, and all kinds of runs."""

from __future__ import annotations

import pathlib

import numpy as np
import onnxruntime
import pytest
import treadle
from onnx import helper, numpy_helper
from small_models import model, tensor

RNG = np.random.default_rng(5)
WEIGHT = RNG.standard_normal((6, 4)).astype(np.float32)
ZERO_A, ZERO_B = np.zeros((6, 2), np.float32), np.zeros((2, 4), np.float32)


def lora_model() -> bytes:
    """Returns y = x w + (x a) b, where a and b are zeros that adapters replace."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["base"]),
        helper.make_node("MatMul", ["x", "a"], ["xa"]),
        helper.make_node("MatMul", ["xa", "b"], ["delta"]),
        helper.make_node("Add", ["base", "delta"], ["y"]),
    ]
    inputs = [tensor("x", ["rows", 6]), tensor("a", [6, "rank"]), tensor("b", ["rank", 4])]
    weights = [numpy_helper.from_array(value, name) for name, value in (("w", WEIGHT), ("a", ZERO_A), ("b", ZERO_B))]
    return model(nodes, inputs, [tensor("y", ["rows", 4])], weights)


def matrices(rank: int) -> dict[str, np.ndarray]:
    return {"a": RNG.standard_normal((6, rank)).astype(np.float32), "b": RNG.standard_normal((rank, 4)).astype(np.float32)}


def written_by(library, path: pathlib.Path, parameters: dict[str, np.ndarray]) -> str:
    adapter = library.AdapterFormat()
    adapter.set_adapter_version(3)
    adapter.set_model_version(7)
    adapter.set_parameters({name: library.OrtValue.ortvalue_from_numpy(value) for name, value in parameters.items()})
    adapter.export_adapter(str(path))
    return str(path)


KEPT = []  # keeps adapters alive, because onnxruntime's options do not


def options_with(library, *paths: str):
    options = library.RunOptions()
    for path in paths:
        adapter = library.LoraAdapter()
        adapter.Load(path)
        options.add_active_adapter(adapter)
        KEPT.append(adapter)
    return options


DTYPES = [np.float32, np.float16, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64]


@pytest.mark.parametrize("writer, reader", [(treadle, onnxruntime), (onnxruntime, treadle), (treadle, treadle)])
def test_files_pass_between_the_two(tmp_path: pathlib.Path, writer, reader) -> None:
    parameters = {np.dtype(dtype).name: (RNG.standard_normal((2, 3)) * 9).astype(dtype) for dtype in DTYPES}
    if onnxruntime not in (writer, reader):  # onnxruntime refuses parameters without axes
        parameters |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32)}
    read = reader.AdapterFormat.read_adapter(written_by(writer, tmp_path / "a.onnx_adapter", parameters))
    assert (read.get_format_version(), read.get_adapter_version(), read.get_model_version()) == (1, 3, 7)
    found = {name: value.numpy() for name, value in read.get_parameters().items()}
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_runs_use_the_adapter_that_their_options_name(tmp_path: pathlib.Path) -> None:
    x = RNG.standard_normal((5, 6)).astype(np.float32)
    ours = treadle.InferenceSession(lora_model())
    theirs = onnxruntime.InferenceSession(lora_model(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(ours.run(None, {"x": x})[0], x @ WEIGHT, rtol=1e-5, atol=1e-5)
    for rank in (1, 3, 8):
        parameters = matrices(rank)
        path = written_by(onnxruntime, tmp_path / f"{rank}.onnx_adapter", parameters)
        expected = x @ WEIGHT + (x @ parameters["a"]) @ parameters["b"]
        got = ours.run(None, {"x": x}, options_with(treadle, path))[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(got, theirs.run(None, {"x": x}, options_with(onnxruntime, path))[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours.run(None, {"x": x})[0], x @ WEIGHT, rtol=1e-5, atol=1e-5)


def test_bound_partial_and_stateful_runs_use_it_too(tmp_path: pathlib.Path) -> None:
    x, parameters = RNG.standard_normal((5, 6)).astype(np.float32), matrices(2)
    options = options_with(treadle, written_by(treadle, tmp_path / "a.onnx_adapter", parameters))
    session = treadle.InferenceSession(lora_model())
    expected = session.run(None, {"x": x, **parameters})[0]

    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    for run_options, wanted in ((options, expected), (None, x @ WEIGHT), (options, expected)):
        session.run_with_iobinding(binding, run_options)
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], wanted, rtol=1e-5, atol=1e-5)

    partial = session.partial_run({"x": x}, run_options=options)
    partial.advance()
    np.testing.assert_array_equal(partial.outputs()["y"] if isinstance(partial.outputs(), dict) else partial.outputs()[0], expected)

    np.testing.assert_array_equal(session.stateful([]).run(None, {"x": x}, options)[0], expected)


def test_wrong_adapters_are_refused(tmp_path: pathlib.Path) -> None:
    x = np.zeros((1, 6), np.float32)
    session = treadle.InferenceSession(lora_model())
    options = options_with(treadle, written_by(treadle, tmp_path / "a.onnx_adapter", matrices(2)))
    with pytest.raises(treadle.errors.InvalidArgument, match='"a", a parameter of an adapter, is fed already'):
        session.run(None, {"x": x, "a": ZERO_A}, options)
    stranger = options_with(treadle, written_by(treadle, tmp_path / "s.onnx_adapter", {"stranger": x}))
    with pytest.raises(treadle.errors.InvalidArgument, match="stranger"):
        session.run(None, {"x": x}, stranger)
    with pytest.raises(treadle.errors.InvalidArgument, match="the adapter is empty"):
        treadle.RunOptions().add_active_adapter(treadle.LoraAdapter())
    with pytest.raises(treadle.errors.NotFound):
        treadle.LoraAdapter().Load(str(tmp_path / "nothing.onnx_adapter"))


def test_names_are_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "whole.onnx_adapter"
    written_by(treadle, path, {"name": np.zeros(3, np.float32)})
    whole = path.read_bytes()
    assert whole.count(b"name") == 1
    for name in (b"n\xe9me", b"\xff\xff\xff\xff", b"na\xc3("):
        path.write_bytes(whole.replace(b"name", name))
        with pytest.raises(treadle.errors.InvalidArgument, match="not UTF-8"):
            treadle.AdapterFormat.read_adapter(str(path))


def test_no_part_of_a_file_is_believed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "whole.onnx_adapter"
    written_by(treadle, path, {"a": RNG.standard_normal((3, 5)).astype(np.float32), "b": np.arange(7)})
    whole, broken = path.read_bytes(), tmp_path / "broken.onnx_adapter"
    for length in range(len(whole) - 8):  # up to 8 bytes at the end are padding, which may be missing
        broken.write_bytes(whole[:length])
        with pytest.raises(treadle.errors.InvalidArgument):
            treadle.AdapterFormat.read_adapter(str(broken))
    for place in range(len(whole)):
        for value in (0, 1, 0x7F, 0xFF):
            broken.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            try:
                treadle.AdapterFormat.read_adapter(str(broken))
            except treadle.errors.InvalidArgument:
                pass
