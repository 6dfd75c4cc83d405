#!/usr/bin/env python3
"""Tells whether one build is slower than another: runs models on both in turn, and judges the ratios by the noise of the measurements.

    bench/regression.py BEFORE AFTER [--what run] [--only REGEX] [--rounds 20] [--seconds 0.05] [--threads 1] [--least 0.02]

BEFORE and AFTER are each a folder with a built Python package (build/python/python, or a copy of it), a command-line program (treadle), or
a commit, whose package is built first under --builds. Each build has a process of its own; they take turns on the same processor, a block of runs
each, the order changing from round to round. Per model: the median of the rounds' ratios (AFTER's time over BEFORE's), an interval that
contains it with 99 % confidence (bootstrap over the rounds), the noise of each series (half of its interquartile range over its median), and a verdict:

  slower, faster  the interval lies beyond 1 by more than --least, the smallest change that matters
  same            it lies within 1 -+ --least
  unclear         neither: more rounds or a quieter machine would tell

Exit status: 1 if a model is slower, 2 if one fails on AFTER only, 0 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import models

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIDENCE = 0.99
RESAMPLES = 4000


@dataclass(frozen=True)
class Verdict:
    ratio: float
    low: float
    high: float
    noise: tuple[float, float]
    word: str


def noise_of(series: list[float]) -> float:
    low, middle, high = np.percentile(series, (25, 50, 75))
    return float((high - low) / 2 / middle)


def interval_of(ratios: list[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns an interval of the ratios' median: percentiles of medians of resampled ratios."""
    values = np.asarray(ratios)
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    medians = np.median(values[drawn], axis=1)
    tail = (1 - confidence) / 2 * 100
    low, high = np.percentile(medians, (tail, 100 - tail))
    return float(low), float(high)


def judge(before: list[float], after: list[float], least: float) -> Verdict:
    """Judges two series from rounds in turn: the n-th numbers of both belong to the same round."""
    ratios = [a / b for a, b in zip(after, before, strict=True)]
    low, high = interval_of(ratios)
    if low > 1 + least:
        word = "slower"
    elif high < 1 - least:
        word = "faster"
    elif low >= 1 - least and high <= 1 + least:
        word = "same"
    else:
        word = "unclear"
    return Verdict(float(np.median(ratios)), low, high, (noise_of(before), noise_of(after)), word)


def exit_status(verdicts: dict[str, Verdict], failed_after_only: list[str]) -> int:
    return 2 if failed_after_only else int(any(v.word == "slower" for v in verdicts.values()))


class Package:
    """A built Python package in a process that measures on request."""

    def __init__(self, folder: Path, args) -> None:
        command = [sys.executable, __file__, "--worker", "--what", args.what, "--threads", str(args.threads), "--cache", str(args.cache), "--clock", args.clock]
        environment = os.environ | {"PYTHONPATH": str(folder)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with {self.process.wait()}")
        reply = json.loads(answer)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def open(self, name: str) -> None:
        self.ask(open=name)

    def block_ms(self, seconds: float) -> float:
        return self.ask(seconds=seconds)["ms"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Program:
    """A command-line program, run as a process per block. Its inputs are random, and the same for both builds."""

    def __init__(self, path: Path, args) -> None:
        self.path, self.args, self.model = path, args, ""

    def open(self, name: str) -> None:
        self.model = str(models.load(name, 1, self.args.cache).path)

    def block_ms(self, seconds: float) -> float:
        command = [str(self.path), "bench", self.model, "--threads", str(self.args.threads), "--seconds", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.splitlines() or [f"exit status {done.returncode}"])[0])
        return median_of_bench(done.stdout)

    def close(self) -> None:
        """Does nothing, as no process runs between blocks."""


def median_of_bench(text: str) -> float:
    """Returns the median in ms from the output of `treadle bench`."""
    found = re.search(r"median\s+([\d.]+)\s*(us|ms|s)\b", text)
    if not found:
        raise RuntimeError("treadle bench prints no median")
    return float(found[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]


def work_of(what: str, case: models.Case, threads: int) -> Callable[[], object]:
    """Returns the work to time: a run, alone or in a job; making a session; or a training step towards outputs of 0."""
    import treadle

    path = str(case.path)
    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    if what == "start":
        return lambda: treadle.InferenceSession(path, options)
    if what == "job":
        options.job = treadle.Job("regression")
    session = treadle.InferenceSession(path, options)
    if what != "train":
        return lambda: session.run(None, case.feeds)
    first = session.get_outputs()[0].name
    zeros = np.zeros_like(session.run([first], case.feeds)[0])
    # The learning rate is so small that rounding cancels the updates. Otherwise numbers would overflow or become subnormal, and times would
    # change.
    trainer = treadle.train.Trainer(path, output=first, loss="mean_squared_error", learning_rate=1e-20, momentum=0.9, num_threads=threads)
    return lambda: trainer.step(case.feeds, zeros)


def worker(args) -> None:
    """Reads requests, one per line: {"open": model} or {"seconds": .., }."""
    run, clock = None, time.process_time if args.clock == "cpu" else time.perf_counter
    for text in sys.stdin:
        request = json.loads(text)
        try:
            if name := request.get("open"):
                run = None
                run = work_of(args.what, models.load(name, 1, args.cache), args.threads)
                run()
                reply = {}
            else:
                run()  # this run warms the caches, because the other build has used them
                count, end, start = 0, time.perf_counter() + request["seconds"], clock()
                while time.perf_counter() < end or count == 0:
                    run()
                    count += 1
                reply = {"ms": (clock() - start) / count * 1e3}
        except Exception as e:
            reply = {"error": models.reason_of(e)}
        print(json.dumps(reply), flush=True)


def build(commit: str, builds: Path, jobs: int) -> Path:
    """Builds a commit's package in a separate worktree, which is kept."""
    sha = subprocess.run(["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()
    place = builds / sha[:12]
    package = place / "build" / "python"
    if not list(package.glob("treadle/_treadle*.so")):
        print(f"building {sha[:12]} in {place}", file=sys.stderr)
        if not (place / "tree").exists():
            subprocess.run(["git", "worktree", "add", "--detach", str(place / "tree"), sha], cwd=REPOSITORY, check=True, stdout=sys.stderr)
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTREADLE_BUILD_PYTHON=ON", "-DTREADLE_BUILD_TESTS=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
        subprocess.run(["cmake", "-S", str(place / "tree"), "-B", str(place / "build"), "-G", "Ninja", *options], check=True, stdout=sys.stderr)
        subprocess.run(["cmake", "--build", str(place / "build"), "-j", str(jobs)], check=True, stdout=sys.stderr)
    return package


def side(what: str, args) -> Package | Program:
    path = Path(what)
    if (path / "treadle" / "__init__.py").exists():
        return Package(path.resolve(), args)
    if path.is_file() and os.access(path, os.X_OK):
        if args.what != "run":
            sys.exit(f"--what {args.what} needs packages; {what} is a program")
        return Program(path.resolve(), args)
    if path.exists():
        sys.exit(f"{what} is neither a built package (no treadle/__init__.py in it) nor a program")
    return Package(build(what, args.builds, args.jobs), args)


def series(name: str, sides: list, args) -> tuple[list[list[float]], list[str | None]]:
    """Returns the times of both builds, and the reason if a build has no times."""
    failures: list[str | None] = [None, None]
    for i, build_ in enumerate(sides):
        try:
            build_.open(name)
            build_.block_ms(args.seconds)
        except Exception as e:
            failures[i] = models.reason_of(e)
    times: list[list[float]] = [[], []]
    if not any(failures):
        for r in range(args.rounds):
            for i in (0, 1) if r % 2 == 0 else (1, 0):
                times[i].append(sides[i].block_ms(args.seconds))
    return times, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?")
    parser.add_argument("after", nargs="?")
    parser.add_argument("--what", choices=["run", "job", "start", "train"], default="run", help="of each model; other than run: packages only")
    parser.add_argument("--only", default=".", help="regular expression over model names")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a block")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.02, help="the smallest change that matters")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: time on processors (packages, one thread): for machines that others use")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--builds", type=Path, default=REPOSITORY / "build" / "commits", help="where commits are built")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return 0
    if not args.after:
        parser.error("two builds are needed")
    if args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sides = [side(what, args) for what in (args.before, args.after)]
    verdicts, failed_after_only = {}, []
    print(f"{'':24}{'before, ms':>12}{'after, ms':>12}{'ratio':>8}{'99 % interval':>17}{'noise':>15}")
    for name in models.model_names(args.only):
        times, failures = series(name, sides, args)
        if any(failures):
            print(f"{name:24}" + "; ".join(f"{which}: {why}" for which, why in zip(("before", "after"), failures) if why), flush=True)
            failed_after_only += [name] if failures[1] and not failures[0] else []
            continue
        v = verdicts[name] = judge(*times, args.least)
        medians = "".join(f"{np.median(t):12.4g}" for t in times)
        noise = f"{v.noise[0]:.1%} {v.noise[1]:.1%}"
        print(f"{name:24}{medians}{v.ratio:8.3f}{f'{v.low:.3f} to {v.high:.3f}':>17}{noise:>15}  {v.word}", flush=True)
    for build_ in sides:
        build_.close()
    counts = {word: sum(v.word == word for v in verdicts.values()) for word in ("slower", "faster", "same", "unclear")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()) + (f", {len(failed_after_only)} fail on the second only" if failed_after_only else ""))
    return exit_status(verdicts, failed_after_only)


if __name__ == "__main__":
    sys.exit(main())
