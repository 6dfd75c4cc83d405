#!/usr/bin/env python3
"""Measures how long building and testing take: wall time, and processor time of all processes. A compiler cache is filled, but not read.

    bench/minutes.py install              # `pip install .` from nothing, into a fresh folder
    bench/minutes.py rebuild [--build build/release] [--target treadle] [--files 20] [--seed 1]
    bench/minutes.py test                 # scripts/test in a fresh clone of this commit, its set-up of the machine included

`rebuild` changes one source file after another, drawn at random, and builds the target again: median and longest time of a file, its link
included. Processor time says more than wall time on a machine that others use, too; a wall time counts only on an idle one.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def timed(command: list[str], folder: Path = ROOT, **environment: str) -> tuple[float, float]:
    """Returns wall and processor seconds of a command that must succeed. The command's output is only shown if it fails."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=os.environ | {"CCACHE_RECACHE": "1", "CCACHE_BASEDIR": str(folder)} | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def install(_: argparse.Namespace) -> None:
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as build, tempfile.TemporaryDirectory() as installed:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", installed]
        wall, processor = timed([*command, f"--config-settings=build-dir={build}", "."])
    print(f"pip install . from nothing: {minutes(wall)}, {minutes(processor)} of processor time")


def rebuild(arguments: argparse.Namespace) -> None:
    build = ["cmake", "--build", arguments.build, "--target", arguments.target]
    timed(build)
    sources = subprocess.run(["git", "ls-files", "src/*.cpp"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    results = []
    for source in random.Random(arguments.seed).sample(sources, arguments.files):
        (ROOT / source).touch()
        wall, processor = timed(build)
        results.append((processor, wall, source))
        print(f"{source}: {wall:.1f} s, {processor:.1f} s of processor time", flush=True)
    longest = max(results)
    print(
        f"one of {len(results)} files: {statistics.median(r[1] for r in results):.1f} s, {statistics.median(r[0] for r in results):.1f} s of processor time (medians);"
        f" longest {longest[2]}: {longest[1]:.1f} s, {longest[0]:.1f} s of processor time"
    )


def test(_: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / ROOT.name
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        data = os.environ.get("TREADLE_TEST_DATA") or str(ROOT.parent / "shared" / "data")
        wall, processor = timed(["scripts/test"], clone, TREADLE_JOIN_SOURCES="ON", TREADLE_TEST_DATA=data)
    print(f"scripts/test in a fresh clone: {minutes(wall)}, {minutes(processor)} of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for function in (install, rebuild, test):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        if function is rebuild:
            command.add_argument("--build", default="build/release")
            command.add_argument("--target", default="treadle")
            command.add_argument("--files", type=int, default=20)
            command.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
