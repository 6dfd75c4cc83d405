#!/usr/bin/env python3
"""Measures what a memory limit costs: in training a convolution network, and in inference with the least memory that a run needs.

    PYTHONPATH=build/python/python bench/memory_budget.py [--steps 5] [--rounds 3] [--models FOLDER] [--skip-training]

Training: steps of a small residual network (32 x 32 images, batch 32) without a limit and with one that leaves its activations half of what
they took, in turn; milliseconds are the process's CPU time, the best of the rounds' medians. The parameters must be the same bits.

Inference: for every *.onnx of the folder that random feeds suit, the least limit that a run can keep, as the error before a run names it. `node`
is the working set of the largest node: no run can do with less. Outputs with the least limit must be those without.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import time
from pathlib import Path

import numpy as np

import treadle
from treadle.train import Trainer


def residual_network(width: int = 16) -> bytes:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
            self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

        def forward(self, x):
            y = torch.relu(self.norms[0](self.first(x)))
            return torch.relu(self.norms[1](self.second(y)) + self.shortcut(x))

    torch.manual_seed(1)
    blocks = [Block(w, v, s) for w, v, s in [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)] for w, v in [(w * width, v * width)]]
    module = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)).eval()
    file = io.BytesIO()
    torch.onnx.export(module, (torch.zeros(1, 3, 32, 32),), file, opset_version=17, input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, dynamo=False)
    return file.getvalue()


def training(steps: int, rounds: int, part: float) -> None:
    model = residual_network()
    random = np.random.default_rng(0)
    images = random.standard_normal((32, 3, 32, 32)).astype(np.float32)
    labels = random.integers(0, 10, 32)
    options = {"learning_rate": 0.05, "momentum": 0.9, "num_threads": 1}
    free = Trainer(model, **options)
    free.step({"x": images}, labels)
    use = free.memory()
    standing = sum(use[name].bytes for name in ("weights", "packed", "scratch", "other"))
    peak = use["activations"].peak_bytes
    limit = standing + int(part * peak) + 4096
    limited = Trainer(model, memory_limit_bytes=limit, **options)
    limited.step({"x": images}, labels)

    def time_of(trainer: Trainer) -> float:
        times = []
        for _ in range(steps):
            start = time.process_time()
            trainer.step({"x": images}, labels)
            times.append((time.process_time() - start) * 1e3)
        return statistics.median(times)

    times = [(time_of(free), time_of(limited)) for _ in range(rounds)]
    without, within = min(t[0] for t in times), min(t[1] for t in times)
    same = all(np.array_equal(free.parameters[name], limited.parameters[name]) for name in free.parameters)
    print("| activations, bytes | limit for them | step, ms | with the limit, ms | slowdown | same bits | total peak within the limit |")
    print("|---|---|---|---|---|---|---|")
    print(f"| {peak} | {part:.0%} | {without:.1f} | {within:.1f} | {within / without - 1:+.1%} | {'yes' if same else 'NO'} | "
          f"{'yes' if limited.memory().peak_bytes <= limit else 'NO'} |\n")


def feeds_for(session: treadle.InferenceSession) -> dict[str, np.ndarray] | None:
    random = np.random.default_rng(0)
    dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(double)": np.float64,
              "tensor(uint8)": np.uint8}
    feeds = {}
    for info in session.get_inputs():
        if info.type not in dtypes:
            return None
        shape = [extent if isinstance(extent, int) else 1 for extent in info.shape]
        feeds[info.name] = random.standard_normal(shape).astype(dtypes[info.type]) if "float" in info.type else np.zeros(shape, dtypes[info.type])
    return feeds


def error_of(session: treadle.InferenceSession, feeds: dict[str, np.ndarray]) -> Exception | None:
    try:
        session.run(None, feeds)
    except Exception as error:
        return error
    return None


def inference(folder: Path) -> None:
    print("| model | arena, bytes | node | least arena | least / node | same bits |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for file in sorted(folder.glob("*.onnx")):
        try:
            options = treadle.SessionOptions()
            options.intra_op_num_threads = 1
            free = treadle.InferenceSession(str(file), options)
            feeds = feeds_for(free)
            if feeds is None:
                continue
            expected = free.run(None, feeds)
        except Exception:  # random feeds do not suit every model
            continue
        report = free._sess.memory()
        if report.arena_bytes == 0:
            continue
        options.memory_limit_bytes = 1 << 40
        limited = treadle.InferenceSession(str(file), options)
        limited.run(None, feeds)  # the first run packs the weights, so that `standing` includes the packed weights
        standing = sum(limited.memory()[name].bytes for name in ("weights", "packed", "scratch", "other"))
        limited.set_memory_limit(standing + 1)
        try:
            limited.run(None, feeds)
            print(f"| {file.stem} | {report.arena_bytes} | {report.largest_node_bytes} | none | | |")
            continue
        except Exception as error:
            found = re.search(r"needs at least (\d+).*activations and scratch (\d+)", str(error))
            if not found:
                print(f"| {file.stem} | | | {str(error)[:80]} | | |")
                continue
        limits, message = [int(found[1])], str(error_of(limited, feeds))
        if largest := re.search(r"can come out, (\d+)", message):  # the largest of the sizes that depend on the data
            limits.append(int(largest[1]))
        outputs = None
        for limit in limits:
            limited.set_memory_limit(limit)
            try:
                outputs = limited.run(None, feeds)
                break
            except Exception as error:
                message = str(error)
        if outputs is None:
            print(f"| {file.stem} | {report.arena_bytes} | {report.largest_node_bytes} | {found[2]}: too little: {message[:90]} | | |")
            continue
        if limit != limits[0]:
            print(f"| {file.stem} | {report.arena_bytes} | {report.largest_node_bytes} | {found[2]}, and {limit - limits[0]} for sizes that come out in the run | | |")
            continue
        same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(outputs, expected, strict=True) if isinstance(a, np.ndarray))
        ratio = int(found[2]) / max(report.largest_node_bytes, 64)
        worst = max(worst, ratio)
        print(f"| {file.stem} | {report.arena_bytes} | {report.largest_node_bytes} | {found[2]} | {ratio:.3f} | {'yes' if same else 'NO'} |", flush=True)
    print(f"\nlargest ratio of the least arena to the largest node: {worst:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", type=float, default=0.5, help="of the activations' peak that the limit leaves them")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--skip-training", action="store_true")
    arguments = parser.parse_args()
    if not arguments.skip_training:
        training(arguments.steps, arguments.rounds, arguments.part)
    if arguments.models:
        inference(arguments.models)


if __name__ == "__main__":
    main()
