"""The format of recordings: one JSON file per ancestor, one line per fact, numbers with float32's digits."""

from __future__ import annotations

import json
import pathlib
import platform
from typing import Any

import numpy as np

import networks

FOLDER = pathlib.Path(__file__).resolve().parent / "recorded"


def _plain(value: Any) -> Any:
    """Converts arrays to nested lists with shortened numbers."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return value


class Recording:
    """Collects an ancestor's facts by scenario."""

    def __init__(self, ancestor: str, version: str) -> None:
        self._ancestor = ancestor
        self._head = {
            "ancestor": ancestor,
            "version": version,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "seed": networks.SEED,
        }
        self._scenarios: dict[str, dict[str, Any]] = {}

    def add(self, scenario: str, inputs: dict[str, np.ndarray] | None = None, **facts: Any) -> None:
        """Adds a scenario's facts. Of its inputs, which come from networks.py, only a checksum is stored."""
        if inputs is not None:
            facts = {"inputs": networks.checksum(inputs), **facts}
        self._scenarios[scenario] = _plain(facts)

    def write(self) -> None:
        lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in self._head.items()]
        scenarios = []
        for name, facts in self._scenarios.items():
            body = ",\n".join(f"   {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in facts.items())
            scenarios.append(f"  {json.dumps(name)}: {{\n{body}\n  }}")
        text = "{\n" + "\n".join(lines) + '\n "scenarios": {\n' + ",\n".join(scenarios) + "\n }\n}\n"
        json.loads(text)
        path = FOLDER / f"{self._ancestor}.json"
        path.write_text(text)
        print(f"{path.name}: {len(self._scenarios)} scenarios, {len(text)} bytes")


def error_of(function: Any, *arguments: Any, **named: Any) -> str:
    """Returns the type name of the exception that the call raises; "" if it raises none."""
    try:
        function(*arguments, **named)
    except Exception as error:  # the recording contains any exception
        return type(error).__name__
    return ""
