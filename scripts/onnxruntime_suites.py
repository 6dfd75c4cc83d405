#!/usr/bin/env python3
"""Runs software that imports onnxruntime twice, with onnxruntime and with Treadle in its place, and compares the results.

    scripts/onnxruntime_suites.py FOLDER_OR_FILE…  [--least 0.95] [--junit FOLDER] [-- arguments of pytest]
    scripts/onnxruntime_suites.py --packages [NAME…] [--site FOLDER]

The first form runs test suites in folders that are on the machine, such as tests/ of skl2onnx's source package (`pip download --no-deps --no-binary
:all: skl2onnx`) or onnxruntime/test/python of ONNX Runtime's sources; nothing is downloaded. Each suite runs in its own folder. The package treadle
must be importable (PYTHONPATH=build/release/python). The exit status is 1 if fewer than `--least` of the tests that pass with onnxruntime pass with
Treadle.

`--packages` runs the probes of onnxruntime_packages.toml for packages that are installed, here or in the folder `--site` (`pip install --target
FOLDER …`). The exit status is 1 if answers differ.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree


def run(suite: pathlib.Path, on_treadle: bool, junit: pathlib.Path, arguments: list[str]) -> dict[str, str]:
    """Returns, by test, "passed", "skipped", or the first line of its failure."""
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
    """Returns the number of tests that pass with onnxruntime, and how many of these pass with Treadle."""
    theirs, ours = (run(suite, on_treadle, junit, arguments) for on_treadle in (False, True))
    passing = [test for test, verdict in theirs.items() if verdict == "passed"]
    failing = [test for test in passing if ours.get(test) != "passed"]
    only_ours = [test for test, verdict in ours.items() if verdict == "passed" and theirs.get(test) != "passed"]
    print(f"{suite}: {len(theirs)} tests; {len(passing)} pass with onnxruntime, {len(passing) - len(failing)} of these with Treadle, {len(only_ours)} with Treadle only")
    for test in failing:
        print(f"    {test}: {ours.get(test, 'not collected')}")
    return len(passing), len(passing) - len(failing)


FOLDER = pathlib.Path(__file__).resolve().parent

# Code around a probe: checks that it computed with the intended library, and prints its result as JSON.
BEFORE = """
import pathlib, sys
import onnxruntime
from onnxruntime_probes import *
runs = 0
def counted(method):
    def run(self, *arguments, **keywords):
        global runs
        runs += 1
        return method(self, *arguments, **keywords)
    return run
for name in ("run", "run_with_iobinding", "run_with_ort_values"):
    setattr(onnxruntime.InferenceSession, name, counted(getattr(onnxruntime.InferenceSession, name)))
folder = pathlib.Path(sys.argv[1])
np.random.seed(0)
tolerance = 1e-3
"""
AFTER = """
import json
def plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
answer = {"result": plain(result), "runs": runs, "module": onnxruntime.InferenceSession.__module__, "tolerance": tolerance}
print(json.dumps(answer, ensure_ascii=False, default=str))
"""


def packages() -> dict[str, str]:
    """Returns the probes by package."""
    table = tomllib.loads((FOLDER / "onnxruntime_packages.toml").read_text(encoding="utf-8"))
    return {name: entry["probe"] for name, entry in table.items()}


def version_of(package: str, site: pathlib.Path | None) -> str | None:
    """Returns the installed version of a package; None if it is not installed."""
    path = [str(site)] if site else []
    found = next(iter(importlib.metadata.distributions(name=package, path=path + sys.path)), None)
    return found.version if found else None


def answer(probe: str, on_treadle: bool, site: pathlib.Path | None = None) -> dict:
    """Returns a probe's result. :raises RuntimeError: if it failed, computed nothing, or used the wrong library."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "program.py"
        program.write_text(BEFORE + probe + AFTER, encoding="utf-8")
        (pathlib.Path(folder) / "work").mkdir()
        paths = [str(FOLDER), *([str(site)] if site else []), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *(["-m", "treadle.onnxruntime_shim"] if on_treadle else []), str(program), str(program.parent / "work")]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    if said["runs"] == 0 or said["module"].startswith("treadle") != on_treadle:
        raise RuntimeError(f"{said['runs']} runs of {said['module']}")
    return said


def difference(ours: object, theirs: object, tolerance: float, place: str = "result") -> str | None:
    """Returns the first difference of two results; None if there is none. Numbers may differ by `tolerance`, relative if larger than 1."""
    if isinstance(ours, (list, dict)) and type(ours) is type(theirs) and len(ours) == len(theirs):
        keys = ours.keys() if isinstance(ours, dict) else range(len(ours))
        if isinstance(ours, dict) and ours.keys() != theirs.keys():
            return f"{place}: {sorted(ours)} and {sorted(theirs)}"
        return next(filter(None, (difference(ours[key], theirs[key], tolerance, f"{place}[{key!r}]") for key in keys)), None)
    if isinstance(ours, float) and isinstance(theirs, (int, float)):
        same = ours == theirs or (math.isnan(ours) and math.isnan(theirs)) or abs(ours - theirs) <= tolerance * max(1, abs(theirs))
    else:
        same = ours == theirs
    return None if same else f"{place}: {str(ours)[:200]} and {str(theirs)[:200]}"


def run_packages(names: list[str], site: pathlib.Path | None) -> bool:
    """Runs all installed packages' probes. Returns True if the answers agree."""
    counts = {"the same": 0, "different": 0, "not with onnxruntime": 0, "not installed": 0}
    for name, probe in packages().items():
        if names and name not in names:
            continue
        version = version_of(name, site)
        if version is None:
            counts["not installed"] += 1
            continue
        try:
            theirs = answer(probe, False, site)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            verdict, text = "not with onnxruntime", str(error).strip()
        else:
            try:
                ours = answer(probe, True, site)
                text = difference(ours["result"], theirs["result"], theirs["tolerance"]) or ""
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                text = str(error).strip()
            verdict = "different" if text else "the same"
        counts[verdict] += 1
        print(f"{name} {version}: {verdict}" + "".join(f"\n    {line}" for line in text.splitlines()[-6:]), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return counts["different"] == 0


def main() -> None:
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", type=pathlib.Path)
    parser.add_argument("--least", type=float, default=0.95)
    parser.add_argument("--junit", type=pathlib.Path, help="folder that keeps pytest's reports")
    parser.add_argument("--packages", nargs="*", metavar="NAME", help="probes of packages; without names all that are installed")
    parser.add_argument("--site", type=pathlib.Path, help="folder that packages were installed to")
    options = parser.parse_args(arguments[:end])
    if (options.packages is None) != bool(options.suites):
        parser.error("give suites, or --packages")
    if options.packages is not None:
        unknown = set(options.packages) - packages().keys()
        if unknown:
            parser.error(f"no probe for {', '.join(sorted(unknown))}; there are {', '.join(packages())}")
        sys.exit(not run_packages(options.packages, options.site))
    with tempfile.TemporaryDirectory() as temporary:
        junit = (options.junit or pathlib.Path(temporary)).resolve()
        junit.mkdir(parents=True, exist_ok=True)
        counts = [compare(suite.resolve(), junit, arguments[end + 1 :]) for suite in options.suites]
    passing, also_ours = (sum(column) for column in zip(*counts, strict=True))
    print(f"{also_ours} of {passing}: {also_ours / max(passing, 1):.1%}")
    sys.exit(also_ours < options.least * passing)


if __name__ == "__main__":
    main()
