#!/usr/bin/env python3
"""Fits MiniMalloc's challenging instances with `treadle plan`, checks every plan on its own, and prints the table of docs/plan-memory.md.

usage: bench/plan_memory.py FOLDER [--program build/release/src/cli/treadle] [--rounds 3] [--minimise SECONDS]
"""

import argparse
import csv
import pathlib
import re
import statistics
import subprocess
import tempfile

CAPACITY = 1048576


def check(path):
    """Returns the height of the plan. @raise ValueError if two buffers share a byte at the same time"""
    rows = [{key: int(value) for key, value in row.items() if key != "id"} for row in csv.DictReader(open(path))]
    for i, a in enumerate(rows):
        for b in rows[:i]:
            if a["lower"] < b["upper"] and b["lower"] < a["upper"]:
                if a["offset"] < b["offset"] + b["size"] and b["offset"] < a["offset"] + a["size"]:
                    raise SystemExit(f"{path}: two buffers overlap: {a} {b}")
    return max(row["offset"] + row["size"] for row in rows), len(rows)


def plan(program, file, capacity, seconds):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "plan.csv"
        command = [program, "plan", file, "--capacity", str(capacity), "--time-limit", str(seconds), "-o", out]
        text = subprocess.run(command, capture_output=True, text=True).stdout
        height, count = check(out)
    bound = int(re.search(r"lower bound\s+(\d+)", text).group(1))
    return height, count, bound, float(re.search(r"time\s+([\d.]+)", text).group(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--program", default="build/release/src/cli/treadle")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minimise", type=float, default=0, help="also look for the smallest arena, for so many seconds")
    options = parser.parse_args()
    total = 0.0
    print("| instance | buffers | height | lower bound | fits | time, s |" + (" smallest found |" if options.minimise else ""))
    print("|---|---|---|---|---|---|" + ("---|" if options.minimise else ""))
    for file in sorted(options.folder.glob("*.csv")):
        results = [plan(options.program, file, CAPACITY, 120) for _ in range(options.rounds)]
        height, count, bound, _ = results[0]
        seconds = statistics.median(result[3] for result in results)
        total += seconds
        line = f"| {file.name[0]} | {count} | {height} | {bound} | {'yes' if height <= CAPACITY else 'no'} | {seconds:.3f} |"
        if options.minimise:
            line += f" {plan(options.program, file, 0, options.minimise)[0]} |"
        print(line, flush=True)
    print(f"| all | | | | | {total:.3f} |")


if __name__ == "__main__":
    main()
