"""Tests the metrics of the process, with Prometheus' own parser and OpenTelemetry's own reader."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from prometheus_client.parser import text_string_to_metric_families

import treadle


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    treadle.metrics.count()
    yield
    treadle.metrics.count(False)


def model(name: str) -> bytes:
    x, y = (helper.make_tensor_value_info(value, TensorProto.FLOAT, ["n", 3]) for value in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], name, [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()


def of(name: str) -> treadle.metrics.ClientMetrics:
    return next(client for client in treadle.metrics.read().clients if client.model == name)


def samples(name: str, text: str | None = None) -> dict[str, float]:
    """Returns the samples of a model by name and further labels, as Prometheus reads them."""
    found = {}
    for family in text_string_to_metric_families(treadle.metrics.prometheus() if text is None else text):
        for sample in family.samples:
            if sample.labels.get("model") == name:
                rest = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k not in ("model", "client"))
                found[f"{sample.name}{{{rest}}}"] = sample.value
    return found


def test_counts_what_runs_did() -> None:
    name = 'py "counted"\\\nü'
    session = treadle.InferenceSession(model(name))
    for rows in (1, 4, 4):
        session.run(None, {"x": np.zeros((rows, 3), np.float32)})
    with pytest.raises(treadle.Error):
        session.run(None, {"x": np.zeros((1, 4), np.float32)})
    found = of(name)
    assert (found.client, found.clients, found.runs_in_flight) == ("session", 1, 0)
    assert found.runs >= 3
    assert sum(n for _, n in found.runs_by_duration) == found.runs
    assert found.runs_by_duration[-1][0] == math.inf
    assert found.input_bytes == found.output_bytes == 9 * 12
    assert found.errors == {"invalid_argument": 1}
    assert found.caches["binding_misses"] >= 2
    read = samples(name)
    assert read["treadle_run_seconds_count{}"] == found.runs == read["treadle_run_seconds_bucket{le=+Inf}"]
    assert read["treadle_run_seconds_sum{}"] == pytest.approx(found.run_seconds)
    assert read["treadle_input_bytes_total{}"] == found.input_bytes
    assert read["treadle_run_errors_total{code=invalid_argument}"] == 1
    assert read["treadle_memory_bytes{class=weights}"] == found.memory_bytes["weights"]
    buckets = [value for key, value in read.items() if key.startswith("treadle_run_seconds_bucket")]
    assert buckets == sorted(buckets)


def test_counts_trainers_and_modules() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    w = onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "py trained", [x], [y], [w])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    trainer = treadle.Trainer(treadle.Model(data.SerializeToString()), loss="mean_squared_error")
    trainer.step({"x": np.ones((4, 3), np.float32)}, np.zeros((4, 2), np.float32))
    found = of("py trained")
    assert found.client == "trainer"
    assert found.runs == 1
    assert found.memory_bytes["parameters"] > 0


def test_devices_tell_their_memory() -> None:
    session = treadle.Session(model("py device"), device="sim:metrics")
    session(np.zeros((1000, 3), np.float32))
    found = treadle.metrics.read().device_bytes
    assert found["sim:metrics"] > 0
    assert f'treadle_device_memory_bytes{{device="sim:metrics"}} {found["sim:metrics"]}' in treadle.metrics.prometheus()


def test_jobs_tell_their_waits() -> None:
    options = treadle.SessionOptions()
    options.job = treadle.Job("py-metrics", share=50.0)
    session = treadle.InferenceSession(model("py job"), options)
    session.run(None, {"x": np.zeros((1, 3), np.float32)})
    assert [job.name for job in treadle.metrics.read().jobs] == ["py-metrics"]
    assert 'treadle_job_runs_total{job="py-metrics"} 1' in treadle.metrics.prometheus()


def test_reports_to_files_and_functions(tmp_path: Path) -> None:
    file = tmp_path / "treadle.prom"
    with treadle.metrics.report(file, seconds=1000):
        assert file.exists()
        session = treadle.InferenceSession(model("py reported"))
        session.run(None, {"x": np.zeros((1, 3), np.float32)})
    assert samples("py reported", file.read_text())["treadle_run_seconds_count{}"] == 1
    with pytest.raises(treadle.Error, match="nowhere"):
        treadle.metrics.report("/nowhere/treadle.prom")
    with pytest.raises((treadle.Error, ValueError), match="interval"):
        treadle.metrics.report(file, seconds=0)

    twice, texts = threading.Event(), []

    def take(text: str) -> None:
        texts.append(text)
        if len(texts) == 1:
            raise RuntimeError("the first report fails")
        twice.set()

    with treadle.metrics.report(take, seconds=0.01):
        assert twice.wait(60)
    assert all("treadle_clients" in text for text in texts)
    with pytest.raises(ValueError, match="interval"):
        treadle.metrics.report(take, seconds=math.nan)


PROGRAM = """
import numpy as np, sys, treadle
session = treadle.onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, {"x": np.zeros((2, 3), np.float32)})
"""


def test_the_environment_asks_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model("py environment"))
    environment = {**os.environ, "TREADLE_METRICS": str(tmp_path / "metrics.%p.prom"), "TREADLE_METRICS_SECONDS": "1000"}
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "model.onnx"], env=environment, check=True)
    (file,) = tmp_path.glob("metrics.*.prom")
    assert file.name.split(".")[1].isdigit()
    assert samples("py environment", file.read_text())["treadle_run_seconds_count{}"] == 1

    environment["TREADLE_METRICS"] = "/nowhere/metrics.prom"  # is told, and the program runs
    run = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "model.onnx"], env=environment, check=True, capture_output=True, text=True)
    assert "TREADLE_METRICS=/nowhere/metrics.prom" in run.stderr


def test_opentelemetry_reads_them() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    treadle.metrics.opentelemetry(MeterProvider([reader]))
    session = treadle.InferenceSession(model("py telemetry"))
    for _ in range(3):
        session.run(None, {"x": np.zeros((2, 3), np.float32)})
    with pytest.raises(treadle.Error):
        session.run(None, {"x": np.zeros((1, 4), np.float32)})
    points = {
        (metric.name, point.attributes.get("class") or point.attributes.get("code")): (point.value, metric.unit)
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if point.attributes.get("model") == "py telemetry"
    }
    assert points["treadle.runs", None] == (4, "{run}")  # the failed one, too
    assert points["treadle.input", None] == (72, "By")
    assert points["treadle.run.duration", None][0] > 0
    assert points["treadle.clients", None][0] == 1
    assert points["treadle.run.errors", "invalid_argument"][0] == 1
    assert points["treadle.memory", "weights"][0] == of("py telemetry").memory_bytes["weights"]
