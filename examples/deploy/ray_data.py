"""Runs a model on a data set with Ray: each actor has its own session and processes batches.

    python ray_data.py digits.onnx --rows 10000 --actors 2
"""

import argparse
import importlib
import os
import time

import numpy as np
import ray


class Predict:
    """Computes batches of `scores` from batches of the column `data`. Ray makes one object of this class in each actor."""

    def __init__(self, model, shape):
        runtime = importlib.import_module(os.environ.get("RUNTIME", "treadle"))  # "onnxruntime" runs the same lines
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # an actor has one core
        self.session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.name, self.shape = self.session.get_inputs()[0].name, shape

    def __call__(self, batch):
        data = np.ascontiguousarray(batch["data"], np.float32).reshape(-1, *self.shape)
        return {"id": batch["id"], "scores": self.session.run(None, {self.name: data})[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--shape", default="1,8,8", help="of one row")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--out", help="a .npz file with the scores")
    args = parser.parse_args()
    shape = [int(extent) for extent in args.shape.split(",")]
    ray.init(num_cpus=args.actors + 1, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"RUNTIME": os.environ.get("RUNTIME", "treadle")}})
    data = np.random.default_rng(0).random((args.rows, *shape), np.float32)
    rows = ray.data.from_numpy(data).add_column("id", lambda frame: np.arange(len(frame)), batch_format="pandas").repartition(2 * args.actors).materialize()
    started = time.perf_counter()
    scored = rows.map_batches(Predict, fn_constructor_args=(os.path.abspath(args.model), shape), batch_size=args.batch, concurrency=args.actors).materialize()
    seconds = time.perf_counter() - started
    print(f"{args.rows / seconds:.0f} rows/s")
    if args.out:
        batches = list(scored.iter_batches(batch_format="numpy"))
        np.savez(args.out, data=data, **{column: np.concatenate([batch[column] for batch in batches]) for column in ("id", "scores")})


if __name__ == "__main__":
    main()
