#!/usr/bin/env python3
"""A training step of Treadle and of PyTorch in turn: forward, backward and SGD with momentum, on the same model, weights, images and labels.

    PYTHONPATH=build/release/python bench/training.py [--only REGEX] [--threads 1] [--rounds 7] [--compile] [--profile FILE]

Both begin with the same parameters, and take their steps in turn: a ratio is PyTorch's median over Treadle's, its loss beside ours after the last
step says that they did the same. `first` is the first step, with all that is made then. The loss is the cross-entropy of outputs of one or more
classes, or the mean square of others.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import statistics
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from torch import nn

import architectures
import treadle
from treadle.train import Trainer


def digits() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))


class CausalAttention(architectures.Attention):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        later = torch.full((t, t), -1e9).triu(1)
        weights = torch.softmax(q @ k.transpose(-2, -1) / (c // self.heads) ** 0.5 + later, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, c))


class Gpt(nn.Module):
    """A language model of characters, 10.7 million parameters."""

    def __init__(self, width: int = 384, heads: int = 6, layers: int = 6, vocabulary: int = 96) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(1, 128, width) * 0.1)
        self.body, self.norm, self.head = architectures.Transformer(width, heads, layers, True), nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.body.attention = nn.ModuleList(CausalAttention(width, heads) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(self.characters(ids) + self.positions)))


architectures.ARCHITECTURES["digits"] = (digits, lambda batch: torch.randn(batch, 1, 28, 28))
architectures.ARCHITECTURES["gpt"] = (Gpt, lambda batch: torch.randint(0, 96, (batch, 128)))
CASES = {"mlp": 64, "digits": 64, "resnet18": 8, "mobilenet_v2": 8, "vit_tiny": 8, "minilm6": 4, "gpt": 8, "lstm": 8, "unet": 4, "convnext_atto": 8}
OF_CLASSES = {"minilm6": None, "lstm": None, "gpt": -1}  # the axis of classes, where it is not 1; none: a mean of squares
RATE, MOMENTUM = 1e-3, 0.9


def exported(module: nn.Module, x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE)
    return file.getvalue()


def measure(name: str, batch: int, args: argparse.Namespace) -> float:
    module, x = architectures.make(name, batch)
    with torch.no_grad():
        for parameter in module.parameters():  # the exporter makes one of those that are equal
            parameter += 1e-3 * torch.randn(parameter.shape)
    model = exported(module, x)
    with torch.no_grad():
        y = module(x)
    axis = OF_CLASSES.get(name, 1)
    if axis is None:
        labels, loss_of = torch.randn(y.shape), nn.MSELoss()
    else:
        extents = list(y.shape)
        labels, entropy = torch.randint(0, extents.pop(axis), extents), nn.CrossEntropyLoss()
        loss_of = entropy if axis == 1 else lambda scores, wanted: entropy(scores.flatten(0, -2), wanted.flatten())

    options = treadle.SessionOptions()
    if args.profile:
        options.enable_profiling, options.profile_file_prefix = True, args.profile
    start = time.perf_counter()
    of_classes = {"loss": "mean_squared_error"} if axis is None else {"class_axis": axis}
    trainer = Trainer(model, learning_rate=RATE, momentum=MOMENTUM, num_threads=args.threads, sess_options=options, **of_classes)
    feeds, answers = {"x": x.numpy()}, labels.numpy()
    trainer.step(feeds, answers)
    first = time.perf_counter() - start

    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    run = torch.compile(module) if args.compile else module

    def torch_step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(run(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    start = time.perf_counter()
    torch_step()
    torch_first = time.perf_counter() - start
    ours, theirs = [], []
    for _ in range(args.rounds):
        start = time.perf_counter()
        loss = trainer.step(feeds, answers)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        torch_loss = torch_step()
        theirs.append(time.perf_counter() - start)
    if args.profile:
        print(trainer.end_profiling())
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"| {name} | {batch} | {statistics.median(ours) * 1e3:.2f} | {statistics.median(theirs) * 1e3:.2f} | {ratio:.2f} | {first * 1e3:.0f} | "
          f"{torch_first * 1e3:.0f} | {loss:.5g} | {torch_loss:.5g} |", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="against torch.compile instead of eager")
    parser.add_argument("--profile", default="", help="write Treadle's steps to a file with this prefix")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| model | batch | step, ms | PyTorch, ms | ratio | first, ms | PyTorch's | loss | PyTorch's |\n|---|---|---|---|---|---|---|---|---|")
    ratios = [measure(name, batch, args) for name, batch in CASES.items() if re.search(args.only, name)]
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
