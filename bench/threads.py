#!/usr/bin/env python3
"""Measures the CPU time of threads that have no work: an idle session, and runs under `taskset` and under a CPU quota.

    PYTHONPATH=build/python/python bench/threads.py MODEL [--seconds 4] [--cgroup /sys/fs/cgroup/cpu]

Idle: CPU time of a process whose sessions ran and now rest. Pinned: a process on one CPU, with as many threads as it takes by itself, over
the same with one thread; both take turns. Quota: the same in a control group that may use one CPU (version 1 or 2; needs the right to
make one). Reported beside the ratio is how many threads exist, and how many may run on a CPU outside the mask.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def feeds_of(session) -> dict:
    rng = np.random.default_rng(0)
    shapes = {i.name: [d if isinstance(d, int) and d > 0 else 1 for d in i.shape] for i in session.get_inputs()}
    return {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}


def session_with(model: str, threads: int):
    import treadle

    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    return treadle.InferenceSession(model, options)


def median_ms(session, feeds: dict, seconds: float) -> float:
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def child(model: str, seconds: float) -> None:
    """Compares one thread with the default number, in turn; runs in a separate process."""
    sessions = [session_with(model, 1), session_with(model, 0)]
    feeds = feeds_of(sessions[0])
    times = [[median_ms(s, feeds, seconds / 8) for s in sessions] for _ in range(4)]
    mask = os.sched_getaffinity(0)
    tasks = [int(t.name) for t in Path("/proc/self/task").iterdir()]
    outside = sum(1 for t in tasks if not os.sched_getaffinity(t) <= mask)
    one, own = (statistics.median(column) for column in zip(*times))
    print(json.dumps({"one": one, "own": own, "threads": len(tasks), "outside": outside}))


def run_child(args, prefix: list[str]) -> str:
    command = [*prefix, sys.executable, __file__, args.model, "--seconds", str(args.seconds), "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    r = json.loads(done.stdout.splitlines()[-1])
    ratio = r["own"] / r["one"]
    return f"{r['own']:.2f} ms, one thread {r['one']:.2f}: {ratio:.2f} of the time; {r['threads']} threads, {r['outside']} outside the mask"


def with_quota(args) -> str:
    group = Path(args.cgroup) / f"treadle-bench-{os.getpid()}"
    try:
        group.mkdir()
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text("100000 100000")
        else:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("100000")
    except OSError as e:
        return f"no control group can be made here ({e})"
    try:
        return run_child(args, ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"])
    finally:
        group.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--cgroup", default="/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu").is_dir() else "/sys/fs/cgroup")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.model, args.seconds)
    session = session_with(args.model, 0)
    median_ms(session, feeds_of(session), 1)
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(args.seconds)
    print(f"idle: {100 * (time.process_time() - before) / args.seconds:.3f} % of a CPU")
    print(f"pinned to one CPU: {run_child(args, ['taskset', '-c', str(min(os.sched_getaffinity(0)))])}")
    print(f"quota of one CPU: {with_quota(args)}")


if __name__ == "__main__":
    main()
