#!/usr/bin/env python3
"""Measures RapidOCR, a package that imports onnxruntime, on onnxruntime and unchanged on Treadle: seconds for a page of text.

    PYTHONPATH=build/release/python bench/rapidocr.py [--rounds 3] [--lines 24]

Needs rapidocr-onnxruntime and onnxruntime. Each engine has a process of its own, with its default threads; they take turns. The page is drawn
here, and both must read the same text of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

WAYS = {"onnxruntime": [], "treadle": ["-m", "treadle.onnxruntime_shim"]}


def child(lines: int) -> None:
    import cv2
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR

    page = np.full((50 + 44 * lines, 850, 3), 255, np.uint8)
    for i in range(lines):
        cv2.putText(page, f"Line {i}: the quick brown fox jumps over {i * 37} lazy dogs", (30, 50 + 42 * i), cv2.FONT_HERSHEY_SIMPLEX, 0.75, (0, 0, 0), 2)
    read = RapidOCR()
    read(page)
    begin = time.perf_counter()
    found, _ = read(page)
    print(json.dumps({"seconds": time.perf_counter() - begin, "text": [line[1] for line in found]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=24, help="of text on the page")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.lines)
    times, texts = {way: [] for way in WAYS}, {}
    for _ in range(options.rounds):
        for way, prefix in WAYS.items():
            command = [sys.executable, *prefix, __file__, "--child", "--lines", str(options.lines)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"})
            result = json.loads(done.stdout.splitlines()[-1])
            times[way].append(result["seconds"])
            texts[way] = result["text"]
    for way, seconds in times.items():
        print(f"{way:12}{statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")
    ratio = statistics.median(a / b for a, b in zip(times["onnxruntime"], times["treadle"]))
    print(f"ratio {ratio:.2f}, {'the same text' if texts['onnxruntime'] == texts['treadle'] else 'OTHER TEXT'}")
    return None


if __name__ == "__main__":
    main()
