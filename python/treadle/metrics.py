"""Metrics of the process for monitoring systems: runs, times, errors, caches and memory of all sessions, trainers and modules.

    import treadle

    treadle.metrics.count()                    # counting takes about 20 ns a run
    text = treadle.metrics.prometheus()        # what a page /metrics returns
    reporter = treadle.metrics.report("/var/lib/prometheus/node-exporter/treadle.prom", seconds=15)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _treadle
from ._treadle import JobStatus

__all__ = ["ClientMetrics", "Metrics", "Reporter", "count", "opentelemetry", "prometheus", "read", "report"]


@dataclass(frozen=True)
class ClientMetrics:
    """What the clients of one kind have done with one model. The counts include clients that no longer exist."""

    client: str
    """Kind of the clients: "session", "trainer", or "module" for joint modules and executors."""
    model: str
    """Name of the model's graph."""
    clients: int
    """Number of clients that exist now."""
    runs_in_flight: int
    """Number of runs that have begun and not ended."""
    runs: int
    """Number of ended runs, failed ones included; of a run in parts (partial runs, modules), each part counts."""
    run_seconds: float
    """Duration of these runs together."""
    runs_by_duration: tuple[tuple[float, int], ...]
    """Number of runs (upper bound in seconds, count) of each class of duration. The last bound is infinite; bounds are right to 12 %."""
    input_bytes: int
    output_bytes: int
    errors: dict[str, int]
    """Number of failed and refused runs by the code of the error; "foreign": exceptions of the program's own functions."""
    caches: dict[str, int]
    """Hits, misses and evictions of programs, bindings of extents, and memory plans, as `Session.cache_statistics()` has them."""
    memory_bytes: dict[str, int]
    """Host memory that the clients hold now, by class of memory."""


@dataclass(frozen=True)
class Metrics:
    """All metrics of the process."""

    counting: bool
    """Whether runs are counted now."""
    clients: tuple[ClientMetrics, ...]
    device_bytes: dict[str, int]
    """Memory of each device that this process uses."""
    shared_weights: dict[str, int]
    """Bytes of the constants and packed weights that sessions share, and how often one existed (hits) or was made (misses)."""
    jobs: tuple[JobStatus, ...]
    """The jobs of this process, with the times for which their runs waited."""


def count(on: bool = True) -> None:
    """Begins or stops to count the runs of all clients of the process. Off at first, unless TREADLE_METRICS names a file."""
    _treadle.count_metrics(on)


def read() -> Metrics:
    """Returns all metrics of the process. Counts never decrease."""
    found = _treadle.read_metrics()
    return Metrics(
        counting=found["counting"],
        clients=tuple(ClientMetrics(**client) for client in found["clients"]),
        device_bytes=found["device_bytes"],
        shared_weights=found["shared_weights"],
        jobs=tuple(found["jobs"]),
    )


def prometheus() -> str:
    """Returns all metrics in Prometheus' text format, version 0.0.4. All names begin with "treadle_"."""
    return _treadle.metrics_to_prometheus()


class Reporter:
    """Reports the metrics at regular intervals from a thread of its own, and once more when it is closed; made by `report()`."""

    def __init__(self, to: str | os.PathLike[str] | Callable[[str], object], seconds: float) -> None:
        self._native: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if not callable(to):
            self._native = _treadle.MetricsReporter(os.fspath(to), seconds)
            return
        if not seconds >= 0.01:
            raise ValueError(f"the interval of metrics is {seconds} seconds; at least 0.01 is possible")
        self._report = to
        count()
        self._thread = threading.Thread(target=self._run, args=(seconds,), name="treadle.metrics", daemon=True)
        self._thread.start()

    def _run(self, seconds: float) -> None:
        while not self._closed.wait(seconds):
            self._try_to_report()
        self._try_to_report()

    def _try_to_report(self) -> None:
        try:
            self._report(prometheus())
        except Exception:
            logging.getLogger("treadle").warning("the metrics could not be reported", exc_info=True)

    def close(self) -> None:
        """Reports once more and ends. Runs are still counted."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._native = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def report(to: str | os.PathLike[str] | Callable[[str], object], seconds: float = 15.0) -> Reporter:
    """Counts metrics, and reports them in Prometheus' text format every so many seconds.

    Args:
        to: a file, which is replaced in one step (for the collector "textfile" of Prometheus' node exporter); or a function of the text.
        seconds: the interval, at least 0.01.

    Raises:
        Error: the file cannot be written now. Later failures are logged as warnings.
    """
    return Reporter(to, seconds)


# Metrics of clients for OpenTelemetry: name, unit, description, whether it may fall, value.
_OF_CLIENTS: tuple[tuple[str, str, str, bool, Callable[[ClientMetrics], float]], ...] = (
    ("treadle.runs", "{run}", "Ended runs.", False, lambda m: m.runs),
    ("treadle.run.duration", "s", "Duration of all ended runs together.", False, lambda m: m.run_seconds),
    ("treadle.input", "By", "Bytes of the tensors that runs were fed.", False, lambda m: m.input_bytes),
    ("treadle.output", "By", "Bytes of the tensors that runs returned.", False, lambda m: m.output_bytes),
    ("treadle.runs_in_flight", "{run}", "Runs that have begun and not ended.", True, lambda m: m.runs_in_flight),
    ("treadle.clients", "{client}", "Sessions, trainers and modules that exist.", True, lambda m: m.clients),
    ("treadle.program.misses", "{program}", "Runs for which a program was compiled.", False, lambda m: m.caches["misses"]),
    ("treadle.program.evictions", "{program}", "Programs that were dropped for others.", False, lambda m: m.caches["evictions"]),
    ("treadle.binding.misses", "{binding}", "Runs with new extents.", False, lambda m: m.caches["binding_misses"]),
)


def opentelemetry(meter_provider: Any = None) -> Any:
    """Counts metrics, and offers them to OpenTelemetry, whose package `opentelemetry-api` must be installed.

    Args:
        meter_provider: where to register them; the global one without it.

    Returns:
        The meter "treadle", with observable counters and gauges: its reader decides when they are read.
    """
    from opentelemetry import metrics as otel

    meter = otel.get_meter("treadle", _treadle.version(), meter_provider)
    count()

    def observe(samples: Callable[[Metrics], Iterable[tuple[float, dict[str, str]]]]) -> Callable[[Any], Iterator[Any]]:
        return lambda _options: (otel.Observation(value, labels) for value, labels in samples(read()))

    def labels(of: ClientMetrics) -> dict[str, str]:
        return {"client": of.client, "model": of.model}

    def of_clients(value: Callable[[ClientMetrics], float]) -> Callable[[Metrics], Iterable[tuple[float, dict[str, str]]]]:
        return lambda m: ((value(c), labels(c)) for c in m.clients)

    for name, unit, text, may_fall, value in _OF_CLIENTS:
        make = meter.create_observable_up_down_counter if may_fall else meter.create_observable_counter
        make(name, [observe(of_clients(value))], unit, text)
    meter.create_observable_counter(
        "treadle.run.errors",
        [observe(lambda m: ((n, {**labels(c), "code": code}) for c in m.clients for code, n in c.errors.items()))],
        "{run}",
        "Runs that failed or were refused.",
    )
    meter.create_observable_up_down_counter(
        "treadle.memory",
        [observe(lambda m: ((n, {**labels(c), "class": kind}) for c in m.clients for kind, n in c.memory_bytes.items()))],
        "By",
        "Memory of the host that clients hold.",
    )
    meter.create_observable_up_down_counter(
        "treadle.device.memory", [observe(lambda m: ((n, {"device": device}) for device, n in m.device_bytes.items()))], "By", "Memory of a device that this process uses."
    )
    meter.create_observable_counter(
        "treadle.job.idle", [observe(lambda m: ((j.idle_ns * 1e-9, {"job": j.name}) for j in m.jobs))], "s", "Time that runs slept to keep to the job's share."
    )
    meter.create_observable_counter(
        "treadle.job.gave_way", [observe(lambda m: ((j.gave_way_ns * 1e-9, {"job": j.name}) for j in m.jobs))], "s", "Time that runs waited for guaranteed jobs."
    )
    return meter
