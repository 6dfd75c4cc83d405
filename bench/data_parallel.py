#!/usr/bin/env python3
"""Measures samples per second of training with one process and with several of one thread each, by mpirun or torch.distributed.

    PYTHONPATH=build/release/python bench/data_parallel.py [--only REGEX] [--ranks 2] [--rounds 5] [--launcher mpi|torch]

Each rank computes a batch of the same size, so that two ranks at their best do twice the samples. Rounds of one process and of several take turns,
and a ratio is of medians: a busy machine slows both. `together` is the same with as many processes that know nothing of each other: what the
machine gives, without communication.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

CASES = {"mlp": 64, "resnet18": 8}
STEPS, WARM_UP = 12, 3


def work(model: str, batch: int, launcher: str, options: dict[str, object]) -> None:
    """Runs one rank, and prints the seconds that its steps took."""
    import numpy as np

    import treadle.communicator
    from treadle.train import Trainer

    communicator = None
    if launcher == "torch":
        import torch.distributed

        torch.distributed.init_process_group("gloo")
    if launcher in ("mpi", "torch"):
        communicator = treadle.communicator.find()
    if launcher != "alone":  # each rank gets one CPU
        place = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", os.environ.get("LOCAL_RANK", os.environ.get("BENCH_PLACE", 0))))
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[place % len(cpus)]})
    trainer = Trainer(model, learning_rate=1e-3, momentum=0.9, num_threads=1, communicator=communicator, **options)
    random = np.random.default_rng(trainer.rank)
    with np.load(Path(model).with_suffix(".npz")) as sample:
        x, classes = sample["x"], int(sample["classes"])
    x = x + random.normal(0, 0.01, x.shape).astype(x.dtype)
    labels = random.integers(0, classes, batch)
    for _ in range(WARM_UP):
        trainer.step({"x": x}, labels)
    start = time.perf_counter()
    for _ in range(STEPS):
        trainer.step({"x": x}, labels)
    sys.stdout.write(f"SECONDS {time.perf_counter() - start}\n")  # a single call: the ranks write to one pipe, and their lines must not mix
    sys.stdout.flush()


def seconds(ranks: int, launcher: str, model: Path, batch: int, options: dict[str, object]) -> float:
    """Returns the time of the slowest rank."""
    own = [sys.executable, __file__, "--work", str(model), str(batch), launcher, json.dumps(options)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if launcher == "mpi":
        commands = [(["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *own], env)]
    elif launcher == "torch":
        commands = [([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *own[1:]], env)]
    else:
        commands = [(own, {**env, "BENCH_PLACE": str(place)}) for place in range(ranks)]
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for command, env in commands]
    found, outputs = [], []
    for process in running:
        out, _ = process.communicate()
        outputs.append(out)
        if process.returncode:
            raise SystemExit(f"a rank failed with status {process.returncode}")
        found += [float(value) for value in re.findall(r"SECONDS ([0-9.e-]+)", out)]
    if len(found) != ranks:
        raise SystemExit(f"{ranks} ranks said: {outputs!r}")
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launcher", choices=["mpi", "torch"], default="mpi")
    parser.add_argument("--options", default="{}", help="of the trainer, as JSON")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.work[0], int(args.work[1]), args.work[2], json.loads(args.work[3]))
    import numpy as np

    import architectures
    from training import exported

    options = json.loads(args.options)
    print(f"{'model':10} {'batch':>5} {'1 process':>12} {'together':>12} {f'{args.ranks} ranks':>12}  ratio  of the machine's")
    for name, batch in CASES.items():
        if not re.search(args.only, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            module, x = architectures.make(name, batch)
            model = Path(folder) / "model.onnx"
            model.write_bytes(exported(module, x))
            np.savez(model.with_suffix(".npz"), x=x.numpy(), classes=module(x).shape[1])
            rounds = [
                (
                    seconds(1, "single", model, batch, {}),
                    seconds(args.ranks, "single", model, batch, {}),
                    seconds(args.ranks, args.launcher, model, batch, options),
                )
                for _ in range(args.rounds)
            ]
        one, together, joint = (statistics.median(each) for each in zip(*rounds))
        rates = batch * STEPS / one, args.ranks * batch * STEPS / together, args.ranks * batch * STEPS / joint
        print(f"{name:10} {batch:5} {rates[0]:10.1f}/s {rates[1]:10.1f}/s {rates[2]:10.1f}/s  {rates[2] / rates[0]:5.2f}  {rates[2] / rates[1]:5.2f}")


if __name__ == "__main__":
    main()
