#!/usr/bin/env python3
"""Measures the memory of training steps of treadle.torch.Module and of PyTorch, each in a process of its own.

    PYTHONPATH=build/release/python bench/torch_memory.py [--only REGEX]
        [--memory-fraction 0.5 | --recompute-fraction 0.02 | --processes 2 | --checkpoint]

`peak` is the most that three steps have had resident beyond what the process had with the module made, after three steps before them: gradients,
the optimizer's state, activations, and what exporting this module has left behind. `exporter` is what exporting a module of one product takes
before that, once for a process: nearly all of it are PyTorch's exporter and what it imports. `--memory-fraction` and `--recompute-fraction` are
the modules', and `slower` is a step's time over that without (medians of seven steps, in turn with as many of the other's). `--processes 2`
shards a stack of transformer blocks with fully_shard (ZeRO stage 3) over Gloo, and gives the peak of a process with and without. `--checkpoint`
has each of these blocks called by torch.utils.checkpoint.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import architectures
import treadle.torch
from start_overhead import resident_mb
from torch_module import CASES, Loop

ENGINES: dict[str, Callable[[nn.Module], nn.Module]] = {"treadle": treadle.torch.Module, "torch": lambda module: module}


def warm_up(engine: str) -> float:
    """Returns what exporting needs for any module, in MB."""
    before = resident_mb("VmRSS")
    tiny = nn.Linear(4, 4)
    ENGINES[engine](tiny)(torch.ones(2, 4)).sum().backward()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_mb("VmRSS") - before


def peak_of_steps(loop: Loop, x: torch.Tensor, base: float) -> float:
    """Returns the peak of steps in MB beyond `base`."""
    for _ in range(3):
        loop.step(x)
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # releases memory that the export has freed
    Path("/proc/self/clear_refs").write_text("5")  # this write resets the process's peak of resident memory
    for _ in range(3):
        loop.step(x)
    return resident_mb("VmHWM") - base


def training_module(name: str) -> tuple[nn.Module, torch.Tensor]:
    module, x = architectures.make(name, CASES[name])
    module.train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module, x


def measure(name: str, engine: str) -> tuple[float, float]:
    fixed = warm_up(engine)
    module, x = training_module(name)
    base = resident_mb("VmRSS")
    wrapped = ENGINES[engine](module)
    return peak_of_steps(Loop(wrapped, wrapped), x, base), fixed


def fractions_of(memory: str, recompute: str) -> dict[str, float | None]:
    """Returns the keyword arguments of a module for these options."""
    return {"memory_fraction": float(memory), "recompute_fraction": None if recompute == "None" else float(recompute)}


def measure_slowdown(name: str, fractions: dict[str, float | None]) -> tuple[float, float]:
    """Returns a step's time with these arguments relative to that with all memory; and 0."""
    loops, times = [], []
    for given in (fractions, dict.fromkeys(fractions, 0.0)):
        module, x = training_module(name)
        wrapped = treadle.torch.Module(module, **given)
        loops.append(Loop(wrapped, wrapped))
        times.append([])
    for _ in range(8):
        for loop, series in zip(loops, times, strict=True):
            start = time.perf_counter()
            loop.step(x)
            series.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]) / statistics.median(times[1][1:]), 0.0


class Block(nn.Module):
    """A transformer block with pre-normalisation, written with plain operators."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.parts, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.parts(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // self.heads), -1)
        x = x + self.joined((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norms[1](x))))


class Checkpointed(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def measure_stack(engine: str, how: str, rank: int, count: int, port: int) -> tuple[float, float]:
    """:param how: with "whole" or "sharded", weights take most of the memory; with "kept" or "checkpointed", activations do"""
    if count > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", rank=rank, world_size=count)
    fixed = warm_up(engine)
    torch.manual_seed(0)
    shard = how == "sharded"
    width, length, depth = (256, 256, 12) if how in ("kept", "checkpointed") else (768, 64, 8)
    base = resident_mb("VmRSS")
    blocks = [ENGINES[engine](Block(width, width // 64)) for _ in range(depth)]
    stack: nn.Module = Checkpointed(blocks) if how == "checkpointed" else nn.Sequential(*blocks)
    if shard:
        for block in stack:  # type: ignore[attr-defined]
            fully_shard(block, reshard_after_forward=True)
        fully_shard(stack)
    elif count > 1:
        stack = nn.parallel.DistributedDataParallel(stack)
    peak = peak_of_steps(Loop(stack, stack), torch.randn(4, length, width), base)
    if count > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return peak, fixed


def in_process(*arguments: str) -> subprocess.Popen[str]:
    # For "stack", memory that the process frees must return to the system. malloc() therefore maps each large block separately, because a
    # freed block of the heap stays with the process if blocks above it are in use.
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": "1000000"} if arguments[0] == "stack" else {})
    return subprocess.Popen([sys.executable, __file__, "--child", *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def result(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Returns the peak memory, and the memory that the exporter needs."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"a process ended with status {process.returncode}")
    peak, fixed = map(float, output.split()[-2:])
    return peak, fixed


def stacks(hows: tuple[str, str], count: int) -> None:
    """Prints a table of both variants for each engine."""
    print(f"| engine | {hows[0]}, MB | {hows[1]}, MB | ratio |\n|---|---|---|---|")
    for engine in ENGINES:
        peaks = []
        for how in hows:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            processes = [in_process("stack", engine, how, str(rank), str(count), str(port)) for rank in range(count)]
            peaks.append(max(result(process)[0] for process in processes))
        print(f"| {engine} | {peaks[0]:.0f} | {peaks[1]:.0f} | {peaks[1] / peaks[0]:.2f} |", flush=True)


def limited(memory: float, recompute: float | None, only: str) -> None:
    fractions = (str(memory), str(recompute))
    print("| model | batch | peak, MB | PyTorch, MB | ratio | slower |\n|---|---|---|---|---|---|")
    rows = []
    for name, batch in CASES.items():
        if re.search(only, name):
            ours, theirs = (result(in_process("model", name, engine, *fractions))[0] for engine in ENGINES)
            rows.append((ours / theirs, result(in_process("slowdown", name, *fractions))[0]))
            print(f"| {name} | {batch} | {ours:.0f} | {theirs:.0f} | {rows[-1][0]:.2f} | {rows[-1][1]:.2f} |", flush=True)
    ratios, slower = zip(*rows, strict=True)
    print(f"\ngeometric means {statistics.geometric_mean(ratios):.2f} and {statistics.geometric_mean(slower):.2f}, highest {max(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=0, help="fully_shard over so many, with one thread each")
    parser.add_argument("--checkpoint", action="store_true", help="blocks by torch.utils.checkpoint")
    parser.add_argument("--memory-fraction", type=float, default=0.0, help="of the activations")
    parser.add_argument("--recompute-fraction", type=float, help="of a step's time, for values that are computed twice")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        warnings.simplefilter("error", treadle.torch.FallbackWarning)
        kind, *given = args.child
        if kind == "model":
            name, engine, memory, recompute = given
            ENGINES["treadle"] = partial(treadle.torch.Module, **fractions_of(memory, recompute))
            print(*measure(name, engine))
        elif kind == "slowdown":
            name, memory, recompute = given
            print(*measure_slowdown(name, fractions_of(memory, recompute)))
        else:
            print(*measure_stack(given[0], given[1], *map(int, given[2:])))
    elif args.memory_fraction or args.recompute_fraction is not None:
        limited(args.memory_fraction, args.recompute_fraction, args.only)
    elif args.processes:
        stacks(("whole", "sharded"), args.processes)
    elif args.checkpoint:
        stacks(("kept", "checkpointed"), 1)
    else:
        print("| model | batch | peak, MB | PyTorch, MB | ratio | exporter, MB |\n|---|---|---|---|---|---|")
        ratios = []
        for name, batch in CASES.items():
            if not re.search(args.only, name):
                continue
            (ours, fixed), (theirs, _) = (result(in_process("model", name, engine, "0", "None")) for engine in ENGINES)
            ratios.append(ours / theirs)
            print(f"| {name} | {batch} | {ours:.0f} | {theirs:.0f} | {ratios[-1]:.2f} | {fixed:.0f} |", flush=True)
        print(f"\ngeometric mean {statistics.geometric_mean(ratios):.2f}, highest {max(ratios):.2f}")


if __name__ == "__main__":
    main()
