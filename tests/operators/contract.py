"""The contracts of Treadle's operators, as `treadle operators --json` prints the registry."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from draft import DTYPES

# Treadle's names of element types that are not ONNX's.
_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Port:
    """A formal operand or output."""

    name: str
    dtypes: tuple[np.dtype, ...]
    type_name: str  # ports that share it have one dtype
    presence: str  # required, optional, variadic


@dataclass(frozen=True)
class Contract:
    """What a node of the operator may look like."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[dict[str, Any], ...]

    def port(self, operand: int) -> Port | None:
        """Of the operand with this number; the last port may be for all that follow."""
        if operand < len(self.inputs):
            return self.inputs[operand]
        return self.inputs[-1] if self.inputs and self.inputs[-1].presence == "variadic" else None


def _port(port: dict[str, Any]) -> Port:
    names = [_NAMES.get(name, name) for name in port["types"].split(", ")]
    return Port(port["name"], tuple(np.dtype(DTYPES[name]) for name in names if name in DTYPES), port["type_name"], port["presence"])


@functools.lru_cache
def contracts() -> dict[tuple[str, str], Contract]:
    """By domain and name."""
    run = subprocess.run([sys.executable, "-m", "treadle", "operators", "--json"], capture_output=True, text=True, check=True)
    found = {}
    for op in json.loads(run.stdout):
        domain = "" if op["domain"] == "ai.onnx" else op["domain"]
        found[domain, op["name"]] = Contract(tuple(map(_port, op["inputs"])), tuple(map(_port, op["outputs"])), tuple(op["attributes"]))
    return found
