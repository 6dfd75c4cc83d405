"""Implements the rules of the tables of models: the peers of a ratio, engines that are left out, and the tables.

A result is what bench/models.py writes for a model: {"engines": {name: {"ms": .., "error": ..}}, "ceiling_ms": .., ...}.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

OWN = "treadle"
FIRST_PEERS = ("onnxruntime", "openvino")
ALL_PEERS = (*FIRST_PEERS, "ncnn", "mnn")  # tables have a column for PyTorch, but ratios ignore PyTorch, because it is no inference engine
TITLES = {"treadle": "Treadle", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "mnn": "MNN", "pytorch": "PyTorch"}

# If an engine's error is this many times ONNX Runtime's error, the engine uses other formulas or fewer bits, so its times do not count.
ERROR_FACTOR = 100
# Lower bound for ONNX Runtime's error in this comparison, because its error is 0 if the exact results are its own recorded results.
LEAST_ERROR = 1e-7


def left_out(result: dict) -> set[str]:
    """Returns the names of measured engines whose results are too inexact for their times to be compared."""
    engines = result["engines"]
    reference = engines.get("onnxruntime", {}).get("error")
    if reference is None or not math.isfinite(reference):
        return set()
    limit = ERROR_FACTOR * max(reference, LEAST_ERROR)
    return {name for name, e in engines.items() if name not in (OWN, "onnxruntime") and e.get("ms") and not (e["error"] is not None and e["error"] <= limit)}


def ratio(result: dict, peers: Iterable[str]) -> float | None:
    """Returns the best peer's time divided by treadle's; None if either is missing."""
    own = result["engines"].get(OWN, {}).get("ms")
    excluded = left_out(result)
    times = [result["engines"][p]["ms"] for p in peers if p not in excluded and result["engines"].get(p, {}).get("ms")]
    return min(times) / own if own and times else None


def fastest_peer(result: dict, peers: Iterable[str] = ALL_PEERS) -> str | None:
    excluded = left_out(result)
    times = {p: result["engines"][p]["ms"] for p in peers if p not in excluded and result["engines"].get(p, {}).get("ms")}
    return min(times, key=times.get) if times else None


def error_ratio(result: dict) -> float | None:
    """Returns treadle's error divided by ONNX Runtime's, if exact results are known beyond float32's precision; otherwise None."""
    own, peer = (result["engines"].get(e, {}).get("error") for e in (OWN, "onnxruntime"))
    return own / peer if own is not None and peer and result.get("exact", True) else None


def bound_by_weights(result: dict) -> bool:
    return result.get("weights_ms", 0) > result.get("ceiling_ms", math.inf)


def ceiling_fraction(result: dict) -> float | None:
    """Returns treadle's speed relative to the ceiling; None if layers could not be counted."""
    own, ceiling = result["engines"].get(OWN, {}).get("ms"), result.get("ceiling_ms")
    return max(ceiling, result.get("weights_ms", 0)) / own if own and ceiling else None


def geometric_mean(values: Iterable[float]) -> float:
    values = list(values)
    return math.exp(sum(math.log(v) for v in values) / len(values))


@dataclass
class Summary:
    mean: float  # geometric mean
    count: int
    lowest: float
    worst: str

    def __str__(self) -> str:
        return f"geometric mean {self.mean:.2f} over {self.count} models, lowest {self.lowest:.2f} ({self.worst})"


def summary(results: dict, peers: Iterable[str]) -> Summary | None:
    found = {name: r for name in results if (r := ratio(results[name], peers))}
    if not found:
        return None
    worst = min(found, key=found.get)
    return Summary(geometric_mean(found.values()), len(found), found[worst], worst)


def shown(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def cell(engine: dict, mark: str = "") -> str:
    if not engine.get("ms"):
        return "–"
    time = format(engine["ms"], ",.0f" if engine["ms"] >= 1000 else ".3g")
    return f"{time} ({engine['error']:.0e}){mark}"


def memory_cell(memory: dict | None) -> str:
    if not memory:
        return "–"
    peer = f" ({memory['onnxruntime']:.0f})" if memory.get("onnxruntime") is not None else ""
    return f"{memory['account']:.0f} / {memory['process']:.0f}{peer}"


def bits_cell(bits: dict | None) -> str:
    """Returns the text of the table cell "same bits". `bits` maps a number of threads to True if their results equal those of one
    thread."""
    if not bits:
        return "–"
    wrong = [threads for threads, same in bits.items() if not same]
    return f"not with {', '.join(wrong)}" if wrong else "yes"


def table(results: dict, engines: list[str]) -> list[str]:
    """Returns the lines of a Markdown table, a row per model. Columns after the engines' that no model has are left out."""
    heads = ["model", *(TITLES.get(e, e) for e in engines), "ratio", "ratio, all peers", "error ÷ ONNX Runtime's", "of the ceiling", "peak memory, MB", "same bits"]
    rows = []
    for name, result in results.items():
        excluded = left_out(result)
        cells = [name, *(cell(result["engines"].get(e, {}), "*" if e in excluded else "") for e in engines)]
        first, every, fraction = ratio(result, FIRST_PEERS), ratio(result, ALL_PEERS), ceiling_fraction(result)
        cells += [shown(first), shown(every), shown(error_ratio(result), ".1f"), shown(fraction, ".0%") + (" m" if bound_by_weights(result) else "")]
        rows.append([*cells, memory_cell(result.get("memory")), bits_cell(result.get("bits"))])
    more_peers = set(engines) & (set(ALL_PEERS) - set(FIRST_PEERS))
    has = lambda i: i <= len(engines) or any(row[i] != "–" for row in rows)
    kept = [i for i, head in enumerate(heads) if has(i) and (head != "ratio, all peers" or more_peers)]
    line = lambda cells: "| " + " | ".join(cells[i] for i in kept) + " |"
    return [line(heads), "|---" * len(kept) + "|", *map(line, rows)]


def legend(results: dict) -> list[str]:
    """Returns the explanation of the marks in a table."""
    lines = []
    if any(bound_by_weights(r) for r in results.values()):
        lines.append("m: reading the weights once takes longer than the operations at the ceiling's speed, and is the ceiling.")
    if any(left_out(r) for r in results.values()):
        lines.append(f"* An error more than {ERROR_FACTOR} times ONNX Runtime's: something else is computed, so the time is shown and not compared.")
    return lines


def notes(results: dict, missing: dict[str, str]) -> list[str]:
    """Returns the notes below a table: means, which engines are left out and why, and which are missing."""
    lines = []
    if first := summary(results, FIRST_PEERS):
        lines.append(f"Ratio (the better of ONNX Runtime and OpenVINO over Treadle): {first}.")
    if any("ncnn" in r["engines"] or "mnn" in r["engines"] for r in results.values()) and (every := summary(results, ALL_PEERS)):
        lines.append(f"Ratio over all peers (ncnn and MNN as well): {every}.")
    lines += legend(results)
    failed = sorted({f"{TITLES.get(e, e)}: {name} ({reason})" for name, r in results.items() for e, reason in r.get("failed", {}).items()})
    if failed:
        lines.append("Not converted or not run: " + "; ".join(failed) + ".")
    lines += [f"No column for {TITLES.get(engine, engine)}: {reason}." for engine, reason in missing.items()]
    return lines
