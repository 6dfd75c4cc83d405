"""Runs a model on a Spark data frame with mapInPandas: each partition makes a session and runs its batches.

    python spark.py digits.onnx --rows 10000 --partitions 2
"""

import argparse
import importlib
import os
import time

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession


def scorer(model, shape, runtime):
    """Returns the function that mapInPandas calls for each partition."""

    def score(frames):
        library = importlib.import_module(runtime)  # "onnxruntime" runs the same lines
        options = library.SessionOptions()
        options.intra_op_num_threads = 1  # a task has one core
        session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        for frame in frames:
            data = np.stack(frame["data"].to_list()).astype(np.float32).reshape(-1, *shape)
            yield pd.DataFrame({"id": frame["id"], "scores": list(session.run(None, {name: data})[0])})

    return score


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--shape", default="1,8,8", help="of one row")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--out", help="a .npz file with the scores")
    args = parser.parse_args()
    shape = [int(extent) for extent in args.shape.split(",")]
    spark = SparkSession.builder.master(f"local[{args.partitions}]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    data = np.random.default_rng(0).random((args.rows, int(np.prod(shape))), np.float32)
    rows = pd.DataFrame({"id": np.arange(args.rows), "data": list(data)})
    frame = spark.createDataFrame(rows, "id long, data array<float>").repartition(args.partitions).cache()
    frame.count()
    score = scorer(os.path.abspath(args.model), shape, os.environ.get("RUNTIME", "treadle"))
    scored = frame.mapInPandas(score, "id long, scores array<float>")
    scored.limit(1).toPandas()  # starts the workers
    started = time.perf_counter()
    result = scored.toPandas().sort_values("id")
    print(f"{args.rows / (time.perf_counter() - started):.0f} rows/s")
    if args.out:
        np.savez(args.out, data=data.reshape(-1, *shape), scores=np.stack(result["scores"].to_list()))
    spark.stop()


if __name__ == "__main__":
    main()
