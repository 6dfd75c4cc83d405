"""Tests details of nodes in profiles: strides and values of operands, the times when inputs were ready, marks."""

import csv
import gzip
import html
import json
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle
from small_models import tensor as info
from test_profile import browser, rendered
from test_profile_kernels import PRODUCT_FEEDS, PRODUCTS, model_of, random, session_of


def test_values_of_operands_that_are_known_without_running():
    model = model_of(
        [
            helper.make_node("Shape", ["x"], ["extents"], "shape"),
            helper.make_node("Gather", ["extents", "one"], ["width"], "gather"),
            helper.make_node("Unsqueeze", ["width", "axes"], ["row"], "unsqueeze"),
            helper.make_node("Concat", ["minus", "row"], ["target"], "concat", axis=0),
            helper.make_node("Reshape", ["z", "target"], ["shaped"], "reshape"),
            helper.make_node("Clip", ["shaped", "low", "high"], ["clipped"], "clip"),
            helper.make_node("Slice", ["clipped", "starts", "ends", "dims", "steps"], ["y"], "slice"),
            helper.make_node("Add", ["y", "matrix"], ["sum"], "add"),
            helper.make_node("ReduceSum", ["sum", "computed"], ["total"], "reduce"),
        ],
        [info("x", ["n", "m"]), info("z", ["k"]), info("computed", [1], TensorProto.INT64)],
        [info("total", None)],
        {
            "one": np.int64(1), "axes": np.array([0]), "minus": np.array([-1]), "low": np.float32(-0.25), "high": np.float32(0.5),
            "starts": np.array([1, 0]), "ends": np.array([100, 2]), "dims": np.array([0, 1]), "steps": np.array([2, 1]), "matrix": np.zeros((1, 2), np.float32),
        },
    )  # fmt: skip
    session = session_of(model, optimised=False)
    with treadle.profile(session, peaks=False) as p:
        session.run(None, {"x": random(5, 3), "z": random(12), "computed": np.array([0])})
    values = {operand.name: operand.value for node in p.nodes for operand in node.inputs}
    # The 12 elements of z are reshaped to rows of 3, the width of x.
    expected = {"target": "[-1, 3]", "low": "-0.25", "high": "0.5", "starts": "[1, 0]", "ends": "[100, 2]", "dims": "[0, 1]", "steps": "[2, 1]"}
    for name, value in expected.items():
        if name in values:
            assert values[name] == value, name
    assert {"low", "high", "starts", "steps"} <= values.keys()
    assert values["matrix"] is None, "matrices are no lists"
    assert values["computed"] is None and values["shaped"] is None

    # With another width, values that follow from shapes change too.
    with treadle.profile(session, peaks=False) as again:
        session.run(None, {"x": random(5, 4), "z": random(12), "computed": np.array([0])})
    found = {operand.name: operand.value for node in again.nodes for operand in node.inputs}
    assert found.get("target", "[-1, 4]") == "[-1, 4]"


def test_values_follow_the_shapes(tmp_path):
    # Expand's kernel reads the shape, so its value is known even if the node Shape is removed.
    model = model_of(
        [helper.make_node("Shape", ["x"], ["extents"], "shape"), helper.make_node("Expand", ["z", "extents"], ["y"], "expand")],
        [info("x", ["n", "m"]), info("z", [1])],
        [info("y", ["n", "m"])],
    )
    session = session_of(model, optimised=False)
    for shape in ((2, 3), (4, 5)):
        with treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile") as p:
            session.run(None, {"x": random(*shape), "z": random(1)})
        for node in (*p.nodes, *treadle.Profile.load(tmp_path / "run.profile").nodes):
            if node.op_type == "Expand":
                assert node.inputs[1].value == str(list(shape))


@pytest.fixture
def joined():
    """Returns a model of two convolutions whose outputs are joined along the channels."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], "first", kernel_shape=[1, 1]),
        helper.make_node("Conv", ["x", "w"], ["b"], "second", kernel_shape=[1, 1]),
        helper.make_node("Concat", ["a", "b"], ["both"], "join", axis=1),
        helper.make_node("Conv", ["both", "u"], ["y"], "last", kernel_shape=[1, 1]),
    ]
    constants = {"v": random(16, 8, 1, 1), "w": random(32, 8, 1, 1), "u": random(8, 48, 1, 1)}
    session = session_of(model_of(nodes, [info("x", [1, 8, 6, 6])], [info("y", [1, 8, 6, 6])], constants))
    with treadle.profile(session, peaks=False) as p:
        session.run(None, {"x": random(1, 8, 6, 6)})
    return p


def check_strides(array, strides):
    assert tuple(step // array.itemsize for step in array.strides) == strides


def test_strides_of_rows_within_rows(joined, tmp_path):
    both = np.empty((1, 6, 6, 48), np.float32)  # channels last
    outputs = {node.name: node.outputs[0] for node in joined.nodes if node.op_type == "NhwcConv"}
    parts = {operand.shape[-1]: operand for operand in outputs.values() if operand.shares}
    assert set(parts) == {16, 32}, "the Concat copies nothing"
    check_strides(both[..., :16], parts[16].strides)
    check_strides(both[..., 16:], parts[32].strides)
    for node in joined.nodes:
        for operand in (*node.inputs, *node.outputs):
            if operand.shape is not None and operand.name not in {part.name for part in parts.values()}:
                check_strides(np.empty(operand.shape, np.float32), operand.strides)

    joined.save(tmp_path / "p.trace.json")
    events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    arguments = [event["args"] for event in events if "Input Dims" in event.get("args", {})]
    assert arguments
    for each in arguments:
        for dims, strides in zip(each["Input Dims"], each["Input Strides"], strict=True):
            assert len(dims) == len(strides)
            if 48 in dims or 8 in dims:
                check_strides(np.empty(dims, np.float32), tuple(strides))


def test_chrome_traces_have_values_of_inputs(tmp_path):
    nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"], "clip")]
    session = session_of(model_of(nodes, [info("x", [2, 3])], [info("y", [2, 3])], {"low": np.float32(-0.5), "high": np.float32(2)}), optimised=False)
    with treadle.profile(session, peaks=False) as p:
        session.run(None, {"x": random(2, 3)})
    p.save(tmp_path / "p.trace.json")
    clip = next(e for e in json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"] if e.get("args", {}).get("op") == "Clip")
    assert clip["args"]["Concrete Inputs"] == ["", "-0.5", "2"]
    assert clip["args"]["Input Strides"] == [[3, 1], [], []]
    assert clip["args"]["Input Dims"] == [[2, 3], [], []]
    p.save(tmp_path / "p.pftrace")
    assert b"= -0.5, float32[] = 2" in (tmp_path / "p.pftrace").read_bytes()


WIDTH = 96


@pytest.fixture
def branches():
    """Returns a model with three chains of products after a first product, and their sum."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "head")]
    reads, ends = {"head": []}, []
    for b in range(3):
        value, before = "h", "head"
        for k in range(3):
            name = f"product{b}{k}"
            nodes.append(helper.make_node("MatMul", [value, "w"], [f"y{b}{k}"], name))
            reads[name] = [before]
            value, before = f"y{b}{k}", name
        ends.append(before)
    nodes.append(helper.make_node("Add", ["y02", "y12"], ["two"], "sum of two"))
    nodes.append(helper.make_node("Add", ["two", "y22"], ["y"], "sum"))
    reads |= {"sum of two": ends[:2], "sum": ["sum of two", ends[2]]}
    model = model_of(nodes, [info("x", [32, WIDTH])], [info("y", [32, WIDTH])], {"w": random(WIDTH, WIDTH) / WIDTH})
    return model, reads


@pytest.mark.parametrize("parallel", [False, True])
def test_nodes_wait_from_the_last_of_their_inputs_on(branches, parallel, tmp_path):
    model, reads = branches
    options = {"execution_mode": treadle.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 3} if parallel else {}
    session = session_of(model, optimised=False, **options)
    feeds = {"x": random(32, WIDTH)}
    session.run(None, feeds)
    with treadle.profile(session, peaks=False) as p:
        session.run(None, feeds)
    p.save(tmp_path / "p.trace.json")
    events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    (run,) = [e for e in events if e.get("name") == "ProfilerStep#0"]
    ran = {name: e for e in events if e["ph"] == "X" and "op" in e.get("args", {}) for name in reads if e["name"].endswith(f" {name}")}
    assert ran.keys() == reads.keys()
    end = {name: e["ts"] + e["dur"] for name, e in ran.items()}
    total = 0.0
    for node in p.nodes:
        there = max([min(e["ts"] for e in ran.values()), *(end[before] for before in reads[node.name])])
        waited = ran[node.name]["ts"] - there
        assert node.ready_ms == pytest.approx((there - run["ts"]) / 1e3, abs=2e-5)
        assert node.waited_ms == pytest.approx(waited / 1e3, abs=2e-5)
        assert ran[node.name]["args"].get("waited_ns", 0) == pytest.approx(waited * 1e3 if waited >= 1 else 0, abs=20 if abs(waited - 1) > 0.02 else 1100)
        total += waited / 1e3
    if not parallel:
        # The second chain's first product was ready when the first product ended, but ran after another chain's.
        assert sorted(node.waited_ms > 0.001 for node in p.nodes).count(True) >= 2
    assert p.data["waited_ms"] == pytest.approx(total, abs=2e-4)
    assert "for their turn" in p.table()
    p.save(tmp_path / "p.csv")
    with (tmp_path / "p.csv").open(newline="") as file:
        ready = {row["node"]: float(row["ready_ms"]) for row in csv.DictReader(file)}
    assert ready == pytest.approx({node.name: node.ready_ms for node in p.nodes})



@pytest.fixture
def marked():
    session = session_of(PRODUCTS)
    treadle.profile.mark("nobody records")
    with treadle.profile(session, peaks=False) as p:
        for epoch in range(2):
            treadle.profile.mark(f"epoch {epoch}")
            session.run(None, PRODUCT_FEEDS)
        thread = threading.Thread(target=treadle.profile.mark, args=("<of> another thread",))
        thread.start()
        thread.join()
    return p


def test_marks_are_in_all_exports(marked, tmp_path):
    assert [mark.name for mark in marked.marks] == ["epoch 0", "epoch 1", "<of> another thread"]
    times = [mark.ms for mark in marked.marks]
    assert times == sorted(times) and marked.marks[0].thread == marked.marks[1].thread != marked.marks[2].thread
    assert "marks of the program" in marked.table() and "epoch 1" in marked.table()

    def saved(ending):
        marked.save(tmp_path / f"p{ending}")
        return (tmp_path / f"p{ending}").read_bytes()

    # Each mark lies between the runs around it.
    events = json.loads(saved(".trace.json"))["traceEvents"]
    points = {e["name"]: e["ts"] for e in events if e["ph"] == "i"}
    runs = sorted(e["ts"] for e in events if e.get("name", "").startswith("ProfilerStep"))
    assert points["epoch 0"] < runs[0] < points["epoch 1"] < runs[1] < points["<of> another thread"]
    assert b"epoch 1" in saved(".pftrace")
    frames = json.loads(saved(".speedscope.json"))
    names = [frame["name"] for frame in frames["shared"]["frames"]]
    opened = [(names[e["frame"]], e["at"]) for part in frames["profiles"] for e in part["events"] if e["type"] == "O"]
    closed = [(names[e["frame"]], e["at"]) for part in frames["profiles"] for e in part["events"] if e["type"] == "C"]
    for name in points:
        assert [at for other, at in opened if other == name] == [at for other, at in closed if other == name]
        assert any(other == name for other, _ in opened)
    theirs = json.loads(saved(".onnxruntime.json"))
    assert {"epoch 0", "epoch 1", "<of> another thread"} <= {e["name"] for e in theirs if e["dur"] == 0 and e["cat"] == "Session"}
    loaded = treadle.Profile.load(tmp_path / "p.json") if saved(".json") else None
    assert loaded.marks == marked.marks


def test_streams_and_other_profiles_have_marks(tmp_path):
    session = session_of(PRODUCTS)
    with treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile"), treadle.profile(session, peaks=False) as p:
        session.run(None, PRODUCT_FEEDS)
        treadle.profile.mark("here")
    assert [mark.name for mark in p.marks] == ["here"]
    assert [mark.name for mark in treadle.Profile.load(tmp_path / "run.profile").marks] == ["here"]


def test_marks_beside_ranges(tmp_path):
    session = session_of(PRODUCTS)
    with treadle.profile(session, peaks=False) as p:
        with treadle.profile.range("outer"):
            treadle.profile.mark("inner")
            session.run(None, PRODUCT_FEEDS)
    assert [r.name for r in p.ranges] == ["outer"] and p.ranges[0].calls == 1
    assert [mark.name for mark in p.marks] == ["inner"]
    p.save(tmp_path / "p.folded.gz")
    assert "inner" not in gzip.decompress((tmp_path / "p.folded.gz").read_bytes()).decode(), "a point takes no time"


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_shows_marks_and_kernels(tmp_path):
    session = session_of(PRODUCTS, optimised=False)
    with treadle.profile(session, peaks=False, passes=True) as p:
        session.run(None, PRODUCT_FEEDS)
        treadle.profile.mark("<b>bold</b>")
    page = tmp_path / "report.html"
    p.save(page)
    script = """
    seen.push([...document.querySelectorAll('#marks-table td:first-child')].map((x) => x.textContent));
    const found = nodes.find((n) => n.name === 'by_computed');
    choose(found.index);
    seen.push(document.querySelector('tr.detail').textContent);
    seen.push([...document.getElementById('which').options].map((o) => o.value));
    document.getElementById('which').value = 'ranges';
    loadTime();
    seen.push(timeView.overview);
    """
    end = "document.body.append(Object.assign(document.createElement('pre'), {id: 'seen', textContent: JSON.stringify(seen)}));"
    page.write_text(page.read_text().replace("</body>", f"<script>const seen = [];{script}{end}</script></body>"))
    marks, details, which, overview = json.loads(html.unescape(rendered(page, tmp_path).split('<pre id="seen">')[1].split("</pre>")[0]))
    assert marks == ["<b>bold</b>"]
    assert "B is not constant" in details and "after the run began" in details
    assert "ranges" in which and overview
