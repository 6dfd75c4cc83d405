"""Measures what the profilers of Treadle, ONNX Runtime and PyTorch cost.

    python bench/profiler.py [--rounds 15]

A chain of 200 small nodes and a training step, one thread. Profiled and plain batches are run in turn in one process; the minimum over the
rounds counts. Also what a range of the program costs from Python, and whether the parts of a run sum to it: for the chain, a transformer block,
a training step, and branches on four threads.
"""

import argparse
import http.server
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

import treadle
import treadle.train

NODES = 200


def float_info(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [onnx.numpy_helper.from_array(value, name) for name, value in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def chain():
    nodes = [helper.make_node("Abs" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(NODES)]
    return model_of(nodes, [float_info("v0", [8])], [float_info(f"v{NODES}", [8])])


def branches(width=256):
    """Returns a model with four chains of products, which run concurrently."""
    rng = np.random.default_rng(0)
    nodes, constants, ends = [], [], []
    for b in range(4):
        value = "x"
        for k in range(6):
            constants.append((f"w{b}{k}", rng.standard_normal((width, width)).astype(np.float32) / width))
            nodes.append(helper.make_node("MatMul", [value, f"w{b}{k}"], [f"y{b}{k}"], f"product{b}{k}"))
            value = f"y{b}{k}"
        ends.append(value)
    nodes.append(helper.make_node("Sum", ends, ["y"], "sum"))
    return model_of(nodes, [float_info("x", [64, width])], [float_info("y", [64, width])], constants)


def transformer(width=256, heads=4, length=64):
    """Returns attention and the layers after it, like a block of BERT."""
    rng = np.random.default_rng(0)
    sizes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    constants = [(name, rng.standard_normal(shape).astype(np.float32) / width**0.5) for name, shape in sizes.items()]
    constants.append(("split", np.array([1, length, heads, width // heads], np.int64)))
    constants.append(("joined", np.array([1, length, width], np.int64)))
    nodes = []

    def add(op, inputs, name, **attributes):
        nodes.append(helper.make_node(op, inputs, [name], f"{name}_node", **attributes))
        return name

    parts = {}
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        split = add("Reshape", [add("MatMul", ["x", name], f"{name}_all"), "split"], f"{name}_split")
        parts[name] = add("Transpose", [split], f"{name}_heads", perm=perm)
    mixed = add("MatMul", [add("Softmax", [add("MatMul", [parts["q"], parts["k"]], "scores")], "weights"), parts["v"]], "mixed")
    together = add("Reshape", [add("Transpose", [mixed], "turned", perm=[0, 2, 1, 3]), "joined"], "together")
    residual = add("Add", ["x", add("MatMul", [together, "o"], "projected")], "residual")
    add("Add", [residual, add("MatMul", [add("Relu", [add("MatMul", [residual, "up"], "wide")], "active"), "down"], "narrow")], "y")
    return model_of(nodes, [float_info("x", [1, length, width])], [float_info("y", [1, length, width])], constants)


def best(work, repeats):
    start = time.perf_counter_ns()
    for _ in range(repeats):
        work()
    return (time.perf_counter_ns() - start) / repeats


def in_turn(ways, rounds, repeats):
    """Runs the same work in several contexts in turn. Returns the shortest time of a call in each."""
    least = [float("inf")] * len(ways)
    for _ in range(rounds):
        for k, (around, work) in enumerate(ways):
            with around():
                work()
                least[k] = min(least[k], best(work, repeats))
    return least


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def treadle_session(model, **options):
    made = treadle.SessionOptions()
    made.intra_op_num_threads = 1
    made.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in options.items():
        setattr(made, name, value)
    return treadle.InferenceSession(model, made)


def ort_session(model, folder=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder:
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/ort"
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def torch_chain():
    def run():
        value = torch.ones(8)
        for i in range(NODES):
            value = torch.abs(value) if i % 2 else torch.neg(value)
        return value

    return run


def measure_chain(rounds):
    feeds = {"v0": np.ones(8, np.float32)}
    session, counting = treadle_session(chain()), treadle_session(chain(), node_counters=True)
    torch.set_num_threads(1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    eager = torch_chain()
    with tempfile.TemporaryDirectory() as folder:
        plain_ort, profiled_ort = ort_session(chain()), ort_session(chain(), folder)
        run = {id(s): (lambda s=s: s.run(None, feeds)) for s in (session, counting, plain_ort, profiled_ort)}
        ways = [
            ("Treadle", Nothing, run[id(session)]),
            ("  again: the noise", Nothing, run[id(session)]),
            ("  counters", Nothing, run[id(counting)]),
            ("  events", lambda: treadle.profile(session, peaks=False), run[id(session)]),
            ("  events and memory", lambda: treadle.profile(session, peaks=False, memory=True), run[id(session)]),
            ("ONNX Runtime", Nothing, run[id(plain_ort)]),
            ("  enable_profiling", Nothing, run[id(profiled_ort)]),
            ("PyTorch", Nothing, eager),
            ("  torch.profiler", lambda: torch.profiler.profile(activities=activities), eager),
            ("  record_shapes, profile_memory", lambda: torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True), eager),
        ]
        least = in_turn([(around, work) for _, around, work in ways], rounds, 50)
        profiled_ort.end_profiling()
    print(f"{'a node of a chain of 200':36} {'ns':>10} {'above':>10}")
    base = 0.0
    for (name, _, _), ns in zip(ways, least, strict=True):
        base = base if name.startswith(" ") else ns
        print(f"{name:36} {ns / NODES:10.1f} {(ns - base) / NODES:10.1f}")


def measure_files():
    feeds = {"v0": np.ones(8, np.float32)}
    runs, session, eager = 200, treadle_session(chain()), torch_chain()
    rows = []
    with tempfile.TemporaryDirectory() as folder:

        def timed(name, events, work):
            start = time.process_time()
            work()
            size = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))
            rows.append((name, (time.process_time() - start) / events * 1e6, size / events))
            for file in os.listdir(folder):
                os.remove(os.path.join(folder, file))

        with treadle.profile(session, peaks=False) as p:
            for _ in range(runs):
                session.run(None, feeds)
        count = runs * (NODES + 1)
        timed("Treadle: .pftrace", count, lambda: p.save(f"{folder}/p.pftrace"))
        timed("Treadle: .trace.json", count, lambda: p.save(f"{folder}/p.trace.json"))
        timed("Treadle: table", count, p.table)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            for _ in range(runs):
                eager()
        timed("PyTorch: export_chrome_trace", count, lambda: theirs.export_chrome_trace(f"{folder}/t.json"))
        timed("PyTorch: key_averages().table()", count, lambda: theirs.key_averages().table())
        profiled = ort_session(chain(), folder)
        for _ in range(runs):
            profiled.run(None, feeds)
        timed("ONNX Runtime: end_profiling", count, profiled.end_profiling)
    print(f"\n{'an event, in files':36} {'CPU us':>10} {'bytes':>10}")
    for name, us, size in rows:
        print(f"{name:36} {us:10.2f} {size:10.1f}")


def loop_of(iterations):
    """Returns a loop whose body has ten nodes, so that one run has a million events."""
    nodes = [helper.make_node("Abs" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i in range(10)]
    ends = [helper.make_node("Identity", ["go"], ["on"], "on")]
    body = helper.make_graph(
        nodes + ends,
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []), float_info("v0", [8])],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), float_info("v10", [8])],
    )
    constants = [("count", np.array(iterations, np.int64)), ("true", np.array(True))]
    return model_of([helper.make_node("Loop", ["count", "true", "x"], ["y"], "loop", body=body)], [float_info("x", [8])], [float_info("y", [8])], constants)


def measure_a_million():
    """Measures files of 1,000,000 events, from many runs and from one: the shortest wall-clock time of five, in seconds."""
    print(f"\n{'1,000,000 events':36} {'wall s':>10} {'MB':>10}")
    many = treadle_session(chain()), {"v0": np.ones(8, np.float32)}, 1_000_000 // (NODES + 1)
    one = treadle_session(loop_of(100_000)), {"x": np.ones(8, np.float32)}, 1
    with tempfile.TemporaryDirectory() as folder:
        for what, (session, feeds, runs) in (("runs of 200 nodes", many), ("one run of a loop", one)):
            session.run(None, feeds)
            with treadle.profile(session) as p:
                for _ in range(runs):
                    session.run(None, feeds)

            def timed(name, work):
                least = float("inf")
                for _ in range(5):
                    start = time.perf_counter()
                    work()
                    least = min(least, time.perf_counter() - start)
                size = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))
                print(f"{what + ': ' + name:36} {least:10.3f} {size / 1e6:10.1f}")
                for file in os.listdir(folder):
                    os.remove(os.path.join(folder, file))

            timed("table", p.table)
            timed("report (.html)", lambda: p.save(f"{folder}/p.html"))
            timed(".pftrace", lambda: p.save(f"{folder}/p.pftrace"))


def measure_page():
    """Measures the page of 1,000,000 events in Chromium: the time from the start of its navigation to its second frame, and the time from frame to
    frame of a zooming step."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        return
    session, feeds = treadle_session(loop_of(100_000)), {"x": np.ones(8, np.float32)}
    session.run(None, feeds)
    with treadle.profile(session) as p:
        session.run(None, feeds)
    told: queue.Queue[tuple[float, ...]] = queue.Queue()

    class Told(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            told.put(tuple(map(float, self.path.strip("/").split("/"))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        page = f"{folder}/report.html"
        p.save(page)
        script = """
            (async () => {
              const frame = () => new Promise(requestAnimationFrame), time = document.getElementById('time');
              await frame(); await frame();
              const opened = performance.now(), steps = 20;
              time.scrollIntoView();
              await frame();
              const start = performance.now();
              for (let i = 0; i < steps; ++i) { time.dispatchEvent(new KeyboardEvent('keydown', {key: i % 10 < 5 ? '+' : '-'})); await frame(); }
              new Image().src = `ADDRESS${opened}/${(performance.now() - start) / steps}`;
            })();"""
        with open(page, "a", encoding="utf-8") as file:
            file.write("<script>" + script.replace("ADDRESS", f"http://127.0.0.1:{server.server_port}/") + "</script>")
        times = []
        for k in range(5):
            options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}/{k}"]
            process = subprocess.Popen([browser, *options, f"file://{page}"], stderr=subprocess.DEVNULL)
            try:
                times.append(told.get(timeout=60))
            finally:
                process.terminate()
                process.wait()
        size = os.path.getsize(page) / 1e6
    server.shutdown()
    opened, zooms = zip(*times, strict=True)
    print(f"{'one run of a loop: page opens':36} {min(opened) / 1000:10.3f} {size:10.1f}   (most of five: {max(opened) / 1000:.3f})")
    print(f"{'  a step of zoom':36} {min(zooms) / 1000:10.3f} {'':10}   (most of five: {max(zooms) / 1000:.3f})")


def measure_ranges(rounds):
    session = treadle_session(chain())

    def marks():
        for _ in range(1000):
            with treadle.profile.range("step"):
                pass

    def loop():
        for _ in range(1000):
            with nothing:
                pass

    def locks():
        for _ in range(1000):
            with lock:
                pass

    def theirs():
        for _ in range(1000):
            with torch.profiler.record_function("step"):
                pass

    nothing = Nothing()
    profiling = lambda: treadle.profile(session, peaks=False)
    torch_profiling = lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    lock = threading.Lock()
    ways = [(Nothing, loop), (Nothing, locks), (Nothing, marks), (profiling, marks), (Nothing, theirs), (torch_profiling, theirs)]
    least = in_turn(ways, rounds, 3)
    print(f"\n{'a range, from Python':36} {'ns':>10}")
    names = ["an empty context manager of Python's", "a lock of CPython's", "Treadle, not recorded", "Treadle, recorded", "PyTorch, not recorded", "PyTorch, recorded"]
    for name, ns in zip(names, least, strict=True):
        print(f"{name:36} {ns / 1000:10.0f}")


def measure_sums():
    print(f"\n{'parts of runs over their time':36} {'sum':>10}")

    def show(name, profile):
        runs, parts = profile.data["runs"], sum(part["ms"] for part in profile.data["where"])
        shares = sum(part["share"] for part in profile.data["where"])
        print(f"{name:36} {shares:10.5f}   ({runs['recorded']} runs, median {runs['ms']['median']:.3f} ms, parts {parts:.3f} ms)")

    cases = [("chain of 200", chain(), {"v0": np.ones(8, np.float32)}, {}), ("transformer block", transformer(), {"x": np.ones((1, 64, 256), np.float32)}, {})]
    parallel = {"execution_mode": treadle.ExecutionMode.ORT_PARALLEL, "intra_op_num_threads": 4, "inter_op_num_threads": 4}
    cases.append(("four branches on four threads", branches(), {"x": np.ones((64, 256), np.float32)}, parallel))
    for name, model, feeds, options in cases:
        session = treadle_session(model, **options)
        session.run(None, feeds)
        with treadle.profile(session, peaks=False) as p:
            for _ in range(100):
                session.run(None, feeds)
        show(name, p)
    rng = np.random.default_rng(0)
    linear = model_of(
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"], "first"), helper.make_node("Relu", ["h"], ["r"], "relu"), helper.make_node("Gemm", ["r", "v", "c"], ["y"], "last")],
        [float_info("x", ["n", 64])],
        [float_info("y", ["n", 8])],
        [("w", rng.standard_normal((64, 128)).astype(np.float32)), ("b", np.zeros(128, np.float32)), ("v", rng.standard_normal((128, 8)).astype(np.float32)), ("c", np.zeros(8, np.float32))],
    )
    trainer = treadle.train.Trainer(linear, loss="mean_squared_error")
    feeds, labels = {"x": np.ones((32, 64), np.float32)}, np.zeros((32, 8), np.float32)
    trainer.step(feeds, labels)
    with treadle.profile(trainer, peaks=False) as p:
        for _ in range(100):
            trainer.step(feeds, labels)
    show("training step", p)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(json.dumps({"cpu": os.cpu_count(), "torch": torch.__version__, "onnxruntime": onnxruntime.__version__}))
    measure_chain(rounds)
    measure_files()
    measure_a_million()
    measure_page()
    measure_ranges(rounds)
    measure_sums()
