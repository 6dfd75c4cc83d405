#!/usr/bin/env python3
"""Measures a training step of Treadle and of PyTorch in turn: forward, backward and SGD with momentum, on the same model, weights, images and labels.

    PYTHONPATH=build/release/python bench/training.py [--only REGEX] [--threads 1] [--rounds 7] [--compile | --memory] [--early-updates] [--profile FILE]

Both begin with the same parameters, and take their steps in turn: a ratio is PyTorch's median over Treadle's, its loss beside ours after the last
step says that they did the same. `first` is the first step, with all that is made then. The loss is the cross-entropy of outputs of one or more
classes, or the mean square of others.

With several threads each has a process of its own, because a pool that spins while the other one's threads compute takes their time. The processes
take turns of a few steps; the first step of a turn is not counted.

`--memory` gives what each has resident at most, from the model's file or its class to the fourth step, in a process of its own: parameters, the
optimizer's state, gradients, activations, and what making the graph takes. It is counted from what the process has after a step of the smallest
model. `--recompute-fraction` and `--early-updates` are Treadle's.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from torch import nn

import architectures
import treadle
from start_overhead import resident_mb
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
    """A language model of characters with 10.7 million parameters."""

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
# By model: the axis of the classes in the output, if it is not axis 1; None: there are no classes, and the loss is the mean square.
OF_CLASSES = {"minilm6": None, "lstm": None, "gpt": -1}
RATE, MOMENTUM = 1e-3, 0.9


def exported(module: nn.Module, x: torch.Tensor) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, opset_version=17, input_names=["x"], output_names=["y"], dynamo=False, do_constant_folding=False,
                          training=torch.onnx.TrainingMode.PRESERVE)
    return file.getvalue()


def make_module(name: str, batch: int) -> tuple[nn.Module, torch.Tensor]:
    module, x = architectures.make(name, batch)
    with torch.no_grad():
        for parameter in module.parameters():  # makes parameters differ; otherwise the exporter would merge equal ones
            parameter += 1e-3 * torch.randn(parameter.shape)
    return module, x


def make_loss(name: str, y_shape: torch.Size) -> tuple[torch.Tensor, Callable[[torch.Tensor, torch.Tensor], torch.Tensor], dict[str, Any]]:
    """Returns labels, PyTorch's loss, and the loss arguments of a Trainer."""
    axis = OF_CLASSES.get(name, 1)
    if axis is None:
        return torch.randn(y_shape), nn.MSELoss(), {"loss": "mean_squared_error"}
    extents = list(y_shape)
    labels, entropy = torch.randint(0, extents.pop(axis), extents), nn.CrossEntropyLoss()
    loss_of = entropy if axis == 1 else lambda scores, wanted: entropy(scores.flatten(0, -2), wanted.flatten())
    return labels, loss_of, {"class_axis": axis}


def torch_steps(module: nn.Module, run: nn.Module, x: torch.Tensor, labels: torch.Tensor,
                loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[], float]:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(run(x), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def print_row(name: str, batch: int, ours: list[float], theirs: list[float], firsts: tuple[float, float], losses: tuple[float, float]) -> float:
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"| {name} | {batch} | {statistics.median(ours) * 1e3:.2f} | {statistics.median(theirs) * 1e3:.2f} | {ratio:.2f} | {firsts[0] * 1e3:.0f} | "
          f"{firsts[1] * 1e3:.0f} | {losses[0]:.5g} | {losses[1]:.5g} |", flush=True)
    return ratio


def measure(name: str, batch: int, args: argparse.Namespace) -> float:
    module, x = make_module(name, batch)
    model = exported(module, x)
    with torch.no_grad():
        labels, loss_of, of_loss = make_loss(name, module(x).shape)

    options = treadle.SessionOptions()
    if args.profile:
        options.enable_profiling, options.profile_file_prefix = True, args.profile
    start = time.perf_counter()
    trainer = Trainer(model, learning_rate=RATE, momentum=MOMENTUM, num_threads=args.threads, sess_options=options,
                      recompute_fraction=args.recompute_fraction, early_updates=args.early_updates, **of_loss)
    feeds, answers = {"x": x.numpy()}, labels.numpy()
    trainer.step(feeds, answers)
    first = time.perf_counter() - start

    torch_step = torch_steps(module, torch.compile(module) if args.compile else module, x, labels, loss_of)
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
    return print_row(name, batch, ours, theirs, (first, torch_first), (loss, torch_loss))


def steps_from(engine: str, name: str, batch: int, given: Path, args: argparse.Namespace) -> Callable[[], float]:
    """Makes all that an engine needs from the files that the parent process wrote."""
    x, labels = torch.load(given / "x.pt"), torch.load(given / "labels.pt")
    _, loss_of, of_loss = make_loss(name, torch.Size(torch.load(given / "y_shape.pt")))
    if engine == "torch":
        module, _ = architectures.make(name, batch)
        if args.compare:
            module.load_state_dict(torch.load(given / "state.pt"))
        return torch_steps(module, torch.compile(module) if args.compile else module, x, labels, loss_of)
    trainer = Trainer(given / "model.onnx", learning_rate=RATE, momentum=MOMENTUM, num_threads=args.threads,
                      recompute_fraction=args.recompute_fraction, early_updates=args.early_updates, **of_loss)
    feeds, answers = {"x": x.numpy()}, labels.numpy()
    return lambda: trainer.step(feeds, answers)


def peak_of(engine: str, name: str, folder: Path, args: argparse.Namespace) -> float:
    """Measures the peak in MB; runs in a separate process."""
    steps_from(engine, "mlp", 1, folder / "mlp", args)()
    Path("/proc/self/clear_refs").write_text("5")  # this write resets the process's peak of resident memory
    base = resident_mb("VmRSS")
    step = steps_from(engine, name, CASES[name], folder / name, args)
    for _ in range(4):
        step()
    return resident_mb("VmHWM") - base


def write_case(name: str, batch: int, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    module, x = make_module(name, batch)
    (folder / "model.onnx").write_bytes(exported(module, x))
    torch.save(module.state_dict(), folder / "state.pt")
    with torch.no_grad():
        y_shape = copy.deepcopy(module)(x).shape
    torch.save(x, folder / "x.pt")
    torch.save(list(y_shape), folder / "y_shape.pt")
    torch.save(make_loss(name, y_shape)[0], folder / "labels.pt")


def child_command(purpose: str, engine: str, name: str, folder: str, args: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, "--child", engine, name, folder, "--threads", str(args.threads)]
    if args.recompute_fraction is not None:
        command += ["--recompute-fraction", str(args.recompute_fraction)]
    return [*command, f"--{purpose}", *["--early-updates"] * args.early_updates, *["--compile"] * args.compile]


def take_turns(engine: str, name: str, folder: Path, args: argparse.Namespace) -> None:
    """Runs steps in a separate process: reads how many from a line, and writes a line with their times and the last loss."""
    start = time.perf_counter()
    step = steps_from(engine, name, CASES[name], folder / name, args)
    if engine == "torch":
        start = time.perf_counter()  # leaves out the making of PyTorch's module; the trainer makes its graph in the first step
    loss, times = step(), [time.perf_counter() - start]
    while True:
        print(json.dumps({"times": times, "loss": loss}), flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            times.append(time.perf_counter() - start)


def measure_apart(name: str, batch: int, args: argparse.Namespace) -> float:
    steps_a_turn = 4
    with tempfile.TemporaryDirectory() as folder:
        write_case(name, batch, Path(folder) / name)
        firsts, times, answers = [], ([], []), [{}, {}]
        processes = []
        for engine in ("treadle", "torch"):
            processes.append(subprocess.Popen(child_command("compare", engine, name, folder, args), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            firsts.append(json.loads(processes[-1].stdout.readline())["times"][0])
        for _ in range(args.rounds):
            for i, process in enumerate(processes):
                print(steps_a_turn, file=process.stdin, flush=True)
                answers[i] = json.loads(process.stdout.readline())
                times[i].extend(answers[i]["times"][1:])
        for process in processes:
            process.stdin.close()
            process.wait()
    return print_row(name, batch, *times, tuple(firsts), tuple(answer["loss"] for answer in answers))


def compare_memory(args: argparse.Namespace) -> None:
    print("| model | batch | peak, MB | PyTorch, MB | ratio |\n|---|---|---|---|---|")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: batch for name, batch in CASES.items() if re.search(args.only, name)}
        for name, batch in ({"mlp": 1} | chosen).items():
            write_case(name, batch, Path(folder) / name)
        for name in chosen:
            peaks = []
            for engine in ("treadle", "torch"):
                command = child_command("memory", engine, name, folder, args)
                peaks.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
            ratios.append(peaks[0] / peaks[1])
            print(f"| {name} | {CASES[name]} | {peaks[0]:.0f} | {peaks[1]:.0f} | {ratios[-1]:.2f} |", flush=True)
    print(f"\ngeometric mean {statistics.geometric_mean(ratios):.2f}, highest {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="against torch.compile instead of eager")
    parser.add_argument("--memory", action="store_true", help="peaks instead of times")
    parser.add_argument("--recompute-fraction", type=float, default=None, help="of a step's time, for values that it computes twice")
    parser.add_argument("--early-updates", action="store_true", help="update parameters while gradients are computed")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--compare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--profile", default="", help="write Treadle's steps to a file with this prefix")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        engine, name, folder = args.child
        return take_turns(engine, name, Path(folder), args) if args.compare else print(peak_of(engine, name, Path(folder), args))
    if args.memory:
        return compare_memory(args)
    print("| model | batch | step, ms | PyTorch, ms | ratio | first, ms | PyTorch's | loss | PyTorch's |\n|---|---|---|---|---|---|---|---|---|")
    measured = measure if args.threads == 1 or args.profile else measure_apart
    ratios = [measured(name, batch, args) for name, batch in CASES.items() if re.search(args.only, name)]
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
