#!/usr/bin/env python3
"""Quantises the shared models, and measures the sizes, the errors, and the times beside ONNX Runtime on the same file.

    bench/quantized.py --data /path/to/shared/data [--only REGEX] [--rounds 9]

One thread and its CPU time; the engines take turns in one process, the ratios are medians over rounds. The error is that of the outputs
against ONNX Runtime's on the float model, over the reference inputs of each model (calibration is on random changes of them, so that no
sample is measured that was calibrated on).
"""

import argparse
import os
import pathlib
import re
import statistics
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


def per_run(session, sample):
    begin, count = time.process_time(), 0
    while time.process_time() - begin < 0.15:
        session.run(None, sample)
        count += 1
    return (time.process_time() - begin) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("TREADLE_TEST_DATA"), required=False)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    theirs = onnxruntime.SessionOptions()
    theirs.intra_op_num_threads = 1
    theirs.log_severity_level = 3
    ours = treadle.SessionOptions()
    ours.intra_op_num_threads = 1

    def peer(path):
        return onnxruntime.InferenceSession(str(path), theirs, providers=["CPUExecutionProvider"])

    print("| model | mode | MB | dB treadle | dB ORT | ms float | ms | ORT ms | float / quantised | ORT / treadle |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, mode, options in CASES:
            if not re.search(arguments.only, name):
                continue
            path, output = arguments.data / "models" / f"{name}.onnx", pathlib.Path(folder) / "quantised.onnx"
            sample = sample_of(arguments.data, name)
            if mode == "static":
                report = quantize.static(path, [changed(sample, seed) for seed in range(8)], output, **options).report
            else:
                report = getattr(quantize, mode)(path, output, **options).report
            sessions = [treadle.InferenceSession(str(path), ours), treadle.InferenceSession(str(output), ours), peer(output)]
            expected = [value for value in peer(path).run(None, sample) if getattr(value, "dtype", None) == np.float32]
            errors = []
            for session in sessions[1:]:
                results = [value for value in session.run(None, sample) if getattr(value, "dtype", None) == np.float32]
                errors.append(decibels(expected, results))
            times = [[per_run(session, sample) for session in sessions] for _ in range(arguments.rounds)]
            medians = [statistics.median(column) * 1000 for column in zip(*times)]
            gain, ratio = statistics.median(t[0] / t[1] for t in times), statistics.median(t[2] / t[1] for t in times)
            label = mode + "".join(f" {key} {value}" for key, value in options.items())
            size = f"{report.bytes_before / 1e6:.2f} → {report.bytes_after / 1e6:.2f}"
            print(
                f"| {name} | {label} | {size} | {errors[0]:.1f} | {errors[1]:.1f} "
                f"| {medians[0]:.3f} | {medians[1]:.3f} | {medians[2]:.3f} | {gain:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
