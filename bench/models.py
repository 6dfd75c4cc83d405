#!/usr/bin/env python3
"""Measures whole models on treadle, ONNX Runtime, OpenVINO, ncnn, MNN and PyTorch: medians of interleaved runs, errors, the fraction of the ceiling.

    PYTHONPATH=build/python/python bench/models.py [--only REGEX] [--seconds 2] [--threads 1] [--batch 1] [--output bench/results/models.md]

The models are architectures exported here (bench/architectures.py, random weights; error against float64 in PyTorch) and, where
TREADLE_TEST_DATA names a folder with models/, manifest.json and refs/, the trained ones listed in SHARED (error against the recorded
results of ONNX Runtime without its optimiser). One thread: all engines in one process, in turn. More: each engine in a process of its own, in turn,
because spinning thread pools disturb each other. Exports and conversions are kept in --cache (default: ~/.cache/treadle-bench).

Engines whose packages are absent have no column. `ratio` is the better of ONNX Runtime and OpenVINO over treadle, the second ratio the best of these,
ncnn and MNN: above 1, treadle is faster (bench/ratios.py has the rules). `of the ceiling` is what bench/ceilings.py grants the model at the
peak measured in the same rounds, over treadle's time (m: the ceiling is reading the weights). Peak memory is that of the session's account and that of a process of its own (in brackets
ONNX Runtime's), over the imports and the inputs; `same bits`: results with 2 and 3 threads are those of one.

On a machine that others use as well, `--clock cpu` counts the process's CPU time instead (one thread only): waiting for a core then costs
nothing, though shared caches still do.
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

from engines import ENGINES, Case, make_runner, missing_package

import ceilings
import ratios

SHARED = ["squeezenet_fp32", "cifar10_cnn", "mnist_cntk", "ultraface_rfb320", "yunet_n_dynamic", "style_candy", "ppocr_cls_v2", "ppocr_v4_rec",
          "layout_cdla_picodet", "sinet_portrait_seg", "superres_espcn_prepost", "dnsmos_p808", "basic_pitch", "attacut_c", "swift_f0", "char_gpt_kv",
          "romanizer_gru_encoder", "silero_vad", "plcmos_v2_gru", "minilm_l6_int8w", "squeezenet_fp16", "squeezenet_int8_qoperator",
          "ultraface_rfb320_int8_qdq", "char_gpt_kv_dynq", "smart_turn_v3_qdq"]
# Two loops that the script measures in the same rounds as the engines: "peak" measures the machine's peak rate, and "read" reads as many
# bytes as the model's weights have.
PEAK, READ = YARDSTICKS = ("peak", "read")
ROUNDS = 3  # number of processes per engine, if each process measures only one engine
CHILD_SECONDS = 600


def export(name: str, batch: int, cache: Path) -> tuple[Path, dict, list]:
    """Returns model file, feeds and float64 outputs of an architecture; exports it if that was not done before."""
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


def error(outputs: list, exact: list) -> float:
    """Returns the largest deviation relative to the largest output, the worst of all outputs."""
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
    """Returns times in ms, one per block. Engines alternate in blocks of a few runs, whose first run only warms the caches."""
    blocks = {engine: [] for engine in runners}
    block = {}
    for engine, run in runners.items():
        first = timed(run)
        # A run of half a second or more needs no warm-up run (a block of 0), because every run replaces everything in the caches.
        block[engine] = max(1, int(0.02 / max(min(timed(run), timed(run)), 1e-7))) if first < 0.5 else 0
    end = time.perf_counter() + seconds * len(runners)
    while runners and (time.perf_counter() < end or len(next(iter(blocks.values()))) < 3):
        for engine, run in runners.items():
            if block[engine]:
                run()
            count = max(1, block[engine])
            start = clock()
            for _ in range(count):
                run()
            blocks[engine].append((clock() - start) / count * 1e3)
    return blocks


def load(name: str, batch: int, cache: Path) -> Case:
    if name in SHARED:
        return Case(name, *shared(name, Path(os.environ["TREADLE_TEST_DATA"])), cache=cache)
    return Case(name, *export(name, batch, cache), batch=batch, is_architecture=True, cache=cache)


def reason_of(e: Exception) -> str:
    """Returns the error's first informative line. OpenVINO's errors begin with positions in its source."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip() and not line.strip().startswith(("Exception from ", "Check "))]
    return lines[0][:120] if lines else type(e).__name__


def measure(name: str, args) -> dict:
    """Returns {"engines": {engine: {"ms", "error", "low", "high"}}, "failed": {engine: why}, "ceiling_ms", "peak_gflops", "exact"}."""
    case = load(name, args.batch, args.cache)
    in_turn = args.threads > 1 and len(args.engines) > 1
    found, failed = (measure_in_processes if in_turn else measure_in_process)(case, args)
    result = {"engines": {}, "failed": failed, "exact": name not in SHARED}
    for engine, (error_, times) in found.items():
        low, middle, high = np.percentile(times, (25, 50, 75))
        result["engines"][engine] = {"ms": float(middle), "error": error_, "low": float(low), "high": float(high), "least": min(times)}
    peak, read = (result["engines"].pop(yardstick, None) for yardstick in YARDSTICKS)
    if peak and read:
        # The fastest measurement counts, because other work on the machine has disturbed the slower ones.
        result["peak_gflops"] = ceilings.peak_flops(args.threads) / peak["least"] / 1e6
        result["weights_ms"] = read["least"] / ceilings.read_times(ceilings.weight_bytes(case.path))
        if layers := ceilings.layers_of(case.path, case.feeds):
            result["ceiling_ms"] = ceilings.ceiling_flops(layers) / result["peak_gflops"] / 1e6
    return result


def measure_in_process(case: Case, args) -> tuple[dict, dict]:
    """Returns ({engine: (error, times in ms)}, {engine: why it was not measured})."""
    runners, errors, failed = {}, {}, {}
    for engine in args.engines:
        try:
            if engine in YARDSTICKS:
                size = ceilings.weight_bytes(case.path)
                runners[engine] = ceilings.peak_runner(args.threads) if engine == PEAK else ceilings.read_runner(size, args.threads)
                errors[engine] = 0.0
                continue
            run = make_runner(engine, case, args.threads)
            errors[engine] = error(run(), case.exact)
            runners[engine] = run
        except Exception as e:
            failed[engine] = reason_of(e)
    times = measure_here(runners, args.seconds, time.process_time if args.clock == "cpu" else time.perf_counter)
    return {engine: (errors[engine], times[engine]) for engine in runners}, failed


def measure_in_processes(case: Case, args) -> tuple[dict, dict]:
    """Measures each engine in a separate process, in turn, for a few rounds. One that fails or hangs is left out of later rounds."""
    found, failed = {}, {}
    for _ in range(ROUNDS):
        for engine in args.engines:
            if engine in failed:
                continue
            command = [sys.executable, __file__, "--child", case.name, "--engines", engine, "--threads", str(args.threads), "--seconds",
                       str(args.seconds / ROUNDS), "--batch", str(case.batch), "--cache", str(args.cache)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
                reply = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": f"exit status {done.returncode}"}
            except subprocess.TimeoutExpired:
                reply = {"failed": f"no result within {CHILD_SECONDS} s"}
            if "failed" in reply:
                failed[engine] = reply["failed"]
                found.pop(engine, None)
                continue
            found.setdefault(engine, (reply["error"], []))[1].append(statistics.median(reply["times"]))
    return found, failed


def child(args) -> None:
    """Measures one engine; runs in a separate process."""
    found, failed = measure_in_process(load(args.child, args.batch, args.cache), args)
    for error_, times in found.values():
        print("\n" + json.dumps({"error": error_, "times": times}))
    for reason in failed.values():
        print("\n" + json.dumps({"failed": reason}))


def resident_mb(field: str) -> float:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024


def memory_child(args) -> None:
    """Measures the peak beyond imports and inputs, and compares bits for other numbers of threads; runs in a separate process."""
    case, (engine,) = load(args.memory_child, args.batch, args.cache), args.engines
    module = __import__(engine)
    Path("/proc/self/clear_refs").write_text("5")  # this write resets the process's peak of resident memory
    before = resident_mb("VmRSS")

    def session(threads: int):
        options = module.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        return module.InferenceSession(str(case.path), options, providers=["CPUExecutionProvider"])

    own = session(1)
    for _ in range(2):
        outputs = own.run(None, case.feeds)
    result: dict = {"process": resident_mb("VmHWM") - before}
    if engine == ratios.OWN:
        result["account"] = own.memory().peak_bytes / 2**20
        del own
        same = lambda threads: all(bits(a) == bits(b) for a, b in zip(outputs, session(threads).run(None, case.feeds)))
        result["bits"] = {str(threads): same(threads) for threads in (2, 3)}
    print("\n" + json.dumps(result))


def bits(value) -> bytes:
    array = np.asarray(value)
    return array.tobytes() if array.dtype != object else repr(array.tolist()).encode()


def details(name: str, args) -> dict:
    """Returns peak memory and equality of bits, from separate processes."""
    replies = {}
    for engine in ("treadle", "onnxruntime"):
        if engine not in args.engines:
            continue
        command = [sys.executable, __file__, "--memory-child", name, "--engines", engine, "--batch", str(args.batch), "--cache", str(args.cache)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
        if done.returncode == 0:
            replies[engine] = json.loads(done.stdout.splitlines()[-1])
    if "treadle" not in replies:
        return {}
    own = replies["treadle"]
    peer = replies.get("onnxruntime", {}).get("process")
    return {"memory": {"account": own["account"], "process": own["process"], "onnxruntime": peer}, "bits": own["bits"]}


def measure_all(names: list[str], args) -> dict:
    """Measures all models, and prints results as they come. Returns them by model."""
    mask = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    results = {}
    for name in names:
        if args.details:
            found = details(name, args)
        if mask and args.threads == 1:
            os.sched_setaffinity(0, {max(mask)})
        try:
            results[name] = measure(name, args)
        except Exception as e:
            print(f"{name:24}{reason_of(e)}", flush=True)
            continue
        finally:
            if mask:
                os.sched_setaffinity(0, mask)
        if args.details:
            results[name] |= found
        print(line(name, results[name], [e for e in args.engines if e not in YARDSTICKS]), flush=True)
    return results


def line(name: str, result: dict, engines: list[str]) -> str:
    excluded = ratios.left_out(result)
    cells = [ratios.cell(result["engines"].get(e, {}), "*" if e in excluded else "") for e in engines]
    first, every, fraction = (f(result, *a) for f, a in ((ratios.ratio, [ratios.FIRST_PEERS]), (ratios.ratio, [ratios.ALL_PEERS]), (ratios.ceiling_fraction, [])))
    return f"{name:24}" + "".join(f"{c:>17}" for c in cells) + f"  x{ratios.shown(first)} x{ratios.shown(every)} {ratios.shown(fraction, '.0%')}"


def available(engines: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the engines that can be measured here, after the yardsticks, and why others cannot."""
    missing = {engine: reason for engine in engines if (reason := missing_package(engine))}
    if ceilings.library() is None:
        return [e for e in engines if e not in missing], missing | {"the ceiling": "no C compiler to measure the peak with"}
    return [*YARDSTICKS, *(e for e in engines if e not in missing)], missing


def title(args) -> str:
    clock = "CPU time" if args.clock == "cpu" else "medians"
    return f"{clock} in ms, {args.threads} thread{'s' if args.threads > 1 else ''}, batch {args.batch}; in brackets the largest error over the largest output."


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=".", help="regular expression over model names")
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=[*ENGINES, *YARDSTICKS])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--no-details", dest="details", action="store_false", help="leave out peak memory and bits, which take processes of their own")
    parser.add_argument("--output", type=Path, help="write the table here as well")
    parser.add_argument("--json", type=Path, help="write the results here")
    for hidden in ("--child", "--memory-child"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser


def model_names(only: str, batch: int = 1) -> list[str]:
    """Returns the architectures' names, and the shared models' if their folder is known (with batch 1 only, as their inputs are recorded)."""
    from architectures import ARCHITECTURES

    names = list(ARCHITECTURES) + (SHARED if "TREADLE_TEST_DATA" in os.environ and batch == 1 else [])
    return [name for name in names if re.search(only, name)]


def main() -> None:
    args = arguments().parse_args()
    if args.child:
        return child(args)
    if args.memory_child:
        return memory_child(args)
    if args.clock == "cpu" and args.threads > 1:
        sys.exit("--clock cpu: with several threads CPU time says nothing of how long a run takes")
    args.engines, missing = available(args.engines)
    for engine, reason in missing.items():
        print(f"{engine}: {reason}: no column", file=sys.stderr)
    results = measure_all(model_names(args.only, args.batch), args)
    lines = [title(args), "", *ratios.table(results, [e for e in args.engines if e not in YARDSTICKS]), "", *ratios.notes(results, missing)]
    print("\n" + "\n".join(lines))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("\n".join(lines) + "\n")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
