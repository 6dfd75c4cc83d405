"""Makes docs/performance.md and its plots from the files in bench/results. `bench/report.py --render` writes them, and tests/python/test_bench.py
compares.

models-intel.json and models-amd.json contain the measurements of bench/report.py. figures.json contains all other figures, by section of the page:
`figures` are single ones (value, unit, target, compared with, machine, date, command); `tables` are tables of models, whose `mean` names the column
of ratios and whose `plot` names the columns to draw.
"""

from __future__ import annotations

import json
from pathlib import Path

from engines import ENGINES

import models
import plots
import ratios

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
MACHINES = {"intel": "Intel", "amd": "AMD"}
# The measurements' parts, by name: (title, threads, batch, true if the models are trained models).
PARTS = {
    "one": ("one thread, batch 1", 1, 1, False),
    "two": ("two threads, batch 1", 2, 1, False),
    "batch8": ("one thread, batch 8", 1, 8, False),
    "batch32": ("one thread, batch 32", 1, 32, False),
    "shared": ("trained models, one thread", 1, 1, True),
}
HEAD = """<!-- Written by `bench/report.py --render` from bench/results. Do not edit. -->

# Performance

The newest measurement of each figure. A ratio above 1 means that Treadle is faster.

| machine | processor |
|---|---|
"""
MODELS = """
## Models beside other engines

Engines take turns, and a figure is the median of the runs. Peers run in float32 with their default settings. *Ratio* is the time of the faster of ONNX Runtime and OpenVINO
divided by Treadle's.

"""
HOW_TO_READ = """
The tables give milliseconds, and in brackets the largest error divided by the largest output: against float64, for trained models against recorded float32 results.

- \\*: the error exceeds 100 times ONNX Runtime's. The engine computes something else, and no ratio counts its time.
- *Of the ceiling*: the machine's best possible time for the model (`bench/ceilings.py`) over Treadle's time. m: reading the weights once sets the ceiling.
- *Peak memory*: of the session's account / of the process; in brackets, of a process with ONNX Runtime.
- *Same bits*: two and three threads give the results of one.

One thread: all engines in one process. Two threads: a process for each engine, because thread pools that spin disturb each other.

    TREADLE_TEST_DATA=FOLDER PYTHONPATH=build/python/python bench/report.py --seconds 0.4   # all of it; --parts, --only REGEX for less
    bench/layers.py MODEL                  # the layers that ONNX Runtime computes faster
    bench/regression.py BEFORE AFTER       # whether a build is slower than another

"""
FIGURE_COLUMNS = ("what", "value", "target", "compared with", "machine", "date", "command")


def stored_models() -> dict[str, dict]:
    """Returns the stored models by machine, the machines in MACHINES first."""
    found = {path.stem.removeprefix("models-"): json.loads(path.read_text()) for path in sorted(RESULTS.glob("models-*.json"))}
    return {machine: found[machine] for machine in [*(m for m in MACHINES if m in found), *(m for m in found if m not in MACHINES)]}


def in_order(results: dict) -> dict:
    """Sorts results by the order of the models' definitions."""
    from architectures import ARCHITECTURES

    order = {name: i for i, name in enumerate([*ARCHITECTURES, *models.SHARED])}
    return dict(sorted(results.items(), key=lambda item: order.get(item[0], len(order))))


def row(cells) -> str:
    return "| " + " | ".join(cells) + " |"


def paragraph(entry: dict, key: str = "text") -> list[str]:
    return [entry[key], ""] if key in entry else []


def table(columns, rows) -> list[str]:
    return [row(columns), "|---" * len(columns) + "|", *map(row, rows)]


def model_section(machine: str, part: str, entry: dict) -> list[str]:
    """Returns the table of one measurement, and the machine and versions."""
    results = in_order(entry["results"])
    engines = [e for e in ENGINES if any(r["engines"].get(e) for r in results.values())]
    versions = ", ".join(f"{ratios.TITLES.get(e, e)} {v}" for e, v in entry["versions"].items() if e in engines and e != ratios.OWN)
    peaks = [r["peak_gflops"] for r in results.values() if "peak_gflops" in r]
    peak = f"peak {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s" if peaks else ""
    facts = [entry["machine"], peak, entry["date"], entry["commit"], versions, "CPU time" if entry.get("clock") == "cpu" else ""]
    lines = [f"### {MACHINES.get(machine, machine)}, {PARTS[part][0]}", "", "; ".join(f for f in facts if f) + ".", ""]
    explained = ratios.legend(results)  # HOW_TO_READ explains these notes for all tables
    notes = ["- " + note for note in ratios.notes(results, entry["missing"]) if note not in explained]
    return [*lines, *ratios.table(results, engines), "", *notes, ""]


def model_summary(stored: dict[str, dict]) -> list[str]:
    rows = []
    for machine, parts in stored.items():
        for part in (p for p in PARTS if p in parts):
            if found := ratios.summary(parts[part]["results"], ratios.FIRST_PEERS):
                rows.append([MACHINES.get(machine, machine), PARTS[part][0], str(found.count), f"{found.mean:.2f}", f"{found.lowest:.2f} ({found.worst})", parts[part]["date"]])
    return table(["machine", "what", "models", "ratio, geometric mean", "lowest", "date"], rows)


def model_plot(results: dict, caption: str) -> str:
    """Draws a dot for each engine at its time relative to Treadle's (hollow if it computes something else), and a bar for the ceiling."""
    rows, engines = [], [e for e in ENGINES if e != ratios.OWN and any(r["engines"].get(e, {}).get("ms") for r in results.values())]
    title = lambda engine: ratios.TITLES.get(engine, engine)
    for name, result in in_order(results).items():
        own, excluded = result["engines"].get(ratios.OWN, {}).get("ms"), ratios.left_out(result)
        if own:
            times = {e: result["engines"][e]["ms"] for e in engines if result["engines"].get(e, {}).get("ms")}
            dots = [plots.Dot(title(e), ms / own, f"{title(e)} {ms:.3g} ms, Treadle {own:.3g} ms", e in excluded) for e, ms in times.items()]
            rows.append(plots.Row(name, dots, ratios.ceiling_fraction(result)))
    mark = "ceiling" if any(r.mark is not None for r in rows) else ""
    return plots.dot_plot(rows, [title(e) for e in engines], "Time over Treadle's: right of the line, Treadle is faster", caption, mark=mark)


def figure_cells(figure: dict) -> list[str]:
    value = f"{figure['value']} {figure['unit']}".strip()
    command = f"`{figure['command']}`" if figure.get("command") else ""
    return [figure["what"], value, figure.get("target", ""), figure.get("compared_with", ""), figure["machine"], figure["date"], command]


def table_section(entry: dict) -> list[str]:
    measured = f"{entry['machine']}, {entry['date']}: `{entry['command']}`"
    if "mean" in entry:
        ratio = [float(cells[entry["columns"].index(entry["mean"])]) for cells in entry["rows"]]
        measured += f". Geometric mean of the ratios {ratios.geometric_mean(ratio):.2f}, lowest {min(ratio):.2f}."
    plot = [f"![{entry['plot']['title']}](figures/{entry['plot']['file']})", ""] if "plot" in entry else []
    return [f"### {entry['title']}", "", *paragraph(entry), measured, "", *plot, *table(entry["columns"], entry["rows"]), ""]


def table_plot(entry: dict) -> str:
    """Draws columns of ratios, one series each."""
    rows = [plots.Row(cells[0], [plots.Dot(name, float(cells[column])) for name, column in entry["plot"]["series"].items() if cells[column]]) for cells in entry["rows"]]
    return plots.dot_plot(rows, list(entry["plot"]["series"]), entry["plot"]["title"], f"{entry['machine']}; {entry['date']}", entry["plot"].get("most", 3.0))


def render() -> dict[Path, str]:
    """Returns the text of each file."""
    figures = json.loads((RESULTS / "figures.json").read_text())
    stored = stored_models()
    files, lines = {}, [HEAD + "\n".join(row([name, text]) for name, text in figures["machines"].items()), MODELS.rstrip("\n"), "", *model_summary(stored), ""]
    for machine, parts in stored.items():
        if not (one := parts.get("one")):
            continue
        name = f"models-{machine}.svg"
        caption = "; ".join(f for f in ("One thread, batch 1, float32", one["machine"], one["date"], one["commit"]) if f)
        files[FIGURES / name] = model_plot(one["results"], caption)
        lines += [f"![Times of all engines over Treadle's, {MACHINES.get(machine, machine)}](figures/{name})", ""]
    lines += [HOW_TO_READ.strip("\n"), ""]
    for machine, parts in stored.items():
        for part in (p for p in PARTS if p in parts):
            lines += model_section(machine, part, parts[part])
    for section in figures["sections"]:
        lines += [f"## {section['title']}", "", *paragraph(section)]
        if singles := section.get("figures"):
            lines += [*table(FIGURE_COLUMNS, map(figure_cells, singles)), ""]
        if notes := section.get("notes"):
            lines += [*(f"- {note}" for note in notes), ""]
        for entry in section.get("tables", []):
            lines += table_section(entry)
            if "plot" in entry:
                files[FIGURES / entry["plot"]["file"]] = table_plot(entry)
    files[PAGE] = "\n".join(lines).rstrip("\n") + "\n"
    return files


def write() -> None:
    for path, text in render().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
