"""Tests ranges of the program, measured memory, bounded and simultaneous profiles, profiles of torch modules, and treadle explain."""

import collections
import contextlib
import gc
import html.parser
import json
import subprocess
import sys
import threading
import weakref

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import small_models
import treadle


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "conv.onnx"
    path.write_bytes(small_models.convolution_classifier(normalises=True))
    return path


@pytest.fixture
def session(model):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 1
    return treadle.InferenceSession(str(model), options)


FEEDS = {"x": np.ones((2, 8, 28, 28), np.float32)}


def test_ranges_nest_around_runs(session):
    with treadle.profile.range("nobody records"):
        pass
    with treadle.profile(session, peaks=False) as p:
        for step in range(3):
            with treadle.profile.range("step"):
                with treadle.profile.range("load"):
                    pass
                with treadle.profile.range(f"infer {step}"):
                    session.run(None, FEEDS)
    by_path = {r.path: r for r in p.ranges}
    assert by_path[("step",)].calls == 3
    assert by_path[("step", "load")].calls == 3
    assert by_path[("step", "infer 2")].calls == 1
    step = by_path[("step",)]
    inner = [by_path[("step", name)] for name in ("load", "infer 0", "infer 1", "infer 2")]
    assert step.self_ms == pytest.approx(step.total_ms - sum(r.total_ms for r in inner), abs=1e-5)
    assert step.runs_ms == pytest.approx(sum(r.runs_ms for r in inner), abs=1e-5)
    assert "ranges of the program" in p.table()


def test_ranges_are_context_managers_however_they_are_used(session):
    with treadle.profile(session, peaks=False) as p:
        with contextlib.ExitStack() as stack:
            stack.enter_context(treadle.profile.range("stacked"))
            session.run(None, FEEDS)
        made = treadle.profile.range("by hand")
        assert made.__enter__() is made
        assert made.__exit__(None, None, None) is None
        with made:  # a range can be used again
            pass
        made.__exit__(None, None, None)  # no effect, as it has ended already
        session.run(None, FEEDS)
    assert {r.path: r.calls for r in p.ranges} == {("stacked",): 1, ("by hand",): 2}
    for arguments in [(None,), (None, None), (None, None, None, None)]:
        with pytest.raises(TypeError, match="has three"):
            made.__exit__(*arguments)
    for arguments in [(), (3,)]:
        with pytest.raises(TypeError, match="the first argument is a range"):
            type(made).__exit__(*arguments)


def test_names_that_no_table_could_show(session, tmp_path):
    names = ["two\nlines", "nul\0l", "bell\a\x1b[31m", "c1\x9b", "lone\ud800"]
    with treadle.profile(session, peaks=False) as p:
        for name in names:
            treadle.profile.mark(name)
            with treadle.profile.range(name):
                session.run(None, FEEDS)
    shown = ["two\\nlines", "nul\\x00l", "bell\\x07\\x1b[31m", "c1\\xc2\\x9b", "(not UTF-8)"]
    lines = p.table(top=0).split("\n")
    for text in shown:
        assert len([line for line in lines if line.strip().startswith(text + " ")]) == 2, "a range and a mark, each on a line of its own"
    assert not set(map(chr, range(32))) & set(p.table(top=0).replace("\n", ""))
    p.save(tmp_path / "p.folded")
    stacks = (tmp_path / "p.folded").read_bytes()
    assert not set(stacks) & (set(range(32)) - {ord("\n")})
    assert all(line.rsplit(b" ", 1)[1].isdigit() for line in stacks.splitlines())
    assert [range.name for range in p.ranges][:4] == [names[0], *shown[1:4]], "records hold what a terminal may show"


def test_a_range_that_is_open_is_in_the_profile(session, tmp_path):
    generator_left = []

    def steps():
        with treadle.profile.range("generator"):
            yield 1
            yield 2

    with treadle.profile(session, peaks=False) as p, treadle.profile(session, peaks=False, stream_to=tmp_path / "run.profile") as streamed:
        steps_of = steps()
        next(steps_of)
        generator_left.append(steps_of)
        with treadle.profile.range("around"):
            session.run(None, FEEDS)
    for profile in (p, streamed, treadle.Profile.load(tmp_path / "run.profile")):
        ranges = {r.name: r for r in profile.ranges}
        assert ranges["generator"].calls == ranges["around"].calls == 1
        assert ranges["generator"].total_ms >= ranges["around"].total_ms
    generator_left.clear()


def test_ranges_of_other_threads_and_of_errors(session):
    def work():
        with treadle.profile.range("aside"):
            pass

    with treadle.profile(session, peaks=False) as p:
        session.run(None, FEEDS)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with pytest.raises(KeyError), treadle.profile.range("fails"):
            raise KeyError
    assert {r.name for r in p.ranges} == {"aside", "fails"}
    with pytest.raises(TypeError):
        treadle.profile.range(3)


def test_ranges_are_in_traces_and_on_the_page(session, tmp_path):
    with treadle.profile(session, peaks=False, memory=True) as p, treadle.profile.range("a <range>"):
        session.run(None, FEEDS)
    p.save(tmp_path / "x.trace.json")
    trace = json.loads((tmp_path / "x.trace.json").read_text())
    events = trace["traceEvents"]
    (outer,) = [e for e in events if e["name"] == "a <range>"]
    (run,) = [e for e in events if e["name"].startswith("ProfilerStep")]
    assert outer["ts"] <= run["ts"] and run["ts"] + run["dur"] <= outer["ts"] + outer["dur"] + 1e-3
    memory = [e for e in events if e["name"] == "[memory]"]
    assert memory and all(e["ph"] == "i" and e["args"]["Device Type"] == 0 for e in memory)
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert "memory: activations" in counters and "memory: weights" in counters
    p.save(tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert "a \\u003crange>" in page and "Allocated over time" in page
    p.save(tmp_path / "x.pftrace")
    assert b"a <range>" in (tmp_path / "x.pftrace").read_bytes()


def test_measured_memory_balances(session):
    with treadle.profile(session, peaks=False, memory=True) as p:
        outputs = [session.run(None, FEEDS)[0] for _ in range(3)]
    measured = p.memory().measured
    assert measured.peak_bytes == sum(measured.at_peak.values()) == sum(size for _, _, size in measured.holders)
    assert "y" in {name for name, _, _ in measured.holders} or measured.at_peak.get("io", 0) == 0
    assert measured.before["weights"] + measured.before.get("packed", 0) >= 16 * 8 * 9 * 4 + 16 * 28 * 28 * 10 * 4
    assert max(sum(values[i] for values in measured.timeline.values()) for i in range(len(measured.times_ms))) == measured.peak_bytes
    blocks = p.data["memory"]["measured"]["blocks"]
    assert [b["bytes"] for b in blocks if b.get("name") == "y"] == [128] * 3  # 80 bytes are rounded up to a multiple of 64
    assert len({b["id"] for b in blocks}) == len(blocks)
    assert len(outputs) == 3
    assert "held at the peak" in p.table()
    with treadle.profile(session, peaks=False) as plain:
        session.run(None, FEEDS)
    assert plain.memory().measured is None


def test_lists_say_what_they_leave_out(session, tmp_path):
    session.run(None, FEEDS)
    with treadle.profile(session, memory=True, kernel_phases=True) as p:
        session.run(None, FEEDS)
    assert len(p.nodes) > 2
    holders, values = p.memory().measured.holders, p.memory().at_peak
    cut, whole = p.table(top=1, memory=True), p.table(top=0, memory=True)
    rest = sum(size for _, _, size in holders[1:])
    assert f"... and {len(holders) - 1} more, {rest / 1e6:.2f} MB together: --top 0 shows more" in cut
    assert f"... and {len(values) - 1} more value{'s' if len(values) > 2 else ''}, {sum(list(values.values())[1:]) / 1e6:.2f} MB: --top 0 shows all" in cut
    assert f"... and {len(p.memory().nodes) - 1} more steps: --top 0 shows all" in cut
    assert f"... and {len(p.nodes) - 1} more nodes" in cut
    assert "... and" not in whole
    # A profile only lists the largest holders.
    data = json.loads(json.dumps(p.data))
    data["memory"]["measured"]["peak"].update(more_holders=7, more_holders_bytes=3_000_000)
    path = tmp_path / "many.json"
    path.write_text(json.dumps(data))
    many = treadle.Profile.load(path)
    assert "... and 7 more, 3.00 MB together\n" in many.table(top=0)
    assert (many.memory().measured.num_more_holders, many.memory().measured.more_holders_bytes) == (7, 3_000_000)


def test_a_model_without_an_arena_has_its_memory():
    through = treadle.InferenceSession(small_models.identity(TensorProto.FLOAT))
    name = through.get_inputs()[0].name
    with treadle.profile(through, memory=True) as p:
        through.run(None, {name: np.zeros(3, np.float32)})
    memory = p.memory()
    assert (memory.nodes, memory.peak_bytes, memory.at_peak) == ((), 0, {})
    assert memory.measured is not None
    assert "no arena was planned" in p.table(memory=True)


def test_profiles_at_once(session):
    with treadle.profile(session, peaks=False) as outer:
        session.run(None, FEEDS)
        with treadle.profile(session, peaks=False) as inner:
            session.run(None, FEEDS)
        session.run(None, FEEDS)
    assert outer.data["runs"]["recorded"] == 3
    assert inner.data["runs"]["recorded"] == 1


@pytest.mark.parametrize("when_full", ["stop", "ring"])
def test_bounded_profiles_count_what_they_lost(session, when_full, tmp_path):
    runs = 2000
    with treadle.profile(session, peaks=False, max_events=2048, when_full=when_full) as p:
        for _ in range(runs):
            session.run(None, FEEDS)
    nodes = len(p.nodes)
    recorded = p.data["runs"]["recorded"]
    assert 0 < recorded < runs
    assert p.events_lost >= (runs - recorded - 2) * (nodes + 1)
    assert all(node.calls == 1 for node in p.nodes)
    assert f"{p.events_lost} lost" in p.table()
    for ending in ("trace.json", "pftrace", "speedscope.json", "onnxruntime.json"):  # other formats contain no moments
        p.save(tmp_path / f"p.{ending}")
        assert (tmp_path / f"p.{ending}").read_bytes().count(f"{p.events_lost} events lost".encode()) == 1, ending
    assert not p.marks, "the program has marked nothing"
    with pytest.raises(treadle.errors.InvalidArgument):
        treadle.profile(session, when_full="other")


def test_a_range_that_outlasts_the_room_keeps_the_runs_in_it(session):
    with treadle.profile(session, peaks=False, max_events=2048) as p, treadle.profile.range("serve"):
        for _ in range(2000):
            with treadle.profile.range("batch"):
                session.run(None, FEEDS)
    assert p.events_lost > 0
    assert 0 < p.data["runs"]["recorded"] < 2000
    assert {r.path for r in p.ranges} == {("serve",), ("serve", "batch")}
    batches = next(r for r in p.ranges if r.name == "batch")
    assert batches.calls == pytest.approx(p.data["runs"]["recorded"], abs=2)


def test_a_torch_module_is_profiled():
    torch = pytest.importorskip("torch")
    import treadle.torch

    module = treadle.torch.Module(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
    x = torch.ones(8, 16)
    with treadle.profile(module, peaks=False) as p:
        for _ in range(3):
            with treadle.profile.range("training step"):
                module(x).sum().backward()
        with torch.no_grad():
            module(x)
    assert len(p.graphs) == 2
    training = max(p.graphs, key=lambda graph: len(graph.nodes))
    assert {node.phase for node in training.nodes} == {"forward", "backward"}
    assert training.data["runs"]["recorded"] == 6
    assert [r.name for r in training.ranges] == ["training step"]
    with treadle.profile(module, peaks=False) as again:
        module(x).sum().backward()
    assert again.data["runs"]["recorded"] == 2
    del p, again
    gc.collect()


def test_all_clients_of_a_process_are_profiled(session, model):
    torch = pytest.importorskip("torch")
    import treadle.torch

    module = treadle.torch.Module(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU()))
    idle = treadle.InferenceSession(str(model))
    with treadle.profile(peaks=False) as p:
        for _ in range(3):
            session.run(None, FEEDS)
        made_within = treadle.InferenceSession(str(model))
        made_within.run(None, FEEDS)
        with torch.no_grad():  # this call makes the module's graph
            module(torch.ones(2, 16))
        later = treadle.torch.Module(torch.nn.Linear(16, 4))
        later(torch.ones(2, 16)).sum().backward()
    runs = sorted(g.data["runs"]["recorded"] for g in p.graphs)
    assert runs == [1, 1, 2, 3], "the module that trains has a forward and a backward part"
    assert p.graphs[0].data["runs"] == p.data["runs"]
    session.run(None, FEEDS), idle.run(None, FEEDS)  # these runs are not recorded
    assert not module.__dict__["_manager"].observers
    assert not later.__dict__["_manager"].observers
    with treadle.profile(peaks=False) as again:
        idle.run(None, FEEDS)
    assert [g.data["runs"]["recorded"] for g in again.graphs] == [1]
    with pytest.raises(treadle.errors.InvalidArgument, match="no session, trainer or module of the process ran"):  # noqa: SIM117
        with treadle.profile(peaks=False):
            pass


def test_clients_that_are_gone_are_not_held(model):
    made = treadle.InferenceSession(str(model))
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_torch_module_writes_a_file_for_each_graph(tmp_path):
    torch = pytest.importorskip("torch")
    import treadle.torch

    module = treadle.torch.Module(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)))
    x = torch.ones(8, 16)
    with treadle.profile(module, peaks=False, stream_to=tmp_path / "run.profile") as p, treadle.profile(module, peaks=False) as kept:
        for _ in range(3):
            module(x).sum().backward()
        with torch.no_grad():
            module(x)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.2.profile", "run.profile"]
    loaded = [treadle.Profile.load(tmp_path / name) for name in ("run.profile", "run.2.profile")]
    for profiles in (p.graphs, loaded):
        assert sorted(part.data["runs"]["recorded"] for part in profiles) == [1, 6] == sorted(g.data["runs"]["recorded"] for g in kept.graphs)
    training = max(kept.graphs, key=lambda graph: len(graph.nodes))
    assert {node.name: node.calls for node in training.nodes} == {node.name: node.calls for node in max(loaded, key=lambda part: len(part.nodes)).nodes}
    p.save(tmp_path / "p.trace.json")
    assert "nodes" in p.data and p.table()


class Frames(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.text = [], ""

    def handle_starttag(self, tag, attributes):
        if tag == "iframe":
            self.found.append(dict(attributes))

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_table_and_page(session, model, tmp_path):
    assert treadle.profile(session)._repr_html_() is None, "nothing was recorded"
    with treadle.profile(session, peaks=False) as p:
        session.run(None, FEEDS)
    for shown in (p, treadle.explain(model)):
        reader = Frames()
        reader.feed(shown._repr_html_())
        (frame,) = reader.found
        shown.save(tmp_path / "page.html")
        assert frame["srcdoc"] == (tmp_path / "page.html").read_text()
        assert frame["sandbox"] == "allow-scripts", "the page has the notebook's rights otherwise"
        assert shown.table() in reader.text


def explained(program, *arguments):
    run = subprocess.run([program, "explain", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_explain_tells_what_became_of_nodes(program, model):
    document = json.loads(explained(program, model, "--dim", "batch=2", "--json"))
    assert document["nodes_as_read"] == 6
    # Every node of the model runs, is part of another node, or was removed by a pass.
    alive = {name for node in document["nodes"] for name in node.get("sources", [node["name"]])}
    gone = {change["name"] for step in document["passes"] for change in step["changes"] if change["what"] in ("removed", "folded")}
    views = {name for view in document["views"] for name in view["sources"]}
    assert {"conv", "bn", "relu", "flatten", "product", "softmax"} <= alive | gone | views
    assert "flatten" in views
    nodes = {name: node for node in document["nodes"] if node["op"] != "Transpose" for name in node.get("sources", [node["name"]])}
    assert nodes["conv"] is nodes["bn"] is nodes["relu"]
    assert "batch-norm-into-conv" in nodes["bn"]["passes"] and "fuse-conv" in nodes["relu"]["passes"]
    assert nodes["conv"]["flops"] >= 2 * 2 * 16 * 26 * 26 * 8 * 9
    assert nodes["conv"]["estimated_ms"] > 0
    assert document["memory"]["arena_bytes"] >= document["memory"]["arena_lower_bound_bytes"] > 0
    assert len(document["memory"]["live"]["activations"]) == len(document["memory"]["steps"])
    text = explained(program, model, "--node", "bn")
    assert "batch-norm-into-conv" in text and "stands for" in text
    assert "passes, in order" in explained(program, model)


def test_explain_says_why_a_fusion_did_not_apply(program, model, tmp_path):
    changed = onnx.load(model)
    changed.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, ["batch", 16, 28, 28]))
    path = tmp_path / "two_readers.onnx"
    onnx.save(changed, path)
    text = explained(program, path, "--node", "bn")
    assert "no convolution with constant weights, whose result nobody else reads" in text
    run = subprocess.run([program, "explain", str(path), "--node", "nothing"], capture_output=True, text=True, timeout=300)
    assert run.returncode == 1 and 'no node "nothing"' in run.stderr


def test_explain_estimates_no_more_than_other_numbers_take(model):
    quantised = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["y"], name="product")],
        "quantised",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [512, 512])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [512, 512])],
        [onnx.numpy_helper.from_array(np.ones((512, 512), np.int8), "b")],
    )
    explanation = treadle.explain(helper.make_model(quantised, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    (product,) = explanation.data["nodes"]
    as_float32_ms = product["flops"] / explanation.data["peaks"]["gflops"] * 1e-6
    assert 0 < product["estimated_ms"] < as_float32_ms, "the peak is of float32"
    conv = next(n for n in treadle.explain(model, dimensions={"batch": 2}).data["nodes"] if "Conv" in n["op"])
    assert conv["estimated_ms"] > 0


def test_explain_does_not_estimate_nodes_on_devices_by_the_peaks_of_the_host(model):
    options = treadle.SessionOptions()
    options.device = "sim"
    nodes = treadle.explain(model, sess_options=options, dimensions={"batch": 2}).data["nodes"]
    on_device = [node for node in nodes if node.get("device") == "sim"]
    assert on_device and not any("estimated_ms" in node for node in on_device)


def test_explain_counts_nodes_of_bodies():
    def branch(name, count):
        nodes = [helper.make_node("Sin", ["x" if i == 0 else f"{name}{i - 1}"], [f"{name}{i}"], name=f"{name}{i}") for i in range(count)]
        nodes.append(helper.make_node("Identity", [f"{name}{count - 1}"], [f"{name}_out"], name=f"{name}_identity"))
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4])])

    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], name="if", then_branch=branch("t", 3), else_branch=branch("e", 2))],
        "choice",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    explanation = treadle.explain(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert explanation.data["nodes_as_read"] == 1 + 4 + 3
    (identity,) = (step for step in explanation.data["passes"] if step["pass"] == "remove-identity")
    assert (identity["nodes_before"], identity["nodes_after"]) == (8, 6)


def test_explain_is_a_function(model):
    explanation = treadle.explain(model, dimensions={"batch": 2})
    assert "batch-norm-into-conv" in explanation.passes
    assert "passes, in order" in str(explanation) and "memory, as planned" in explanation.table(top=1)
    assert explanation.data["nodes_as_read"] == 6
    history = treadle.explain(onnx.load(model), "bn", shapes={"x": (2, 8, 28, 28)})
    again = treadle.explain(model.read_bytes(), shapes={"x": (2, 8, 28, 28)}).node("bn")
    assert (history.steps, history.runs_as, history.refusals) == (again.steps, again.runs_as, again.refusals)
    assert "batch-norm-into-conv" in [name for name, _ in history.steps]
    assert history.runs_as and set(history.runs_as) <= set(explanation.nodes)
    assert "stands for" in str(history)
    with pytest.raises(treadle.Error, match='no node "nothing"'):
        explanation.node("nothing")
    with pytest.raises(treadle.Error, match="batches"):
        treadle.explain(model, dimensions={"batches": 2})


def test_explain_gives_reasons(tmp_path):
    """Attention whose scores have another reader."""
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 8, 8]) for name in ("q", "k", "v", "y", "scores")}
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], "turn", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["p"], "softmax"),
        helper.make_node("MatMul", ["p", "v"], ["y"], "mix"),
    ]
    graph = helper.make_graph(nodes, "g", [tensors[n] for n in "qkv"], [tensors["y"], tensors["scores"]])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    refusals = treadle.explain(made, "mix").refusals
    assert ("fuse-attention", "several nodes read the scores before the Softmax, or they are an output of the model") in [
        (refusal.pass_name, refusal.why) for refusal in refusals
    ]


def test_nodes_name_their_passes(model, session):
    with treadle.profile(session, passes=True) as p:
        session.run(None, FEEDS)
    documented = {node["name"]: tuple(node.get("passes", ())) for node in treadle.explain(model, dimensions={"batch": 2}).data["nodes"]}
    assert {node.name: node.passes for node in p.nodes} == documented
    assert any("fuse-conv" in node.passes for node in p.nodes)
    with treadle.profile(session) as p:
        session.run(None, FEEDS)
    assert all(node.passes == () for node in p.nodes)


def test_passes_of_trainers_are_named(model):
    labels = np.zeros(2, np.int64)

    def passes_of(*disabled):
        options = treadle.SessionOptions()
        options.disabled_passes = list(disabled)
        trainer = treadle.train.Trainer(str(model), loss="softmax_cross_entropy", sess_options=options)
        with treadle.profile(trainer, peaks=False, passes=True) as p:
            trainer.step(FEEDS, labels)
        assert [node.name for node in p.nodes if node.phase == "optimizer"]
        return {node.name: node.passes for node in p.nodes}

    named = passes_of()
    seen = {name for passes in named.values() for name in passes}
    assert "assign-layout" in seen
    assert any(passes and "grad" in name for name, passes in named.items()), "nodes of the backward pass, too"
    # Nodes that the skipped pass would make do not exist.
    assert "assign-layout" not in {name for passes in passes_of("assign-layout").values() for name in passes}


def test_passes_of_joint_modules_are_named(model):
    module = treadle.train.JointModule(str(model))
    with treadle.profile(module, peaks=False, passes=True) as p:
        run = module.forward(FEEDS)
        run.backward([np.ones_like(np.asarray(run.outputs[0]))])
    assert {"forward", "backward"} == {node.phase for node in p.nodes}
    assert any("assign-layout" in node.passes for node in p.nodes if node.phase == "backward")
    (product,) = [node for node in p.nodes if node.name == "product"]
    assert product.passes == (), "it is as it was written"


def test_passes_of_compiled_models_are_refused(model, tmp_path):
    compiled = tmp_path / "m.treadle"
    subprocess.run([sys.executable, "-m", "treadle", "compile", str(model), "-o", str(compiled)], check=True, capture_output=True)
    session = treadle.InferenceSession(str(compiled))
    with pytest.raises(treadle.errors.InvalidArgument, match="name no passes"):
        with treadle.profile(session, passes=True):
            pass


def test_loading_is_taken_apart(model, tmp_path):
    session = treadle.InferenceSession(str(model))
    session.run(None, FEEDS)
    with treadle.profile(session) as p:
        session.run(None, FEEDS)
    phases = {phase.path: phase for phase in p.load_phases}
    assert {("read",), ("make session",), ("make session", "optimise", "fuse-conv"), ("make session", "lower", "pack")} <= set(phases)
    assert ("first binding", "plan memory") in phases
    for path, phase in phases.items():
        assert phase.calls >= 1 and phase.total_ms >= 0
        if len(path) > 1:
            assert phase.total_ms <= phases[path[:-1]].total_ms + 1e-3
    assert "loading" in p.table()
    p.save(tmp_path / "trace.json.gz")  # this file is still a profile, because only .trace.json means a trace
    p.save(tmp_path / "p.trace.json")
    events = json.loads((tmp_path / "p.trace.json").read_text())["traceEvents"]
    names = [event.get("name") for event in events if event.get("ph") == "X"]
    assert "make session" in names and "fuse-conv" in names


def test_loading_of_further_graphs_is_taken_apart(model):
    trainer = treadle.train.Trainer(str(model), loss="softmax_cross_entropy")
    labels = np.zeros(len(next(iter(FEEDS.values()))), np.int64)
    with treadle.profile(trainer) as p:
        trainer.step(FEEDS, labels)
    assert [phase.name for phase in p.load_phases if phase.name.startswith("make")] == ["make trainer"]
    with treadle.profile(trainer) as p:
        trainer.predict(FEEDS)
        trainer.evaluate(FEEDS, labels)
        trainer.gradients(FEEDS, labels)
        trainer.step(FEEDS, labels)
    phases = {phase.path: phase for phase in p.load_phases}
    for made in ("predict", "evaluate", "gradients"):
        path = (f"make graph: {made}",)
        assert phases[path].calls == 1
        parts = {(*path, "optimise"), (*path, "lower")}
        assert parts <= set(phases)
        assert sum(phases[part].total_ms for part in parts) <= phases[path].total_ms + 1e-3
    assert phases[("first binding",)].calls == 4


    session = treadle.InferenceSession(small_models.affine())
    feeds = {"x": np.ones((2, 3), np.float32)}
    with treadle.profile(session) as p:
        session.run(None, feeds)
        session.run(["z"], feeds)
        session.run(["z"], feeds)
    phases = {phase.path: phase for phase in p.load_phases}
    assert phases[("make graph: other outputs",)].calls == 1
    assert ("make graph: other outputs", "lower") in phases
    assert phases[("first binding",)].calls == 2


def test_nodes_are_counted(model):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 1
    options.node_counters = True
    session = treadle.InferenceSession(str(model), options)
    for _ in range(7):
        session.run(None, FEEDS)
    counted = session.node_counters()
    with treadle.profile(session) as p:
        session.run(None, FEEDS)
    assert [c.name for c in counted] == [node.name for node in p.nodes]
    assert all(c.calls == 7 for c in counted)
    for c in counted:
        assert sum(count for _, _, count in c.histogram) == 7
        assert c.histogram[0][0] / 1e3 <= c.p50_us <= c.p90_us <= c.p99_us <= c.histogram[-1][1] / 1e3
        assert abs(c.mean_us * 7 / 1e3 - c.total_ms) < 1e-2
    assert all(c.calls == 8 for c in session.node_counters())  # a profile does not disturb the counters
    session.reset_node_counters()
    assert all(c.calls == 0 and c.histogram == () for c in session.node_counters())
    with pytest.raises(treadle.errors.InvalidArgument, match="node_counters"):
        treadle.InferenceSession(str(model)).node_counters()


def test_counters_outlive_their_graphs():
    """A session keeps eight graphs for other outputs. Counts of graphs that it dropped must stay."""
    outputs = 12
    nodes = [helper.make_node("Exp", ["x"], ["e"], "exp"), helper.make_node("Add", ["e", "x"], ["y0"], "add0")]
    nodes += [helper.make_node("Mul", ["e", f"y{i - 1}"], [f"y{i}"], f"mul{i}") for i in range(1, outputs)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [4]) for i in range(outputs)],
    )
    options = treadle.SessionOptions()
    options.node_counters = True
    options.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = treadle.InferenceSession(made.SerializeToString(), options)
    for _ in range(2):
        for i in range(outputs):
            session.run([f"y{i}"], {"x": np.ones(4, np.float32)})
    calls = collections.Counter()
    for counter in session.node_counters():
        calls[counter.name] += counter.calls
    assert calls["exp"] == 2 * outputs
    assert [calls[f"mul{i}"] for i in range(1, outputs)] == [2 * (outputs - i) for i in range(1, outputs)]
    names = [counter.name for counter in session.node_counters()]
    assert names.count("exp") == 1 + 8 + 1, "the model's, those of the graphs there are, and what was kept"
    session.reset_node_counters()
    assert all(counter.calls == 0 for counter in session.node_counters())


def test_counters_of_bodies_have_a_parent():
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"], "go"), helper.make_node("Neg", ["v"], ["w"], "inside")],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [4]),
        ],
        [helper.make_tensor_value_info("go_on", TensorProto.BOOL, []), helper.make_tensor_value_info("w", TensorProto.FLOAT, [4])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], "loop", body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]), helper.make_tensor_value_info("trips", TensorProto.INT64, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    options = treadle.SessionOptions()
    options.node_counters = True
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = treadle.InferenceSession(made.SerializeToString(), options)
    session.run(None, {"x": np.ones(4, np.float32), "trips": np.int64(5)})
    counted = {c.name: c for c in session.node_counters()}
    assert counted["inside"].calls == 5 and counted["inside"].parent == "loop"
    assert counted["loop"].calls == 1 and counted["loop"].parent is None
