#!/usr/bin/env python3
"""Quantizes models, and measures the sizes, the errors, and the times beside ONNX Runtime (and OpenVINO) on the same file.

    bench/quantized.py --data /path/to/shared/data [--only REGEX] [--rounds 9]
    bench/quantized.py --set architectures [--only REGEX] [--threads 2] [--cache FOLDER]

One thread and its CPU time, or more threads and the elapsed time, as idle threads of some pools spin; the engines take turns in one process, the
ratios are medians over rounds.

- `--set shared` quantizes the shared models with Treadle. The error is that of the outputs against ONNX Runtime's on the float model, over the
  reference inputs of each model (calibration is on random changes of them, so that no sample is measured that was calibrated on).
- `--set architectures` exports models of bench/architectures.py and quantizes them with onnxruntime.quantization.quantize_static: Q/DQ, uint8
  activations, int8 weights by channel, calibrated on the random example input. dB is each engine's agreement with ONNX Runtime without its
  optimizer on the same file; `ratio` is the better of ONNX Runtime and OpenVINO over Treadle.
"""

import argparse
import logging
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime

import treadle
from treadle import quantize

CASES = (
    ("squeezenet_fp32", "static", {}),
    ("ultraface_rfb320", "static", {}),
    ("cifar10_cnn", "static", {}),
    ("sinet_portrait_seg", "static", {}),
    ("ppocr_cls_v2", "static", {}),
    ("char_gpt_kv", "dynamic", {}),
    ("char_gpt_kv", "weights", {"bits": 4}),
    ("char_gpt_kv", "weights", {"bits": 8}),
)


ARCHITECTURES = ("minilm6", "vit_tiny", "regnet_y002", "unet", "mobilenet_v2", "resnet50", "resnet18", "densenet121", "efficientnet_b0")


def sample_of(data, name):
    for file in sorted((data / "refs").glob(f"{name}*.npz")):
        with np.load(file) as arrays:
            found = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
        if found:
            return found
    raise FileNotFoundError(f"no reference inputs of {name}")


def changed(sample, seed):
    """Returns the sample with another contrast and some noise; integers stay."""
    random, result = np.random.default_rng(seed), {}
    for name, value in sample.items():
        if value.dtype == np.float32 and value.size:
            noise = random.standard_normal(value.shape).astype(np.float32) * 0.02 * value.std()
            value = (value * np.float32(random.uniform(0.8, 1.2)) + noise).astype(np.float32)
        result[name] = value
    return result


def decibels(expected, actual):
    signal = sum(float(np.sum(np.square(e, dtype=np.float64))) for e in expected)
    noise = sum(float(np.sum(np.square(e.astype(np.float64) - a))) for e, a in zip(expected, actual))
    return 10 * np.log10(signal / max(noise, 1e-30))


def per_run(run, clock):
    run()  # brings the weights into the caches
    begin, count = clock(), 0
    while clock() - begin < 0.15:
        run()
        count += 1
    return (clock() - begin) / count


def take_turns(runs, rounds, clock):
    """Returns the seconds of each run by rounds, and the medians in ms."""
    times = [[per_run(run, clock) for run in runs] for _ in range(rounds)]
    return times, [statistics.median(column) * 1000 for column in zip(*times)]


def peer(path, threads, optimize=True):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ours(path, threads):
    options = treadle.SessionOptions()
    options.intra_op_num_threads = threads
    return treadle.InferenceSession(str(path), options)


def quantized_architecture(name, cache):
    """Returns the file of the quantized architecture and its feeds; makes them if that was not done before."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import models
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    source, feeds, _ = models.export(name, 1, cache)
    path = source.with_suffix(".qdq.onnx")

    class Reader(CalibrationDataReader):
        samples = iter([feeds])

        def get_next(self):
            return next(self.samples, None)

    if not path.exists():
        logging.disable(logging.WARNING)
        quantize_static(
            str(source),
            str(path),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return path, feeds


def measure_architectures(arguments, clock):
    from engines import Case, make_runner, missing_package

    print("| model | dB treadle | dB ORT | dB OpenVINO | treadle ms | ORT ms | OpenVINO ms | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ARCHITECTURES:
        if not re.search(arguments.only, name):
            continue
        path, feeds = quantized_architecture(name, arguments.cache)
        expected = peer(path, 1, optimize=False).run(None, feeds)
        mine, theirs = ours(path, arguments.threads), peer(path, arguments.threads)
        runs = [lambda: mine.run(None, feeds), lambda: theirs.run(None, feeds)]
        if not missing_package("openvino"):
            runs.append(make_runner("openvino", Case(name, path, feeds, expected), arguments.threads))
        errors = [f"{decibels(expected, run()):.1f}" for run in runs]
        times, medians = take_turns(runs, arguments.rounds, clock)
        ratio = statistics.median(min(t[1:]) / t[0] for t in times)
        shown = [f"{value:.2f}" for value in medians]
        absent = ["–"] * (3 - len(runs))
        print(f"| {name} | {' | '.join(errors + absent + shown + absent)} | {ratio:.2f} |", flush=True)


def measure_shared(arguments, clock):
    threads = arguments.threads
    print("| model | mode | MB | dB treadle | dB ORT | ms float | ms | ORT ms | float / quantized | ORT / treadle |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, mode, options in CASES:
            if not re.search(arguments.only, name):
                continue
            path, output = arguments.data / "models" / f"{name}.onnx", pathlib.Path(folder) / "quantized.onnx"
            sample = sample_of(arguments.data, name)
            if mode == "static":
                report = quantize.static(path, [changed(sample, seed) for seed in range(8)], output, **options).report
            else:
                report = getattr(quantize, mode)(path, output, **options).report
            sessions = [ours(path, threads), ours(output, threads), peer(output, threads)]
            expected = [value for value in peer(path, threads).run(None, sample) if getattr(value, "dtype", None) == np.float32]
            errors = []
            for session in sessions[1:]:
                results = [value for value in session.run(None, sample) if getattr(value, "dtype", None) == np.float32]
                errors.append(decibels(expected, results))
            times, medians = take_turns([lambda s=session: s.run(None, sample) for session in sessions], arguments.rounds, clock)
            gain, ratio = statistics.median(t[0] / t[1] for t in times), statistics.median(t[2] / t[1] for t in times)
            label = mode + "".join(f" {key} {value}" for key, value in options.items())
            size = f"{report.bytes_before / 1e6:.2f} → {report.bytes_after / 1e6:.2f}"
            print(
                f"| {name} | {label} | {size} | {errors[0]:.1f} | {errors[1]:.1f} "
                f"| {medians[0]:.3f} | {medians[1]:.3f} | {medians[2]:.3f} | {gain:.2f} | {ratio:.2f} |",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", choices=["shared", "architectures"], default="shared")
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("TREADLE_TEST_DATA"), required=False)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    (measure_shared if arguments.set == "shared" else measure_architectures)(arguments, clock)


if __name__ == "__main__":
    main()
