#!/usr/bin/env python3
"""Measures training steps of an embedding table and a small layer after it, in Treadle and PyTorch: all rows updated, or those that the batch has read.

    PYTHONPATH=build/release/python bench/lazy_updates.py [--rows 1000000] [--width 64] [--batch 128] [--steps 40]

CPU time of a step (median, one thread), and what the trainer holds at its peak. PyTorch's sparse column is `Embedding(sparse=True)` with SGD, SparseAdam
or Adagrad.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
import warnings
from collections.abc import Callable

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import torch
from torch import nn

from treadle.train import Trainer

CLASSES = 4
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, torch.optim.SGD),
    "adam": (torch.optim.Adam, torch.optim.SparseAdam),
    "adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
}


def network(rows: int, width: int, *, sparse: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(rows, width, sparse=sparse), nn.Linear(width, CLASSES))


def milliseconds(step: Callable[[np.ndarray, np.ndarray], None], batches: list[tuple[np.ndarray, np.ndarray]]) -> float:
    times = []
    for x, y in batches:
        begin = time.process_time()
        step(x, y)
        times.append(time.process_time() - begin)
    return 1e3 * statistics.median(times[len(times) // 4 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rows", 1_000_000), ("--width", 64), ("--batch", 128), ("--steps", 40)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    batches = [(random.integers(0, given.rows, given.batch), random.integers(0, CLASSES, given.batch)) for _ in range(given.steps)]
    file = io.BytesIO()
    torch.onnx.export(network(given.rows, given.width), (torch.zeros(given.batch, dtype=torch.long),), file, opset_version=17, input_names=["x"],
                      dynamo=False)
    loss_of = nn.CrossEntropyLoss()
    for name, (dense, sparse) in OPTIMIZERS.items():
        for lazy in (False, True):
            trainer = Trainer(file.getvalue(), optimizer=name, lazy_updates=lazy, num_threads=1)
            ours = milliseconds(lambda x, y: trainer.step({"x": x}, y), batches)
            peak = trainer.memory().peak_bytes
            del trainer
            module = network(given.rows, given.width, sparse=lazy)
            optimizers = [(sparse if lazy else dense)(module[0].parameters(), lr=0.01), dense(module[1].parameters(), lr=0.01)]

            def step(x: np.ndarray, y: np.ndarray) -> None:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss_of(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
                for optimizer in optimizers:
                    optimizer.step()

            theirs = milliseconds(step, batches)
            print(f"{name:8} {'rows' if lazy else 'table':6} Treadle {ours:9.3f} ms, {peak / 1e6:7.1f} MB   PyTorch {theirs:9.3f} ms", flush=True)


if __name__ == "__main__":
    main()
