"""Tests the output of the program treadle for models, inputs and wrong calls; tests/python/test_memory.py tests `treadle plan`."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from conftest import SHARED_DATA

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits/digits.onnx"


@pytest.fixture
def treadle(program):
    def call(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)

    return call


@pytest.fixture
def as_json(treadle):
    def call(*arguments):
        run = treadle(*arguments, "--json")
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return call


def save(path, nodes, inputs, outputs, initializers=()):
    def info(name, dtype, shape):
        return helper.make_tensor_value_info(name, dtype, shape)

    graph = helper.make_graph(nodes, "g", [info(*i) for i in inputs], [info(*o) for o in outputs], list(initializers))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def product(tmp_path):
    """Saves y = x @ w, with the symbol N and an unnamed extent; a Constant node holds the weights."""
    weights = numpy_helper.from_array(np.ones((6, 4), np.float32), "w")
    nodes = [helper.make_node("Constant", [], ["w"], value=weights), helper.make_node("MatMul", ["x", "w"], ["y"])]
    return save(tmp_path / "product.onnx", nodes, [("x", TensorProto.FLOAT, ["N", None, 6])], [("y", TensorProto.FLOAT, ["N", None, 4])])


# Calls with options that would have no effect, and a part of the error that names the option.
WITHOUT_EFFECT = [
    (["run", DIGITS, "--labels", "classes.txt"], "--top"),
    (["run", DIGITS, "--mean", "0.5"], "a picture"),
    (["run", DIGITS, "--rgb", "image=0"], "a picture"),
    (["run", DIGITS, "--seed", "3", "image=0"], "random inputs"),
    (["bench", DIGITS, "--crop", "8", "--runs", "1"], "a picture"),
    (["bench", DIGITS, "--seconds", "3", "--runs", "2"], "no --runs"),
    (["bench", DIGITS, "--python", "python3"], "--compare"),
    (["compare", DIGITS, "--python", "python3", "--with", "optimized"], "--with onnxruntime"),
    (["inspect", DIGITS, "--dim", "batch=2", "--stage", "planned"], "no --stage"),
    (["inspect", DIGITS, "image=0", "--stage", "optimized"], "no --stage"),
    (["inspect", DIGITS, "--no-optimize", "--stage", "onnx"], "another --stage"),
    (["check", DIGITS, "--dim", "batch=2"], "--plans"),
    (["check", DIGITS, "--threads", "1"], "--plans"),
    (["check", DIGITS, "image=0"], "--plans"),
    (["compile", DIGITS, "--output", "x.treadle", "--verify"], "no --verify"),
    (["explain", DIGITS, "--top", "3", "--json"], "the table"),
    (["precision", DIGITS, "--random", "3", "--data", "x.npz"], "no --data"),
    (["precision", DIGITS, "--preset", "imagenet", "--random", "1"], "a picture"),
    (["profile", DIGITS, "--seconds", "3", "--runs", "2"], "no --runs"),
    (["profile", DIGITS, "--sort", "name", "--json"], "the tables"),
    (["profile", DIGITS, "--top", "3", "--tree"], "the tables"),
    (["quantize", DIGITS, "--method", "entropy", "-o", "q.onnx"], "--mode qdq"),
    (["quantize", DIGITS, "--activations", "int8", "-o", "q.onnx", "--mode", "weights"], "--mode qdq"),
    (["quantize", DIGITS, "--percentile", "99", "-o", "q.onnx", "--mode", "qdq", "--random", "1"], "--method percentile"),
    (["quantize", DIGITS, "--bits", "8", "-o", "q.onnx"], "--mode weights"),
    (["quantize", DIGITS, "--block", "32", "-o", "q.onnx", "--mode", "qdq"], "--mode weights"),
    (["quantize", DIGITS, "--per-tensor", "-o", "q.onnx", "--mode", "weights"], "--mode dynamic or qdq"),
    (["quantize", DIGITS, "--compared", "8", "-o", "q.onnx"], "samples"),
    (["quantize", DIGITS, "--dim", "batch=2", "-o", "q.onnx"], "samples"),
    (["quantize", DIGITS, "--quiet", "-o", "q.onnx", "--json"], "the table"),
    (["quantize", DIGITS, "--bgr", "-o", "q.onnx", "--mode", "qdq", "--random", "1"], "a picture"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", DIGITS, "--option", "x=y"], 'no option "x"'),
        (["run", DIGITS, "--option", "intra_op_num_threads=many"], "many"),
        (["run", "absent.onnx"], "absent.onnx"),
        (["bench", DIGITS, "--runs", "-1"], '--runs takes a number from 1, not "-1"\n'),
        (["train", DIGITS, "--epochs", "0"], '--epochs takes a number above 0, not "0"\n'),
        (["frob"], 'no command "frob"'),
        (["benhc"], "is it bench"),
        (["run", DIGITS, "--thread", "3"], "is it --threads"),
        (["run"], "treadle run --help"),
        (["run", DIGITS, "absent.png"], "absent.png"),
        (["run", DIGITS, "image=many"], "float32 [batch, 1, 8, 8]"),
        (["run", DIGITS, "--shapes", "image:1x1x9x8"], "[batch, 1, 8, 8]"),
        (["run", DIGITS, "--shapes", "image:1xa"], "extents joined by x"),
        (["run", DIGITS, "--dim", "bath=2"], "is it batch"),
        (["check", DIGITS, "--dim", "bath=2"], "is it batch"),
        (["check", DIGITS, "--skip-pass", "fuse-con"], "is it fuse-conv"),
        (["check", DIGITS, "--option", "free_dimension_overrides=bath=2"], "is it batch"),
        (["run", DIGITS, "--option", "free_dimension_overrides=bath=2"], "is it batch"),
        (["run", DIGITS, "--option", "precision=conv9*=bfloat16"], "matches no node; is it"),
        (["run", DIGITS, "--skip-pass", "ConstantFolding"], "no pass"),
        (["run", DIGITS, "--option", "treadle.devise=sim"], "is it treadle.device"),
        (["run", DIGITS, "--fetch", "scors"], "is it"),
        (["explain", DIGITS, "--node", "haed"], 'no node "haed", neither of the model nor as it runs; is it head'),
        (["plan", DIGITS], "is no CSV file of buffers"),
        (["jobs", "set", "nobody", "--share", "10"], 'there is no job "nobody"'),
        (["compare", DIGITS, "--option", "device=sim"], "--with optimized"),
        (["precision", DIGITS, "--option", "precision=bfloat16"], "what `treadle precision` chooses"),
        (["run", DIGITS, "--labels", "absent.txt", "--top", "1"], "absent.txt"),
        (["operators", "--domain", "com.none"], "com.none"),
        (["quantize", DIGITS, "-o", "out.onnx", "--mode", "dynamc"], '--mode takes dynamic, qdq, weights, not "dynamc"'),
        (["quantize", DIGITS, "-o", "absent/out.onnx"], "--output absent/out.onnx: there is no such folder"),
        (["explain", DIGITS, "-o", "absent/page.html"], "--output absent/page.html: there is no such folder"),
        *((arguments, f"{arguments[2] if arguments[2].startswith('-') else 'inputs'} needs {what}") for arguments, what in WITHOUT_EFFECT),
        (["inspect", DIGITS, "--stage", "plannd"], '--stage takes onnx, optimized, planned, devices, not "plannd"'),
    ],
)
def test_wrong_calls_end_with_a_message(program, arguments, expected):
    run = subprocess.run([program, *arguments], capture_output=True, text=True)
    assert run.returncode > 0, "an error, not a signal"
    assert expected in run.stderr


@pytest.mark.parametrize(("option", "value"), [("--dim", "batch=2"), ("--shapes", "image:2x1x8x8"), ("--seed", "1"), ("--bgr", None)])
@pytest.mark.parametrize("command", [["run"], ["precision", "--data"], ["quantize", "-o", "q.onnx", "--mode", "qdq", "--data"]])
def test_options_of_inputs_that_files_give_are_refused(treadle, tmp_path, command, option, value):
    np.save(tmp_path / "image.npy", np.zeros((2, 1, 8, 8), np.float32))
    call = [command[0], DIGITS, *command[1:], tmp_path / "image.npy"]
    run = treadle(*call, option, *([] if value is None else [value]))
    assert run.returncode == 1 and f"{option} needs" in run.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", DIGITS, "--option", "treadle.device=sim", "--option", "treadle.sim.memory=512MiB"],
        ["run", DIGITS, "--option", "device=sim", "--option", "sim.memory=512MiB", "--option", "memory_limit_bytes=1GiB"],
        ["run", DIGITS, "--option", "session.set_denormal_as_zero=1"],
        ["inspect", DIGITS, "--option", "treadle.compute_streams=2"],
        ["compare", DIGITS, "--with", "optimized", "--option", "precision=bfloat16", "--rtol", "0.1", "--atol", "0.1"],
        ["precision", DIGITS, "--option", "share_weights=0"],
    ],
)
def test_options_are_taken_wherever_there_is_a_session(treadle, arguments):
    run = treadle(*arguments)
    assert run.returncode == 0, run.stderr


def test_inspect_shows_the_graph_of_the_options(treadle):
    usual, written = (treadle("inspect", DIGITS, "--stage", "optimized", *more).stdout for more in ([], ["--no-optimize"]))
    assert "Relu" in written and written != usual


def test_the_bare_program_shows_its_help(treadle):
    run = treadle()
    assert run.returncode == 0
    assert run.stdout == treadle("--help").stdout
    assert "quantize" in run.stdout


def test_the_package_runs_the_same_commands(treadle):
    def through_python(*arguments):
        return subprocess.run([sys.executable, "-m", "treadle", *map(str, arguments)], capture_output=True, text=True)

    for arguments in ([], ["run", DIGITS, "image=0", "--json"], ["benhc"], ["check", "absent.onnx"]):
        ours, theirs = through_python(*arguments), treadle(*arguments)
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_every_command_completes_its_options(treadle):
    script = treadle("completion", "bash").stdout + "\nCOMP_WORDS=(treadle bench --sha); COMP_CWORD=2; _treadle; echo ${COMPREPLY[@]}\n"
    script += "COMP_WORDS=(treadle qua); COMP_CWORD=1; _treadle; echo ${COMPREPLY[@]}\n"
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["--shapes", "quantize"]
    assert "-l shapes" in treadle("completion", "fish").stdout
    assert "bashcompinit" in treadle("completion", "zsh").stdout


def test_shapes_set_named_and_unnamed_extents(as_json, product):
    (output,) = as_json("run", product, "--shapes", "x:3x5x6")["outputs"]
    assert output["shape"] == [3, 5, 4]
    (output,) = as_json("run", product, "--shapes", "2x1x6", "x=1")["outputs"]
    assert output["shape"] == [2, 1, 4]
    assert "6, 6, 6" in output["value"], "ones times ones, over six"


def test_literals_are_numbers_lists_and_text(as_json, tmp_path):
    nodes = [helper.make_node("Identity", [name], [name + "2"]) for name in ("rate", "ids", "text", "flag")]
    inputs = [("rate", TensorProto.INT64, []), ("ids", TensorProto.INT32, [1, "T"]), ("text", TensorProto.STRING, [1]), ("flag", TensorProto.BOOL, [])]
    model = save(tmp_path / "m.onnx", nodes, inputs, [(name + "2", dtype, shape) for name, dtype, shape in inputs])
    found = {o["name"]: o for o in as_json("run", model, "rate=16000", "ids=7,8,9", "text=a b", "flag=true")["outputs"]}
    assert found["rate2"]["value"].endswith(" 16000")
    assert found["ids2"]["shape"] == [1, 3]
    assert "7, 8, 9" in found["ids2"]["value"]
    assert '"a b"' in found["text2"]["value"]
    assert found["flag2"]["value"].endswith(" 1")


def test_failed_runs_name_the_extents_that_were_assumed(treadle, tmp_path):
    nodes = [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])]
    model = save(tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, [1, 1, "H", None])], [("y", TensorProto.FLOAT, [1, 1, None, None])])
    for command in ("run", "bench"):
        run = treadle(command, model)
        assert run.returncode == 1
        assert "H=1" in run.stderr
        assert "x axis 3=1" in run.stderr
    assert "assumed" not in treadle("bench", model, "--runs", 2, "--shapes", "x:1x1x5x5").stdout


def test_bench_says_which_extents_it_chose(treadle, as_json, product):
    assert "N=1, x axis 1=1" in treadle("bench", product, "--runs", 2).stdout
    found = as_json("bench", product, "--runs", 7)
    assert found["runs"] == 7
    assert found["assumed_extents"] == "N=1, x axis 1=1"


def test_inspect_counts_weights_wherever_they_are(as_json, product, tmp_path):
    assert as_json("inspect", product)["parameters"] == 24, "of a Constant node"
    quantised = save(
        tmp_path / "q.onnx",
        [helper.make_node("DequantizeLinear", ["w", "s"], ["v"]), helper.make_node("Mul", ["x", "v"], ["y"])],
        [("x", TensorProto.FLOAT, [5])],
        [("y", TensorProto.FLOAT, [5])],
        [numpy_helper.from_array(np.ones(5, np.int8), "w"), numpy_helper.from_array(np.float32(0.5), "s")],
    )
    found = as_json("inspect", quantised)
    assert found["parameters"] == 6
    assert found["weight_bytes_by_dtype"] == {"int8": 5, "float32": 4}


def test_inspect_costs_the_extents_that_are_given(as_json, product):
    assert as_json("inspect", product, "--shapes", "x:2x3x6")["optimized"]["flops"] == 2 * 2 * 3 * 6 * 4
    assert as_json("inspect", product)["assumed_extents"] == "N=1, x axis 1=1"


def test_inspect_tells_what_it_cannot_measure(as_json, tmp_path):
    huge = save(tmp_path / "huge.onnx", [helper.make_node("Relu", ["x"], ["y"])], [("x", TensorProto.FLOAT, [1 << 40, 4])], [("y", TensorProto.FLOAT, [1 << 40, 4])])
    found = as_json("inspect", huge)
    assert found["operators"] == {"Relu": 1}
    assert 'input "x"' in found["memory_unknown"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["goes_on"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(name, dtype, []) for name, dtype in (("i", TensorProto.INT64), ("going", TensorProto.BOOL), ("v", TensorProto.FLOAT))],
        [helper.make_tensor_value_info(name, dtype, []) for name, dtype in (("goes_on", TensorProto.BOOL), ("w", TensorProto.FLOAT))],
    )
    endless = save(
        tmp_path / "endless.onnx",
        [helper.make_node("Loop", ["most", "", "x"], ["y"], body=body)],
        [("x", TensorProto.FLOAT, [])],
        [("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.int64(1 << 62), "most")],
    )
    assert "deadline" in as_json("inspect", endless)["memory_unknown"]


@pytest.mark.parametrize(("dtype", "number"), [(TensorProto.UINT8, "256"), (TensorProto.UINT8, "-1"), (TensorProto.INT8, "128"), (TensorProto.INT64, "1.5"), (TensorProto.BOOL, "2")])
def test_numbers_that_the_input_cannot_hold_are_refused(treadle, tmp_path, dtype, number):
    model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], [("x", dtype, [2])], [("y", dtype, [2])])
    run = treadle("run", model, f"x={number}")
    assert run.returncode == 1
    assert "integers from" in run.stderr


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_archives_are_refused(treadle, tmp_path, compressed):
    model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], [("x", TensorProto.INT64, [64])], [("y", TensorProto.INT64, [64])])
    archive = tmp_path / "x.npz"
    (np.savez_compressed if compressed else np.savez)(archive, x=np.arange(64) * 12345678901)
    assert treadle("run", model, str(archive)).returncode == 0
    whole = archive.read_bytes()
    end = whole.index(b"PK\x01\x02")  # the directory at the end of the zip archive
    refused = 0
    for at in range(end - 40, end - 4):  # these bytes are near the end of the array's data
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        run = treadle("run", model, str(archive))
        assert run.returncode == 1, at
        assert "x.npz" in run.stderr, at
        refused += "checksum" in run.stderr
    assert refused > 0


def test_json_has_the_elements(as_json, tmp_path):
    nodes = [helper.make_node("Identity", [name], [name + "2"]) for name in ("x", "flag", "text", "large")]
    inputs = [("x", TensorProto.INT64, [2, 2]), ("flag", TensorProto.BOOL, [2]), ("text", TensorProto.STRING, [1]), ("large", TensorProto.FLOAT, [1001])]
    model = save(tmp_path / "m.onnx", nodes, inputs, [(name + "2", dtype, shape) for name, dtype, shape in inputs])
    found = as_json("run", model, "x=8999999999999999,2,3,4", "flag=1,0", "text=a b", "large=1.5", "--shapes", "large:1001")["outputs"]
    assert [output["elements"] for output in found] == [[8999999999999999, 2, 3, 4], [True, False], ["a b"], None]
    (output,) = as_json("run", DIGITS, "image=0")["outputs"]
    expected = ort.InferenceSession(DIGITS).run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})[0]
    np.testing.assert_allclose(np.reshape(output["elements"], output["shape"]), expected, atol=1e-5)


def test_compare_refuses_to_compare_nothing(treadle, tmp_path):
    model = save(tmp_path / "m.onnx", [helper.make_node("SequenceConstruct", ["x"], ["s"])], [("x", TensorProto.FLOAT, [2])], [])
    loaded = onnx.load(model)
    loaded.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    onnx.save(loaded, model)
    run = treadle("compare", model, "--with", "optimized")
    assert run.returncode == 1
    assert "nothing was compared" in run.stderr


def test_compare_takes_inner_values_of_the_optimised_stage(as_json, product):
    found = as_json("compare", DIGITS, "--with", "optimized")
    assert found["compared"] > 1, "inner values as well as the output"
    assert found["first_node_that_differs"] == ""
    assert all(value["treadle"] == value["other"] for value in found["values"])


def test_quantize_without_an_effect_fails_and_names_the_mode(treadle, tmp_path):
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((8, 8, 3, 3)).astype(np.float32), "w")
    model = save(tmp_path / "conv.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], [("x", TensorProto.FLOAT, [1, 8, 8, 8])], [("y", TensorProto.FLOAT, None)], [weights])
    run = treadle("quantize", model, "-o", tmp_path / "q.onnx")
    assert run.returncode == 1
    assert "quantised no node" in run.stderr
    assert "--mode qdq" in run.stderr
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "--plans"),
        ("compare", "--with", "optimized"),
        ("optimize", "-o", "out.onnx"),
        ("compile", "-o", "out.treadle"),
        ("quantize", "-o", "out.onnx", "--mode", "weights", "--min-weights", "1"),
        ("precision",),
        ("inspect", "--stage", "planned"),
    ],
)
def test_commands_print_json(program, tmp_path, arguments):
    run = subprocess.run([program, arguments[0], DIGITS, *arguments[1:], "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert isinstance(json.loads(run.stdout), dict)


def test_lists_print_json(as_json):
    assert {"domain", "name", "versions"} <= set(as_json("operators")[0])
    gather = next(op for op in as_json("operators", "--domain", "ai.onnx") if op["name"] == "Gather")
    assert [(port["name"], port["presence"], port["types"]) for port in gather["inputs"]][1] == ("indices", "required", "int32, int64")
    assert gather["attributes"] == [{"name": "axis", "required": False, "default": 0}]
    assert {"options", "run_options", "trainer_options", "joint_options", "environment", "passes"} == set(as_json("options"))


class TestPictures:
    """Compares with NumPy's arithmetic on the pixels of an image that needs no resizing."""

    @pytest.fixture
    def picture(self, tmp_path):
        from PIL import Image

        pixels = np.random.default_rng(3).integers(0, 256, (8, 10, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "p.png")
        return tmp_path / "p.png", pixels

    def fed(self, program, tmp_path, picture, *options, dtype=TensorProto.FLOAT, shape=(1, 3, None, None)):
        model = save(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], [("x", dtype, shape)], [("y", dtype, shape)])
        run = subprocess.run([program, "run", model, f"x={picture}", "-o", tmp_path / "out", *options], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return np.load(tmp_path / "out" / "y.npy")

    def test_mean_and_std_are_of_the_channels(self, program, tmp_path, picture):
        path, pixels = picture
        expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        mean_and_std = ["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
        np.testing.assert_allclose(self.fed(program, tmp_path, path, *mean_and_std)[0], expected.transpose(2, 0, 1), atol=1e-5)

    def test_bgr_in_levels(self, program, tmp_path, picture):
        path, pixels = picture
        found = self.fed(program, tmp_path, path, "--bgr", "--range", "255", "--mean", "100,110,120")
        np.testing.assert_allclose(found[0], (pixels[..., ::-1] - np.array([100.0, 110, 120])).transpose(2, 0, 1), atol=1e-4)

    @pytest.mark.parametrize(("order", "option"), [(slice(None, None, -1), []), (slice(None), ["--rgb"])])
    def test_a_preset_has_an_order_that_an_option_changes(self, program, tmp_path, picture, order, option):
        path, pixels = picture
        found = self.fed(program, tmp_path, path, "--preset", "imagenet-caffe", "--crop", "4x6", *option)
        expected = pixels[2:6, 2:8, order] - np.array([103.939, 116.779, 123.68])
        np.testing.assert_allclose(found[0], expected.transpose(2, 0, 1), atol=1e-4)

    def test_crop_takes_the_middle(self, program, tmp_path, picture):
        path, pixels = picture
        found = self.fed(program, tmp_path, path, "--crop", "4x6", dtype=TensorProto.UINT8, shape=(None, None, 3))
        np.testing.assert_array_equal(found, pixels[2:6, 2:8])

    def test_resize_keeps_the_aspect(self, program, tmp_path, picture):
        assert self.fed(program, tmp_path, picture[0], "--resize", "16").shape == (1, 3, 16, 20)
        assert self.fed(program, tmp_path, picture[0], "--resize", "5x7").shape == (1, 3, 5, 7)

    def test_a_mean_in_levels_needs_their_range(self, treadle, tmp_path, picture):
        run = treadle("run", DIGITS, f"image={picture[0]}", "--mean", "123.68")
        assert run.returncode == 1
        assert "--range 255" in run.stderr


@pytest.mark.skipif(SHARED_DATA is None, reason="needs the trained models")
def test_squeezenet_calls_the_cat_a_cat(as_json):
    model, picture = SHARED_DATA / "models/squeezenet_fp32.onnx", SHARED_DATA / "images/chelsea.png"
    labels = SHARED_DATA / "text/imagenet_classes.txt"
    (output,) = as_json("run", model, picture, "--preset", "imagenet-caffe", "--top", 3, "--labels", labels)["outputs"]
    assert {score["label"] for score in output["top"]} == {"Egyptian cat", "tabby", "tiger cat"}


@pytest.mark.skipif(SHARED_DATA is None, reason="needs the trained models")
def test_quantize_calibrates_on_pictures_as_the_model_sees_them(as_json, tmp_path):
    model, labels = SHARED_DATA / "models/squeezenet_fp32.onnx", SHARED_DATA / "text/imagenet_classes.txt"
    preset = ("--preset", "imagenet-caffe")
    as_json("quantize", model, "-o", tmp_path / "q.onnx", "--mode", "qdq", "--data", SHARED_DATA / "images", *preset)
    (output,) = as_json("run", tmp_path / "q.onnx", SHARED_DATA / "images/chelsea.png", *preset, "--top", 1, "--labels", labels)["outputs"]
    assert output["top"][0]["label"] in {"Egyptian cat", "tabby", "tiger cat"}
