"""Compares profiles (`treadle profile`, its page, and treadle.profile()) with independent counts of calls and operations."""

import html
import importlib.util
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import small_models
import treadle
import treadle.train
from conftest import REPOSITORY, SHARED_DATA

sys.path.insert(0, str(REPOSITORY / "bench"))

import ceilings

DIGITS = REPOSITORY / "examples/digits/digits.onnx"


def call(program, *arguments, status=0):
    run = subprocess.run([program, "profile", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert run.returncode == status, run.stderr + run.stdout
    return run


def profile_of(program, *arguments):
    return json.loads(call(program, *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def conv_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "conv.onnx"
    path.write_bytes(small_models.convolution_classifier(stride=2, last="</script><b>softmax"))
    return path


@pytest.fixture(scope="module")
def conv_profile(program, conv_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "conv.json"
    call(program, conv_model, "--runs", 20, "--threads", 1, "--no-remedies", "--dim", "batch=2", "-o", path)
    return path


def test_parts_of_a_run_sum_to_it(conv_profile):
    data = json.loads(conv_profile.read_text())
    assert data["runs"]["recorded"] == 20
    assert math.isclose(sum(part["share"] for part in data["where"]), 1, abs_tol=1e-4)
    kernels = {"compute", "memory", "moves", "unknown", "other_numbers", "control_flow"}
    nodes = sum(node["mean_ms"] for node in data["nodes"])
    computing = sum(p["ms"] for p in data["where"] if p["id"] in kernels)
    recording = sum(p["ms"] for p in data["where"] if p["id"] == "profiler")  # this time is partly within the nodes' times
    assert computing <= nodes + 1e-5 and nodes <= computing + recording + 1e-5
    assert math.isclose(sum(op["ms"] for op in data["operators"]), nodes, rel_tol=1e-3, abs_tol=1e-5)
    # Nodes run one after the other, so all are on the critical path.
    path = data["critical_path"]
    assert path["nodes"] == data["memory"]["steps"]
    assert math.isclose(path["ms"], nodes, rel_tol=1e-3, abs_tol=1e-5)
    assert data["profiler"]["events_lost"] == 0
    assert "remedies" not in data


def test_nodes_are_those_of_the_plan(conv_model, conv_profile):
    data = json.loads(conv_profile.read_text())
    planned = treadle.InferenceSession(str(conv_model))._sess.to_text("planned")
    instructions = [line for line in planned.splitlines() if line[:4].strip().isdigit()]
    assert len(data["nodes"]) == len(instructions)
    assert all(node["calls"] == 1 for node in data["nodes"])
    assert data["profiler"]["events_per_run"] == len(instructions) + 1


def test_operations_are_those_counted_by_hand(conv_profile):
    nodes = json.loads(conv_profile.read_text())["nodes"]
    conv = next(node for node in nodes if "Conv" in node["op"])
    _, expected = ceilings.count_conv([2, 8, 28, 28], [16, 8, 3, 3], [2, 16, 14, 14], 1, [2, 2], [1, 1])
    # The fused ReLU and the inferred handling of borders may add a little.
    assert expected <= conv["flops"] <= 1.02 * expected
    product = next(node for node in nodes if "MatMul" in node["op"] or "Gemm" in node["op"])
    assert 2 * 2 * 3136 * 10 <= product["flops"] <= 1.02 * 2 * 2 * 3136 * 10
    assert product["gflops"] == pytest.approx(product["flops"] / product["ms"]["median"] / 1e6, rel=0.02, abs=0.02)


def test_the_table_shows_a_saved_profile_again(program, conv_profile):
    text = call(program, conv_profile, "--top", 2, "--sort", "order").stdout
    for part in ("nodes by order", "more nodes", "operators", "where a run went", "together", "100.0", "arena", "float32"):
        assert part in text, part


def test_remedies_are_measured(program, conv_model):
    data = profile_of(program, conv_model, "--runs", 11)
    for remedy in data["remedies"]:
        assert remedy["effect"] >= 0.03
        assert remedy["saves"] in {"time", "memory", "load time"}
        assert "->" in remedy["evidence"]
        assert remedy["command"].startswith("treadle ")


def write_profile(path, run, nodes, half=0.01):
    def ms(median):
        return {"median": median, "interval": [median - half, median + half], "p10": median, "p90": median}

    data = {"format": "treadle-profile", "version": 1, "runs": {"ms": ms(run)}, "nodes": []}
    data["nodes"] = [{"name": name, "op": "Add", "ms": ms(median)} for name, median in nodes.items()]
    path.write_text(json.dumps(data))
    return path


def test_differences_have_an_exit_status(program, tmp_path):
    before = write_profile(tmp_path / "a.json", 10, {"a": 4, "b": 6})
    slower = write_profile(tmp_path / "b.json", 12, {"a": 4, "b": 8})
    unclear = write_profile(tmp_path / "c.json", 10.5, {"a": 4, "b": 6.5}, half=1)
    text = call(program, "--diff", before, slower, status=3).stdout
    assert "run: slower" in text
    assert "1 slower, 1 unchanged" in text
    assert "run: faster" in call(program, "--diff", slower, before).stdout
    assert "run: unchanged" in call(program, "--diff", before, before).stdout
    assert "run: cannot tell" in call(program, "--diff", before, unclear, status=4).stdout
    verdicts = {node["name"]: node["verdict"] for node in json.loads(call(program, "--diff", before, slower, "--json", status=3).stdout)["nodes"]}
    assert verdicts == {"a": "unchanged", "b": "slower"}
    assert "run: unchanged" in call(program, "--diff", before, slower, "--tolerance", 0.5).stdout


def test_differences_match_by_original_node_and_name_other_work(program, tmp_path):
    before, after = (json.loads(pathlib.Path(write_profile(tmp_path / f"{name}.json", 10, nodes)).read_text()) for name, nodes in (("a", {"conv": 4, "act": 6}), ("b", {"conv_1": 4, "act": 6})))
    for profile, batch, threads in ((before, 1, 1), (after, 8, 2)):
        profile["nodes"][0].update(sources=["model/conv", "model/bn"], op="Conv", inputs=[{"name": "x", "shape": [batch, 3]}], outputs=[{"name": "y", "shape": [batch, 16]}])
        profile["environment"] = {"cpu": "one", "threads": threads}
    after["nodes"].append(dict(after["nodes"][1], name="new", sources=["model/new"]))
    for name, profile in (("a", before), ("b", after)):
        (tmp_path / f"{name}.json").write_text(json.dumps(profile))
    text = call(program, "--diff", tmp_path / "a.json", tmp_path / "b.json").stdout
    assert "conv -> conv_1" in text
    assert "shapes 8x3 -> 8x16, were 1x3 -> 1x16" in text
    assert "shapes: 1 nodes have others" in text
    assert "threads: 1 -> 2" in text and "processor" not in text
    assert "only after:  new" in text and "only before" not in text
    data = json.loads(call(program, "--diff", tmp_path / "a.json", tmp_path / "b.json", "--json").stdout)
    assert data["environment"] == {"threads": "1 -> 2"}


@pytest.mark.parametrize(
    "option", ["--stream=f", "--kernel-phases", "--runs=3", "--seconds=1", "--no-remedies", "--threads=2", "--dim=batch=3", "--option=use_mmap=1", "--tolerance=0.1"]
)
def test_what_a_saved_profile_would_ignore_is_refused(program, conv_profile, option):
    name = option.split("=")[0]
    assert f"is a profile that was taken: {name} does not go with it" in call(program, conv_profile, option, status=1).stderr
    if name != "--tolerance":
        assert f"--diff compares profiles that were taken: {name} does not go" in call(program, "--diff", conv_profile, conv_profile, option, status=1).stderr
    assert "--tolerance is of --diff" in call(program, DIGITS, "--tolerance", 0.1, status=1).stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "a model, a profile"),
        (["absent.onnx"], "absent.onnx"),
        ([DIGITS, "--runs", "11", "--no-remedies", "-o", "report.pdf"], ".html, .json, .csv, .pftrace"),
        ([DIGITS, "--runs", "11", "--no-remedies", "-o", "absent/report.html"], "--output absent/report.html: there is no such folder"),
        (["--diff", "absent.json", "absent.json"], "absent.json"),
    ],
)
def test_wrong_calls_say_what_is_wrong(program, tmp_path, arguments, expected):
    run = subprocess.run([program, "profile", *map(str, arguments)], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert expected in run.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_profile_is_refused(program, tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"traceEvents": []}')
    assert "no profile" in call(program, other, status=1).stderr


def browser():
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


def rendered(page, tmp_path, *options):
    """Returns the page's document after its script has run."""
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}", *options, "--dump-dom"]
    run = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_page_stands_alone(program, conv_profile, tmp_path):
    page = tmp_path / "report.html"
    call(program, conv_profile, "-o", page)
    text = page.read_text()
    assert "/*SCRIPT*/" not in text
    assert "/*STYLE*/" not in text
    assert text.count("</script>") == 2, "a name from the model must not end a script"
    # SVG namespaces look like addresses; nothing else may be loaded from outside.
    assert not [part for part in ("src=", "@import", "url(", "https://") if part in text]


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_shows_the_profile(program, conv_profile, tmp_path):
    page = tmp_path / "report.html"
    call(program, conv_profile, "-o", page)
    shown = rendered(page, tmp_path)
    data = json.loads(conv_profile.read_text())
    for part in ("Where a run went", "Fix this first", "Timeline", "together", "100.0", "Environment", "conv.onnx"):
        assert part in shown, part
    assert shown.count("<tr data-node=") == len(data["nodes"])
    assert shown.count("<rect ") == len(data["nodes"]), "the drawing of the graph has each node once"
    assert 'id="kernels" aria-labelledby="kernels-title" hidden' in shown, "nothing was recorded within kernels"
    assert re.search(r'<a href="#kernels" hidden', shown), "no link leads to a hidden section"
    computing = [node for node in data["nodes"] if node.get("gflops", 0) > 0.01]
    assert 0 < shown.count("<circle ") <= len(computing)
    assert "&lt;/script&gt;&lt;b&gt;softmax" in shown
    assert 'aria-sort="descending"' in shown
    assert "Timeline of" in shown


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_headline_has_units_that_fit(program, conv_profile, tmp_path):
    data = json.loads(conv_profile.read_text())
    data["memory"].update(arena_bytes=256, arena_lower_bound_bytes=128, arena_sum_bytes=512)
    data["runs"]["ms"]["median"] = 1.0
    for node in data["nodes"]:
        node["flops"], node["calls"] = 1000 / len(data["nodes"]), 1
    small = tmp_path / "small.json"
    small.write_text(json.dumps(data))
    headline, arena = seen_in(program, small, "seen.push($('headline').textContent, $('arena-plan').textContent);", tmp_path)
    assert "1.00 MFLOP/s" in headline and "1.00 kFLOP a run" in headline
    assert "128 B, 50.0 % less than planned" in arena
    assert "sharing saves 50 %" in arena


# Actions of a reader, and what the page shows after them.
SESSION = """
const rows = () => [...document.querySelectorAll('#node-table tr[data-node]')];
document.querySelector('#node-table th button').click();
seen.push(document.querySelector('#node-table th').getAttribute('aria-sort'), rows().map((r) => r.cells[0].textContent).join(','));
const filter = document.getElementById('filter');
filter.value = 'SOFTMAX'; filter.dispatchEvent(new Event('input'));
seen.push(rows().length, document.getElementById('node-count').textContent);
filter.value = ''; filter.dispatchEvent(new Event('input'));
const group = document.getElementById('group');
group.value = 'op'; group.dispatchEvent(new Event('change'));
seen.push(document.querySelectorAll('#node-table tr.group').length);
const before = timeView.to - timeView.from;
document.getElementById('time').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}));
seen.push((timeView.to - timeView.from) / before);
document.querySelector('#drawing rect[data-node="1"]').dispatchEvent(new MouseEvent('click', {bubbles: true}));
seen.push(document.querySelector('#node-table tr.chosen').dataset.node);
"""


def seen_in(program, profile, script, tmp_path, *options):
    """Runs a script in a profile's page. Returns what it pushes to `seen`."""
    page = tmp_path / "report.html"
    call(program, profile, "-o", page)
    end = "document.body.append(Object.assign(document.createElement('pre'), {id: 'seen', textContent: JSON.stringify(seen)}));"
    page.write_text(page.read_text().replace("</body>", f"<script>const seen = [];{script}{end}</script></body>"))
    text = rendered(page, tmp_path, *options).split('<pre id="seen">')[1].split("</pre>")[0]
    return json.loads(html.unescape(text))


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_sorts_filters_groups_and_zooms(program, conv_profile, tmp_path):
    order, names, found, count, groups, zoomed, chosen = seen_in(program, conv_profile, SESSION, tmp_path)
    nodes = json.loads(conv_profile.read_text())["nodes"]
    assert order == "ascending"
    assert sorted(names.split(",")) == sorted(node["name"] for node in nodes)
    assert found == 1
    assert count.startswith("1 node,")
    assert groups == len({node["op"] for node in nodes})
    assert zoomed == pytest.approx(0.7)
    assert chosen == "1"


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_of_a_plan_shows_passes_and_the_graph(program, conv_model, tmp_path):
    def explain(*arguments, status=0):
        run = subprocess.run([program, "explain", str(conv_model), *map(str, arguments)], capture_output=True, text=True, timeout=300)
        assert run.returncode == status, run.stderr
        return run.stdout + run.stderr

    saved = tmp_path / "plan.json"
    assert "written to" in explain("--dim", "batch=2", "-o", saved)
    data = json.loads(saved.read_text())
    script = """
    seen.push([...document.querySelectorAll('#passes tbody tr')].map((r) => r.cells[0].textContent), rows().map((r) => r.dataset.node).length);
    document.querySelectorAll('#passes tbody button')[0].click();
    seen.push(rows().map((r) => nodes[r.dataset.node].passes));
    document.querySelector('#drawing rect[data-node="0"]').dispatchEvent(new MouseEvent('click', {bubbles: true}));
    seen.push(document.querySelector('tr.detail').textContent);
    seen.push([...document.querySelectorAll('section, nav a')].filter((x) => !x.hidden).map((x) => x.id || x.hash));
    """
    page = tmp_path / "plan.html"
    explain("--dim", "batch=2", "-o", page)
    end = "document.body.append(Object.assign(document.createElement('pre'), {id: 'seen', textContent: JSON.stringify(seen)}));"
    rows = "const rows = () => [...document.querySelectorAll('#node-table tr[data-node]')];"
    page.write_text(page.read_text().replace("</body>", f"<script>const seen = [];{rows}{script}{end}</script></body>"))
    text = rendered(page, tmp_path)
    assert text.count("<rect ") >= len(data["nodes"]), "the drawing of the graph has each node"
    assert "&lt;/script&gt;&lt;b&gt;softmax" in text
    names, count, made, details, shown = json.loads(html.unescape(text.split('<pre id="seen">')[1].split("</pre>")[0]))
    assert names == [step["pass"] for step in data["passes"]]
    assert count == len(data["nodes"])
    assert made and all(names[0] in passes for passes in made)
    assert ", ".join(data["nodes"][0]["passes"]) in details
    parts = {"passes", "nodes", "memory", "graph", "environment"}
    assert set(shown) == {"headline", *parts, *(f"#{part}" for part in parts)}
    assert "a name that ends in .html or .json" in explain("-o", tmp_path / "plan.csv", status=1)
    assert "--node" in explain("-o", page, "--node", "conv", status=2)


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_needs_no_mouse(program, conv_profile, tmp_path):
    script = """
    // A node's details open and close at its name, which a keyboard reaches.
    const name = () => document.querySelector('#node-table tr[data-node="0"] button');
    name().click();
    seen.push(name().getAttribute('aria-expanded'), document.querySelector('tr.detail dl').textContent, document.activeElement === name());
    name().click();
    seen.push(name().getAttribute('aria-expanded'), document.querySelectorAll('tr.detail').length);
    // From event to event.
    for (const k of [1, 2]) $('time').dispatchEvent(new KeyboardEvent('keydown', {key: '.'}));
    seen.push($('time-status').textContent);
    // What scrolls or draws can be reached, and says what it is.
    const places = [...document.querySelectorAll('.scroll, canvas, [role=img]')];
    const isNamed = (x) => x.getAttribute('aria-label') || x.querySelector('canvas');
    seen.push(places.length, places.filter((x) => !x.closest('[hidden]') && !isNamed(x)).map((x) => x.id));
    seen.push(document.querySelectorAll('button:not([aria-label]):empty, th:not([scope])').length);
    """
    opened, details, focused, closed, rows, event, places, unnamed, wrong = seen_in(program, conv_profile, script, tmp_path)
    data = json.loads(conv_profile.read_text())
    node = data["nodes"][0]
    assert opened == "true"
    assert all(part in details for part in ("median", node["outputs"][0]["name"], "float32"))
    assert focused
    assert (closed, rows) == ("false", 0)
    assert data["nodes"][data["timeline"]["median"]["node"][1]]["name"] in event
    assert places > 4
    assert (unnamed, wrong) == ([], 0)


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_a_page_without_runs_shows_what_there_is(program, conv_model, tmp_path):
    with treadle.profile(treadle.InferenceSession(str(conv_model)), peaks=False) as p:
        with treadle.profile.range("prepare"):
            pass
    p.save(tmp_path / "ranges.json")
    script = "seen.push($('warnings').textContent, $('timeline').hidden, timeView.events.count, $('ranges-table').textContent, $('where').hidden);"
    warnings, hidden, events, ranges, where = seen_in(program, tmp_path / "ranges.json", script, tmp_path)
    assert "No run was recorded" in warnings
    assert (hidden, events, where) == (False, 1, True)
    assert "prepare" in ranges


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return sum(w * (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4) for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_texts_of_the_page_can_be_read(program, conv_profile, tmp_path, scheme):
    """Checks WCAG's contrast of 4.5 for texts on cards and for titles on every colour."""
    script = "for (const c of ['--text', '--soft', '--accent', '--warn']) seen.push([css(c), css('--card')], [css(c), css('--back')]);"
    script += "for (const c of allColours) seen.push([css(inkVariable(c)), css(c)]);"
    pairs = seen_in(program, conv_profile, script, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    assert len(pairs) == 25
    assert (luminance(pairs[0][1]) < 0.1) == (scheme == 0)
    for pair in pairs:
        low, high = sorted(luminance(colour) for colour in pair)
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_axe_finds_nothing_that_readers_of_screens_lack(program, conv_profile, conv_model, tmp_path, scheme):
    package = importlib.util.find_spec("axe_core_python") or pytest.skip("axe-core-python is not there")
    axe = next(pathlib.Path(package.submodule_search_locations[0]).rglob("axe.min.js")).read_text().replace("</script", "<\\/script")
    check = """axe.run(document).then((found) => document.body.append(Object.assign(document.createElement('pre'), {id: 'seen',
      textContent: JSON.stringify([found.passes.length, found.violations.map((v) => [v.help, v.nodes.map((n) => n.html)])])})));"""
    plan = subprocess.run([program, "explain", str(conv_model), "--dim", "batch=2", "-o", str(tmp_path / "plan.html")], capture_output=True, text=True)
    assert plan.returncode == 0, plan.stderr
    call(program, conv_profile, "-o", tmp_path / "profile.html")
    for name in ("profile.html", "plan.html"):
        page = tmp_path / name
        page.write_text(page.read_text().replace("</body>", f"<script>{axe}</script><script>{check}</script></body>"))
        text = rendered(page, tmp_path, "--virtual-time-budget=20000", f"--blink-settings=preferredColorScheme={scheme}")
        passes, violations = json.loads(html.unescape(text.split('<pre id="seen">')[1].split("</pre>")[0]))
        assert passes > 15
        assert violations == []


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_has_every_event(program, conv_profile, tmp_path):
    """The page packs events and unpacks them again: nodes, threads, times and phases, for more events than a screen has pixels."""
    data = json.loads(conv_profile.read_text())
    count, nodes = 300_000, len(data["nodes"])
    start = [round(7.25 * i - (5000 if i >= count // 2 else 0), 3) for i in range(count)]  # the times of the second thread start again
    events = {
        "events": count + 5,
        "node": [i * 7 % nodes for i in range(count)],
        "thread": [0 if i < count // 2 else 1 for i in range(count)],
        "start_us": start,
        "duration_us": [round(i % 5 + 0.125, 3) for i in range(count)],
        "phase": [-1] * count,
    }
    data["timeline"] = {"threads": ["one", "two"], "median": events, "slowest": events}
    for node in data["nodes"]:
        node.pop("layers", None)  # layers would add further events
    path = tmp_path / "long.json"
    path.write_text(json.dumps(data))
    script = """
    const e = timeView.events, sum = (list) => list.reduce((s, x) => s + x, 0);
    seen.push(e.count, sum(e.node), sum(e.thread), sum(e.phase), sum(e.end.map((x, i) => x - e.start[i])), e.start[e.count - 1], e.end[1]);
    seen.push($('time-status').textContent, timeView.boxes.length, timeView.lanes.length);
    """
    *sums, status, boxes, lanes = seen_in(program, path, script, tmp_path)
    ends = start[1] + events["duration_us"][1]
    expected = [count, sum(events["node"]), sum(events["thread"]), -count, sum(events["duration_us"]), start[-1], ends]
    assert sums == pytest.approx(expected, rel=1e-9)
    assert "first 300,000 of 300,005 events" in status
    assert lanes == 2
    assert 100 < boxes < 5000, "as many as there are pixels, not as there are events"
    assert (tmp_path / "report.html").stat().st_size < 8e6
    data["timeline"]["median"]["thread"].pop()
    path.write_text(json.dumps(data))
    assert "damaged" in call(program, path, "-o", tmp_path / "x.html", status=1).stderr


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_draws_what_is_seen_of_a_large_graph(program, conv_profile, tmp_path):
    data = json.loads(conv_profile.read_text())
    pattern = {k: v for k, v in data["nodes"][0].items() if k not in ("inputs", "outputs", "name")}
    names = [f"n{i}" for i in range(6000)]
    made = [{"name": n, **pattern, "inputs": [{"name": f"v{i}"}], "outputs": [{"name": f"v{i + 1}"}]} for i, n in enumerate(names)]
    data |= {"nodes": made, "timeline": {}}
    del data["critical_path"]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(data))
    script = """
    seen.push(document.querySelectorAll('#drawing rect').length);
    choose(5000);
    seen.push(Boolean(document.querySelector('#drawing rect.chosen[data-node="5000"]')), document.querySelectorAll('#drawing rect').length);
    """
    first, chosen, later = seen_in(program, path, script, tmp_path)
    assert 5 < first < 200
    assert chosen
    assert 5 < later < 200


@pytest.mark.skipif(browser() is None, reason="no Chromium here")
def test_the_page_shows_training_kernels_python_and_loading(program, conv_model, tmp_path):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = 2
    trainer = treadle.train.Trainer(str(conv_model), loss="mean_squared_error", sess_options=options)
    x, y = np.ones((2, 8, 28, 28), np.float32), np.zeros((2, 10), np.float32)
    with treadle.profile(trainer, peaks=False, kernel_phases=True, python_calls=True, memory=True) as p:
        for _ in range(4):
            with treadle.profile.range("one step"):
                trainer.step({"x": x}, y)
    path = tmp_path / "train.json"
    p.save(path)
    script = """
    const text = (id) => $(id).textContent;
    seen.push(text('title'), text('where-side'), text('kernel-phases'), text('ranges-table'), text('load-table'), text('holders'));
    seen.push($('load-graph').querySelectorAll('.flame div').length, $('ranges-graph').querySelectorAll('.flame div').length);
    seen.push(text('phase-legend'), [...$('group').options].map((o) => o.value));
    $('which').value = 'ranges'; $('which').dispatchEvent(new Event('change'));
    seen.push(timeView.events.count, $('time').getAttribute('aria-label'));
    seen.push(text('where-threads'));
    const right = (x) => x.getBoundingClientRect().right;
    seen.push([...document.querySelectorAll('main table, main .bar')].filter((x) => !x.closest('.scroll') && right(x) > right(x.closest('section'))).map((x) => x.className));
    """
    seen = seen_in(program, path, script, tmp_path, "--window-size=1366,900")
    title, steps, kernels, ranges, load, holders, phases_drawn, ranges_drawn, legend, groups, spans, label, threads, too_wide = seen
    assert title == "Training step"
    assert all(part in steps for part in ("forward", "backward", "optimizer"))
    assert all(part in kernels for part in ("compute", "conv"))
    assert "one step" in ranges
    assert "Trainer.step" in ranges
    longest = max(p.load_phases, key=lambda phase: phase.total_ms)
    assert longest.name in load
    held = {name for name, kind, _ in p.memory().measured.holders if kind in ("activations", "gradients")} - {"arena", None}
    assert held and all(name in holders for name in held), "what lies in the arena"
    assert phases_drawn > 3
    assert ranges_drawn >= 2
    assert "compute" in legend
    assert "phase" in groups
    assert spans == len(p.data["timeline"]["ranges"]["range"])
    assert label.startswith("Timeline of")
    assert ("barrier" in threads) == bool(p.pool)
    assert too_wide == []


def test_sessions_are_profiled_in_python(conv_model, tmp_path):
    session = treadle.InferenceSession(str(conv_model))
    feeds = {"x": np.zeros((3, 8, 28, 28), np.float32)}
    session.run(None, feeds)
    with treadle.profile(session, peaks=False) as p:
        for _ in range(12):
            session.run(None, feeds)
    session.run(None, feeds)
    assert p.data["runs"]["recorded"] == 12
    # The parts are means over the middle half of the runs, so their sum is between a low and a high percentile of the runs' times.
    assert p.data["runs"]["ms"]["p10"] <= sum(p.where.values()) + 1e-4
    assert sum(p.where.values()) <= p.data["runs"]["ms"]["p90"] + 1e-4
    conv = next(node for node in p.nodes if "Conv" in node.op_type)
    assert conv.calls == 1
    assert conv.output_shapes[0] in {(3, 16, 14, 14), (3, 14, 14, 16)}
    assert conv.flops >= 2 * 3 * 16 * 14 * 14 * 8 * 7  # at borders, windows have fewer than nine elements
    assert conv.of_peak is None
    assert "where a run went" in p.table(top=2)
    for name in ("p.html", "p.json"):
        p.save(tmp_path / name)
    again = treadle.Profile.load(tmp_path / "p.json")
    assert again.nodes == p.nodes
    assert again.compare(p).verdict in {"unchanged", "cannot tell"}
    assert "run: " in str(again.compare(p))


def test_profiles_in_python_say_what_is_wrong(conv_model, tmp_path):
    session = treadle.InferenceSession(str(conv_model))
    recorder = treadle.profile(session)
    with pytest.raises(treadle.errors.InvalidArgument, match="leave the `with` block"):
        recorder.table()
    with recorder:
        pass
    assert recorder.data["runs"]["recorded"] == 0
    assert "peaks" in recorder.data
    with pytest.raises(treadle.errors.InvalidArgument, match="sorted by"):
        recorder.table(sort="colour")
    with pytest.raises(treadle.errors.InvalidArgument, match=".html"):
        recorder.save(tmp_path / "p.pdf")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(treadle.errors.InvalidArgument, match="no profile"):
        treadle.Profile.load(tmp_path / "other.json")


@pytest.mark.skipif(SHARED_DATA is None, reason="no shared models here")
def test_bodies_of_loops_are_counted_apart(program):
    data = profile_of(program, pathlib.Path(SHARED_DATA) / "models/slanet_plus_loop.onnx", "--runs", 11, "--no-remedies")
    nodes = data["nodes"]
    loop = next(i for i, node in enumerate(nodes) if node["op"] == "Loop")
    inside = [node for node in nodes if node.get("parent") == loop]
    assert inside
    assert max(node["calls"] for node in inside) > 1
    assert "gflops" not in nodes[loop]
    assert math.isclose(sum(part["share"] for part in data["where"]), 1, abs_tol=1e-4)
