#!/usr/bin/env python3
"""Runs models in each engine for the benchmarks, and converts models for ncnn and MNN.

Every engine is optional. All compute in float32: 16-bit storage and arithmetic are off in ncnn and MNN, and other settings are their defaults (packed
layouts, Winograd). Conversions are kept beside the exported models (NAME.bB.ncnn, NAME.bB.mnn). They are made and tried in a separate process, as a
converter or engine that crashes must not end the benchmark:

    bench/engines.py --prepare ncnn NAME --batch 1 --cache FOLDER
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PACKAGES = {
    "treadle": ["treadle"],
    "onnxruntime": ["onnxruntime"],
    "openvino": ["openvino"],
    "ncnn": ["ncnn", "pnnx"],
    "mnn": ["MNN", "_tools"],
    "pytorch": ["torch"],
}
ENGINES = list(PACKAGES)
CONVERTED = ("ncnn", "mnn")
PREPARE_SECONDS = 900


@dataclass
class Case:
    """A model to run: its file, inputs by name, and exact results in the order of its outputs."""

    name: str
    path: Path
    feeds: dict[str, np.ndarray]
    exact: list[np.ndarray]
    batch: int = 1
    is_architecture: bool = False  # true if the model is from bench/architectures.py, so that there is a PyTorch module
    cache: Path = Path()

    def converted(self, engine: str) -> Path:
        return self.cache / f"{self.name}.b{1 if engine == 'ncnn' else self.batch}.{engine}"


def missing_package(engine: str) -> str | None:
    """Returns the packages to install if an engine cannot be measured here; otherwise None."""
    absent = [p for p in PACKAGES[engine] if importlib.util.find_spec(p) is None]
    return f"not installed ({', '.join(absent)})" if absent else None


def version(engine: str) -> str:
    try:
        return importlib.metadata.version(PACKAGES[engine][0])
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(__import__(PACKAGES[engine][0]), "__version__", "unknown"))


# For each engine with ONNX Runtime's interface: the execution provider that runs a model on a GPU.
GPU_PROVIDERS = {"treadle": "VulkanExecutionProvider", "onnxruntime": "WebGpuExecutionProvider"}


def make_gpu_runner(engine: str, case: Case, index: int | None = None, compiled: bool = False) -> Callable[[], list]:
    """Works like make_runner(), on a GPU, in the model's type. `index`: the engine's number of the GPU; none: its first one. `compiled`: PyTorch
    compiles the module, with graphs that are submitted again."""
    if engine in CONVERTED and not (state := prepare(engine, case))["ok"]:
        raise RuntimeError(state["reason"])
    if engine == "ncnn":
        return _ncnn(case, 1, gpu=index or 0)
    if engine == "pytorch":
        return _pytorch_cuda(case, index or 0, compiled)
    if engine == "onnxruntime" and index:
        raise RuntimeError("its provider runs on the first GPU only")
    return _session(engine, case, 1, GPU_PROVIDERS[engine], {} if index is None else {"device_id": index})


def make_runner(engine: str, case: Case, threads: int, openvino_precision: str = "f32") -> Callable[[], list]:
    """Returns a function that runs the model once and returns its outputs."""
    if engine in CONVERTED:
        state = prepare(engine, case)
        if not state["ok"]:
            raise RuntimeError(state["reason"])
    makers = {"openvino": _openvino, "ncnn": _ncnn, "mnn": _mnn, "pytorch": _pytorch}
    if engine == "openvino":
        return _openvino(case, threads, openvino_precision)
    return makers[engine](case, threads) if engine in makers else _session(engine, case, threads)


def _session(engine: str, case: Case, threads: int, provider: str = "CPUExecutionProvider", provider_options: dict | None = None):
    """Runs treadle or ONNX Runtime, which have the same interface."""
    module = __import__(engine)
    options = module.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    if provider not in module.get_available_providers():
        raise RuntimeError(f"it has no {provider}")
    session = module.InferenceSession(str(case.path), options, providers=[(provider, provider_options or {})])
    return lambda: session.run(None, case.feeds)


def _openvino(case: Case, threads: int, precision: str):
    import openvino

    core = openvino.Core()
    model = core.read_model(str(case.path))
    model.reshape({key: value.shape for key, value in case.feeds.items()})
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": 1}
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    inputs = {key: openvino.Tensor(np.ascontiguousarray(value)) for key, value in case.feeds.items()}

    def run():
        request.infer(inputs, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(model.outputs))]

    return run


def _ncnn(case: Case, threads: int, gpu: int | None = None):
    """Runs a batch's samples one after the other, as ncnn has no batches."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_vulkan_compute = gpu is not None
    if gpu is not None:
        if ncnn.get_gpu_count() <= gpu:
            raise RuntimeError(f"ncnn finds {ncnn.get_gpu_count()} GPUs")
        net.set_vulkan_device(gpu)
    has_halves = case.exact[0].dtype == np.float16  # 16-bit storage and arithmetic then keep their defaults
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_packed", "use_bf16_storage"):
        if hasattr(net.opt, option) and not has_halves:
            setattr(net.opt, option, False)
    folder = case.converted("ncnn")
    if net.load_param(str(folder / "model.param")) or net.load_model(str(folder / "model.bin")):
        raise RuntimeError("ncnn does not load what pnnx wrote")
    # pnnx names inputs and outputs by numbers, and removes their first axis, which is the batch.
    samples, arrays = [], []  # `arrays` keeps the arrays alive, because a Mat does not own its memory
    for i in range(case.batch):
        arrays.append([np.ascontiguousarray(v[i : i + 1][0], np.int32 if v.dtype.kind == "i" else np.float32) for v in case.feeds.values()])
        samples.append([(f"in{n}", ncnn.Mat(a)) for n, a in enumerate(arrays[-1])])

    def run(arrays=arrays):
        results = [[] for _ in case.exact]
        for sample in samples:
            extractor = net.create_extractor()
            for name, mat in sample:
                extractor.input(name, mat)
            for n, outputs in enumerate(results):
                status, mat = extractor.extract(f"out{n}")
                if status:
                    raise RuntimeError(f"ncnn: extract returns {status}")
                outputs.append(np.array(mat))
        return [_as_shape(np.stack(outputs), want) for outputs, want in zip(results, case.exact)]

    return run


def _mnn(case: Case, threads: int):
    import MNN

    manager = MNN.nn.create_runtime_manager(({"backend": "CPU", "precision": "high", "numThread": threads},))
    names = _interface(case.path)
    module = MNN.nn.load_module_from_file(str(case.converted("mnn") / "model.mnn"), *names, runtime_manager=manager)
    expr = MNN.expr
    values = []
    for name in names[0]:
        array = np.ascontiguousarray(case.feeds[name])
        array, dtype = (array.astype(np.int32), expr.int) if array.dtype.kind == "i" else (array, expr.float)
        variable = expr.placeholder(list(array.shape), expr.NCHW, dtype)
        variable.write(array)
        values.append(variable)

    def run():
        outputs = module.forward(values)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        arrays = [(expr.convert(o, expr.NCHW) if o.data_format == expr.NC4HW4 else o).read() for o in outputs]
        return [_as_shape(a, want) for a, want in zip(arrays, case.exact)]

    return run


def _pytorch(case: Case, threads: int):
    """Runs the module in eager mode, with channels last if that is faster."""
    import torch

    if not case.is_architecture:
        raise RuntimeError("there is no module of it")
    import architectures

    torch.set_num_threads(threads)
    module, _ = architectures.make(case.name, 1)
    x = torch.from_numpy(next(iter(case.feeds.values())))

    def runner(model, values):
        def run():
            with torch.inference_mode():
                return [model(values).numpy()]

        return run

    plain = runner(module, x)
    if x.dim() != 4:
        return plain

    def taken(run) -> float:
        times = []
        for _ in range(4):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times[1:])

    before = taken(plain)
    module = module.to(memory_format=torch.channels_last)
    innermost = runner(module, x.contiguous(memory_format=torch.channels_last))
    if taken(innermost) < before:
        return innermost
    module = module.to(memory_format=torch.contiguous_format)
    return runner(module, x)


def _pytorch_cuda(case: Case, index: int, compiled: bool):
    import torch

    if not case.is_architecture:
        raise RuntimeError("there is no module of it")
    if torch.cuda.device_count() <= index:
        raise RuntimeError(f"PyTorch finds {torch.cuda.device_count()} GPUs")
    import architectures

    x = torch.from_numpy(next(iter(case.feeds.values()))).cuda(index)
    module = architectures.make(case.name, 1)[0].cuda(index)
    if case.exact[0].dtype == np.float16:
        module = module.half()
    if compiled:
        module = torch.compile(module, mode="reduce-overhead")

    def run():
        with torch.inference_mode():
            return [module(x).cpu().numpy()]

    return run


def _as_shape(array: np.ndarray, want: np.ndarray) -> np.ndarray:
    return array.reshape(want.shape) if array.size == want.size else array


def _interface(path: Path) -> tuple[list[str], list[str]]:
    """Returns the names of a model's inputs and outputs."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    stored = {t.name for t in graph.initializer}
    return [i.name for i in graph.input if i.name not in stored], [o.name for o in graph.output]


# Conversions of models


def prepare(engine: str, case: Case) -> dict:
    """Converts the model once and tries it. Returns {"ok": .., "reason": .., "version": ..}, which is stored beside the conversion."""
    record = case.converted(engine) / "state.json"
    if record.exists():
        state = json.loads(record.read_text())
        if state.get("version") == version(engine):
            return state
    command = [sys.executable, __file__, "--prepare", engine, case.name, "--batch", str(case.batch), "--cache", str(case.cache)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PREPARE_SECONDS)
        lines = done.stdout.splitlines()
        state = json.loads(lines[-1]) if done.returncode == 0 and lines and lines[-1].startswith("{") else {"ok": False, "reason": _reason(done)}
    except subprocess.TimeoutExpired:
        state = {"ok": False, "reason": f"not converted within {PREPARE_SECONDS} s"}
    state["version"] = version(engine)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(state))
    return state


def _reason(done: subprocess.CompletedProcess) -> str:
    if done.returncode < 0:
        return f"signal {-done.returncode} while converting or in the first run"
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    return lines[-1][:120]


def convert(engine: str, case: Case) -> None:
    """Writes the engine's files to the case's folder, either all of them or none."""
    folder = case.converted(engine)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        place = Path(scratch) / "result"
        place.mkdir()
        (_convert_ncnn if engine == "ncnn" else _convert_mnn)(case, Path(scratch), place)
        shutil.rmtree(folder, ignore_errors=True)
        place.rename(folder)


def _convert_ncnn(case: Case, scratch: Path, place: Path) -> None:
    import pnnx

    if case.is_architecture:
        import architectures
        import torch

        architectures.Attention.four_axes = True
        module, x = architectures.make(case.name, 1)
        source = scratch / "model.pt"
        with torch.no_grad():
            torch.jit.trace(module, x).save(str(source))
        feeds = [x.numpy()]
    else:
        source, feeds = scratch / "model.onnx", list(case.feeds.values())
        shutil.copy(case.path, source)
    kinds = {"float32": "f32", "int64": "i64", "int32": "i32"}
    shapes = ",".join("[" + ",".join(map(str, f.shape)) + "]" + kinds[str(f.dtype)] for f in feeds)
    results = [f"ncnnparam={place / 'model.param'}", f"ncnnbin={place / 'model.bin'}"]
    done = subprocess.run([pnnx.EXEC_PATH, str(source), f"inputshape={shapes}", "fp16=0", *results], cwd=scratch, capture_output=True, text=True)
    if done.returncode or not (place / "model.bin").exists():
        raise RuntimeError(f"pnnx ends with {done.returncode}: {(done.stderr.splitlines() or [''])[-1][:80]}")


def _convert_mnn(case: Case, scratch: Path, place: Path) -> None:
    # This command calls the converter directly, because the module MNN.tools.mnnconvert would install packages and send reports.
    command = [sys.executable, "-c", "import sys, _tools; _tools.mnnconvert(sys.argv)"]
    command += ["-f", "ONNX", "--modelFile", str(case.path), "--MNNModel", str(place / "model.mnn"), "--bizCode", "bench"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    if not (place / "model.mnn").exists():
        raise RuntimeError(f"mnnconvert ends with {done.returncode}: {([*done.stdout.splitlines(), ''])[-1][:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prepare", nargs=2, metavar=("ENGINE", "NAME"), required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    import models

    engine, name = args.prepare
    case = models.load(name, args.batch, args.cache)
    try:
        convert(engine, case)
        run = {"ncnn": _ncnn, "mnn": _mnn}[engine](case, 1)
        state = {"ok": True, "error": models.error(run(), case.exact)}
        run()
    except Exception as e:
        state = {"ok": False, "reason": str(e).splitlines()[0][:160] if str(e) else type(e).__name__}
    print("\n" + json.dumps(state))


if __name__ == "__main__":
    main()
