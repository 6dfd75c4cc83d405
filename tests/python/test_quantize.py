"""treadle.quantize: its files pass onnx.checker, ONNX Runtime and Treadle compute the same with them, and the error against the float model is
small."""

import json
import pathlib
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from treadle import quantize

from conftest import ort_saturates

RANDOM = np.random.default_rng(0)


def weights(name, *shape):
    scale = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
    return numpy_helper.from_array((RANDOM.standard_normal(shape) * scale).astype(np.float32), name)


def make(nodes, inputs, outputs, initializers, opset):
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs], [info(*o) for o in outputs], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 10)
    onnx.checker.check_model(model)
    return model


def products(opset=17):
    """Returns a model with products of all kinds of weights: MatMul, Gemm with and without transB and alpha, a tied pair; K = 72 is no multiple of
    32."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w1"], ["a"], name="first"),
        node("Relu", ["a"], ["b"]),
        node("Gemm", ["b", "w2", "c2"], ["c"], name="second", transB=1, alpha=0.5),
        node("Gelu" if opset >= 20 else "Tanh", ["c"], ["d"]),
        node("Gemm", ["d", "w3"], ["e"], name="third"),
        node("MatMul", ["e", "w1"], ["f"], name="fourth"),
        node("Add", ["f", "e2"], ["y"]),
    ]
    initializers = [weights("w1", 72, 64), weights("w2", 50, 64), weights("c2", 50, 1), weights("w3", 50, 72), weights("e2", 64, 1)]
    for i in (2, 4):
        initializers[i] = numpy_helper.from_array(numpy_helper.to_array(initializers[i]).reshape(-1), initializers[i].name)
    return make(nodes, [("x", ["n", 72])], [("y", ["n", 64])], initializers, opset)


def convolutions(opset=13):
    """Returns a residual block with batch normalisation, a depthwise convolution with Clip, a Concat of branches, a pool and a Gemm."""
    node = helper.make_node
    norm = [numpy_helper.from_array(RANDOM.uniform(0.5, 1.5, 16).astype(np.float32), n) for n in ("gamma", "beta", "mean", "var")]
    low, high = (numpy_helper.from_array(np.float32(v), n) for v, n in ((0, "low"), (6, "high")))
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], name="stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c1", "gamma", "beta", "mean", "var"], ["n1"]),
        node("Relu", ["n1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], name="inner", pads=[1, 1, 1, 1]),
        node("Add", ["c2", "r1"], ["s"]),
        node("Relu", ["s"], ["r2"]),
        node("Conv", ["r2", "wd"], ["d"], name="depthwise", group=16, pads=[1, 1, 1, 1]),
        node("Clip", ["d", "low", "high"], ["d6"]),
        node("Conv", ["d6", "w3"], ["left"], name="left"),
        node("Relu", ["left"], ["left_r"]),
        node("Conv", ["d6", "w4"], ["right"], name="right", pads=[1, 1, 1, 1]),
        node("Concat", ["left_r", "right"], ["both"], axis=1),
        node("MaxPool", ["both"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pooled", "w5", "b5"], ["last"], name="last"),
        node("GlobalAveragePool", ["last"], ["mean_of_all"]),
        node("Flatten", ["mean_of_all"], ["flat"]),
        node("Gemm", ["flat", "w6", "b6"], ["y"], name="classifier", transB=1),
    ]
    biases = {"b1": 16, "b5": 32, "b6": 10}
    vectors = [numpy_helper.from_array(RANDOM.standard_normal(n).astype(np.float32), name) for name, n in biases.items()]
    matrices = [weights("w1", 16, 3, 3, 3), weights("w2", 16, 16, 3, 3), weights("wd", 16, 1, 3, 3), weights("w3", 8, 16, 1, 1)]
    matrices += [weights("w4", 8, 16, 3, 3), weights("w5", 32, 16, 1, 1), weights("w6", 10, 32)]
    return make(nodes, [("x", ["n", 3, 32, 32])], [("y", ["n", 10])], matrices + vectors + norm + [low, high], opset)


def sqnr(expected, actual):
    noise = np.mean(np.square(expected - actual, dtype=np.float64))
    return 10 * np.log10(np.mean(np.square(expected, dtype=np.float64)) / max(noise, 1e-30))


def run(data, x, ort=None):
    if ort:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        # ONNX Runtime fuses DequantizeLinear and MatMul to MatMulNBits, by default with activations in int8.
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    return treadle.InferenceSession(data).run(None, {"x": x})[0]


def check(model, result, x, tmp_path, ort, least_db, near):
    """Compares the quantised file with the float model, and with ONNX Runtime on the same file. Returns the written model."""
    path = str(tmp_path / "quantised.onnx")
    result.model.save(path)
    onnx.checker.check_model(path, full_check=True)
    expected, ours, theirs = run(model.SerializeToString(), x), run(path, x), run(path, x, ort)
    assert sqnr(expected, ours) > least_db
    if not ort_saturates():
        assert sqnr(expected, theirs) > least_db
        assert np.abs(ours - theirs).max() <= near * np.abs(theirs).max()
    return onnx.load(path)


def load(model, tmp_path):
    path = tmp_path / "float.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_dynamic_products_are_integer_products_in_both_runtimes(tmp_path, ort):
    model, x = products(), RANDOM.standard_normal((9, 72)).astype(np.float32)
    result = quantize.dynamic(load(model, tmp_path), samples=[{"x": x}])
    written = check(model, result, x, tmp_path, ort, 30, 0.02)
    ops = [node.op_type for node in written.graph.node]
    assert ops.count("MatMulInteger") == 4 and "MatMul" not in ops and "Gemm" not in ops
    assert len([i for i in written.graph.initializer if i.data_type == TensorProto.INT8 and len(i.dims) == 2]) == 3, "w1 is stored once"
    report = result.report
    assert [node.name for node in report.nodes] == ["first", "second", "third", "fourth"]
    assert all(node.quantized and node.output_sqnr_db > 30 and node.weight_sqnr_db > 35 for node in report.nodes)
    assert report.bytes_after < report.bytes_before / 3


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("format", ["matmul_nbits", "qdq"])
@pytest.mark.parametrize(("bits", "block", "decibels"), [(4, 32, 14), (4, 128, 12), (8, 64, 38)])
def test_blocked_weights_give_what_they_give_in_onnx_runtime(tmp_path, ort, bits, block, decibels, format, symmetric):
    model, x = products(), RANDOM.standard_normal((5, 72)).astype(np.float32)
    result = quantize.weights(
        load(model, tmp_path), bits=bits, block_size=block, symmetric=symmetric, format=format, samples=[{"x": x}]
    )
    written = check(model, result, x, tmp_path, ort, decibels, 1e-4)
    ops = [node.op_type for node in written.graph.node]
    assert ops.count("MatMulNBits" if format == "matmul_nbits" else "DequantizeLinear") == 4
    assert all(node.weight_sqnr_db > (16 if bits == 4 else 40) for node in result.report.nodes)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_static_convolutions_run_on_bytes(tmp_path, ort, method, activations):
    model = convolutions()
    samples = [{"x": RANDOM.standard_normal((2, 3, 32, 32)).astype(np.float32)} for _ in range(8)]
    result = quantize.static(load(model, tmp_path), samples, method=method, activations=activations)
    written = check(model, result, samples[0]["x"], tmp_path, ort, 12 if method == "entropy" else 15, 0.06)
    ops = [node.op_type for node in written.graph.node]
    assert "BatchNormalization" not in ops, "its factors are in the weights"
    assert "Clip" not in ops and "Relu" not in ops, "saturation takes their place"
    for conv in (node for node in written.graph.node if node.op_type == "Conv"):
        makers = {output: node for node in written.graph.node for output in node.output}
        assert all(makers[name].op_type == "DequantizeLinear" for name in conv.input), conv.name
    assert result.report.calibration_samples == 8 and result.report.compared_samples == 4
    assert all(node.quantized for node in result.report.nodes)


def test_values_of_a_concat_and_a_pool_share_one_scale(tmp_path):
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "a"], ["left"]),
        node("Relu", ["left"], ["l"]),
        node("Conv", ["x", "b"], ["right"]),
        node("Relu", ["right"], ["r"]),
        node("Concat", ["l", "r"], ["both"], axis=1),
        node("MaxPool", ["both"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pooled", "c"], ["y"]),
    ]
    convs = [weights("a", 8, 3, 1, 1), weights("b", 8, 3, 1, 1), weights("c", 4, 16, 1, 1)]
    model = make(nodes, [("x", ["n", 3, 8, 8])], [("y", ["n", 4, 4, 4])], convs, 13)
    result = quantize.static(load(model, tmp_path), [{"x": RANDOM.standard_normal((1, 3, 8, 8)).astype(np.float32)}])
    result.model.save(str(tmp_path / "q.onnx"))
    graph = onnx.load(tmp_path / "q.onnx").graph
    makers = {output: node for node in graph.node for output in node.output}
    pool, concat = (next(node for node in graph.node if node.op_type == op) for op in ("MaxPool", "Concat"))
    readers = {name: node for node in graph.node for name in node.input}
    scales = {makers[name].input[1] for name in [pool.input[0], *concat.input]}
    scales |= {readers[name].input[1] for name in (pool.output[0], concat.output[0])}
    assert len(scales) == 1


def test_patterns_and_counts_choose_nodes(tmp_path):
    path = load(products(), tmp_path)

    def taken(**options):
        return [node.name for node in quantize.dynamic(path, **options).report.nodes if node.quantized]

    assert taken(include=["f*"]) == ["first", "fourth"]
    assert taken(exclude=["*r*"]) == ["second"]
    assert taken(op_types=["Gemm"]) == ["second", "third"]
    assert taken(skip_first=1, skip_last=2) == ["second"]
    assert taken(min_weight_elements=4000) == ["first", "fourth"]
    reasons = {node.name: node.reason for node in quantize.dynamic(path, skip_first=1, exclude=["third"]).report.nodes}
    assert "first 1" in reasons["first"] and "exclude" in reasons["third"]


def test_calibration_comes_from_callables_folders_and_generators(tmp_path):
    path, samples = load(convolutions(), tmp_path), [RANDOM.standard_normal((1, 3, 32, 32)).astype(np.float32) for _ in range(3)]
    folder = tmp_path / "samples"
    folder.mkdir()
    for i, x in enumerate(samples):
        np.savez(folder / f"{i}.npz", x=x)
    left = [{"x": x} for x in samples]
    sources = [folder, ({"x": x} for x in samples), lambda: left.pop(0) if left else None]
    written = []
    for i, source in enumerate(sources):
        result = quantize.static(path, source, tmp_path / f"{i}.onnx")
        assert result.report.calibration_samples == 3
        written.append((tmp_path / f"{i}.onnx").read_bytes())
    assert written[0] == written[1] == written[2]


def test_an_outlier_widens_the_range_of_minmax_only(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = make([node], [("x", ["n", 32])], [("y", ["n", 32])], [weights("w", 32, 32)], 13)
    x = RANDOM.standard_normal((4000, 32)).astype(np.float32)
    x[7, 3] = 1000
    found = {}
    for method in ("minmax", "percentile", "entropy"):
        result = quantize.static(load(model, tmp_path), [{"x": x}], method=method, percentile=99.99)
        result.model.save(str(tmp_path / "q.onnx"))
        found[method] = next(numpy_helper.to_array(i) for i in onnx.load(tmp_path / "q.onnx").graph.initializer if i.name == "x_scale")
    assert found["minmax"] > 3.9
    assert 6 / 255 < found["percentile"] < 12 / 255
    assert found["entropy"] < 1


def divergence(magnitudes, bins, levels):
    """Returns the KL divergence between the values and their codes: the first `bins` bins share `levels` codes evenly, the last code takes the
    rest."""
    reference = magnitudes[:bins].copy()
    reference[-1] += magnitudes[bins:].sum()
    edges = np.arange(levels + 1) * bins // levels
    coded = np.zeros(bins)
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        counts = magnitudes[begin:end]
        coded[begin:end][counts > 0] = counts.sum() / max((counts > 0).sum(), 1)
    p, q = reference / reference.sum(), np.maximum(coded / coded.sum(), 1e-9)
    return np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("zeros", [0, 0.7])
def test_entropy_finds_the_range_of_least_divergence(tmp_path, zeros, signed):
    """Compares with TensorRT's published method (S. Migacz, 8-bit Inference with TensorRT, 2017), over all ranges. Zeros do not count, as every range
    has a code for them."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = make([node], [("x", ["n", 64])], [("y", ["n", 32])], [weights("w", 64, 32)], 13)
    x = np.random.default_rng(5).laplace(size=(4000, 64)).astype(np.float32)
    x = x if signed else np.abs(x)
    x[np.random.default_rng(6).random(x.shape) < zeros] = 0
    quantize.static(load(model, tmp_path), [{"x": part} for part in np.split(x, 8)], tmp_path / "q.onnx", method="entropy", activations="int8")
    scale = next(numpy_helper.to_array(i) for i in onnx.load(tmp_path / "q.onnx").graph.initializer if i.name == "x_scale")
    found = float(scale) * 255 / (2 if signed else 1)
    bins, levels, limit = 4096, 128 if signed else 256, 2 ** np.ceil(np.log2(np.abs(x).max()))
    magnitudes = np.bincount((np.abs(x[x != 0]) / limit * bins).astype(int), minlength=bins).astype(float)
    filled = np.flatnonzero(magnitudes)[-1] + 1
    all_ranges = {count: divergence(magnitudes, count, levels) for count in range(levels, filled + 1, 8)}
    assert found > 0.5 * np.abs(x).max(), "most of the values lie inside"
    assert divergence(magnitudes, min(int(np.ceil(found / limit * bins)), filled), levels) < 1.1 * min(all_ranges.values()) + 1e-4


def test_entropy_on_a_relu_is_as_near_as_minmax(tmp_path, ort):
    """Most outputs of a Relu are zeros."""
    model = convolutions()
    samples = [{"x": RANDOM.standard_normal((2, 3, 32, 32)).astype(np.float32)} for _ in range(8)]
    errors = {}
    for method in ("minmax", "entropy"):
        result = quantize.static(load(model, tmp_path), samples, method=method)
        errors[method] = result.report.outputs[0].sqnr_db
    assert errors["entropy"] > errors["minmax"] - 3
    assert result.report.warnings == []


def test_a_model_that_is_far_from_the_float_one_is_told(tmp_path, program):
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    w = np.ones((32, 32), np.float32)
    w[0] = 1e6  # this element makes all other rows round to 0
    broken = load(make([node], [("x", ["n", 32])], [("y", ["n", 32])], [numpy_helper.from_array(w, "w")], 13), tmp_path)
    x = np.ones((4, 32), np.float32)
    x[:, 0] = 0
    with pytest.warns(UserWarning, match='the output "y" has an error of 100 % of the signal'):
        report = quantize.dynamic(broken, samples=[{"x": x}]).report
    assert any('MatMul node "product" is the first whose error exceeds' in text for text in report.warnings)
    assert str(report).count("\nwarning: ") == len(report.warnings)
    np.save(tmp_path / "x.npy", x)
    command = [program, "quantize", broken, "-o", tmp_path / "q.onnx", "--data", tmp_path / "x.npy"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'warning: the output "y" has an error of 100 %' in shown.stdout and shown.stderr == ""
    quiet = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=True)
    assert 'warning: the output "y" has an error of 100 %' in quiet.stderr and quiet.stdout == ""
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(as_json.stdout)["warnings"] == report.warnings and "warning" in as_json.stderr


def test_a_report_without_a_comparison_says_so(tmp_path):
    report = quantize.dynamic(load(products(), tmp_path)).report
    assert report.warnings == [] and "not compared with the float model" in str(report)


def test_an_old_model_is_brought_to_the_opset_that_the_result_needs(tmp_path, ort):
    model, x = products(11), RANDOM.standard_normal((3, 72)).astype(np.float32)
    result = quantize.weights(load(model, tmp_path), format="qdq", bits=8)
    written = check(model, result, x, tmp_path, ort, 38, 1e-4)
    assert written.opset_import[0].version >= 21


def test_what_is_not_touched_stays_as_it_is(tmp_path):
    model = products()
    model.producer_name, model.doc_string = "tests", "kept"
    quantize.dynamic(load(model, tmp_path), tmp_path / "q.onnx", include=["first"])
    written = onnx.load(tmp_path / "q.onnx")
    assert (written.producer_name, written.doc_string) == ("tests", "kept")
    kept = {node.name: node for node in written.graph.node}
    assert all(kept[node.name] == node for node in model.graph.node if node.name in ("second", "third", "fourth"))


def test_weights_that_are_not_finite_stay_float(tmp_path):
    model = products()
    bad = numpy_helper.to_array(model.graph.initializer[0]).copy()
    bad[3, 4] = np.inf
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(bad, "w1"))
    report = quantize.weights(load(model, tmp_path)).report
    assert [(node.name, node.quantized) for node in report.nodes][::3] == [("first", False), ("fourth", False)]
    assert report.nodes[0].reason == "its weights are not finite"


def test_weights_among_the_inputs_become_constants(tmp_path):
    model = products()
    weight = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, list(weight.dims)))
    result = quantize.dynamic(load(model, tmp_path))
    assert all(node.quantized for node in result.report.nodes)
    assert [info.name for info in result.model.inputs] == ["x"] and not result.model.overridable_initializers


def test_wrong_calls_say_what_is_wrong(tmp_path):
    path = load(convolutions(), tmp_path)
    with pytest.raises(treadle.Error, match="calibration samples"):
        quantize.static(path, [])
    with pytest.raises(treadle.Error, match="not finite"):
        quantize.static(path, [{"x": np.full((1, 3, 32, 32), np.nan, np.float32)}])
    with pytest.raises(treadle.Error, match='no input "z"'):
        quantize.static(path, [{"z": np.zeros(3, np.float32)}])
    with pytest.raises(treadle.Error, match="block_size = 33"):
        quantize.weights(path, block_size=33)
    with pytest.raises(treadle.Error, match="possible are"):
        quantize.static(path, [{}], method="median")


def test_the_command_line_writes_reports_and_compares(program, tmp_path):
    path, output = load(convolutions(), tmp_path), tmp_path / "q.onnx"
    samples = tmp_path / "samples"
    samples.mkdir()
    for i in range(3):
        np.save(samples / f"{i}.npy", RANDOM.standard_normal((1, 3, 32, 32)).astype(np.float32))
    command = [program, "quantize", path, "-o", output, "--mode", "qdq", "--data", samples, "--verify", "--exclude", "classifier"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 calibration samples" in done.stdout and "left float: its name matches a pattern to exclude" in done.stdout
    assert "times as fast" in done.stdout
    onnx.checker.check_model(str(output))
    help_text = subprocess.run([program, "quantize", "--help"], capture_output=True, text=True).stdout
    assert "Which mode?" in help_text
    failed = subprocess.run([program, "quantize", path, "-o", output, "--mode", "qdq"], capture_output=True, text=True)
    assert failed.returncode == 1 and "--data" in failed.stderr


@pytest.mark.parametrize(
    ("keywords", "operator"),
    [
        ({}, "MatMulInteger"),
        ({"mode": "dynamic", "per_channel": False}, "MatMulInteger"),
        ({"mode": "static", "samples": [{"x": np.ones((2, 72), np.float32)}], "activations": "int8"}, "QuantizeLinear"),
        ({"mode": "weights", "bits": 8, "block_size": 64}, "MatMulNBits"),
    ],
)
def test_one_function_has_every_mode(tmp_path, keywords, operator):
    path = tmp_path / "quantised.onnx"
    report = treadle.quantize(products(), path, **keywords).report
    assert operator in {node.op_type for node in onnx.load(path).graph.node}
    assert all(node.quantized for node in report.nodes)


def test_a_mode_has_its_own_options_only():
    with pytest.raises(TypeError, match="mode 'dynamic' got an unexpected keyword argument 'bits'"):
        treadle.quantize(products(), bits=4)
    with pytest.raises(TypeError, match="'block'; is it bits, block_size"):
        treadle.quantize(products(), mode="weights", block=32)
    with pytest.raises(treadle.errors.InvalidArgument, match="mode is 'int8'; 'dynamic', 'static', 'weights' are expected"):
        treadle.quantize(products(), mode="int8")
    with pytest.raises(treadle.errors.InvalidArgument, match="samples"):
        treadle.quantize(products(), mode="static")
    with pytest.raises(TypeError, match=r"bits is 'four'; Literal\[4, 8\] is expected"):
        treadle.quantize(products(), mode="weights", bits="four")


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_patterns_that_match_no_node_are_refused(program, tmp_path, option):
    digits = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"
    with pytest.raises(treadle.errors.InvalidArgument, match=rf'{option}: the pattern "hed\*" matches no node; is it head'):
        treadle.quantize(str(digits), **{option: ["hed*"]})
    done = subprocess.run([program, "quantize", digits, "-o", tmp_path / "q.onnx", f"--{option}", "hed*"], capture_output=True, text=True)
    assert done.returncode == 1 and 'the pattern "hed*" matches no node' in done.stderr
    assert not (tmp_path / "q.onnx").exists()
    if option == "exclude":  # a node that the mode leaves alone anyway
        assert treadle.quantize(str(digits), exclude=["block1/conv*"]).report.nodes
