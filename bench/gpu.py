#!/usr/bin/env python3
"""Checks and times everything on a GPU within ten minutes, and prints tables: models beside other engines, products, small nodes, start, training.

    PYTHONPATH=build/python/python bench/gpu.py [--device gpu] [--seconds 600] [--only REGEX] [--batches 1,32] [--types float32,float16] [--parts models]

Engines whose package or GPU is absent have no column: PyTorch (eager, and compiled with graphs that are submitted again) needs CUDA, ncnn its Vulkan,
ONNX Runtime its WebGPU provider. Engines take turns, and a figure is the median. Errors are relative to the largest output of the same model in
float64 (architectures of bench/architectures.py). `--device gpu:1` means the second GPU of each engine. The peak is the device's own, by the loop that profiles use. A software GPU is measured only by its
number (`gpu:0`) with TREADLE_SOFTWARE_GPU=1; its figures say nothing about GPUs.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.path.insert(0, str(Path(__file__).parent))

from engines import Case, make_gpu_runner
from onnx import TensorProto, helper, numpy_helper

import models
import treadle

MODELS = ["resnet50", "mobilenet_v2", "efficientnet_b0", "vit_tiny", "bert_base", "unet"]
# For each column of the table: (engine, true if PyTorch compiles the module).
COLUMNS = {"treadle": ("treadle", False), "PyTorch": ("pytorch", False), "compiled": ("pytorch", True), "ncnn": ("ncnn", False), "WebGPU": ("onnxruntime", False)}
PASSING = Path(__file__).parent.parent / "tests" / "onnx" / "passing.txt"
TYPES = {"float32": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}


class Budget:
    """Counts the seconds that are left for all measurements together."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def left(self) -> float:
        return self.end - time.perf_counter()


def options_for(device: str, **more: Any) -> treadle.SessionOptions:
    options = treadle.SessionOptions()
    options.device = device
    for name, value in more.items():
        setattr(options, name, value)
    return options


def in_float16(case: Case) -> Case:
    """Returns the model with weights, inputs and outputs of 16 bits."""
    import onnx

    model = onnx.load(str(case.path))

    def halved(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))

    for tensor in model.graph.initializer:
        halved(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                halved(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    path = case.path.with_suffix(".f16.onnx")
    onnx.save(model, str(path))
    feeds = {key: value.astype(np.float16) if value.dtype == np.float32 else value for key, value in case.feeds.items()}
    return Case(case.name, path, feeds, [np.asarray(e, np.float16) for e in case.exact], case.batch, case.is_architecture, case.cache)


def product(type_: int, rows: int, terms: int, columns: int, times: int) -> bytes:
    """Returns a model that is a chain of products. Each multiplies the result of the one before by the same square matrix."""
    dtype = np.float16 if type_ == TensorProto.FLOAT16 else np.float32
    weight = numpy_helper.from_array((np.eye(terms, columns) * 0.5).astype(dtype), "w")
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"]) for i in range(times)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x0", type_, [rows, terms])],
                              [helper.make_tensor_value_info(f"x{times}", type_, [rows, columns])], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def nodes(count: int) -> bytes:
    """Returns a model of small nodes that no fusion joins."""
    made = [helper.make_node("Softmax", [f"x{i}"], [f"x{i + 1}"]) for i in range(count)]
    graph = helper.make_graph(made, "g", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 8])],
                              [helper.make_tensor_value_info(f"x{count}", TensorProto.FLOAT, ["n", 8])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def median_ms(run: Any, seconds: float, least: int = 3) -> float:
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def nodes_on_host(case: Case, device: str) -> str:
    devices = [line.split("\t")[0] for line in treadle.InferenceSession(str(case.path), options_for(device)).to_text("devices").splitlines()]
    return f"{devices.count('cpu')} of {len(devices)}"


# If the reason why a node runs on the host begins with one of these texts, the node costs no copy: see SessionDevices::list_nodes().
OF_THE_HOST = ("the host looks at the condition", "what it makes is read by the host only", "it reads an extent")


def count_whole(args: argparse.Namespace, _: Budget) -> None:
    """Counts the models, and the cases of ONNX, that run on the GPU whole: what the host computes are extents and the like."""
    print("\n| models | on the GPU whole | others |\n|---|---|---|")
    trained = sorted(Path(os.environ.get("TREADLE_TEST_DATA", ".")).glob("models/*.onnx"))
    cases = [args.cases / name / "model.onnx" for name in PASSING.read_text().splitlines()[1:]] if args.cases else []
    for what, paths in (("trained models", trained), ("ONNX's own cases that pass", cases)):
        others = []
        for path in paths:
            lines = treadle.InferenceSession(str(path), options_for(args.device)).to_text("devices").splitlines()
            fields = [line.split("\t") for line in lines]
            if any(field[0] == "cpu" and (field[1] == "Scan" or not field[4].startswith(OF_THE_HOST)) for field in fields):
                others.append(path.stem)
        print(f"| {what} | {len(paths) - len(others)} of {len(paths)} | {', '.join(others) if paths is trained else len(others)} |", flush=True)


def measure_models(args: argparse.Namespace, budget: Budget) -> None:
    print("\n| model | batch | type | " + " | ".join(f"{column}, ms" for column in COLUMNS) + " | error | nodes on the host |")
    print("|---|---|---|" + "---|" * (len(COLUMNS) + 2))
    reasons: dict[str, str] = {}
    names = [name for name in MODELS if re.search(args.only, name)]
    cases = [(name, batch, type_) for batch in args.batches for type_ in args.types for name in names]
    for number, (name, batch, type_) in enumerate(cases):
        if budget.left() < 60:
            print(f"| {name} | {batch} | {type_} | out of time |")
            continue
        case = models.load(name, batch, args.cache)
        case = in_float16(case) if type_ == "float16" else case
        runners, error, on_host = {}, "", ""
        for column, (engine, compiled) in COLUMNS.items():
            try:
                runners[column] = make_gpu_runner(engine, case, args.index, compiled)
                outputs = runners[column]()
                if engine == "treadle":
                    error, on_host = f"{models.error(outputs, case.exact):.1e}", nodes_on_host(case, args.device)
            except Exception as e:  # an engine that cannot is a blank
                runners.pop(column, None)
                reasons.setdefault(column, str(e).splitlines()[0])
        share = (budget.left() - 60) / (len(cases) - number) / 2
        blocks = models.measure_here(runners, min(args.seconds_each, share / max(len(runners), 1)), time.perf_counter)
        figures = [f"{statistics.median(blocks[column]):.3f}" if column in blocks else "" for column in COLUMNS]
        print(f"| {name} | {batch} | {type_} | " + " | ".join(figures) + f" | {error} | {on_host} |", flush=True)
    for column, reason in reasons.items():
        print(f"\n{column} is not measured everywhere: {reason}")


def measure_products(args: argparse.Namespace, budget: Budget) -> None:
    print("\n| product | type | GFLOP/s | of the measured float32 peak |\n|---|---|---|---|")
    for type_ in args.types:
        for size in args.sizes:
            if budget.left() < 40:
                return
            times = 4
            session = treadle.InferenceSession(product(TYPES[type_][0], size, size, size, times), options_for(args.device))
            feeds = {"x0": np.ones((size, size), TYPES[type_][1])}
            session.run(None, feeds)
            with treadle.profile(session) as profile:
                for _ in range(5):
                    session.run(None, feeds)
            spent = [node["ms"]["median"] for node in profile.data["nodes"] if node["op"] == "MatMul"]
            rate = 2 * size**3 / statistics.median(spent) / 1e6
            peaks = profile.data.get("device_peaks") or [{"gflops": 0}]
            share = f"{rate / peaks[0]['gflops']:.0%}" if peaks[0]["gflops"] else "not measured"
            print(f"| {size} x {size} x {size} | {type_} | {rate:,.0f} | {share} |", flush=True)


def measure_start_and_nodes(args: argparse.Namespace, _: Budget) -> None:
    print("\n| what | figure |\n|---|---|")
    few, many = 100, 500
    feeds = [{"x0": np.ones((rows, 8), np.float32)} for rows in range(1, 7)]  # more extents than a session keeps recorded work for
    took: dict[tuple[str, int], float] = {}
    for count in (few, many):
        session = treadle.InferenceSession(nodes(count), options_for(args.device))
        for what, fed in (("submitted again", feeds[-1:] * len(feeds)), ("issued", feeds)):
            for feed in fed * 2:  # the first runs bind and compile
                session.run(None, feed)
            times = []
            for feed in fed * 15:
                start = time.thread_time()
                session.run(None, feed)
                times.append((time.thread_time() - start) * 1e6)
            took[what, count] = statistics.median(times)
    for what in ("issued", "submitted again"):
        each = (took[what, many] - took[what, few]) / (many - few)
        print(f"| a further small node, {what} | {each:.2f} us of processor time of the thread that runs the session |")
    case = models.load("resnet50", 1, args.cache)
    with tempfile.TemporaryDirectory() as folder:
        for what in ("without a cache", "with a warm cache"):
            start = time.perf_counter()
            treadle.InferenceSession(str(case.path), options_for(args.device, cache_dir=folder)).run(None, case.feeds)
            print(f"| start of ResNet-50 and its first run, {what} | {time.perf_counter() - start:.2f} s |", flush=True)


def measure_training(args: argparse.Namespace, budget: Budget) -> None:
    import torch
    import training

    print("\n| training step | batch | treadle, ms | PyTorch eager, ms | loss after 5 steps | on the CPU |\n|---|---|---|---|---|---|")
    for name in ("digits", "resnet18", "gpt"):
        if budget.left() < 30:
            return
        module, x = training.make_module(name, training.CASES[name])
        labels, loss_of, loss = training.make_loss(name, module(x).shape)
        file, losses, ours = training.exported(module, x), {}, 0.0
        for device in ("cpu", args.device):
            trainer = treadle.Trainer(file, sess_options=options_for(device), optimizer="sgd", learning_rate=training.RATE, momentum=training.MOMENTUM, **loss)

            def step(trainer: treadle.Trainer = trainer) -> float:
                return float(trainer.step({"x": x.numpy()}, labels.numpy()))

            losses[device] = [step() for _ in range(5)][-1]
            if device == args.device:
                ours = median_ms(step, 2.0)
        theirs = ""
        if torch.cuda.is_available():
            on_gpu = module.cuda(args.index or 0)
            theirs = f"{median_ms(training.torch_steps(on_gpu, on_gpu, x.cuda(args.index or 0), labels.cuda(args.index or 0), loss_of), 2.0):.2f}"
        print(f"| {name} | {training.CASES[name]} | {ours:.2f} | {theirs} | {losses[args.device]:.5g} | {losses['cpu']:.5g} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--seconds", type=float, default=600, help="for all of it")
    parser.add_argument("--seconds-each", type=float, default=2, help="at most, for an engine and a model")
    parser.add_argument("--only", default="", help="regular expression of models")
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=[1, 32])
    parser.add_argument("--types", type=lambda text: text.split(","), default=list(TYPES))
    parser.add_argument("--sizes", type=lambda text: [int(part) for part in text.split(",")], default=[1024, 4096])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "treadle-bench")
    parser.add_argument("--cases", type=Path, help="folder of ONNX's own cases, as scripts/write_onnx_cases.py writes them")
    parts = {"whole": count_whole, "products": measure_products, "start": measure_start_and_nodes, "training": measure_training, "models": measure_models}
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(parts), help=f"of {', '.join(parts)}")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    _, _, number = args.device.partition(":")
    args.index = int(number) if number else None
    budget = Budget(args.seconds)
    for name in args.parts:
        parts[name](args, budget)


if __name__ == "__main__":
    main()
