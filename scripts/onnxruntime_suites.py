#!/usr/bin/env python3
"""Runs test suites of others that import onnxruntime twice, with onnxruntime and with Treadle in its place, and compares what passes.

    scripts/onnxruntime_suites.py FOLDER_OR_FILE…  [--least 0.95] [--junit FOLDER] [-- arguments of pytest]

Fetches nothing: give paths of suites that are on the machine, such as tests/ of skl2onnx's source package (`pip download --no-deps
--no-binary :all: skl2onnx`), or onnxruntime/test/python of ONNX Runtime's sources. Each suite runs in its own folder. The package treadle
has to be importable (PYTHONPATH=build/release/python). Exits with 1 if fewer than `--least` of the tests that pass with onnxruntime pass
with Treadle.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree


def run(suite: pathlib.Path, on_treadle: bool, junit: pathlib.Path, arguments: list[str]) -> dict[str, str]:
    """Test → "passed", "skipped", or the first line of what went wrong."""
    program = ["-m", "treadle.onnxruntime_shim", "-m", "pytest"] if on_treadle else ["-m", "pytest"]
    folder = suite if suite.is_dir() else suite.parent
    report = junit / f"{suite.name}-{'treadle' if on_treadle else 'onnxruntime'}.xml"
    command = [sys.executable, *program, "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments, str(suite)]
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if not report.exists():
        sys.exit(f"{' '.join(command)} wrote no report:\n{done.stdout[-4000:]}")
    results = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        verdict = "passed"
        for child in case:
            if child.tag == "skipped":
                verdict = "skipped"
            elif child.tag in ("failure", "error"):
                verdict = (child.get("message") or child.tag).splitlines()[0][:160] if child.get("message") else child.tag
        results[f"{case.get('classname')}::{case.get('name')}"] = verdict
    return results


def compare(suite: pathlib.Path, junit: pathlib.Path, arguments: list[str]) -> tuple[int, int]:
    """The number of tests that pass with onnxruntime, and how many of these pass with Treadle."""
    theirs, ours = (run(suite, on_treadle, junit, arguments) for on_treadle in (False, True))
    passing = [test for test, verdict in theirs.items() if verdict == "passed"]
    failing = [test for test in passing if ours.get(test) != "passed"]
    only_ours = [test for test, verdict in ours.items() if verdict == "passed" and theirs.get(test) != "passed"]
    print(f"{suite}: {len(theirs)} tests; {len(passing)} pass with onnxruntime, {len(passing) - len(failing)} of these with Treadle, {len(only_ours)} with Treadle only")
    for test in failing:
        print(f"    {test}: {ours.get(test, 'not collected')}")
    return len(passing), len(passing) - len(failing)


def main() -> None:
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="+", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--junit", type=pathlib.Path, help="folder that keeps pytest's reports")
    options = parser.parse_args(arguments[:end])
    with tempfile.TemporaryDirectory() as temporary:
        junit = (options.junit or pathlib.Path(temporary)).resolve()
        junit.mkdir(parents=True, exist_ok=True)
        counts = [compare(suite.resolve(), junit, arguments[end + 1 :]) for suite in options.suites]
    passing, also_ours = (sum(column) for column in zip(*counts, strict=True))
    print(f"{also_ours} of {passing}: {also_ours / max(passing, 1):.1%}")
    sys.exit(also_ours < options.least * passing)


if __name__ == "__main__":
    main()
