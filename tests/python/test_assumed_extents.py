"""Tests extents that nobody gave, which are 1: every command and report must name them, and an error must say how to give them."""

import json
import re
import subprocess

import numpy as np
import onnx
import pytest
import treadle
from onnx import TensorProto, helper, numpy_helper

ASSUMED = "N=1, x axis 1=1"
COMMANDS = {
    "run": [],
    "bench": ["--runs", 2],
    "inspect": [],
    "explain": [],
    "compare": ["--with", "optimized"],
    "check": ["--plans"],
    "profile": ["--runs", 2, "--no-remedies"],
    "precision": [],
    "quantize": ["--random", 1, "-o", "quantised.onnx"],
}


def save(path, nodes, inputs, outputs, weights):
    def infos(shapes):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def product(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    w = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    return save(tmp_path / "product.onnx", nodes, {"x": ["N", None, 16]}, {"y": ["N", None, 32]}, {"w": w})


@pytest.fixture
def window(tmp_path):
    """Makes a model with a pool. With the assumed extents, the image has one pixel and is smaller than the pool's window."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="window")]
    w = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    return save(tmp_path / "window.onnx", nodes, {"x": [1, 4, "H", None]}, {"y": [1, 8, None, None]}, {"w": w})


@pytest.fixture
def call(program, tmp_path):
    def run(command, model, *more):
        arguments = [program, command, model, *map(str, [*COMMANDS[command], *more])]
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_assumed(call, product, command):
    shown, made = call(command, product), call(command, product, "--json")
    assert shown.returncode == 0 and made.returncode == 0, shown.stderr + made.stderr
    assert ASSUMED in shown.stdout
    assert json.loads(made.stdout)["assumed_extents"] == ASSUMED
    larger = call(command, product, "--default-dim", 2, "--json")
    assert json.loads(larger.stdout)["assumed_extents"] == "N=2, x axis 1=2"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_given_is_not_assumed(call, product, command):
    shown, made = call(command, product, "--shapes", "x:2x3x16"), call(command, product, "--shapes", "x:2x3x16", "--json")
    assert shown.returncode == 0, shown.stderr
    assert not re.search("assumed|not given", shown.stdout)
    assert json.loads(made.stdout)["assumed_extents"] == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_says_which_extents_to_give(call, window, command):
    shown = call(command, window, *(["--mode", "qdq"] if command == "quantize" else []))
    text = shown.stdout + shown.stderr
    assert "H=1, x axis 3=1" in text and "--dim NAME=EXTENT or --shapes INPUT:EXTENTS" in text
    assert shown.returncode == (0 if command == "inspect" else 1)  # "inspect" shows the rest of the model


@pytest.mark.parametrize("command", ["profile", "explain"])
@pytest.mark.parametrize("name", ["page.html", "report.json"])
def test_pages_and_files_have_them(call, product, tmp_path, command, name):
    call(command, product, "-o", name)
    assert ASSUMED in (tmp_path / name).read_text()


def test_a_profile_shown_again_and_as_a_tree_has_them(call, product, tmp_path):
    call("profile", product, "-o", "report.json")
    assert ASSUMED in call("profile", product, "--tree").stdout
    profile = treadle.Profile.load(tmp_path / "report.json")
    assert ASSUMED in profile.table() and ASSUMED in profile._repr_html_()
    call("profile", product, "--dim", "N=2", "-o", "other.json")
    compared = profile.compare(treadle.Profile.load(tmp_path / "other.json"))
    assert "x axis 1=1 -> N=1, x axis 1=1" in str(compared)


def test_files_and_lists_tell_the_extents_of_other_inputs(call, tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Identity", ["ids"], ["same"])]
    model = save(tmp_path / "m.onnx", nodes, {"a": ["N", 4], "b": ["N", 4], "ids": [1, "L"]}, {"c": ["N", 4], "same": [1, "L"]}, {})
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    found = json.loads(call("run", model, "a=a.npy", "ids=7,8", "--json").stdout)
    assert [output["shape"] for output in found["outputs"]] == [[3, 4], [1, 2]] and found["assumed_extents"] == ""
    np.savez(tmp_path / "a.npz", b=np.zeros((5, 4), np.float32))
    found = json.loads(call("run", model, "a.npz", "ids=7", "--json").stdout)
    assert [output["shape"] for output in found["outputs"]] == [[5, 4], [1, 1]] and found["assumed_extents"] == "L=1"


def test_an_input_of_no_known_rank_is_told_too(call, tmp_path):
    model = save(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], {"x": None}, {"y": None}, {})
    assert json.loads(call("run", model, "--json").stdout)["assumed_extents"] == "x is a scalar"


def test_explain_says_it_in_python(product, window):
    explanation = treadle.explain(product)
    assert explanation.assumed_extents == ASSUMED and ASSUMED in str(explanation) and ASSUMED in explanation._repr_html_()
    assert ASSUMED in str(treadle.explain(product, "product"))
    assert treadle.explain(product, shapes={"x": (2, 3, 16)}).assumed_extents == ""
    with pytest.raises(treadle.Error, match=r"H=1, x axis 3=1. Set them by dimensions=\{NAME: EXTENT\} or shapes=\{INPUT: EXTENTS\}"):
        treadle.explain(window)


def test_a_negative_extent_is_refused(call, product):
    assert "--default-dim" in call("run", product, "--default-dim", -3).stderr
