#!/usr/bin/env python3
"""Finds the layers of a model that are slower than in ONNX Runtime, from the profiles of both engines.

    PYTHONPATH=build/python/python bench/layers.py MODEL [--runs 30] [--threads 1] [--all]

MODEL is an architecture or shared model of bench/models.py, or an ONNX file. Both sessions run in turn with their profilers on. A layer is
a convolution, a product or a recurrent network of the model; whatever comes behind it, up to the next one, counts for it, because engines fuse
differently. Layers that an engine has joined to one kernel are compared as one. Layers of the same kind and shape are added up.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import models

import ceilings

START = -1  # stands for the layer of nodes that come before the first layer
TAG = re.compile(r"@(\d+)@")
WARM_UP = 3


def tag_names(model) -> None:
    """Renames each node of the main graph, and each value that one makes, by the node's position, since engines derive kernels' names from either."""
    renamed = {}
    for index, node in enumerate(model.graph.node):
        node.name = f"@{index}@"
        for i, name in enumerate(node.output):
            if name:
                renamed[name] = f"@{index}@.{i}"
    del model.graph.value_info[:]
    _rename(model.graph, renamed)
    for output in model.graph.output:
        output.name = renamed.get(output.name, output.name)
    for node in model.graph.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]


def _rename(graph, renamed: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for body in ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs):
                inner = {o for n in body.node for o in n.output} | {i.name for i in body.input} | {t.name for t in body.initializer}
                seen = {old: new for old, new in renamed.items() if old not in inner}
                _rename(body, seen)
                for output in body.output:
                    output.name = seen.get(output.name, output.name)


def owners(nodes: list[tuple[list[str], list[str]]], layers: set[int]) -> list[int]:
    """Returns the layer to whose time each node (inputs, outputs) is added: the node itself if it is a layer, otherwise the last of the
    layers of its inputs; START if there is none."""
    owner_of_value: dict[str, int] = {}
    result = []
    for index, (inputs, outputs) in enumerate(nodes):
        owner = index if index in layers else max((owner_of_value.get(name, START) for name in inputs), default=START)
        result.append(owner)
        owner_of_value |= dict.fromkeys(outputs, owner)
    return result


def time_by_layer(kernels: list[tuple[str, float]], owner_of_node: list[int]) -> dict[int, float]:
    """Adds up kernels' times by layer, from (name, time) in order. A kernel without a known name counts for the layer of the kernel before."""
    times: dict[int, float] = defaultdict(float)
    current = START
    for name, taken in kernels:
        if tag := TAG.search(name):
            current = owner_of_node[int(tag[1])]
        times[current] += taken
    return dict(times)


def merged(order: list[int], ours: dict[int, float], theirs: dict[int, float]) -> list[tuple[list[int], float, float]]:
    """Returns (layers, our time, their time). A layer without a separate kernel in one engine is joined with the next that has one in both."""
    groups, waiting = [], []
    for layer in order:
        waiting.append(layer)
        if layer in ours and layer in theirs:
            groups.append(waiting)
            waiting = []
    if waiting:
        groups[-1:] = [[*(groups[-1] if groups else []), *waiting]]
    return [(g, sum(ours.get(i, 0) for i in g), sum(theirs.get(i, 0) for i in g)) for g in groups]


def kernels_of(events: list[dict], engine: str, runs: int) -> list[tuple[str, float]]:
    """Returns the medians over all but the first runs, in us, in order of execution."""
    if engine == "treadle":
        found = [(e["name"].partition(" ")[2], e["dur"]) for e in events if e.get("cat") == "node"]
    else:
        found = [(e["name"], e["dur"]) for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    count = len(found) // runs
    if count * runs != len(found):
        raise RuntimeError(f"{engine}'s runs differ in their kernels: {len(found)} in {runs} runs")
    return [(found[i][0], statistics.median(found[r * count + i][1] for r in range(WARM_UP, runs))) for i in range(count)]


def profiles(path: Path, feeds: dict, threads: int, runs: int, folder: str) -> dict[str, list[tuple[str, float]]]:
    sessions = {}
    for engine in ("treadle", "onnxruntime"):
        module = __import__(engine)
        options = module.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / engine)
        sessions[engine] = module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        for session in sessions.values():
            session.run(None, feeds)
    result = {}
    for engine, session in sessions.items():
        trace = json.loads(Path(session.end_profiling()).read_text())
        result[engine] = kernels_of(trace["traceEvents"] if isinstance(trace, dict) else trace, engine, runs)
    return result


def compare(path: Path, feeds: dict, threads: int, runs: int) -> list[tuple[str, float, float]]:
    """Returns (description, our time, their time) of every layer, or of joined layers; times are in us."""
    import onnx

    model = onnx.load(str(path))
    tag_names(model)
    with tempfile.TemporaryDirectory() as folder:
        tagged = Path(folder) / "model.onnx"
        onnx.save(model, tagged)
        nodes = [(list(n.input), list(n.output)) for n in model.graph.node]
        kinds = [n.op_type for n in model.graph.node]
        del model
        labels = {int(TAG.search(layer.name)[1]): layer.label for layer in ceilings.layers_of(tagged, feeds) or []}
        anchors = labels or {i: kind for i, kind in enumerate(kinds) if kind in ("Conv", "ConvTranspose", "MatMul", "Gemm", "QLinearConv", *ceilings.GATES)}
        owner_of_node = owners(nodes, set(anchors))
        found = profiles(tagged, feeds, threads, runs, folder)
    ours, theirs = (time_by_layer(found[engine], owner_of_node) for engine in ("treadle", "onnxruntime"))
    anchors[START] = "before the first layer"
    return [(" + ".join(anchors[i] for i in group), a, b) for group, a, b in merged(sorted(anchors), ours, theirs)]


def grouped(rows: list[tuple[str, float, float]]) -> list[tuple[str, int, float, float]]:
    """Adds up rows of the same kind and shape: (description, count, our time, their time), sorted by the time that we lose against them."""
    sums: dict[str, list] = {}
    for what, ours, theirs in rows:
        entry = sums.setdefault(what, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1] += ours
        entry[2] += theirs
    return sorted(((what, *entry) for what, entry in sums.items()), key=lambda row: row[3] - row[2])


def report(rows: list[tuple[str, float, float]], every: bool) -> list[str]:
    lines = []
    groups = grouped(rows)
    losing = [g for g in groups if g[2] > g[3]]
    for what, count, ours, theirs in groups if every else losing:
        lines.append(f"{ours:10.0f} {theirs:10.0f} {theirs / ours if ours else float('inf'):6.2f} {count:4} x {what}")
    ours, theirs = (sum(r[i] for r in rows) for i in (1, 2))
    lost = sum(g[2] - g[3] for g in losing)
    lines.append(f"{ours:10.0f} {theirs:10.0f} {theirs / ours if ours else 0:6.2f}  all; {len(losing)} of {len(groups)} kinds of layers lose {lost:.0f} us together")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="+")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="layers that win as well")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    args = parser.parse_args()
    if args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in args.model:
        if name.endswith(".onnx"):
            from threads import feeds_of

            import treadle

            path, feeds = Path(name), feeds_of(treadle.InferenceSession(name))
        else:
            case = models.load(name, 1, args.cache)
            path, feeds = case.path, case.feeds
        print(f"{name}: us of treadle, of ONNX Runtime, ratio, layers with what is behind them", flush=True)
        try:
            print("\n".join(report(compare(path, feeds, args.threads, args.runs + WARM_UP), args.all)), flush=True)
        except Exception as e:
            print(f"  {models.reason_of(e)}")


if __name__ == "__main__":
    main()
