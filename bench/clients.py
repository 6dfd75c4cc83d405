#!/usr/bin/env python3
"""Measures requests per second and latency of eight threads that run one session without pauses, and compares with ONNX Runtime.

    python bench/clients.py [--models FOLDER] [--only REGEX] [--clients 8] [--seconds 1] [--rounds 3] [--pair REGEX] [--program bench_clients]

Engines take turns in every round. ONNX Runtime runs as it comes, with one thread a run, and with one thread a run and no spinning; the best of the three, by
requests a second, is what treadle (as it comes) is compared with. FOLDER as for start_overhead.py. The table ends with the geometric mean, and with the median over
the models of p99 over p99.

`--program` takes the clients of that program (build/release/bench/bench_clients) in place of Python's, which hold each other's lock: C++
threads that call the C interface of ONNX Runtime, of this interpreter's wheel, and treadle::Session.

`--pair` instead runs models in two sessions side by side, one client each: treadle's share a pool as they come, ONNX Runtime's its global one.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import struct
import subprocess
import tempfile
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime
from start_overhead import FOLDERS, read_feeds, shared_models

import treadle


def onnxruntime_session(path, threads=None, spinning=True, shared_pool=False):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if shared_pool:
        options.use_per_session_threads = False
    elif threads is not None:
        options.intra_op_num_threads = threads
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def work(session, feeds, end):
    latencies = []
    while (start := time.perf_counter()) < end:
        session.run(None, feeds)
        latencies.append(time.perf_counter() - start)
    return latencies


def measure(engines, feeds, clients, seconds, rounds):
    """Returns (requests per second, p99 in ms) of every engine, as medians over the rounds. An engine's sessions are distributed over its clients."""
    rates, tails = {name: [] for name in engines}, {name: [] for name in engines}
    for sessions in engines.values():
        for session in sessions:
            session.run(None, feeds)
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for _ in range(rounds):
            for name, sessions in engines.items():
                start = time.perf_counter()
                futures = [pool.submit(work, sessions[i % len(sessions)], feeds, start + seconds) for i in range(clients)]
                latencies = [latency for future in futures for latency in future.result()]
                rates[name].append(len(latencies) / (time.perf_counter() - start))
                tails[name].append(1e3 * np.quantile(latencies, 0.99))
    return {name: (float(np.median(rates[name])), float(np.median(tails[name]))) for name in engines}


def write_feeds(path, feeds):
    """Writes the feeds in the format that bench/clients.cpp reads."""

    def text(value):
        encoded = value.encode()
        return struct.pack("<Q", len(encoded)) + encoded

    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(feeds)))
        for name, value in feeds.items():
            strings = value.dtype == object
            dtype = onnx.TensorProto.STRING if strings else onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            out.write(text(name) + struct.pack(f"<{2 + value.ndim}q", dtype, value.ndim, *value.shape))
            out.write(b"".join(text(v) for v in value.ravel()) if strings else np.ascontiguousarray(value).tobytes())


def measure_program(program, path, feeds, options, sessions):
    """Like measure(), with C++ clients."""
    library = next((pathlib.Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
    with tempfile.NamedTemporaryFile() as file:
        write_feeds(file.name, feeds)
        arguments = [path, file.name, library, options.clients, options.seconds, options.rounds, sessions]
        printed = subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    rounds = {}
    for line in printed.splitlines():
        name, rate, _, tail, _ = line.split("\t")
        rounds.setdefault(name, []).append((float(rate), float(tail)))
    return {name: tuple(np.median(values, axis=0)) for name, values in rounds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=pathlib.Path)
    parser.add_argument("--only", default="", help="models in whose name this regular expression is found")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", help="the C++ clients")
    parser.add_argument("--pair", help="two sessions side by side of models in whose name this is found")
    options = parser.parse_args()
    folder = options.models or next((pathlib.Path(f) for f in FOLDERS if f and (pathlib.Path(f) / "manifest.json").exists()), None)
    if options.pair:
        options.only, options.clients = options.pair, 2
    rows = []
    print(f"{'':34} {'treadle/s':>10} {'p99 ms':>8} {'peer/s':>10} {'p99 ms':>8} {'rate':>6} {'p99':>6}  peer's best setting")
    for name, path, feeds_path in shared_models(folder):
        if not re.search(options.only, name):
            continue
        feeds = read_feeds(feeds_path)
        if options.program:
            engines = {}
        elif options.pair:
            engines = {
                "treadle": [treadle.InferenceSession(path) for _ in range(2)],
                "global pool": [onnxruntime_session(path, shared_pool=True) for _ in range(2)],
            }
        else:
            engines = {
                "treadle": [treadle.InferenceSession(path)],
                "as it comes": [onnxruntime_session(path)],
                "one thread": [onnxruntime_session(path, threads=1)],
                "no spinning": [onnxruntime_session(path, threads=2, spinning=False)],
            }
        if options.program:
            results = measure_program(options.program, path, feeds, options, sessions=2 if options.pair else 1)
        else:
            results = measure(engines, feeds, options.clients, options.seconds, options.rounds)
        rate, tail = results.pop("treadle")
        peer = max(results, key=lambda engine: results[engine][0])
        peer_rate, peer_tail = results[peer]
        rows.append((rate / peer_rate, tail / peer_tail))
        print(
            f"{name:34} {rate:10.1f} {tail:8.2f} {peer_rate:10.1f} {peer_tail:8.2f} {rate / peer_rate:6.2f} {tail / peer_tail:6.2f}  {peer}",
            flush=True,
        )
    ratios = np.array(rows)
    print(
        f"{len(rows)} models: requests a second {np.exp(np.mean(np.log(ratios[:, 0]))):.2f} times the peer's (geometric mean), lowest"
        f" {ratios[:, 0].min():.2f}; p99 {np.median(ratios[:, 1]):.2f} times (median)"
    )


if __name__ == "__main__":
    main()
