#!/usr/bin/env python3
"""Measures the cost of starting (creation of a session + first run - steady run), against ONNX Runtime in the same process, and peak memory.

    python bench/start_overhead.py [--models FOLDER] [--large] [--memory]

`cached` is Treadle with `cache_dir` set and the model's file in it already (docs/compiled-models.md): optimised and packed before, mapped
now.
`--large` adds a transformer encoder of BERT-base's size (438 MB of random float32 weights, made for the occasion in a temporary folder).
`--cpu` counts the time of all threads on processors instead of what passes: for machines that others use as well.
`--memory` runs every model twice in a process of its own and prints the peak resident memory over what the interpreter, NumPy and the inputs
take, next to 1.1 x weights + activations + 20 MB, and the peaks of a session that writes a compiled model and of one that maps it. The
activations are those of the session's account with its scratch: the planned arena, and the most that was alive of what no plan can hold,
values whose sizes depend on the data. FOLDER has a manifest.json, models/ and refs/.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = (os.environ.get("TREADLE_TEST_DATA"), ROOT / "shared" / "data", ROOT.parent / "shared" / "data")


def write_encoder(path, layers=12, width=768, heads=12, vocabulary=30522, positions=512):
    """Writes a transformer encoder as PyTorch's exporters do: token ids [batch, sequence] -> hidden states, weights of scale 0.02."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def constant(name, value):
        weights.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def normal(name, *shape):
        return constant(name, rng.standard_normal(shape, np.float32) * np.float32(0.02))

    def node(op, inputs, name, **attributes):
        nodes.append(helper.make_node(op, inputs, [name], name=f"{name}/{op}", **attributes))
        return name

    def linear(x, name, inputs, outputs):
        product = node("MatMul", [x, normal(f"{name}.weight", inputs, outputs)], f"{name}.product")
        return node("Add", [product, constant(f"{name}.bias", np.zeros(outputs, np.float32))], name)

    def norm(x, name):
        scale = constant(f"{name}.scale", np.ones(width, np.float32))
        return node("LayerNormalization", [x, scale, constant(f"{name}.bias", np.zeros(width, np.float32))], name, axis=-1, epsilon=1e-12)

    split = constant("split", np.array([0, 0, heads, width // heads], np.int64))
    join = constant("join", np.array([0, 0, width], np.int64))
    root = constant("root", np.float32((width // heads) ** 0.5))
    sqrt2, one, half = (constant(n, np.float32(v)) for n, v in (("sqrt2", 2**0.5), ("one", 1), ("half", 0.5)))

    def heads_of(x, name, order):
        return node("Transpose", [node("Reshape", [x, split], f"{name}.split")], f"{name}.heads", perm=order)

    x = node("Gather", [normal("tokens", vocabulary, width), "ids"], "tokens_of")
    length = node("Slice", [node("Shape", ["ids"], "ids.shape"), constant("1", np.array([1])), constant("2", np.array([2]))], "length")
    table = normal("positions", positions, width)
    x = node("Add", [x, node("Slice", [table, constant("0", np.array([0])), length], "positions_of")], "embedded")
    x = norm(x, "embedding")
    for i in range(layers):
        p = f"layer{i}"
        q = heads_of(linear(x, f"{p}.q", width, width), f"{p}.q", [0, 2, 1, 3])
        k = heads_of(linear(x, f"{p}.k", width, width), f"{p}.k", [0, 2, 3, 1])
        v = heads_of(linear(x, f"{p}.v", width, width), f"{p}.v", [0, 2, 1, 3])
        scores = node("Div", [node("MatMul", [q, k], f"{p}.qk"), root], f"{p}.scores")
        mixed = node("MatMul", [node("Softmax", [scores], f"{p}.weights", axis=-1), v], f"{p}.mixed")
        joined = node("Reshape", [node("Transpose", [mixed], f"{p}.back", perm=[0, 2, 1, 3]), join], f"{p}.joined")
        x = norm(node("Add", [x, linear(joined, f"{p}.out", width, width)], f"{p}.residual1"), f"{p}.norm1")
        wide = linear(x, f"{p}.up", width, 4 * width)
        gate = node("Add", [node("Erf", [node("Div", [wide, sqrt2], f"{p}.scaled")], f"{p}.erf"), one], f"{p}.gate")
        gelu = node("Mul", [node("Mul", [wide, gate], f"{p}.gated"), half], f"{p}.gelu")
        x = norm(node("Add", [x, linear(gelu, f"{p}.down", 4 * width, width)], f"{p}.residual2"), f"{p}.norm2")
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "sequence", width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save(model, path)


def large_model(folder):
    path = pathlib.Path(folder) / "encoder.onnx"
    write_encoder(path)
    ids = np.random.default_rng(1).integers(0, 30000, (1, 128))
    np.savez(pathlib.Path(folder) / "encoder.npz", **{"in:ids": ids})
    return "encoder (BERT-base's size)", str(path), str(pathlib.Path(folder) / "encoder.npz")


def shared_models(folder):
    entries = json.loads((folder / "manifest.json").read_text())
    entries = entries["models"] if isinstance(entries, dict) else entries
    for entry in entries:
        name = entry.get("name") or pathlib.Path(entry["file"]).stem
        yield name, str(folder / "models" / f"{name}.onnx"), str(folder / "refs" / f"{name}.case0.npz")


def read_feeds(path, session=None):
    with np.load(path, allow_pickle=False) as file:
        feeds = {key[3:]: file[key] for key in file.files if key.startswith("in:")}
    return {name: value.astype(object) if value.dtype.kind == "U" else value for name, value in feeds.items()}


def make_session(runtime, path, cache_dir=""):
    if runtime in ("treadle", "cached"):
        import treadle

        if runtime == "treadle":
            return treadle.InferenceSession(path)
        options = treadle.SessionOptions()
        options.cache_dir = cache_dir
        return treadle.InferenceSession(path, options)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def start(runtime, path, feeds, steady_seconds, cache_dir, clock):
    """Returns (creation, first run, steady run) in ms."""
    t0 = clock()
    session = make_session(runtime, path, cache_dir)
    t1 = clock()
    session.run(None, feeds)
    t2 = clock()
    times, begin = [], time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begin < steady_seconds and len(times) < 50):
        t = clock()
        session.run(None, feeds)
        times.append(clock() - t)
    return np.array([t1 - t0, t2 - t1, float(np.median(times))]) * 1e3


RUNTIMES = ("treadle", "cached", "onnxruntime")


def compare(name, path, feeds, repeats, cache_dir, clock):
    rows = {runtime: [] for runtime in RUNTIMES}
    for _ in range(repeats):
        for runtime, taken in rows.items():
            taken.append(start(runtime, path, feeds, steady_seconds=0.05, cache_dir=cache_dir, clock=clock))
    medians = {runtime: np.median(taken, axis=0) for runtime, taken in rows.items()}
    overhead = {runtime: float(np.median([t[0] + t[1] - t[2] for t in taken])) for runtime, taken in rows.items()}
    ratios = overhead["treadle"] / overhead["onnxruntime"], overhead["cached"] / overhead["onnxruntime"]
    print(
        f"{name:34}"
        + "".join(f" {m[0]:8.2f} {m[1]:8.2f} {m[2]:8.2f} |" for m in medians.values())
        + "".join(f" {overhead[runtime]:8.2f}" for runtime in RUNTIMES)
        + f"  {ratios[0]:5.2f} {ratios[1]:6.3f}",
        flush=True,
    )
    return ratios


def resident_mb(field):
    return int(re.search(rf"{field}:\s+(\d+)", pathlib.Path("/proc/self/status").read_text()).group(1)) / 1024


def measure_memory(runtime, path, feeds_path, cache_dir):
    """Measures the peak beyond what was used before importing the runtime; runs in a separate process."""
    feeds = read_feeds(feeds_path)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # this write resets the process's peak of resident memory
    before = resident_mb("VmRSS")
    session = make_session(runtime, path, cache_dir)
    for _ in range(2):
        session.run(None, feeds)
    result = {"peak": resident_mb("VmHWM") - before}
    if runtime != "onnxruntime":
        classes = session.memory()
        activations = classes["activations"].peak_bytes + classes["scratch"].peak_bytes
        result |= {"weights": session.memory().weight_bytes / 2**20, "activations": activations / 2**20}
    print(json.dumps(result))


def memory_of(name, path, feeds_path, cache_dir):
    results = {}
    for runtime in ("treadle", "onnxruntime", "writing", "cached"):  # the third runtime finds an empty cache, and writes the file
        command = [sys.executable, __file__, "--child", runtime.replace("writing", "cached"), path, feeds_path, cache_dir]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[runtime] = json.loads(done.stdout.splitlines()[-1])
    ours, theirs = results["treadle"], results["onnxruntime"]
    allowed = 1.1 * ours["weights"] + ours["activations"] + 20
    note = "" if ours["peak"] <= allowed else "  OVER"
    note = f" {results['writing']['peak']:8.1f} {results['cached']['peak']:8.1f}{note}"
    print(
        f"{name:34} {ours['peak']:8.1f} {allowed:8.1f} {ours['weights']:8.1f} {ours['activations']:11.1f} {theirs['peak']:11.1f}{note}",
        flush=True,
    )
    return ours["peak"] <= allowed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path, help="folder of models and inputs; by default TREADLE_TEST_DATA or shared/data")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="processor time")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of times")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return measure_memory(*options.child)
    folder = options.models or next((pathlib.Path(f) for f in FOLDERS if f and (pathlib.Path(f) / "manifest.json").exists()), None)
    with tempfile.TemporaryDirectory() as scratch:
        models = [large_model(scratch)] if options.large else []
        if folder and not (options.large and not options.only):
            models += [m for m in shared_models(folder) if options.only in m[0]]
        if options.memory:
            columns = {"peak": 8, "allowed": 8, "weights": 8, "activations": 11, "onnxruntime": 11, "writing": 8, "cached": 8}
            print(f"{'peak memory, MB':34}" + "".join(f" {name:>{width}}" for name, width in columns.items()))
            good = [memory_of(*model, scratch) for model in models]
            print(f"{sum(good)} of {len(good)} within 1.1 x weights + activations + 20 MB")
            return None
        heads = "".join(f" {runtime + ', ms':>26} |" for runtime in RUNTIMES)
        print(f"{'':34}{heads} {'start overhead, ms, and ratios to ort':>42}")
        print(f"{'':34}" + f" {'create':>8} {'first':>8} {'steady':>8} |" * 3 + f" {'treadle':>8} {'cached':>8} {'ort':>8}  ratio cached")
        ratios = []
        for name, path, feeds_path in models:
            feeds = read_feeds(feeds_path)
            for runtime in RUNTIMES:  # these runs pay costs that a process has only once, and fill the cache
                make_session(runtime, path, scratch).run(None, feeds)
            clock = time.process_time if options.cpu else time.perf_counter
            ratios.append(compare(name, path, feeds, options.repeats, scratch, clock))
        for column, what in enumerate(("without a cache", "with one")):
            values = [ratio[column] for ratio in ratios]
            print(f"start overhead of treadle over onnxruntime's, {what}: median {np.median(values):.3f}, worst {max(values):.3f}")
    return None


if __name__ == "__main__":
    main()
