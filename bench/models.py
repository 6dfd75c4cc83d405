#!/usr/bin/env python3
"""Whole models on treadle, ONNX Runtime and OpenVINO: medians of interleaved runs in one process, errors, geometric mean.

    PYTHONPATH=build/python/python bench/models.py [--only REGEX] [--seconds 2] [--threads 1] [--batch 1] [--output bench/results/models.md]

The models are architectures exported here (bench/architectures.py, random weights; error against float64 in PyTorch) and, where
TREADLE_TEST_DATA names a folder with models/, manifest.json and refs/, the trained ones listed in SHARED (error against the recorded
results of ONNX Runtime without its optimiser). With more than one thread each engine runs in a process of its own, in turn, because
spinning thread pools disturb each other. Exports are kept in --cache (default: ~/.cache/treadle-bench).

On a machine that others use as well, `--clock cpu` counts the process's CPU time instead (one thread only): waiting for a core then costs
nothing, though shared caches still do.

`ratio` is the better of ONNX Runtime and OpenVINO over treadle: above 1, treadle is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

SHARED = ["squeezenet_fp32", "cifar10_cnn", "mnist_cntk", "ultraface_rfb320", "yunet_n_dynamic", "style_candy", "ppocr_cls_v2", "ppocr_v4_rec",
          "layout_cdla_picodet", "sinet_portrait_seg", "superres_espcn_prepost", "dnsmos_p808", "basic_pitch", "attacut_c", "swift_f0", "char_gpt_kv",
          "romanizer_gru_encoder", "silero_vad", "plcmos_v2_gru", "minilm_l6_int8w", "squeezenet_fp16", "squeezenet_int8_qoperator",
          "ultraface_rfb320_int8_qdq", "char_gpt_kv_dynq", "smart_turn_v3_qdq"]
ENGINES = ["treadle", "onnxruntime", "openvino"]


def export(name: str, batch: int, cache: Path) -> tuple[Path, dict, list]:
    """Model file, feeds and float64 outputs of an architecture; made once."""
    path = cache / f"{name}.b{batch}.onnx"
    data = path.with_suffix(".npz")
    if not path.exists() or not data.exists():
        import architectures
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        module, x = architectures.make(name, batch)
        cache.mkdir(parents=True, exist_ok=True)
        with torch.no_grad():
            exact = module.double()(x.double() if x.is_floating_point() else x).numpy()
            torch.onnx.export(module.float(), (x,), str(path), opset_version=17, input_names=["x"], output_names=["y"], dynamo=False)
        np.savez(data, x=x.numpy(), y=exact)
    arrays = np.load(data)
    return path, {"x": arrays["x"]}, [arrays["y"]]


def shared(name: str, folder: Path) -> tuple[Path, dict, list]:
    entry = next(m for m in json.loads((folder / "manifest.json").read_text())["models"] if m["name"] == name)
    arrays = np.load(folder / "refs" / f"{name}.case0.npz")
    feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
    outputs = {key[4:]: arrays[key] for key in arrays.files if key.startswith("out:")}
    import onnxruntime

    path = folder / "models" / Path(entry["file"]).name
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.graph_optimization_level = 3, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    names = [o.name for o in onnxruntime.InferenceSession(str(path), options).get_outputs()]
    return path, feeds, [outputs[n] for n in names]


def make_runner(engine: str, path: Path, feeds: dict, threads: int, openvino_precision: str = "f32"):
    """A function that runs the model once and returns the outputs."""
    if engine in ("treadle", "onnxruntime"):
        module = __import__(engine)
        options = module.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        session = module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, feeds)
    import openvino

    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape({key: value.shape for key, value in feeds.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": openvino_precision, "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    inputs = {key: openvino.Tensor(np.ascontiguousarray(value)) for key, value in feeds.items()}

    def run():
        request.infer(inputs, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(model.outputs))]

    return run


def error(outputs: list, exact: list) -> float:
    """Largest deviation over the largest output, the worst of all outputs."""
    worst = 0.0
    for got, want in zip(outputs, exact):
        got, want = np.asarray(got), np.asarray(want)
        if got.shape != want.shape:
            return math.inf
        if want.dtype.kind not in "fiu" or want.size == 0:
            continue
        scale = max(float(np.nanmax(np.abs(want.astype(np.float64)))), 1e-30)
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        if np.isnan(difference).any() and not (np.isnan(got) == np.isnan(want)).all():
            return math.nan
        worst = max(worst, float(np.nanmax(difference)) / scale)
    return worst


def timed(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure_here(runners: dict, seconds: float, clock) -> dict:
    """Medians in ms. Blocks of a few runs of each engine in turn; the first run of a block only warms the caches."""
    blocks = {engine: [] for engine in runners}
    block = {engine: max(1, int(0.02 / max(min(timed(run) for _ in range(3)), 1e-7))) for engine, run in runners.items()}
    end = time.perf_counter() + seconds * len(runners)
    while time.perf_counter() < end or len(next(iter(blocks.values()))) < 3:
        for engine, run in runners.items():
            run()
            start = clock()
            for _ in range(block[engine]):
                run()
            blocks[engine].append((clock() - start) / block[engine] * 1e3)
    return {engine: statistics.median(times) for engine, times in blocks.items()}


def load(name: str, args) -> tuple[Path, dict, list]:
    if name in SHARED:
        return shared(name, Path(os.environ["TREADLE_TEST_DATA"]))
    return export(name, args.batch, args.cache)


def measure(name: str, args) -> dict:
    """{engine: (ms or None, error)}"""
    path, feeds, exact = load(name, args)
    runners, errors = {}, {}
    for engine in args.engines:
        try:
            run = make_runner(engine, path, feeds, args.threads)
            errors[engine] = error(run(), exact)
            runners[engine] = run
        except Exception as e:
            print(f"  {name}: {engine}: {str(e).splitlines()[0][:160]}", file=sys.stderr)
    if args.threads == 1 or len(args.engines) == 1:
        times = measure_here(runners, args.seconds, time.process_time if args.clock == "cpu" else time.perf_counter)
    else:
        rounds = {engine: [] for engine in runners}
        for _ in range(3):
            for engine in runners:
                command = [sys.executable, __file__, "--json", "--only", f"^{name}$", "--engines", engine, "--threads", str(args.threads), "--seconds",
                           str(args.seconds / 3), "--batch", str(args.batch), "--cache", str(args.cache)]
                result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
                rounds[engine].append(result[engine][0])
        times = {engine: statistics.median(r) for engine, r in rounds.items()}
    return {engine: (times.get(engine), errors.get(engine)) for engine in args.engines}


def ratio_of(result: dict) -> float | None:
    peers = [result[e][0] for e in result if e != "treadle" and result[e][0]]
    own = result.get("treadle", (None,))[0]
    return min(peers) / own if peers and own else None


def table(results: dict, args) -> str:
    lines = [f"Medians in ms, {args.threads} thread(s), batch {args.batch}; in brackets the largest error over the largest output.", "",
             "| model | " + " | ".join(args.engines) + " | ratio | error ÷ ONNX Runtime's |", "|---" * (len(args.engines) + 3) + "|"]
    ratios = []
    for name, result in results.items():
        cells = [f"{result[e][0]:.3g} ({result[e][1]:.1e})" if result[e][0] else "–" for e in args.engines]
        ratio = ratio_of(result)
        own, peer = result.get("treadle", (None, None))[1], result.get("onnxruntime", (None, None))[1]
        if ratio:
            ratios.append(ratio)
        # The recorded results of the trained models are float32 themselves: no measure of who is more exact.
        errors = f"{own / peer:.1f}" if own is not None and peer and name not in SHARED else "–"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {f'{ratio:.2f}' if ratio else '–'} | {errors} |")
    if ratios:
        mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
        lines += ["", f"Geometric mean of the ratios: {mean:.3f} over {len(ratios)} models; lowest {min(ratios):.2f}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=".", help="regular expression over model names")
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--output", type=Path, help="write the table here as well")
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each model instead of a table")
    args = parser.parse_args()

    from architectures import ARCHITECTURES

    names = list(ARCHITECTURES) + (SHARED if "TREADLE_TEST_DATA" in os.environ else [])
    if not args.json and args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = {}
    for name in names:
        if not re.search(args.only, name):
            continue
        results[name] = measure(name, args)
        if args.json:
            print(json.dumps(results[name]))
            continue
        ratio = ratio_of(results[name])
        print(f"{name:24}" + "".join(f"{t:10.3f} ({e:.0e})" if t else f"{'–':>18}" for t, e in results[name].values()) + (f"  x{ratio:.2f}" if ratio else ""), flush=True)
    if not args.json:
        text = table(results, args)
        print("\n" + text)
        if args.output:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(text)


if __name__ == "__main__":
    main()
