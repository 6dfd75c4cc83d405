#!/usr/bin/env python3
"""Measures the precisions of the session option `precision`: their errors against float64, and their time relative to float32.

    PYTHONPATH=build/python/python bench/precision.py [--only REGEX] [--precisions bfloat16,bfloat16x3,int8_weights] [--seconds 1] \\
        [--openvino] [--clock cpu] [--output docs/precision.md]

Models as in bench/models.py: architectures exported with random weights (exact outputs by PyTorch in float64), and, where
TREADLE_TEST_DATA names a folder of them, the trained ones in float32 that have a product or a convolution (exact outputs by the reference
implementation of the onnx package, on a copy of the model in float64). An error is the largest deviation over the largest output, the
worst of a model's outputs; integer outputs are counted where they differ. One thread, runs of all sessions in turn in one process.
`--output` replaces the tables between the marks in that document.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests" / "python")]

import models  # noqa: E402

EXPORTED = ["bert_base", "minilm6", "vit_tiny", "mixer_s32", "mlp", "resnet50", "resnet18", "vgg11", "regnet_y002", "densenet121"]
BEGIN, END = "<!-- measured: bench/precision.py -->", "<!-- end of what was measured -->"
PRODUCTS = {"MatMul", "Gemm", "Conv"}


def exact_outputs(path: Path, feeds: dict) -> list:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from double_precision import to_double

    evaluator = ReferenceEvaluator(to_double(onnx.load(str(path))))
    return evaluator.run(None, {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()})


def shared(folder: Path) -> list[str]:
    """Returns the trained models in float32 with products or convolutions."""
    entries = json.loads((folder / "manifest.json").read_text())["models"]
    quantised = ("Quantize", "QLinear", "Integer")
    return [e["name"] for e in entries if PRODUCTS & set(e["ops"]) and not any(q in op for op in e["ops"] for q in quantised) and "fp16" not in e["name"]]


def load(name: str, args) -> tuple[Path, dict, list]:
    if name in EXPORTED:
        return models.export(name, 1, args.cache)
    folder = Path(os.environ["TREADLE_TEST_DATA"])
    entry = next(m for m in json.loads((folder / "manifest.json").read_text())["models"] if m["name"] == name)
    path, arrays = folder / "models" / Path(entry["file"]).name, np.load(folder / "refs" / f"{name}.case0.npz")
    feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    cached = args.cache / f"{name}.float64.npz"
    if not cached.exists():
        args.cache.mkdir(parents=True, exist_ok=True)
        np.savez(cached, *exact_outputs(path, feeds))
    with np.load(cached) as exact:
        return path, feeds, [exact[key] for key in exact.files]


def make_session(path: Path, feeds: dict, precision: str):
    import treadle

    options = treadle.SessionOptions()
    options.intra_op_num_threads, options.precision = 1, precision
    session = treadle.InferenceSession(str(path), options)
    return lambda: session.run(None, feeds)


def measure(name: str, args) -> dict:
    """Returns {way: (error, ms)} for float32, each precision, and OpenVINO's bfloat16 if asked for."""
    path, feeds, exact = load(name, args)
    runs = {precision: make_session(path, feeds, precision) for precision in ["float32", *args.precisions]}
    if args.openvino:
        runs["OpenVINO bf16"] = models.make_runner("openvino", models.Case(name, path, feeds, exact), threads=1, openvino_precision="bf16")
    errors = {way: models.error(run(), exact) for way, run in runs.items()}
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    times = {way: [] for way in runs}
    end = time.perf_counter() + args.seconds * len(runs)
    while time.perf_counter() < end or len(times["float32"]) < 5:
        for way, run in runs.items():
            run()  # this run warms the caches
            start = clock()
            run()
            times[way].append((clock() - start) * 1e3)
    return {way: (errors[way], statistics.median(times[way])) for way in runs}


def table(results: dict) -> list[str]:
    ways = list(next(iter(results.values())))
    lines = ["| model | float32: ms | error | " + " | ".join(f"{way}: speed | error" for way in ways[1:]) + " |", "|---" * (1 + 2 * len(ways)) + "|"]
    for name, result in results.items():
        base = result["float32"]
        cells = [f"{base[1]:.3g} | {base[0]:.1e}"] + [f"{base[1] / result[way][1]:.2f} | {result[way][0]:.1e}" for way in ways[1:]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=".", help="regular expression over model names")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["bfloat16", "bfloat16x3", "int8_weights"])
    parser.add_argument("--seconds", type=float, default=1.0, help="per model and precision")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO with INFERENCE_PRECISION_HINT bf16, too")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--output", type=Path, help="the document whose tables are replaced")
    args = parser.parse_args()
    groups = {"Exported with random weights": EXPORTED}
    if "TREADLE_TEST_DATA" in os.environ:
        groups["Trained models"] = shared(Path(os.environ["TREADLE_TEST_DATA"]))
    text = [BEGIN]
    for title, names in groups.items():
        results = {}
        for name in filter(re.compile(args.only).search, names):
            try:
                results[name] = measure(name, args)
            except Exception as e:
                print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0][:160] if str(e) else ''}", file=sys.stderr)
                continue
            print(*table({name: results[name]})[2:], sep="\n", flush=True)
        if results:
            text += ["", f"{title}:", "", *table(results)]
    text += ["", END]
    if args.output:
        document = args.output.read_text()
        before, rest = document.split(BEGIN)
        args.output.write_text(before + "\n".join(text) + rest.split(END)[1])
    else:
        print("\n".join(text))


if __name__ == "__main__":
    main()
