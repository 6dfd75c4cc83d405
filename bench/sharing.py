#!/usr/bin/env python3
"""Measures a guaranteed job beside opportunistic ones, each in its own process: workloads in the manner of DISB (SJTU-IPADS), five classes and REAL.

    PYTHONPATH=build/python/python bench/sharing.py --models FOLDER [--seconds 4] [--slices 10] [--workloads A,B,C,D,E,REAL] [--threads 1]
    PYTHONPATH=build/python/python bench/sharing.py --models FOLDER --figures [--only share,memory,engine]

The guaranteed client runs a small model at given times (A every 50 ms, B every 20, C at random every 30 on average, D two clients every 40,
E without pauses, REAL three runs at once every 100 ms with jitter, as cameras do); an opportunistic client runs a larger one without pauses.
As jobs of Treadle, as plain processes, with `nice 19`, and with SCHED_IDLE, the same processes work in turn: the guaranteed clients alone,
all together, the opportunistic one alone, each for --seconds, --slices times, so that what else the machine does hits both sides of every
ratio. Latency counts from the time at which a run was due. Printed are the guaranteed p50 and p99 over those alone, with the 5th and 95th percentile of
the ratio when slices are drawn again (bootstrap), the p99 of every other slice alone over that of the rest (what equal things differ by), the
opportunistic runs a second over those alone (`of idle`: over what the guaranteed job's own time leaves of them), and failures (runs that raised
an error, or whose output differs in any bit from the first one's).

--figures measures, in one process: a share of 30 % as busy / (busy + idle), the time from a request to suspend to the end of the node under
way beside the longest node, limits of the memory of the simulated device (0.8 to 0.3 of what a run needs, over a bus of --bus GB/s) and of the
host, the time that a new limit takes on an idle job, and what a guaranteed job loses to an opportunistic one on the engine of a simulated
device.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

# Workloads by name: (number of guaranteed clients, (pattern, mean ms) of the times between a client's runs, a client's concurrent runs).
WORKLOADS = {
    "A": (1, ("every", 50.0), 1),
    "B": (1, ("every", 20.0), 1),
    "C": (1, ("poisson", 30.0), 1),
    "D": (2, ("every", 40.0), 1),
    "E": (1, ("closed", 0.0), 1),
    "REAL": (1, ("jitter", 100.0), 3),
}
MODES = ["treadle", "treadle-idle", "plain", "nice", "idle"]  # "treadle-idle" is "treadle" with TREADLE_JOB_IDLE_PRIORITY=1


def feeds_of(session) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for info in session.get_inputs():
        shape = [extent if isinstance(extent, int) and extent > 0 else 1 for extent in info.shape]
        feeds[info.name] = rng.random(shape, dtype=np.float32)
    return feeds


def percentile(values: list[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p * len(ordered)))] if ordered else float("nan")


def client(arguments: argparse.Namespace) -> None:
    """Runs a client process: waits for a line, works for --seconds, and prints its results."""
    if arguments.mode == "nice" and arguments.role == "opportunistic":
        os.nice(19)
    if arguments.mode == "idle" and arguments.role == "opportunistic":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if arguments.mode == "treadle-idle":
        os.environ["TREADLE_JOB_IDLE_PRIORITY"] = "1"
    import treadle

    options = treadle.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    if arguments.mode.startswith("treadle"):
        options.job = treadle.Job(arguments.role, job_class=arguments.role)
    session = treadle.InferenceSession(arguments.model, options)
    feeds = feeds_of(session)
    expected = session.run(None, feeds)
    for _ in range(3):
        session.run(None, feeds)
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, seed = line.split()
        print(json.dumps(work_for(float(seconds), arguments, session, feeds, expected, random.Random(int(seed)), options)), flush=True)


def work_for(seconds, arguments, session, feeds, expected, rng, options) -> dict:
    kind, period = arguments.arrivals
    latencies, busy, failures = [], 0.0, 0
    before = options.job.status() if arguments.mode.startswith("treadle") else None
    start = due = time.perf_counter()
    end = start + seconds
    while due < end and time.perf_counter() < end:
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        for _ in range(arguments.at_once):
            begin = time.perf_counter()
            try:
                outputs = session.run(None, feeds)
                failures += not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(outputs, expected, strict=True))
            except Exception:
                failures += 1
            now = time.perf_counter()
            busy += now - begin
            latencies.append((now - (begin if kind == "closed" else due)) * 1e3)
        if kind == "closed":
            due = time.perf_counter()
        elif kind == "poisson":
            due += rng.expovariate(1 / period) / 1e3
        else:
            due += (period + (rng.uniform(-0.2, 0.2) * period if kind == "jitter" else 0)) / 1e3
    elapsed = time.perf_counter() - start
    gave_way = (options.job.status().gave_way_ns - before.gave_way_ns) / 1e9 / elapsed if before else 0
    return {"latencies": latencies, "busy": busy / elapsed, "rate": len(latencies) / elapsed, "failures": failures, "gave_way": gave_way}


def start_client(arguments: argparse.Namespace, role: str, mode: str, workload: str) -> subprocess.Popen:
    _, (kind, period), at_once = WORKLOADS[workload]
    if role == "opportunistic":
        kind, period, at_once = "closed", 0.0, 1
    model = arguments.guaranteed if role == "guaranteed" else arguments.opportunistic
    command = [sys.executable, __file__, "--client", "--role", role, "--mode", mode, "--model", str(Path(arguments.models) / f"{model}.onnx"),
               "--threads", str(arguments.threads), "--arrivals", f"{kind}:{period}", "--at-once", str(at_once)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n", "a client failed to start"
    return process


def one_slice(clients: list[tuple[str, subprocess.Popen]], seconds: float, seed: int) -> dict[str, dict]:
    """Lets these clients work concurrently. Adds up the results of clients with the same role."""
    for i, (_, process) in enumerate(clients):
        process.stdin.write(f"{seconds} {seed + i}\n")
        process.stdin.flush()
    merged: dict[str, dict] = {}
    for role, process in clients:
        result = json.loads(process.stdout.readline())
        if role not in merged:
            merged[role] = result
        else:
            merged[role]["latencies"] += result["latencies"]
            for key in ("busy", "rate", "failures"):
                merged[role][key] += result[key]
    return merged


def pooled(slices: list[list[float]], p: float) -> float:
    return percentile([value for one in slices for value in one], p)


def bootstrap(over: list[list[float]], under: list[list[float]], p: float) -> tuple[float, float]:
    """Returns the 5th and 95th percentile of the ratio of two percentiles, over pairs of slices drawn again with replacement."""
    rng = random.Random(1)
    ratios = []
    for _ in range(400):
        drawn = rng.choices(range(len(over)), k=len(over))
        ratios.append(pooled([over[i] for i in drawn], p) / pooled([under[i] for i in drawn], p))
    return percentile(ratios, 0.05), percentile(ratios, 0.95)


def compared(over: list[list[float]], under: list[list[float]], p: float) -> str:
    low, high = bootstrap(over, under, p)
    return f"{pooled(over, p) / pooled(under, p):.2f} ({low:.2f} to {high:.2f})"


def measure(arguments: argparse.Namespace) -> None:
    modes = [mode for mode in MODES if mode in arguments.modes.split(",")]
    print(f"guaranteed {arguments.guaranteed}, opportunistic {arguments.opportunistic}, {arguments.threads} thread(s) each, "
          f"{os.cpu_count()} CPUs, {arguments.slices} slices of {arguments.seconds} s for each of alone, together, opportunistic alone\n")
    print("| workload | mode | requests | p50 ms | p99 ms | p50 / alone | p99 / alone | p99 alone / alone | opportunistic / alone | of idle | sum | failures |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for workload in arguments.workloads.split(","):
        for mode in modes:
            roles = ["guaranteed"] * WORKLOADS[workload][0] + ["opportunistic"]
            clients = [(role, start_client(arguments, role, mode, workload)) for role in roles]
            seen: dict[str, list[dict[str, dict]]] = {"alone": [], "together": [], "other": []}
            for number in range(arguments.slices):
                seen["alone"].append(one_slice(clients[:-1], arguments.seconds, 100 * number))
                seen["together"].append(one_slice(clients, arguments.seconds, 100 * number))
                seen["other"].append(one_slice(clients[-1:], arguments.seconds, 100 * number))
            for _, process in clients:
                process.communicate()

            def latencies(kind: str) -> list[list[float]]:
                return [one["guaranteed"]["latencies"] for one in seen[kind]]

            def mean(kind: str, role: str, key: str) -> float:
                return statistics.mean(one[role][key] for one in seen[kind])

            alone, together = latencies("alone"), latencies("together")
            share = mean("together", "opportunistic", "rate") / mean("other", "opportunistic", "rate")
            own = mean("together", "guaranteed", "rate") / mean("alone", "guaranteed", "rate")
            idle = max(1e-9, 1 - mean("alone", "guaranteed", "busy"))
            failures = sum(one[role]["failures"] for kind in seen.values() for one in kind for role in one)
            print(f"| {workload} | {mode} | {sum(map(len, together))} | {pooled(together, 0.5):.2f} | {pooled(together, 0.99):.2f} | "
                  f"{pooled(together, 0.5) / pooled(alone, 0.5):.2f} | {compared(together, alone, 0.99)} | "
                  f"{pooled(alone[::2], 0.99) / pooled(alone[1::2], 0.99):.2f} | {share:.2f} | {share / idle:.2f} | {own + share:.2f} | "
                  f"{failures} |", flush=True)


def longest_node_ms(session, feeds) -> float:
    import treadle

    longest: list[float] = []
    options = treadle.RunOptions()
    options.on_metadata = lambda metadata: longest.append(max(n.end_ns - n.start_ns for n in metadata.nodes) / 1e6)
    for _ in range(5):
        session.run(None, feeds, options)
    return statistics.median(longest)


def figures(arguments: argparse.Namespace) -> None:
    parts = {"share": shares, "memory": memory_limits, "engine": on_one_engine}
    for name in arguments.only.split(","):
        parts[name](arguments)


def session_in(arguments: argparse.Namespace, job, **config):
    import treadle

    options = treadle.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.job = job
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    return treadle.InferenceSession(str(Path(arguments.models) / f"{arguments.opportunistic}.onnx"), options)


def shares(arguments: argparse.Namespace) -> None:
    import treadle

    for share in (10, 30, 50, 80):
        job = treadle.Job("share", share=share)
        session = session_in(arguments, job)
        feeds = feeds_of(session)
        session.run(None, feeds)
        before, end = job.status(), time.perf_counter() + arguments.seconds
        while time.perf_counter() < end:
            session.run(None, feeds)
        after = job.status()
        run_ns, idle_ns = after.run_ns - before.run_ns, after.idle_ns - before.idle_ns
        print(f"share {share} %: measured {100 * (run_ns - idle_ns) / run_ns:.2f} %")

    job = treadle.Job("full")
    with_job, without = session_in(arguments, job), session_in(arguments, None)
    feeds = feeds_of(with_job)
    times: dict[str, list[float]] = {"job": [], "none": []}
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end:
        for name, session in (("job", with_job), ("none", without)):
            start = time.perf_counter()
            session.run(None, feeds)
            times[name].append(time.perf_counter() - start)
    print(f"a job at 100 % / no job: {statistics.median(times['job']) / statistics.median(times['none']):.4f} of the time "
          f"({len(times['job'])} interleaved runs)")

    stop = threading.Event()

    def work():
        while not stop.is_set():
            with_job.run(None, feeds)

    thread = threading.Thread(target=work)
    thread.start()
    reactions = []
    for _ in range(60):
        time.sleep(random.uniform(0.002, 0.02))
        start = time.perf_counter()
        job.suspend()
        while job.status().active:
            pass
        reactions.append((time.perf_counter() - start) * 1e3)
        job.resume()
    stop.set()
    thread.join()
    print(f"suspended within {statistics.median(reactions):.2f} ms (median), {max(reactions):.2f} (longest of {len(reactions)}); "
          f"the longest node takes {longest_node_ms(without, feeds):.2f} ms")


def memory_limits(arguments: argparse.Namespace) -> None:
    import treadle

    sim = {"treadle.device": "sim", "treadle.sim.bus_per_second": f"{arguments.bus}G"}
    for name, attribute, config in (("device memory", "memory_limit", sim), ("the host's memory", "host_limit", {})):
        job = treadle.Job("memory")
        session = session_in(arguments, job, **config)
        feeds = feeds_of(session)
        for _ in range(2):  # constants are loaded at their first use, so only the second run has all of them beside its first values
            expected = session.run(None, feeds)
        needed = job.status().peak_bytes
        seen: dict[float, list[float]] = {fraction: [] for fraction in (1.0, 0.8, 0.6, 0.3)}
        moved, failed, same = dict.fromkeys(seen, 0), "", True
        for _ in range(15):
            for fraction in list(seen):
                setattr(job, attribute, 0 if fraction == 1.0 else int(needed * fraction))
                try:
                    session.run(None, feeds)  # this run adapts to the new limit
                except treadle.errors.Error as error:
                    failed += f"{fraction:.0%}: {error}\n"
                    del seen[fraction]
                    continue
                before = job.status().moved_bytes
                start = time.perf_counter()
                outputs = session.run(None, feeds)
                seen[fraction].append(time.perf_counter() - start)
                moved[fraction] = job.status().moved_bytes - before
                same = same and all(np.array_equal(a, b) for a, b in zip(outputs, expected, strict=True))
        for fraction, times in seen.items():
            ratio = statistics.median(times) / statistics.median(seen[1.0])
            print(f"{name} {fraction:.0%} of {needed / 1e6:.1f} MB: {ratio:.3f} of the time, {moved[fraction] / 1e6:.2f} MB moved a run")
        print(f"{failed}same bits at every limit: {same}")

        setattr(job, attribute, 0)
        changes = []
        for _ in range(60):
            session.run(None, feeds)
            status = job.status()
            held = status.device_bytes if config else status.host_bytes
            limit = held // 10 if config else held - 1  # weights stay on the host
            start = time.perf_counter()
            setattr(job, attribute, limit)
            while (job.status().device_bytes if config else job.status().host_bytes) > limit:
                pass
            changes.append((time.perf_counter() - start) * 1e3)
            setattr(job, attribute, 0)
        print(f"a smaller limit of {name} on an idle job: {statistics.median(changes):.3f} ms (median), {max(changes):.3f} (longest of {len(changes)})")


def on_one_engine(arguments: argparse.Namespace) -> None:
    """Measures requests on a simulated device's engine, alone and beside an opportunistic job, in turn."""
    import treadle

    def session_in(name: str, job_class: str):
        options = treadle.SessionOptions()
        options.intra_op_num_threads = 1
        options.job = treadle.Job(job_class, job_class=job_class)
        options.add_session_config_entry("treadle.device", "sim:shared")
        options.add_session_config_entry("treadle.sim.shared_engine", "1")
        session = treadle.InferenceSession(str(Path(arguments.models) / f"{name}.onnx"), options)
        return session, feeds_of(session)

    (guaranteed, feeds), (other, other_feeds) = session_in(arguments.guaranteed, "guaranteed"), session_in(arguments.opportunistic, "opportunistic")
    runs, taken = {"alone": 0, "together": 0}, {"alone": 0.0, "together": 0.0}
    stop = threading.Event()

    def work(mode: str) -> None:
        start = time.perf_counter()
        while not stop.is_set():
            other.run(None, other_feeds)
            runs[mode] += 1
        taken[mode] += time.perf_counter() - start

    def requests(seconds: float) -> list[float]:
        seen, due, end = [], time.perf_counter(), time.perf_counter() + seconds
        while due < end:
            time.sleep(max(0.0, due - time.perf_counter()))
            guaranteed.run(None, feeds)
            seen.append((time.perf_counter() - due) * 1e3)
            due += arguments.period / 1e3
        return seen

    for session, values in ((guaranteed, feeds), (other, other_feeds)):
        for _ in range(3):
            session.run(None, values)
    alone, together = [], []
    for number in range(arguments.slices):
        alone.append(requests(arguments.seconds))
        for mode in ("together", "alone") if number % 3 == 0 else ("together",):  # runs alone vary little, so they are measured less often
            stop.clear()
            thread = threading.Thread(target=work, args=(mode,))
            thread.start()
            if mode == "together":
                together.append(requests(arguments.seconds))
            else:
                time.sleep(arguments.seconds)
            stop.set()
            thread.join()
    on_host = treadle.InferenceSession(str(Path(arguments.models) / f"{arguments.opportunistic}.onnx"))
    rates = {mode: runs[mode] / taken[mode] for mode in runs}
    idle = 1 - statistics.mean(value for one in alone for value in one) / arguments.period
    print(f"one engine of a simulated device, a request every {arguments.period:.0f} ms ({sum(map(len, alone))} alone, {sum(map(len, together))} together): "
          f"p50 {compared(together, alone, 0.5)} and p99 {compared(together, alone, 0.99)} of alone (p99 alone is {pooled(alone, 0.99) / pooled(alone, 0.5):.2f} of "
          f"its p50, and that of every other slice {pooled(alone[::2], 0.99) / pooled(alone[1::2], 0.99):.2f} of the others'); the opportunistic job has "
          f"{rates['together'] / rates['alone']:.2f} of its runs alone, {rates['together'] / rates['alone'] / idle:.2f} of the idle time; "
          f"its longest node takes {longest_node_ms(on_host, other_feeds):.2f} ms")


def parse_arrivals(text: str) -> tuple[str, float]:
    kind, period = text.split(":")
    return kind, float(period)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.join(os.environ.get("TREADLE_TEST_DATA", "."), "models"))
    parser.add_argument("--guaranteed", default="ultraface_rfb320")
    parser.add_argument("--opportunistic", default="squeezenet_fp32")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--slices", type=int, default=10)
    parser.add_argument("--period", type=float, default=20, help="milliseconds between requests on the simulated engine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workloads", default="A,B,C,D,E,REAL")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--bus", type=int, default=12, help="GB/s of the simulated device's bus (PCIe 3 x16 reaches 12)")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--only", default="share,memory,engine", help="of the figures: share, memory, engine")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--arrivals", type=parse_arrivals, help=argparse.SUPPRESS)
    parser.add_argument("--at-once", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        return client(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TREADLE_SHARING_DIR"] = folder  # separates this benchmark's jobs from others
        figures(arguments) if arguments.figures else measure(arguments)


if __name__ == "__main__":
    main()
