"""The deviations of operators on a GPU from float64 are within the bounds that docs/gpu-accuracy.md states."""

from __future__ import annotations

import pathlib

import numpy as np
from gpu_accuracy import BOUNDS, DEFAULT, measure
from test_gpu import on_gpu, one_node

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "gpu-accuracy.md"


def test_operators_are_within_their_bounds() -> None:
    on_gpu(one_node("Neg", {"x": np.ones(1, np.float32)}))  # skips the test where there is no GPU
    found = measure()
    assert len(found) > 110
    beyond = {operator: d.gpu for operator, d in found.items() if not d.gpu <= BOUNDS.get(operator, DEFAULT)}
    assert not beyond

    rows = [[cell.strip() for cell in line.split("|")] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    stated = {row[1]: row[6] for row in rows[1:]}
    assert stated == {operator: f"{BOUNDS.get(operator, DEFAULT):.0e}" for operator in found}, "write docs/gpu-accuracy.md anew"
