#!/usr/bin/env python3
"""Runs whole models with Treadle and with onnxruntime, on the same random feeds, and prints where the results differ.

    tests/operators/compare_models.py FOLDER [FOLDER …]

Feeds fit the declarations of the inputs. Extents that a model leaves open are drawn again until onnxruntime accepts them. Each model runs in a
process of its own. For each model whose results are not the same, one of these words is printed:

    refused    Treadle does not load or run a model that onnxruntime runs
    differs    onnxruntime has other values, both with and without its optimisations
    rounding   it has other values, but changing the feeds by half a unit in the last place changes its own result by at least
               a thirtieth of the difference
    random     onnxruntime's own results differ between two sessions
    died       the process ended, or took over 90 s

Models are only counted as skipped if onnxruntime does not load or run them, or if an input is no dense tensor.

onnxruntime's repository has most of its test models and, beside them, the scripts that make them (`onnxruntime/test/testdata/**/*.py`). Debian's
source package has only the scripts.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import queue
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import treadle

ATTEMPTS = 72
SECONDS = 90.0
# Intervals [low, high) from which extents are drawn that a model leaves open.
EXTENTS = [(1, 2), (2, 3), (1, 5), (3, 4), (4, 5), (8, 9), (1, 4), (1, 3), (16, 17), (5, 6), (2, 4), (1, 6)]
INTEGERS = [(0, 2), (0, 1), (1, 3), (0, 8), (1, 2), (2, 5)]
DTYPES = {f"tensor({name})": dtype for name, dtype in {
    "float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_, "string": np.object_,
    **{name: np.dtype(name).type for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")}}.items()}  # fmt: skip
PLAIN, OPTIMISED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL


def open_peer(path: Path, level: Any) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_of(inputs: list[Any], attempt: int) -> dict[str, np.ndarray]:
    """Returns random values for all inputs. @raises KeyError for an input that is no dense tensor"""
    rng = np.random.default_rng(attempt)
    symbols: dict[str, int] = {}

    def extent(declared: int | str | None) -> int:
        drawn = int(rng.integers(*EXTENTS[attempt % len(EXTENTS)]))
        if isinstance(declared, int):
            return declared
        return drawn if declared is None else symbols.setdefault(declared, drawn)

    def values(dtype: Any, shape: list[int]) -> np.ndarray:
        if dtype is np.object_:
            return rng.integers(0, 9, shape).astype(str).astype(object)
        if dtype is np.bool_:
            return rng.integers(0, 2, shape).astype(np.bool_) if attempt % 3 else np.ones(shape, np.bool_)
        if np.issubdtype(dtype, np.floating):
            return np.asarray(rng.standard_normal(shape), dtype)
        if np.dtype(dtype).itemsize <= 2 and attempt % 2 == 0:
            return np.asarray(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape), dtype)
        return np.asarray(rng.integers(*INTEGERS[attempt // 2 % len(INTEGERS)], shape), dtype)

    return {i.name: values(DTYPES[i.type], [extent(e) for e in i.shape or []]) for i in inputs}


def difference(ours: Any, theirs: Any, tolerance: float) -> str:
    """Describes how two results differ; empty if they are the same."""
    if isinstance(ours, list) or isinstance(ours, dict):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return "another structure"
        pairs = [(ours[k], theirs[k]) for k in ours] if isinstance(ours, dict) else zip(ours, theirs, strict=True)
        return next((found for a, b in pairs if (found := difference(a, b, tolerance))), "")
    a, b = np.asarray(ours), np.asarray(theirs)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} in place of {b.dtype}{list(b.shape)}"
    if not np.issubdtype(a.dtype, np.floating):
        return "" if (a == b).all() else f"{np.count_nonzero(a != b)} of {a.size} elements"
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    largest = float(np.abs(wide_b[np.isfinite(wide_b)]).max(initial=0))
    if np.allclose(wide_a, wide_b, tolerance, tolerance * 0.1 * max(1.0, largest), equal_nan=True):
        return ""
    return f"{np.count_nonzero(~np.isclose(wide_a, wide_b, tolerance, tolerance, equal_nan=True))} of {a.size} elements, up to {largest:.3g}, by {gap(a, b):.3g}"


def gap(a: Any, b: Any) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0))


def first_difference(ours: list[Any], theirs: list[Any], tolerance: float) -> str:
    return next((found for a, b in zip(ours, theirs, strict=True) if (found := difference(a, b, tolerance))), "")


def is_rounding(peer: Any, feeds: dict[str, np.ndarray], ours: list[Any], theirs: list[Any]) -> bool:
    rng = np.random.default_rng(0)
    moved = {name: x * (1 + 6e-8 * rng.choice([-1, 1], x.shape)).astype(np.float32) if x.dtype == np.float32 else x for name, x in feeds.items()}
    try:
        return all(gap(a, b) <= 30 * gap(c, b) for a, b, c in zip(ours, theirs, peer.run(None, moved), strict=True))
    except (TypeError, ValueError):  # the values are strings, sequences or maps
        return False


def compare(path: Path) -> tuple[str, str]:
    peer = None
    for level in (PLAIN, OPTIMISED):
        try:
            peer = peer or open_peer(path, level)
        except Exception as error:  # noqa: BLE001  onnxruntime has exceptions of many classes
            reason = str(error)
    if peer is None:
        return "skipped", reason
    theirs = None
    for attempt in range(ATTEMPTS):
        try:
            feeds = feeds_of(peer.get_inputs(), attempt)
            theirs = peer.run(None, feeds)
            break
        except KeyError as error:
            return "skipped", f"an input is {error}"
        except Exception as error:  # noqa: BLE001
            reason = str(error)
    if theirs is None:
        return "skipped", reason
    try:
        ours = treadle.InferenceSession(str(path)).run(None, feeds)
    except Exception as error:  # noqa: BLE001
        return "refused", str(error)
    half = any("float16" in value.type for value in [*peer.get_inputs(), *peer.get_outputs()])
    tolerance = 2e-2 if half else 1e-4
    found = first_difference(ours, theirs, tolerance)
    if not found or not first_difference(ours, open_peer(path, OPTIMISED).run(None, feeds), tolerance):
        return "same", ""
    if first_difference(open_peer(path, PLAIN).run(None, feeds), theirs, tolerance):
        return "random", found
    return ("rounding" if is_rounding(peer, feeds, ours, theirs) else "differs"), found


def answer(path: Path, results: Any) -> None:
    results.put(compare(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    paths = [path for folder in parser.parse_args().folders for path in sorted(folder.rglob("*.onnx"))]
    context, counts = multiprocessing.get_context("fork"), collections.Counter[str]()
    for path in paths:
        results = context.Queue()
        process = context.Process(target=answer, args=(path, results))
        process.start()
        try:
            verdict, text = results.get(timeout=SECONDS)
        except queue.Empty:
            verdict, text = "died", f"exit status {process.exitcode}"
            process.kill()
        process.join()
        counts[verdict] += 1
        if verdict not in ("same", "skipped"):
            print(f"{verdict:9} {path.name}: {' '.join(text.split())[:300]}", flush=True)
    print(f"{len(paths)} models: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))


if __name__ == "__main__":
    main()
