"""Texts in files: those that are not UTF-8 are refused by name and place, and none controls a terminal."""

import json
import logging
import os
import pty
import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import model, tensor

import treadle
from treadle.data import read_csv

HOLE = "Zm9vYmFy"  # replaced in the file by bytes that are not UTF-8
BAD = b"\xff\xfe name"


def broken(made: bytes) -> bytes:
    assert len(BAD) <= len(HOLE) and HOLE.encode() in made
    return made.replace(HOLE.encode(), BAD.ljust(len(HOLE), b"_"))


def with_hole(place: str) -> bytes:
    names = {name: HOLE if name == place else name for name in ("x", "node", "y", "op", "domain", "attribute", "w", "symbol", "doc", "key", "value")}
    weight = numpy_helper.from_array(np.ones(3, np.float32), names["w"])
    nodes = [helper.make_node("Add", [names["x"], names["w"]], [names["y"]], name=names["node"], doc_string=names["doc"])]
    if place in ("op", "domain", "attribute"):
        nodes.append(helper.make_node(names["op"], [names["x"]], ["z"], domain=names["domain"], **{names["attribute"]: 1}))
    graph = helper.make_graph(nodes, "g", [tensor(names["x"], [names["symbol"], 3])], [tensor(names["y"], [names["symbol"], 3])], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made, {names["key"]: names["value"]})
    return made.SerializeToString()


@pytest.mark.parametrize("place", ["x", "node", "y", "op", "domain", "attribute", "w", "symbol", "doc", "key", "value"])
def test_names_of_models_that_are_not_utf8_are_refused_with_their_place(place):
    with pytest.raises(treadle.Error, match=r"not UTF-8.*\\xff\\xfe") as caught:
        treadle.InferenceSession(broken(with_hole(place)))
    assert caught.value.code == "invalid_model"


def test_bytes_of_attributes_and_strings_may_be_anything():
    nodes = [helper.make_node("Constant", [], ["y"], value=helper.make_tensor("c", TensorProto.STRING, [2], [b"\xff\xfe", "\u00fc".encode()]))]
    outputs = [tensor("y", [2], TensorProto.STRING)]
    assert [os.fsencode(text) for text in treadle.InferenceSession(model(nodes, [], outputs)).run(None, {})[0]] == [b"\xff\xfe", b"\xc3\xbc"]
    nodes = [helper.make_node("Constant", [], ["y"], value_strings=[b"\xff\xfe", b"plain"])]
    assert os.fsencode(treadle.InferenceSession(model(nodes, [], outputs)).run(None, {})[0][0]) == b"\xff\xfe"


def test_tables_that_are_not_utf8_are_refused_with_their_line(tmp_path):
    path = tmp_path / "latin1.csv"
    path.write_bytes("a,kind\n1,cat\n2,caf\u00e9\n".encode("latin-1"))
    with pytest.raises(treadle.Error, match=r"line 3: the byte 0xe9 is no part of UTF-8"):
        read_csv(path, "kind")
    path.write_text("a,kind\n1,cat\n2,caf\u00e9\n", encoding="utf-8")
    assert read_csv(path, "kind").classes == ["caf\u00e9", "cat"]


def test_adapters_whose_names_are_not_utf8_are_refused(tmp_path):
    adapter = treadle.AdapterFormat()
    adapter.set_parameters({HOLE: treadle.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))})
    path = tmp_path / "broken.onnx_adapter"
    adapter.export_adapter(str(path))
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(treadle.Error, match=r"\\xff\\xfe.*not UTF-8"):
        treadle.AdapterFormat.read_adapter(str(path))


TITLE = "\x1b]0;title\x07"
HOSTILE = f"a{TITLE}\x9b31m\rb\x7f"


@pytest.fixture
def hostile_model(tmp_path):
    made = model([helper.make_node("Relu", [HOSTILE], ["y" + TITLE], name=HOSTILE)], [tensor(HOSTILE, ["n" + TITLE])], [tensor("y" + TITLE, ["n" + TITLE])])
    path = tmp_path / "hostile.onnx"
    path.write_bytes(made)
    return path


def on_a_terminal(*arguments) -> bytes:
    """Returns what the program writes when a terminal is its standard output and error."""
    ours, its = pty.openpty()
    process = subprocess.Popen([*map(str, arguments)], stdin=subprocess.DEVNULL, stdout=its, stderr=its)
    os.close(its)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    process.wait()
    return said


def is_harmless(said: bytes) -> bool:
    for colour in (b"\x1b[0m", b"\x1b[1m", b"\x1b[2m", b"\x1b[31m", b"\x1b[32m", b"\r\x1b[K", b"\r\n"):
        said = said.replace(colour, b"")
    return not any(c < 0x20 and c not in b"\t\n" or c == 0x7F for c in said) and "\x9b" not in said.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect"],
        ["inspect", "--stage", "planned"],
        ["run"],
        ["run", "--shapes", "absent:3"],
        ["run", "--option", f"x{TITLE}=1"],
        ["bench", "--runs", "3"],
        ["explain"],
        ["profile"],
        ["check"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_names_do_not_drive_the_terminal(program, hostile_model, arguments):
    said = on_a_terminal(program, arguments[0], hostile_model, *arguments[1:])
    assert said and is_harmless(said), said
    piped = subprocess.run([program, arguments[0], str(hostile_model), *arguments[1:]], capture_output=True)
    assert is_harmless(piped.stdout) and is_harmless(piped.stderr)


def test_titles_are_bold_on_a_terminal(program, hostile_model):
    assert b"\x1b[1m" in on_a_terminal(program, "inspect", hostile_model)


def test_documents_have_the_names_as_they_are(program, hostile_model):
    said = subprocess.run([program, "inspect", str(hostile_model), "--json"], capture_output=True, check=True).stdout
    assert is_harmless(said)
    assert json.loads(said)["inputs"][0]["name"] == HOSTILE


def test_errors_and_logs_show_names_escaped(hostile_model, caplog):
    session = treadle.InferenceSession(str(hostile_model))
    with pytest.raises(treadle.Error) as caught:
        session.run(None, {HOSTILE: np.zeros((2, 2), np.float32)})
    assert "\\x1b]0;title\\x07" in str(caught.value) and is_harmless(str(caught.value).encode())
    with caplog.at_level(logging.DEBUG):
        treadle.InferenceSession(str(hostile_model)).run(None, {HOSTILE: np.zeros(3, np.float32)})
    assert all(is_harmless(record.getMessage().encode()) for record in caplog.records)
