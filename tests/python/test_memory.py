"""Tests treadle.memory and `treadle plan`: all pairs of buffers of each plan are checked."""

import csv
import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from treadle.memory import plan_arena


def assert_valid(sizes, first, last, offsets):
    for i in range(len(sizes)):
        for j in range(i):
            if first[i] < last[j] and first[j] < last[i]:
                assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]


def test_buffers_that_are_alive_together_do_not_overlap():
    random = np.random.default_rng(1)
    sizes = [int(x) for x in random.integers(1, 1000, 60)]
    first = [int(x) for x in random.integers(0, 50, 60)]
    last = [f + 1 + int(x) for f, x in zip(first, random.integers(0, 20, 60))]
    plan = plan_arena(sizes, first, last, alignment=1, time_limit_seconds=1)
    assert_valid(sizes, first, last, plan.offsets)
    peak = max(sum(s for s, f, e in zip(sizes, first, last) if f <= t < e) for t in range(80))
    assert peak <= plan.lower_bound_bytes <= plan.size_bytes
    assert plan.size_bytes == max(o + s for o, s in zip(plan.offsets, sizes))


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(treadle.Error, match="2 sizes, 1 first"):
        plan_arena([1, 2], [0], [1, 2])


def test_plan_writes_the_input_columns_and_the_offset(program, tmp_path):
    table = tmp_path / "buffers.csv"
    table.write_text("id,size,lower,upper,note\na,4,0,2,x\nb,6,1,3,y\nc,4,2,4,\n")
    out = tmp_path / "plan.csv"
    run = subprocess.run([program, "plan", table, "--capacity", "10", "-o", out], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = list(csv.DictReader(out.open()))
    assert [(r["id"], r["size"], r["note"]) for r in rows] == [("a", "4", "x"), ("b", "6", "y"), ("c", "4", "")]
    numbers = [[int(r[key]) for r in rows] for key in ("size", "lower", "upper", "offset")]
    assert_valid(*numbers)
    assert max(s + o for s, o in zip(numbers[0], numbers[3])) == 10
    assert "height       10 bytes" in run.stdout and "gap          0.000 %" in run.stdout


def test_plan_says_that_nothing_fits(program, tmp_path):
    table = tmp_path / "buffers.csv"
    table.write_text("id,lower,upper,size\n0,0,2,4\n1,1,3,6\n")
    run = subprocess.run([program, "plan", table, "--capacity", "9"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "does not fit 9 bytes: no plan does" in run.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\n0,0,1\n", 'no column "size"'),
        ("id,lower,upper,size\n0,0,1,-4\n", 'line 2: the size "-4" is not a number in range'),
        ("id,lower,upper,size\n0,0,1\n", "line 2: 3 fields, the header has 4"),
        ("id,lower,upper,size\n0,2,1,4\n", "lives from step 2 to step 1"),
        ("", "no header line"),
    ],
)
def test_plan_names_the_line_it_cannot_read(program, tmp_path, text, message):
    table = tmp_path / "buffers.csv"
    table.write_text(text)
    run = subprocess.run([program, "plan", table], capture_output=True, text=True)
    assert run.returncode == 1
    assert message in run.stderr


def product_model():
    """Returns y = x w with one matrix of 64 KB."""
    onnx = pytest.importorskip("onnx")
    w = onnx.numpy_helper.from_array(np.random.default_rng(3).standard_normal((128, 128)).astype(np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 128])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 128])],
        [w],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_sessions_of_one_process_hold_weights_once():
    model, x = product_model(), np.ones((3, 128), np.float32)
    alone = treadle.SessionOptions()
    alone.share_weights = False
    expected = treadle.InferenceSession(model, alone).run(None, {"x": x})[0]
    first = treadle.InferenceSession(model)
    one = treadle.memory.shared_weights()
    second = treadle.InferenceSession(model)
    two = treadle.memory.shared_weights()
    assert one["packed_bytes"] >= 128 * 128 * 4
    assert (two["packed_bytes"], two["constant_bytes"]) == (one["packed_bytes"], one["constant_bytes"])
    assert two["hits"] > one["hits"]
    del first
    np.testing.assert_array_equal(second.run(None, {"x": x})[0], expected)
    del second
    assert treadle.memory.shared_weights()["num_packed"] == one["num_packed"] - 1


class Source:
    """An allocator that takes memory from NumPy, aligned to 64 bytes."""

    def __init__(self):
        self.blocks = {}
        self.fails = False
        self.freed = 0

    def allocate(self, size_bytes):
        if self.fails:
            return None
        block = np.empty(size_bytes + 64, np.uint8)
        address = (block.ctypes.data + 63) // 64 * 64
        self.blocks[address] = block
        return address

    def free(self, address, size_bytes):
        assert self.blocks[address].nbytes == size_bytes + 64
        del self.blocks[address]
        self.freed += 1


def test_a_callers_allocator_gives_a_session_its_memory():
    source = Source()
    allocator = treadle.memory.Allocator(source.allocate, source.free, name="numpy")
    options = treadle.SessionOptions()
    options.allocator = allocator
    assert options.allocator == "numpy"
    session = treadle.InferenceSession(product_model(), options)
    x = np.ones((3, 128), np.float32)
    expected = treadle.InferenceSession(product_model()).run(None, {"x": x})[0]
    result = session.run(None, {"x": x})[0]
    np.testing.assert_array_equal(result, expected)
    statistics = allocator.statistics()
    assert statistics["packed"]["bytes"] >= 128 * 128 * 4
    assert any(address <= result.ctypes.data < address + block.nbytes for address, block in source.blocks.items())
    source.fails = True
    with pytest.raises(treadle.Error, match="cannot allocate"):
        session.run(None, {"x": np.ones((1000, 128), np.float32)})
    source.fails = False
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
    del session
    np.testing.assert_array_equal(result, expected)
    del result
    assert not source.blocks and source.freed == allocator.statistics()["total"]["num_allocations"]


def test_a_callers_allocator_gives_one_output_its_memory():
    source = Source()
    options = treadle.RunOptions()
    options.output_allocators = {"y": treadle.memory.Allocator(source.allocate, source.free)}
    session = treadle.InferenceSession(product_model())
    result = session.run(None, {"x": np.ones((3, 128), np.float32)}, options)[0]
    assert len(source.blocks) == 1
    del result
    assert not source.blocks
    options.output_allocators = {"z": treadle.memory.Allocator(source.allocate, source.free)}
    with pytest.raises(treadle.Error, match='output_allocators: "z" is no output of this run; is it y'):
        session.run(None, {"x": np.ones((3, 128), np.float32)}, options)


def test_what_an_allocator_raises_ends_the_run():
    def broken(size_bytes):
        raise KeyError("no memory here")

    options = treadle.RunOptions()
    options.output_allocators = {"y": treadle.memory.Allocator(broken, lambda address, size_bytes: None, name="broken")}
    session = treadle.InferenceSession(product_model())
    with pytest.raises(treadle.Error, match="no memory here"):
        session.run(None, {"x": np.ones((3, 128), np.float32)}, options)
    options.output_allocators = {"y": treadle.memory.Allocator(lambda size_bytes: 24, lambda address, size_bytes: None)}
    with pytest.raises(treadle.Error, match="no multiple of 64"):
        session.run(None, {"x": np.ones((3, 128), np.float32)}, options)
    with pytest.raises(treadle.Error, match="allocate and free"):
        treadle.memory.Allocator(1, 2)


def test_sessions_share_a_named_allocator():
    pool = treadle.memory.Allocator.named("arena")
    options = treadle.SessionOptions()
    options.allocator = pool
    x = np.ones((3, 128), np.float32)
    results = [treadle.InferenceSession(product_model(), options).run(None, {"x": x})[0] for _ in range(2)]
    np.testing.assert_array_equal(*results)
    assert pool.name == "arena"


def model_with(node, dtype_in, dtype_out):
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", dtype_in, [64])], [helper.make_tensor_value_info("y", dtype_out, [64])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def test_memory_that_ran_out_is_an_error_of_its_own():
    options = treadle.SessionOptions()
    options.memory_limit_bytes = 100
    session = treadle.InferenceSession(model_with(helper.make_node("Exp", ["x"], ["y"]), TensorProto.FLOAT, TensorProto.FLOAT), options)
    with pytest.raises(MemoryError, match="the memory limit of 100 bytes") as caught:
        session.run(None, {"x": np.zeros(64, np.float32)})
    assert isinstance(caught.value, treadle.errors.OutOfMemory)
    assert isinstance(caught.value, treadle.errors.RuntimeException), "as in ONNX Runtime"
    assert caught.value.code == "resource_exhausted"
    # When another limit is exceeded, the error has the same code, and its message speaks of bytes.
    pattern = helper.make_node("RegexFullMatch", ["x"], ["y"], pattern="((bytes{900}){900}){9}")
    with pytest.raises(treadle.errors.RuntimeException) as other:
        treadle.InferenceSession(model_with(pattern, TensorProto.STRING, TensorProto.BOOL))
    assert other.value.code == "resource_exhausted"
    assert not isinstance(other.value, MemoryError)
