"""Reads the contracts of Treadle's operators, which `treadle operators --json` prints from the registry."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from draft import DTYPES

# Treadle's names of element types whose names in ONNX differ, with ONNX's names.
_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class Port:
    """A formal operand or output of an operator."""

    name: str
    dtypes: tuple[np.dtype, ...]
    type_name: str  # name of a type; all ports of a node with the same name of a type have the same dtype
    presence: str  # "required", "optional" or "variadic"


@dataclass(frozen=True)
class Contract:
    """The operands, outputs and attributes that nodes of one operator may have."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[dict[str, Any], ...]

    def port(self, operand: int) -> Port | None:
        """Returns the port of the operand with this number. A variadic last port stands for all operands from it on."""
        if operand < len(self.inputs):
            return self.inputs[operand]
        return self.inputs[-1] if self.inputs and self.inputs[-1].presence == "variadic" else None


def _port(port: dict[str, Any]) -> Port:
    names = [_NAMES.get(name, name) for name in port["types"].split(", ")]
    return Port(port["name"], tuple(np.dtype(DTYPES[name]) for name in names if name in DTYPES), port["type_name"], port["presence"])


@functools.lru_cache
def contracts() -> dict[tuple[str, str], Contract]:
    """Returns the contracts of all operators, by domain and name."""
    run = subprocess.run([sys.executable, "-m", "treadle", "operators", "--json"], capture_output=True, text=True, check=True)
    found = {}
    for op in json.loads(run.stdout):
        domain = "" if op["domain"] == "ai.onnx" else op["domain"]
        found[domain, op["name"]] = Contract(tuple(map(_port, op["inputs"])), tuple(map(_port, op["outputs"])), tuple(op["attributes"]))
    return found
