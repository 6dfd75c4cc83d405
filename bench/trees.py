#!/usr/bin/env python3
"""Compares tree ensembles with ONNX Runtime: a regressor of 1,000 full trees of depth 8 over 32 features, by batch.

    PYTHONPATH=build/python/python bench/trees.py [--trees 1000] [--depth 8] [--batches 1 100 10000] [--threads 1] [--clock cpu]

`--trees 1465 --depth 10` has 3 million nodes, which are to load within 3 s. Random splits and leaves; runs in turn in one process, medians.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
from onnx import TensorProto, helper


def ensemble(trees: int, depth: int, features: int) -> bytes:
    """Makes an ensemble. Nodes of a tree are numbered level by level: the children of i are 2i + 1 and 2i + 2."""
    random = np.random.default_rng(0)
    inner, leaves = 2**depth - 1, 2**depth
    nodes = inner + leaves
    ids = np.tile(np.arange(nodes), trees)
    is_leaf = ids >= inner
    attributes = {
        "nodes_treeids": np.repeat(np.arange(trees), nodes),
        "nodes_nodeids": ids,
        "nodes_featureids": np.where(is_leaf, 0, random.integers(0, features, trees * nodes)),
        "nodes_modes": ["LEAF" if leaf else "BRANCH_LEQ" for leaf in is_leaf],
        "nodes_values": np.where(is_leaf, 0, random.standard_normal(trees * nodes)).astype(np.float32),
        "nodes_truenodeids": np.where(is_leaf, 0, 2 * ids + 1),
        "nodes_falsenodeids": np.where(is_leaf, 0, 2 * ids + 2),
        "target_treeids": np.repeat(np.arange(trees), leaves),
        "target_nodeids": np.tile(np.arange(inner, nodes), trees),
        "target_ids": np.zeros(trees * leaves, np.int64),
        "target_weights": random.standard_normal(trees * leaves).astype(np.float32),
    }
    lists = {name: v if isinstance(v, list) else v.tolist() for name, v in attributes.items()}
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **lists)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])
    graph = helper.make_graph([node], "trees", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"trees": 1000, "depth": 8, "features": 32, "threads": 1, "rounds": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 100, 10000])
    parser.add_argument("--seconds", type=float, default=0.05, help="of a round")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    args = parser.parse_args()
    import onnxruntime

    import treadle

    if args.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    model = ensemble(args.trees, args.depth, args.features)
    sessions = {}
    for library in (treadle, onnxruntime):
        options = library.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = args.threads, 3
        started = time.perf_counter()
        sessions[library.__name__] = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        print(f"{library.__name__}: loaded in {time.perf_counter() - started:.2f} s")
    for batch in args.batches:
        x = np.random.default_rng(1).standard_normal((batch, args.features)).astype(np.float32)
        outputs = [session.run(None, {"x": x})[0].astype(np.float64) for session in sessions.values()]
        error = np.abs(outputs[0] - outputs[1]).max() / np.abs(outputs[1]).max()
        assert error < 1e-4, error
        times = {name: [] for name in sessions}
        for _ in range(args.rounds):
            for name, session in sessions.items():
                session.run(None, {"x": x})
                count, end, start = 0, time.perf_counter() + args.seconds, clock()
                while time.perf_counter() < end or count == 0:
                    session.run(None, {"x": x})
                    count += 1
                times[name].append((clock() - start) / count * 1e6)
        ours, theirs = (statistics.median(t) for t in times.values())
        ratio = statistics.median(b / a for a, b in zip(*times.values()))
        print(f"batch {batch:6}: treadle {ours:10.1f} us, ONNX Runtime {theirs:10.1f} us, ratio {ratio:.2f}, difference {error:.0e}", flush=True)


if __name__ == "__main__":
    main()
