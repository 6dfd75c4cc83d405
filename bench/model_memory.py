#!/usr/bin/env python3
"""Prints what the arenas of models need: a table of every *.onnx under a folder, by `treadle inspect --json`.

usage: bench/model_memory.py FOLDER [--program build/release/src/cli/treadle] [options of inspect, such as --default-dim 4]

Symbols that are not named are 1. `in order` is best fit in the order of execution, which is how ONNX Runtime plans a run that it has
recorded, over the same buffers; `naive` is the sum of all buffers.
"""

import argparse
import json
import pathlib
import subprocess


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/src/cli/treadle")
    arguments, options = parser.parse_known_args()  # the script passes unknown options on to `inspect`
    print("| model | nodes | arena, bytes | lower bound | ratio | in order | naive | naive / arena |")
    print("|---|---|---|---|---|---|---|---|")
    worst = 1.0
    for file in sorted(arguments.folder.rglob("*.onnx")):
        run = subprocess.run([arguments.program, "inspect", file, "--json", *options], capture_output=True, text=True)
        report = json.loads(run.stdout) if run.returncode == 0 else {}
        arena = report.get("arena_bytes")
        if not arena:
            print(f"| {file.stem} | | {'no activations in the arena' if arena == 0 else 'not run with random inputs'} | | | | | |")
            continue
        bound, in_order, naive = (report[f"arena_{key}_bytes"] for key in ("lower_bound", "in_order", "sum"))
        worst = max(worst, arena / bound)
        nodes = sum(report["optimized"]["operators"].values())
        print(f"| {file.stem} | {nodes} | {arena} | {bound} | {arena / bound:.3f} | {in_order} | {naive} | {naive / arena:.1f} |", flush=True)
    print(f"\nlargest ratio of arena to lower bound: {worst:.4f}")


if __name__ == "__main__":
    main()
