#!/usr/bin/env python3
"""Measures decoding with a growing KV cache, one token per run from an empty cache on, and compares with ONNX Runtime.

    TREADLE_TEST_DATA=... PYTHONPATH=build/python/python bench/decode.py [--model char_gpt_kv] [--tokens 200] [--rounds 10] [--threads 1] [--clock cpu]

Sequences of the engines alternate. treadle: a StatefulRun, whose states stay in the runtime. ONNX Runtime: the better of its two ways, states
handed back as OrtValues by an IOBinding, or as arrays. The first sequence of each is not in the figures but its own line.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np


def make_session(library, path: str, threads: int):
    options = library.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return library.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def pairs_of(session) -> dict[str, str]:
    """Returns the pairs of an input past_* and the output present_* whose value it gets in the next run."""
    outputs = {o.name for o in session.get_outputs()}
    pairs = {i.name: i.name.replace("past", "present") for i in session.get_inputs() if i.name.startswith("past")}
    missing = set(pairs.values()) - outputs
    if missing or not pairs:
        sys.exit(f"the model has no states of the form past… -> present… ({missing or 'no inputs past…'})")
    return pairs


def empty_states(session, pairs: dict) -> dict[str, np.ndarray]:
    extent = lambda d: d if isinstance(d, int) else (1 if "batch" in d else 0)
    return {i.name: np.zeros([extent(d) for d in i.shape], np.float32) for i in session.get_inputs() if i.name in pairs}


def stateful(session, pairs, empty):
    """Returns a function that begins a sequence. That function returns another one, which computes the scores of a token."""

    def begin():
        run = session.stateful(pairs, empty)
        return lambda token: run.run(["logits"], {"input_ids": token})[0]

    return begin


def by_arrays(session, pairs, empty):
    names = ["logits", *pairs.values()]

    def begin():
        states = dict(empty)

        def step(token):
            logits, *present = session.run(names, {"input_ids": token, **states})
            states.update(zip(pairs, present))
            return logits

        return step

    return begin


def by_binding(session, pairs, empty):
    import onnxruntime

    def begin():
        states = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in empty.items()}

        def step(token):
            binding = session.io_binding()
            binding.bind_cpu_input("input_ids", token)
            for name, value in states.items():
                binding.bind_ortvalue_input(name, value)
            for name in ("logits", *pairs.values()):
                binding.bind_output(name)
            session.run_with_iobinding(binding)
            logits, *present = binding.get_outputs()
            states.update(zip(pairs, present))
            return logits.numpy()

        return step

    return begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="char_gpt_kv", help="a shared model, or a file")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    import onnxruntime

    import treadle

    if args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = time.process_time_ns if args.clock == "cpu" else time.perf_counter_ns
    path = args.model if args.model.endswith(".onnx") else str(Path(os.environ["TREADLE_TEST_DATA"]) / "models" / f"{args.model}.onnx")
    ours, theirs = make_session(treadle, path, args.threads), make_session(onnxruntime, path, args.threads)
    pairs = pairs_of(theirs)
    empty = empty_states(theirs, pairs)
    ways = {
        "treadle": stateful(ours, pairs, empty),
        "treadle, arrays": by_arrays(ours, pairs, empty),
        "onnxruntime, binding": by_binding(theirs, pairs, empty),
        "onnxruntime, arrays": by_arrays(theirs, pairs, empty),
    }
    tokens = [np.array([[t]], np.int64) for t in np.random.default_rng(0).integers(0, 60, args.tokens)]
    taken = {way: [] for way in ways}
    last = {}
    for _ in range(args.rounds + 1):
        for way, begin in ways.items():
            step, times = begin(), []
            for token in tokens:
                start = clock()
                scores = step(token)
                times.append((clock() - start) / 1e3)
            taken[way].append(times)
            last[way] = scores
    reference = last["onnxruntime, arrays"]
    medians = {}
    print(f"us a token, {args.tokens} tokens, {args.threads} thread(s)    median     p99  p99/median    first 20   last 20 | first sequence: median, most")
    for way, rounds in taken.items():
        difference = np.abs(last[way] - reference).max()
        assert difference < 1e-3 * np.abs(reference).max(), (way, difference)
        times = np.array(rounds[1:])
        medians[way] = float(np.median(times))
        p99 = float(np.percentile(times, 99))
        steps = np.median(times, axis=0)  # for each token, the median over the rounds: noise hits each round at other tokens
        print(f"{way:38}{medians[way]:10.1f}{p99:8.1f}{p99 / medians[way]:12.2f}{np.median(steps[:20]):12.1f}{np.median(steps[-20:]):10.1f} |"
              f" {np.median(rounds[0]):8.1f}{max(rounds[0]):9.1f}   p99 of the lengths' medians / median {np.percentile(steps, 99) / np.median(steps):.2f}")  # fmt: skip
    best = min(medians["onnxruntime, binding"], medians["onnxruntime, arrays"])
    print(f"ONNX Runtime's better way over treadle: {best / medians['treadle']:.2f}")


if __name__ == "__main__":
    main()
