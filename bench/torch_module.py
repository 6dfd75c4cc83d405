#!/usr/bin/env python3
"""Measures a training step of treadle.torch.Module and of PyTorch in turn, with the same weights, inputs, loss and optimizer.

    PYTHONPATH=build/release/python bench/torch_module.py [--only REGEX] [--threads 1] [--rounds 7] [--compile] [--autocast] [--crossing | --evaluation | --processes 2]

`ratio` is PyTorch's median step over Treadle's. `first` is the first step, export included; `batch` what the first step of another batch size costs
beyond later ones; the losses after the last step say that both did the same. `--autocast` has both under torch.autocast. `--crossing` measures what a step costs beside its kernels: modules of one
tiny product with more and more parameters. `--evaluation` measures batches of one under inference_mode, with weights in place and with `pack_weights`. `--processes 2` measures
DistributedDataParallel with Gloo.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import socket
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from torch import nn

import architectures
import treadle.torch
import training  # importing it adds "gpt" to the architectures


class Tagger(nn.Module):
    def __init__(self, vocabulary: int = 2000, width: int = 128, tags: int = 20) -> None:
        super().__init__()
        self.words, self.lstm, self.tags = nn.Embedding(vocabulary, width), nn.LSTM(width, width, 2, batch_first=True, bidirectional=True), nn.Linear(2 * width, tags)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tags(self.lstm(self.words(ids))[0])


class T5(nn.Module):
    """T5-small with half its layers: an encoder and a decoder that read the same ids."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        config = transformers.T5Config(vocab_size=2000, d_model=256, d_kv=32, d_ff=1024, num_layers=3, num_heads=8, dropout_rate=0.0, use_cache=False)
        self.model = transformers.T5ForConditionalGeneration(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, decoder_input_ids=ids, use_cache=False).logits


def ids(vocabulary: int, length: int) -> Callable[[int], torch.Tensor]:
    return lambda batch: torch.randint(0, vocabulary, (batch, length))


architectures.ARCHITECTURES["lstm_tagger"] = (Tagger, ids(2000, 64))
architectures.ARCHITECTURES["t5"] = (T5, ids(2000, 64))
CASES = {"resnet18": 8, "mobilenet_v2": 8, "efficientnet_b0": 4, "convnext_atto": 8, "vit_tiny": 8, "minilm6": 4, "gpt": 4, "t5": 4, "lstm_tagger": 8, "unet": 4}
SGD = {"lr": 1e-3, "momentum": 0.9}


class Loop:
    """A user's training loop over one batch: the mean square of the module's outputs, and SGD with momentum."""

    def __init__(self, module: nn.Module, run: Callable[[torch.Tensor], torch.Tensor], autocast: bool = False) -> None:
        self.run, self.optimizer, self.autocast = run, torch.optim.SGD(module.parameters(), **SGD), autocast

    def step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.run(x).float().square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def timed(function: Callable[..., float], *args: torch.Tensor) -> tuple[float, float]:
    start = time.perf_counter()
    result = function(*args)
    return time.perf_counter() - start, result


def measure(name: str, batch: int, args: argparse.Namespace) -> float:
    module, x = architectures.make(name, batch)
    module.train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # dropout is off, because both engines must compute the same
    other = copy.deepcopy(module)
    wrapped = treadle.torch.Module(module)
    ours, theirs = Loop(wrapped, wrapped, args.autocast), Loop(other, torch.compile(other) if args.compile else other, args.autocast)
    first, _ = timed(ours.step, x)
    torch_first, _ = timed(theirs.step, x)
    for loop in (ours, theirs):
        loop.step(x)
    times: tuple[list[float], list[float]] = ([], [])
    losses = [0.0, 0.0]
    for _ in range(args.rounds):
        for place, loop in enumerate((ours, theirs)):
            seconds, losses[place] = timed(loop.step, x)
            times[place].append(seconds)
    smaller = x[: batch // 2].clone()
    change = timed(ours.step, smaller)[0] - min(timed(ours.step, smaller)[0] for _ in range(3))
    medians = [statistics.median(values) for values in times]
    ratio = medians[1] / medians[0]
    log = treadle.torch.explain(wrapped)
    by = log.events[-1].exporter or log.events[-1].what
    print(f"| {name} | {batch} | {medians[0] * 1e3:.1f} | {medians[1] * 1e3:.1f} | {ratio:.2f} | {first:.1f} | {torch_first:.1f} | {change * 1e3:.1f} | "
          f"{losses[0]:.5g} | {losses[1]:.5g} | {by} |", flush=True)
    return ratio


class Scaled(nn.Module):
    """A module that has any number of parameters, and computes hardly anything."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.factors = nn.ParameterList(torch.ones(1) for _ in range(parameters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
        return x


class Empty(torch.autograd.Function):
    """A function that computes nothing. It shows the time that PyTorch needs for any function in Python."""

    @staticmethod
    def forward(ctx, result: torch.Tensor, gradients: list[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.gradients = gradients
        return result.clone()

    @staticmethod
    def backward(ctx, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, None, *ctx.gradients, *[None] * (len(ctx.saved_tensors) - len(ctx.gradients))


class Function(nn.Module):
    """A module that calls Empty with its parameters."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.all = list(module.parameters())
        self.gradients = [torch.ones_like(parameter) for parameter in self.all]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Empty.apply(x, self.gradients, *self.all, x)


def crossing(args: argparse.Namespace) -> None:
    print("| parameters | forward and backward, us | of that in the graph | an empty function of Python's | crossing | PyTorch, us |\n|---|---|---|---|---|---|")
    x = torch.ones(1)
    for parameters in (1, 10, 50, 100):
        module = Scaled(parameters)
        wrapped = treadle.torch.Module(copy.deepcopy(module))

        def step(run: Callable[[torch.Tensor], torch.Tensor]) -> float:
            y = run(x)
            y.backward(x)
            return 0.0

        step(wrapped)
        (plan,) = wrapped._manager._plans.values()
        feeds = plan[0].feeds([x])
        heads = torch.ones(1)

        def graph() -> float:
            fed = [torch.utils.dlpack.to_dlpack(x) if not hasattr(feed, "shape") else feed for feed in feeds]
            run, _ = plan[0].joint.forward_in_order(fed)
            run.begin_backward([torch.utils.dlpack.to_dlpack(heads)])
            run.advance_backward(list(range(parameters)))
            return 0.0

        def best(function: Callable[..., float], *given: object) -> float:
            return min(timed(function, *given)[0] for _ in range(2000)) * 1e6

        ours, within, empty = best(step, wrapped), best(graph), best(step, Function(copy.deepcopy(module)))
        print(f"| {parameters} | {ours:.1f} | {within:.1f} | {empty:.1f} | {ours - within - empty:.1f} | {best(step, module):.1f} |", flush=True)


def evaluation(args: argparse.Namespace) -> None:
    print("| model | PyTorch, ms | ratio | ratio with pack_weights |\n|---|---|---|---|")
    for name in CASES:
        if not re.search(args.only, name):
            continue
        module, x = architectures.make(name, 1)
        module.eval()
        runs = (treadle.torch.Module(module), treadle.torch.Module(module, pack_weights=True), module)
        with torch.inference_mode():
            for run in runs:
                for _ in range(2):
                    run(x)
            times = [[timed(lambda given, run=run: float(run(given).sum()), x)[0] for run in runs] for _ in range(args.rounds)]
        live, packed, eager = (statistics.median(values) for values in zip(*times))
        print(f"| {name} | {eager * 1e3:.1f} | {eager / live:.2f} | {eager / packed:.2f} |", flush=True)


def _process(rank: int, name: str, batch: int, count: int, rounds: int, port: int, folder: str) -> None:
    """One of several processes that train together: DistributedDataParallel with gradients in groups, with gradients together, and in PyTorch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=count)
    torch.manual_seed(0)
    loops = []
    for make in (treadle.torch.Module, lambda module: treadle.torch.Module(module, gradient_group_mb=1e9), lambda module: module):
        module, x = architectures.make(name, batch)
        module.train()
        wrapped = make(module)
        loops.append(Loop(module, nn.parallel.DistributedDataParallel(wrapped) if count > 1 else wrapped))
    times: list[list[float]] = [[] for _ in loops]
    for turn in range(rounds + 2):
        for loop, found in zip(loops, times, strict=True):
            torch.distributed.barrier()
            seconds, _ = timed(loop.step, x)
            if turn >= 2:
                found.append(seconds)
    if rank == 0:
        (Path(folder) / str(count)).write_text(" ".join(str(statistics.median(found)) for found in times))
    torch.distributed.destroy_process_group()


def processes(args: argparse.Namespace) -> None:
    """Compares samples per second of several processes with those of one. Each process has a whole batch."""
    print("| model | processes | step in groups, ms | together, ms | PyTorch, ms | samples/s over one process | PyTorch's |\n" + "|---" * 7 + "|")
    for name, batch in CASES.items():
        if not re.search(args.only, name):
            continue
        medians = {}
        for count in (1, args.processes):
            with socket.socket() as listener, tempfile.TemporaryDirectory() as folder:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
                listener.close()
                torch.multiprocessing.spawn(_process, (name, batch, count, args.rounds, port, folder), nprocs=count)
                medians[count] = [float(text) for text in (Path(folder) / str(count)).read_text().split()]
        groups, together, eager = medians[args.processes]
        print(f"| {name} | {args.processes} | {groups * 1e3:.1f} | {together * 1e3:.1f} | {eager * 1e3:.1f} | {args.processes * medians[1][1] / groups:.2f} | "
              f"{args.processes * medians[1][2] / eager:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="against torch.compile instead of eager")
    parser.add_argument("--autocast", action="store_true", help="both under torch.autocast to bfloat16")
    parser.add_argument("--crossing", action="store_true", help="what a step costs beside its kernels")
    parser.add_argument("--evaluation", action="store_true", help="forward passes alone")
    parser.add_argument("--processes", type=int, default=0, help="DistributedDataParallel over so many, with one thread each")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warnings.simplefilter("default", treadle.torch.FallbackWarning)
    if args.crossing:
        return crossing(args)
    if args.evaluation:
        return evaluation(args)
    if args.processes:
        return processes(args)
    print("| model | batch | step, ms | PyTorch, ms | ratio | first, s | PyTorch's | other batch, ms | loss | PyTorch's | exporter |\n" + "|---" * 11 + "|")
    ratios = [measure(name, batch, args) for name, batch in CASES.items() if re.search(args.only, name)]
    print(f"\ngeometric mean {np.exp(np.mean(np.log(ratios))):.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
