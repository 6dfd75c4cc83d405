#!/usr/bin/env python3
"""Measures what a second session and a second process of the same model cost in memory and time.

    PYTHONPATH=build/python/python bench/shared_weights.py MODEL.onnx... [--bytes]

Every figure is from processes of its own, before and after a session was made and run once: of sessions, memory that the process has
written to (Anonymous in smaps_rollup), as pages of a mapped file are the system's to take back; of processes, all that no other process
shares (USS). `own` is a second session with share_weights off. A second process shares the mapped pages of the file only, as far as anybody
still has them: its packed copies are its own; with a cache of compiled models (`cached`) packed weights are a file's pages as well.
`--bytes`: sessions are made of the file's bytes instead of its path.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time

import numpy as np


def private_bytes(field: str = "Anonymous") -> int:
    """Returns the process's bytes of a kind; with "Private_", including unwritten pages of files that only it has mapped."""
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(field)) * 1024


def open_one(path: str, as_bytes: bool, share: bool, cache_dir: str = ""):
    import treadle

    options = treadle.SessionOptions()
    options.share_weights = share
    options.cache_dir = cache_dir
    options.intra_op_num_threads = 1
    start = time.perf_counter()
    source = open(path, "rb").read() if as_bytes else path
    session = treadle.InferenceSession(source, options)
    del source
    random = np.random.default_rng(0)
    feeds = {}
    for info in session.get_inputs():
        shape = [extent if isinstance(extent, int) else 8 for extent in info.shape]
        feeds[info.name] = random.standard_normal(shape).astype(np.float32) if info.type == "tensor(float)" else np.zeros(shape, np.int64)
    session.run(None, feeds)
    return session, time.perf_counter() - start


def child(path: str, as_bytes: bool, share: bool, cache_dir: str) -> None:
    import treadle

    treadle.memory.shared_weights()
    before, before_all = private_bytes(), private_bytes("Private_")
    first, first_seconds = open_one(path, as_bytes, share, cache_dir)
    one, one_all = private_bytes(), private_bytes("Private_")
    second, second_seconds = open_one(path, as_bytes, share, cache_dir)
    two = private_bytes()
    packed = first.memory()["packed"].bytes
    result = {"first": one - before, "process": one_all - before_all, "second": two - one, "packed": packed}
    result |= {"first_ms": first_seconds * 1e3, "second_ms": second_seconds * 1e3, "shared": treadle.memory.shared_weights()}
    print(json.dumps(result), flush=True)
    sys.stdin.readline()


def measure(path: str, as_bytes: bool, share: bool, beside: bool = False, cache_dir: str = "") -> dict:
    command = [sys.executable, __file__, "--child", path, *(["--bytes"] if as_bytes else []), *([] if share else ["--own"])]
    if cache_dir:
        command += ["--cache", cache_dir]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)]
    result = json.loads(processes[0].stdout.readline())
    if beside:  # measures a second process while the first one lives
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        result["beside"] = json.loads(processes[1].stdout.readline())["process"]
    for process in processes:
        process.communicate("\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(arguments.models[0], arguments.bytes, not arguments.own, arguments.cache)
    heads = "model", "packed, MB", "first session, MB", "second, own, MB", "second, shared, MB", "second process, MB"
    heads += "cached: sessions, MB", "cached: second process, MB", "second, own / shared, ms"
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for path in arguments.models:
        own, shared = measure(path, arguments.bytes, False), measure(path, arguments.bytes, True, beside=True)
        with tempfile.TemporaryDirectory() as folder:
            if not arguments.bytes:
                measure(path, False, True, cache_dir=folder)  # the process that measure() starts writes the cache file
            cached = measure(path, arguments.bytes, True, beside=True, cache_dir="" if arguments.bytes else folder)
        name = path.rsplit("/", 1)[-1].removesuffix(".onnx")
        sizes = [shared["packed"], shared["first"], own["second"], shared["second"], shared["beside"]]
        cells = [name, *(f"{size / 1e6:.1f}" for size in sizes), f"{cached['first'] / 1e6:.1f}, {cached['second'] / 1e6:.1f}"]
        cells += [f"{cached['beside'] / 1e6:.1f}", f"{own['second_ms']:.1f} / {shared['second_ms']:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
