#!/usr/bin/env python3
"""The tables and the plot of whole models in docs/performance.md, from one command.

    TREADLE_TEST_DATA=... PYTHONPATH=build/python/python bench/report.py [--parts one shared two batch8 batch32] [--only REGEX] [--seconds 0.5]
    bench/report.py --render     # from the results as they are

Measures with bench/models.py and writes bench/results/models.json (machine, date, versions, commit; what is measured again replaces what
stood there, model by model), bench/results/models.md, docs/figures/models.svg, and the tables between the marks of docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import models
from engines import ENGINES, version

import ratios

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- measured: bench/report.py -->", "<!-- end of what was measured -->"
# name: (title, threads, batch, shared models)
PARTS = {
    "one": ("One thread, batch 1", 1, 1, False),
    "two": ("Two threads, batch 1, each engine in a process of its own", 2, 1, False),
    "batch8": ("One thread, batch 8", 1, 8, False),
    "batch32": ("One thread, batch 32", 1, 32, False),
    "shared": ("Trained models, one thread (errors against recorded float32 results)", 1, 1, True),
}


def machine() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*:\s*(.*)", text)
    flags = set(re.search(r"flags\s*:\s*(.*)", text).group(1).split()) if "flags" in text else set()
    sets = [label for flag, label in (("amx_tile", "AMX"), ("avx512_bf16", "AVX512-BF16"), ("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags]
    return f"{name[1] if name else 'unknown'} ({os.cpu_count()} CPUs{', ' + sets[0] if sets else ''})"


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
    """Memory and bits are no matter of a quiet machine: with --no-details they stay as they were measured last."""
    return {key: result[key] for key in ("memory", "bits") if key in result}


def in_order(results: dict) -> dict:
    """By the order of the definitions, not of the measurements."""
    order = {name: i for i, name in enumerate(models.model_names("."))}
    return dict(sorted(results.items(), key=lambda item: order.get(item[0], len(order))))


def section(part: str, entry: dict) -> list[str]:
    results = in_order(entry["results"])
    engines = [e for e in ENGINES if any(r["engines"].get(e) for r in results.values())]
    versions = ", ".join(f"{ratios.TITLES.get(e, e)} {v}" for e, v in entry["versions"].items() if e in engines and e != ratios.OWN)
    peaks = [r["peak_gflops"] for r in results.values() if "peak_gflops" in r]
    peak = f"; peak {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s" if peaks else ""
    clock = "; CPU time" if entry.get("clock") == "cpu" else ""
    lines = [f"### {PARTS[part][0]}", "", f"{entry['machine']}{peak}; {entry['date']}, {entry['commit']}; {versions}{clock}.", ""]
    return [*lines, *ratios.table(results, engines), "", *[f"{note}  " for note in ratios.notes(results, entry["missing"])], ""]


COLOURS = {"onnxruntime": "#0072b2", "openvino": "#e69f00", "ncnn": "#009e73", "mnn": "#cc79a7", "pytorch": "#7f7f7f"}


def plot(results: dict, caption: str) -> str:
    """An SVG: a row a model, a dot an engine at its time over treadle's; hollow where something else is computed; a bar for the ceiling."""
    row, left, width, top, most = 22, 130, 560, 64, 3.0
    names = [n for n in in_order(results) if results[n]["engines"].get(ratios.OWN, {}).get("ms")]
    at = lambda value: left + min(value, most) / most * width
    height = top + row * len(names) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 60}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18" font-size="14">Time over treadle\'s: right of the line, treadle is faster</text>',
    ]
    x = left
    for engine in (e for e in COLOURS if any(results[n]["engines"].get(e, {}).get("ms") for n in names)):
        title = ratios.TITLES.get(engine, engine)
        lines.append(f'<circle cx="{x + 5}" cy="36" r="5" fill="{COLOURS[engine]}"/><text x="{x + 14}" y="40">{title}</text>')
        x += 34 + 7 * len(title)
    lines.append(f'<rect x="{x}" y="30" width="3" height="12" fill="#d55e00"/><text x="{x + 8}" y="40">ceiling</text>')
    for tick in range(int(most * 2) + 1):
        value = tick / 2
        colour = "#000000" if value == 1 else "#dddddd"
        lines.append(f'<line x1="{at(value):.1f}" x2="{at(value):.1f}" y1="{top - 8}" y2="{height - 30}" stroke="{colour}"/>')
        lines.append(f'<text x="{at(value):.1f}" y="{height - 16}" text-anchor="middle">{value:g}{" and more" if value == most else ""}</text>')
    for i, name in enumerate(names):
        y, own = top + row * i + row / 2, results[name]["engines"][ratios.OWN]["ms"]
        lines.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>')
        if (fraction := ratios.ceiling_fraction(results[name])) is not None:
            lines.append(f'<rect x="{at(fraction) - 1.5:.1f}" y="{y - 6}" width="3" height="12" fill="#d55e00"/>')
        excluded = ratios.left_out(results[name])
        for engine, colour in COLOURS.items():
            if ms := results[name]["engines"].get(engine, {}).get("ms"):
                fill = "white" if engine in excluded else colour
                text = f"{ratios.TITLES.get(engine, engine)} {ms:.3g} ms, treadle {own:.3g} ms"
                lines.append(f'<circle cx="{at(ms / own):.1f}" cy="{y}" r="5" fill="{fill}" stroke="{colour}" stroke-width="1.5"><title>{html.escape(text)}</title></circle>')
    lines += [f'<text x="{left}" y="{height - 2}" font-size="10" fill="#555555">{html.escape(caption)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def replace_between_marks(document: str, text: str) -> str:
    if document.count(BEGIN) != 1 or END not in document.split(BEGIN)[1]:
        raise ValueError(f"the document has no {BEGIN} … {END}")
    before, rest = document.split(BEGIN)
    return before + BEGIN + "\n" + text + END + rest.split(END, 1)[1]


def render(stored: dict, args) -> None:
    text = "\n".join(line for part in PARTS if part in stored for line in section(part, stored[part]))
    args.results.with_suffix(".md").write_text(text)
    if one := stored.get("one"):
        args.figure.parent.mkdir(parents=True, exist_ok=True)
        args.figure.write_text(plot(one["results"], f"One thread, batch 1, float32; {one['machine']}; {one['date']}, {one['commit']}"))
    document = args.document.read_text()
    if BEGIN in document:
        args.document.write_text(replace_between_marks(document, "\n" + text + "\n"))


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
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results" / "models.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "models.svg")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    args = parser.parse_args()
    stored = json.loads(args.results.read_text()) if args.results.exists() else {}
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if not args.render:
        save = lambda: args.results.write_text(json.dumps(stored, indent=1) + "\n")
        for part in args.parts:
            measure(part, stored, args, save)
    render(stored, args)


if __name__ == "__main__":
    main()
