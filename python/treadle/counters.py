"""Counts how often nodes run and how long they take, in all runs if `SessionOptions.node_counters` is set. Each node has a histogram of its times;
single runs are not recorded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import _treadle

__all__ = ["NodeCounter"]


@dataclass(frozen=True)
class NodeCounter:
    """Counts and times of all runs of a node since the session was made, or since `reset_node_counters()`."""

    name: str
    op_type: str
    parent: str | None
    """Name of the node whose body contains this node; None in the main graph."""
    calls: int
    total_ms: float
    mean_us: float
    p50_us: float
    """Median time of a run, interpolated in the histogram: it is right to about 10 %, as are `p90_us` and `p99_us`."""
    p90_us: float
    p99_us: float
    histogram: tuple[tuple[float, float, int], ...]
    """Buckets of times (low, high, count) that are not empty. The bounds are in nanoseconds, at most 25 % apart."""


def read(client: Any) -> list[NodeCounter]:
    """Reads the counters of a native session, trainer or joint module."""
    counters: list[NodeCounter] = []
    for item in json.loads(_treadle.node_counters(client)):
        counters.append(
            NodeCounter(
                name=item["name"],
                op_type=item["op"],
                parent=counters[item["parent"]].name if "parent" in item else None,
                calls=item["calls"],
                total_ms=item["total_ms"],
                mean_us=item["mean_us"],
                p50_us=item["p50_us"],
                p90_us=item["p90_us"],
                p99_us=item["p99_us"],
                histogram=tuple((low, high, count) for low, high, count in item["histogram"]),
            )
        )
    return counters
