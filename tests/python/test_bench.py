"""Tests the rules of the benchmarks: operations per layer, ratios, and the statistics of the regression check. Expected numbers are
computed by hand."""

import json
import math
import re
import sys
import xml.etree.ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench"))

import ceilings
import layers
import page
import ratios
import regression
import report


def test_operations_of_convolutions():
    ones = [1, 1]
    # There are 64 x 9 x 64 products for each of 56 x 56 pixels: 115,605,504.
    assert ceilings.count_conv([1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 56, 56], 1, ones, ones) == ("winograd", 2 * 115_605_504)
    assert ceilings.count_conv([1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 28, 28], 1, [2, 2], ones) == ("gemm", 2 * 28_901_376)
    assert ceilings.count_conv([1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 56, 56], 1, ones, [2, 2])[0] == "gemm"
    assert ceilings.count_conv([1, 64, 56, 56], [64, 8, 3, 3], [1, 64, 56, 56], 8, ones, ones) == ("gemm", 2 * 14_450_688)
    assert ceilings.count_conv([2, 32, 10, 10], [32, 1, 5, 5], [2, 32, 10, 10], 32, ones, ones) == ("depthwise", 2 * 160_000)
    assert ceilings.count_conv([1, 3, 20], [4, 3, 3], [1, 4, 18], 1, [1], [1]) == ("gemm", 2 * 648)
    # Each of the 16 x 5 x 5 inputs is multiplied with 8 x 2 x 2 weights.
    assert ceilings.count_conv([1, 16, 5, 5], [16, 8, 2, 2], [1, 8, 10, 10], 1, [2, 2], ones, transposed=True) == ("gemm", 2 * 12_800)


def test_operations_of_products_and_recurrent_networks():
    assert ceilings.count_product([12, 128, 64], [12, 64, 128], [12, 128, 128]) == 2 * 12 * 128 * 128 * 64
    assert ceilings.count_product([64], [64, 10], [10]) == 2 * 640
    # The layer has two directions, four gates with 160 units, 96 inputs and 160 states, and 80 steps.
    assert ceilings.count_recurrent("LSTM", [80, 1, 96], [2, 640, 96], [2, 640, 160]) == 2 * 80 * 2 * 640 * 256
    assert ceilings.count_recurrent("GRU", [5, 2, 4], [1, 9, 4], [1, 9, 3]) == 2 * 5 * 2 * 9 * 7


def test_the_ceiling_weighs_operations_by_kind():
    layer = lambda kind, flops: ceilings.Layer("n", "op", kind, flops, "")
    layers = [layer("gemm", 970), layer("rnn", 97), layer("depthwise", 92), layer("winograd", 260)]
    assert ceilings.ceiling_flops(layers) == pytest.approx(1000 + 100 + 100 + 100)


def small_model(tmp_path, operators, shape=("n", 3, "h", "w")):
    random = np.random.default_rng(0)
    constants = [onnx.numpy_helper.from_array(random.random(s, np.float32), name) for name, s in {"w": (8, 3, 3, 3), "d": (8, 1, 3, 3), "g": (8, 10)}.items()]
    nodes = [helper.make_node(op, inputs, outputs, name=f"/{op}{i}", **attributes) for i, (op, inputs, outputs, attributes) in enumerate(operators)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])], constants)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_layers_of_a_model_have_the_extents_of_the_feeds(tmp_path):
    path = small_model(tmp_path, [
        ("Conv", ["x", "w"], ["a"], {"pads": [1, 1, 1, 1]}),
        ("Conv", ["a", "d"], ["b"], {"group": 8, "strides": [2, 2]}),
        ("GlobalAveragePool", ["b"], ["c"], {}),
        ("Flatten", ["c"], ["f"], {}),
        ("MatMul", ["f", "g"], ["y"], {}),
    ])  # fmt: skip
    layers = ceilings.layers_of(path, {"x": np.zeros((2, 3, 9, 9), np.float32)})
    assert [(layer.kind, layer.flops) for layer in layers] == [
        ("winograd", 2 * 2 * 8 * 81 * 27),
        ("depthwise", 2 * 2 * 8 * 16 * 9),
        ("gemm", 2 * 2 * 8 * 10),
    ]
    assert [layer.label for layer in layers] == ["Conv 3x3 3->8 at 9x9", "Conv 3x3 8->8 at 4x4 group 8 stride 2", "MatMul 2x8x10"]
    assert layers[0].name == "/Conv0"
    assert ceilings.weight_bytes(path) == 4 * (216 + 72 + 80)


def test_no_ceiling_where_a_shape_is_unknown_or_products_are_in_bytes(tmp_path):
    unknown = [("NonZero", ["x"], ["i"], {}), ("Cast", ["i"], ["a"], {"to": TensorProto.FLOAT}), ("MatMul", ["a", "g"], ["y"], {})]
    assert ceilings.layers_of(small_model(tmp_path, unknown), {"x": np.zeros((1, 3, 9, 9), np.float32)}) is None
    integers = [("Cast", ["x"], ["a"], {"to": TensorProto.UINT8}), ("MatMulInteger", ["a", "a"], ["y"], {})]
    coded = [("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}), ("DequantizeLinear", ["q", "s", "z"], ["y"], {})]
    for operators in (integers, coded):
        assert ceilings.layers_of(small_model(tmp_path, operators), {"x": np.zeros((1, 3, 9, 9), np.float32)}) is None


@pytest.mark.skipif(ceilings.library() is None, reason="no C compiler")
def test_yardsticks_do_what_they_count():
    library = ceilings.library()
    # The function x -> x / 2 + 1/4 has the fixed point 1/2. The result is the sum of sixteen chains plus the addend.
    assert library.chains(200, 0.5, 0.25) == pytest.approx(16 * 0.5 + 0.25)
    data = np.arange(1, 257, dtype=np.float32)
    aligned = np.zeros(512, np.float32)
    aligned = aligned[(-aligned.ctypes.data % 64) // 4 :][:256]
    aligned[:] = data
    # The function returns the sum of the first elements of all vectors.
    assert library.read_all(aligned.ctypes.data, aligned.nbytes, 3) == 3 * data.reshape(-1, library.lanes())[:, 0].sum()
    assert ceilings.read_times(ceilings.READ_BYTES // 2 - 1) == 2
    assert ceilings.read_times(10 * ceilings.READ_BYTES) == 1
    assert ceilings.peak_flops(2) == 2 * ceilings.peak_flops(1)
    for threads in (1, 2):
        ceilings.peak_runner(threads)()
        ceilings.read_runner(100_000, threads)()


def result(**engines):
    return {"engines": {name: {"ms": ms, "error": error} for name, (ms, error) in engines.items()}}


def test_ratios_are_over_the_best_peer():
    r = result(treadle=(2.0, 1e-6), onnxruntime=(3.0, 1e-6), openvino=(4.0, 1e-6), ncnn=(2.5, 1e-6), mnn=(9.0, 1e-6), pytorch=(1.0, 1e-6))
    assert ratios.ratio(r, ratios.FIRST_PEERS) == 1.5
    assert ratios.ratio(r, ratios.ALL_PEERS) == 1.25
    assert ratios.fastest_peer(r) == "ncnn"
    assert ratios.error_ratio(r) == 1
    assert ratios.error_ratio(r | {"exact": False}) is None


def test_a_peer_that_computes_something_else_is_left_out():
    r = result(treadle=(2.0, 9e-6), onnxruntime=(3.0, 1e-6), openvino=(1.0, 1.01e-4), ncnn=(2.5, 0.99e-4), mnn=(1.0, math.inf), pytorch=(1.0, math.nan))
    assert ratios.left_out(r) == {"openvino", "mnn", "pytorch"}
    assert ratios.ratio(r, ratios.FIRST_PEERS) == 1.5
    assert ratios.ratio(r, ratios.ALL_PEERS) == 1.25
    row = ratios.table({"m": r}, list(r["engines"]))[-1]
    assert "1 (1e-04)*" in row
    assert "1 (inf)*" in row
    assert "2.5 (1e-04) |" in row
    assert any(note.startswith("* ") for note in ratios.notes({"m": r}, {}))
    # Against ONNX Runtime's own results its error is 0. Others may still have the error of float32 rounding.
    assert ratios.left_out(result(treadle=(1.0, 0.0), onnxruntime=(1.0, 0.0), openvino=(1.0, 0.9e-5), ncnn=(1.0, 1.1e-5))) == {"ncnn"}
    assert ratios.left_out(result(treadle=(1.0, 0.0), openvino=(1.0, 1.0))) == set()


def test_what_was_not_measured_is_a_dash():
    r = result(treadle=(2.0, 1e-6), onnxruntime=(3.0, 1e-6)) | {"failed": {"mnn": "no such operator"}}
    text = ratios.table({"m": r}, ["treadle", "onnxruntime", "mnn"])
    assert text[-1] == "| m | 2 (1e-06) | 3 (1e-06) | – | 1.50 | 1.50 | 1.0 |"
    alone = result(treadle=(2.0, 1e-6))
    assert ratios.ratio(alone, ratios.ALL_PEERS) is None
    notes = ratios.notes({"m": r}, {"ncnn": "not installed (ncnn)"})
    assert "Not converted or not run: MNN: m (no such operator)." in notes
    assert "No column for ncnn: not installed (ncnn)." in notes


def test_the_ceiling_is_the_later_of_operations_and_weights():
    r = result(treadle=(2.0, 0.0)) | {"ceiling_ms": 1.5, "weights_ms": 1.0}
    assert ratios.ceiling_fraction(r) == 0.75
    assert not ratios.bound_by_weights(r)
    r["weights_ms"] = 1.8
    assert ratios.ceiling_fraction(r) == 0.9
    assert ratios.table({"m": r}, ["treadle"])[-1].endswith("90% m |")
    assert ratios.ceiling_fraction(result(treadle=(2.0, 0.0))) is None


def test_the_reason_of_a_failure_is_one_line_without_places_in_a_source():
    assert report.models.reason_of(RuntimeError("Exception from src/core.cpp:84:\nCheck 'false' failed at a.cpp:1:\n\n  no such operator \nmore")) == "no such operator"
    assert report.models.reason_of(KeyError()) == "KeyError"


def test_means_and_details():
    results = {"a": result(treadle=(1.0, 0.0), onnxruntime=(4.0, 0.0)), "b": result(treadle=(1.0, 0.0), onnxruntime=(1.0, 0.0))}
    assert str(ratios.summary(results, ratios.FIRST_PEERS)) == "geometric mean 2.00 over 2 models, lowest 1.00 (b)"
    results["a"] |= {"memory": {"account": 6.4, "process": 10.2, "onnxruntime": 20.6}, "bits": {"2": True, "3": False}}
    rows = ratios.table(results, ["treadle", "onnxruntime"])
    assert rows[2].endswith("| 6 / 10 (21) | not with 3 |")
    assert rows[3].endswith("| – | – |")


def test_nodes_count_for_the_last_layer_before_them():
    # The graph is x -> 0 conv -> 1 relu -> 2 conv -> 4 add (with 1) -> 5 pool; node 3 reads only x.
    nodes = [(["x"], ["a"]), (["a"], ["b"]), (["b"], ["c"]), (["x"], ["d"]), (["b", "c"], ["e"]), (["e", "d"], ["y"])]
    assert layers.owners(nodes, {0, 2}) == [0, 0, 2, layers.START, 2, 2]


def test_kernels_without_a_known_name_count_for_the_one_before():
    owner_of_node = [0, 0, 2, layers.START, 2, 2]
    kernels = [("x/channels_last", 1.0), ("@1@_1", 10.0), ("ReorderOutput_kernel_time", 2.0), ("@4@.0_nchwc_kernel_time", 20.0), ("@0@", 5.0)]
    assert layers.time_by_layer(kernels, owner_of_node) == {layers.START: 1.0, 0: 17.0, 2: 20.0}


def test_layers_joined_by_one_engine_are_compared_as_one():
    ours, theirs = {2: 10.0, 5: 4.0}, {layers.START: 1.0, 0: 3.0, 2: 8.0, 5: 4.0, 7: 2.0}
    assert layers.merged([layers.START, 0, 2, 5, 7], ours, theirs) == [([layers.START, 0, 2], 10.0, 12.0), ([5, 7], 4.0, 6.0)]
    assert layers.merged([0], {}, {}) == [([0], 0, 0)]


def test_layers_of_one_kind_are_added_up_and_losses_come_first():
    rows = [("a", 1.0, 2.0), ("b", 5.0, 4.0), ("b", 3.0, 2.0), ("c", 1.0, 1.5)]
    assert layers.grouped(rows) == [("b", 2, 8.0, 6.0), ("c", 1, 1.0, 1.5), ("a", 1, 1.0, 2.0)]
    text = layers.report(rows, every=False)
    assert len(text) == 2
    assert "2 x b" in text[0]
    assert "1 of 3 kinds of layers lose 2 us together" in text[1]


def test_names_that_engines_derive_kernels_from_tell_the_node():
    branch = lambda name: helper.make_graph([helper.make_node("Add", ["b", "b"], [name])], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])])
    nodes = [
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("If", ["condition"], ["c"], then_branch=branch("t"), else_branch=branch("e")),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), helper.make_tensor_value_info("condition", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    layers.tag_names(model)
    onnx.checker.check_model(model)
    assert [n.name for n in model.graph.node] == ["@0@", "@1@", "@2@"]
    assert model.graph.output[0].name == "@2@.0"
    assert list(model.graph.node[1].attribute[0].g.node[0].input) == ["@0@.0", "@0@.0"]


def test_medians_of_kernels_leave_out_the_first_runs():
    events = [{"cat": "node", "name": "Relu @0@", "dur": d} for d in (90, 90, 90, 1, 2, 6)] + [{"cat": "run", "name": "run", "dur": 5}]
    assert layers.kernels_of(events, "treadle", runs=6) == [("@0@", 2)]
    with pytest.raises(RuntimeError, match="differ in their kernels"):
        layers.kernels_of(events, "treadle", runs=4)


def test_noise_is_half_of_the_middle_half():
    assert regression.noise_of([90.0, 95.0, 100.0, 105.0, 110.0]) == pytest.approx(0.05)
    assert regression.noise_of([1.0, 1.0, 1.0]) == 0


def test_a_change_beyond_the_noise_is_found_and_one_within_is_not():
    random = np.random.default_rng(1)
    drift = np.linspace(1.0, 1.5, 30)  # the machine slows down during both series
    before = drift * random.normal(10, 0.1, 30)
    for factor, word in ((1.1, "slower"), (0.9, "faster"), (1.0, "same")):
        verdict = regression.judge(list(before), list(drift * factor * random.normal(10, 0.1, 30)), least=0.02)
        assert verdict.word == word, verdict
        assert verdict.low <= verdict.ratio <= verdict.high
        assert verdict.ratio == pytest.approx(factor, abs=0.01)
    noisy = regression.judge(list(random.normal(10, 3, 10)), list(random.normal(10.3, 3, 10)), least=0.02)
    assert noisy.word == "unclear"
    # A change of three percent is certain. `least` decides whether it matters.
    exact = [10.0] * 12, [10.3] * 12
    assert regression.judge(*exact, least=0.02).word == "slower"
    assert regression.judge(*exact, least=0.05).word == "same"


def test_the_interval_of_a_median_is_that_of_its_order_statistics():
    # The median of a sample redrawn from 1 … 9 is at most 1 with a probability just above (1/9)^5. A 99 % interval omits 0.5 % on each side.
    low, high = regression.interval_of([float(i) for i in range(1, 10)])
    chance_of_at_most = lambda k: sum(math.comb(9, i) * (k / 9) ** i * (1 - k / 9) ** (9 - i) for i in range(5, 10))
    expected = next(k for k in range(1, 10) if chance_of_at_most(k) >= 0.005)
    assert (low, high) == (expected, 10 - expected)


def test_exit_status_of_the_regression_check():
    verdict = lambda word: regression.Verdict(1.0, 1.0, 1.0, (0.0, 0.0), word)
    assert regression.exit_status({"a": verdict("same"), "b": verdict("unclear"), "c": verdict("faster")}, []) == 0
    assert regression.exit_status({"a": verdict("same"), "b": verdict("slower")}, []) == 1
    assert regression.exit_status({"a": verdict("same")}, ["b"]) == 2


def test_the_median_that_the_command_line_prints_is_understood():
    assert regression.median_of_bench("  latency     median 0.094 ms, p90 0.107, p99 4.172") == 0.094
    with pytest.raises(RuntimeError, match="no median"):
        regression.median_of_bench("nothing")


def test_a_regression_is_found_between_two_programs(tmp_path, monkeypatch, capsys):
    """Compares two programs that print `treadle bench` output. The second claims to be a fifth slower, or fails."""

    def program(name, text, status=0):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    fast, slow = program("fast", "median 1.0 ms"), program("slow", "median 1.2 ms")
    broken = program("broken", "", status=3)
    monkeypatch.setattr(regression.models, "model_names", lambda only: ["m"])
    monkeypatch.setattr(regression.models, "load", lambda *_: regression.models.Case("m", tmp_path, {}, []))
    monkeypatch.setattr(regression.os, "sched_setaffinity", lambda *_: None, raising=False)
    for sides, status, word in (((fast, slow), 1, "slower"), ((slow, fast), 0, "faster"), ((fast, fast), 0, "same"), ((fast, broken), 2, "exit status 3"), ((broken, fast), 0, "before:")):
        monkeypatch.setattr(sys, "argv", ["regression.py", *sides, "--rounds", "3"])
        assert regression.main() == status
        assert word in capsys.readouterr().out


def test_the_plot_has_a_dot_for_every_time_and_a_hollow_one_for_who_is_left_out():
    one = result(treadle=(2.0, 1e-6), onnxruntime=(3.0, 1e-6), ncnn=(1.0, 1.0), mnn=(100.0, 1e-6)) | {"ceiling_ms": 1.0, "weights_ms": 0.1}
    svg = xml.etree.ElementTree.fromstring(page.model_plot({"resnet18": one, "absent": result(onnxruntime=(1.0, 0.0))}, "a & b"))
    name = "{http://www.w3.org/2000/svg}"
    dots = [c for c in svg.iter(f"{name}circle") if c.find(f"{name}title") is not None]
    at = {c.find(f"{name}title").text.split()[0]: float(c.get("cx")) for c in dots}
    # Positions follow from the labels of the scale. A value above 3 is drawn at 3, the end.
    ticks = {t.text.split()[0]: float(t.get("x")) for t in svg.iter(f"{name}text") if t.get("text-anchor") == "middle"}
    assert at == {"ONNX": ticks["1.5"], "ncnn": ticks["0.5"], "MNN": ticks["3"]}
    assert [c.get("fill") == "white" for c in dots] == [False, True, False]
    marks = [r for r in svg.iter(f"{name}rect") if r.get("width") == "3"]
    assert float(marks[-1].get("x")) + 1.5 == pytest.approx(ticks["0.5"], abs=0.1)


def test_the_page_of_figures_is_that_of_the_results():
    """The page and its plots must be up to date: bench/report.py --render writes them."""
    for path, text in page.render().items():
        assert path.read_text() == text, path


def test_every_figure_says_how_it_was_measured():
    figures = json.loads((page.RESULTS / "figures.json").read_text())
    for section in figures["sections"]:
        for figure in [*section.get("figures", []), *section.get("tables", [])]:
            assert set(figure["machine"].split(", ")) <= set(figures["machines"]), figure
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", figure["date"]), figure
            assert figure["command"], figure
        for table in section.get("tables", []):
            assert all(len(row) == len(table["columns"]) for row in table["rows"]), table["title"]


def test_a_section_names_machine_versions_and_models_in_their_order():
    one = result(treadle=(2.0, 1e-6), onnxruntime=(3.0, 1e-6)) | {"peak_gflops": 100.0}
    entry = {"results": {"vgg11": one, "resnet18": one}, "machine": "M", "date": "D", "commit": "C", "versions": {"treadle": "1", "onnxruntime": "2"}, "missing": {}}
    lines = page.model_section("amd", "one", entry)
    assert lines[0] == "### AMD, one thread, batch 1"
    assert lines[2] == "M; peak 100 to 100 GFLOP/s; D; C; ONNX Runtime 2."
    assert [line.split()[1] for line in lines if line.startswith("| ")] == ["model", "resnet18", "vgg11"]
    assert report.kept_details({"memory": 1, "bits": 2, "engines": 3}) == {"memory": 1, "bits": 2}
