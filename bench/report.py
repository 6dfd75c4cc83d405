#!/usr/bin/env python3
"""Measures whole models beside other engines, and writes docs/performance.md with its plots.

    TREADLE_TEST_DATA=... PYTHONPATH=build/python/python bench/report.py [--parts one shared two batch8 batch32] [--only REGEX] [--seconds 0.5]
    bench/report.py --render     # from the results as they are

Measures with bench/models.py and writes bench/results/models-intel.json or models-amd.json, by the processor (date, versions, commit; what is
measured again replaces its old result, model by model). bench/page.py makes the page of these and of bench/results/figures.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import models
from engines import ENGINES, version

import page
from page import PARTS, ROOT


def machine() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*:\s*(.*)", text)
    flags = set(re.search(r"flags\s*:\s*(.*)", text).group(1).split()) if "flags" in text else set()
    sets = [label for flag, label in (("amx_tile", "AMX"), ("avx512_bf16", "AVX512-BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    return f"{name[1] if name else 'unknown'} ({os.cpu_count()} CPUs{', ' + sets[0] if sets else ''})"


def vendor(name: str) -> str:
    """Returns the processor's vendor, by which files and the page separate results."""
    found = [vendor for vendor in page.MACHINES if vendor in name.lower()]
    return found[0] if found else re.sub(r"\W+", "-", name.lower()).strip("-")


def commit() -> str:
    ask = lambda *command: subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return ask("rev-parse", "--short=12", "HEAD") + ("+" if ask("status", "--porcelain", "--untracked-files=no", "src", "include", "python") else "")


def measure(part: str, stored: dict, args, save) -> None:
    _, threads, batch, is_shared = PARTS[part]
    clock = args.clock if threads == 1 else "wall"
    words = ["--threads", str(threads), "--batch", str(batch), "--seconds", str(args.seconds), "--clock", clock, "--cache", str(args.cache)]
    options = models.arguments().parse_args([*words, *([] if args.details and part in ("one", "shared") else ["--no-details"]), "--engines", *args.engines])
    options.engines, missing = models.available(options.engines)
    names = [n for n in models.model_names(args.only, batch) if (n in models.SHARED) == is_shared]
    entry = stored.setdefault(part, {"results": {}})
    for name in names:
        if found := models.measure_all([name], options):
            entry["results"][name] = kept_details(entry["results"].get(name, {})) | found[name]
            entry |= {"date": datetime.date.today().isoformat(), "commit": args.commit or commit(), "machine": machine(), "missing": missing, "clock": clock}
            entry["versions"] = {e: version(e) for e in ENGINES if e not in missing}
            save()


def kept_details(result: dict) -> dict:
    """Returns earlier results of memory and bits, which do not depend on other work on the machine; --no-details keeps them."""
    return {key: result[key] for key in ("memory", "bits") if key in result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--only", default=".", help="regular expression over model names")
    parser.add_argument("--seconds", type=float, default=0.5, help="per engine and model")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: where one thread is measured")
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--no-details", dest="details", action="store_false", help="keep memory and bits as they were measured last")
    parser.add_argument("--commit", help="of the package that is measured, where it is not the checkout's")
    parser.add_argument("--results", type=Path, default=page.RESULTS / f"models-{vendor(machine())}.json")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.render:
        stored = json.loads(args.results.read_text()) if args.results.exists() else {}
        args.results.parent.mkdir(parents=True, exist_ok=True)
        save = lambda: args.results.write_text(json.dumps(stored, indent=1) + "\n")
        for part in args.parts:
            measure(part, stored, args, save)
    page.write()


if __name__ == "__main__":
    main()
