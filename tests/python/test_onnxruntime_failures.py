"""Tests that a node that fails during a run raises the exception, with the message, that it raises in onnxruntime."""

from __future__ import annotations

import pathlib

import failing_nodes
import pytest
from test_onnxruntime_shim import on_both

pytest.importorskip("onnxruntime")

# Cases in which the two libraries differ, by the reason.
APART = {
    "the operator has the other code as a rule": ["gather elements rank", "slice starts lengths", "gemm rank", "conv kernel too large", "unsqueeze twice", "cumsum axis vector", "reverse lengths shape", "argmax empty"],
    "another operator fails, of which it is made": ["layernorm scale", "msft attention", "msft mha", "msft skipln", "msft biasgelu", "msft embed range"],
    "it is told there when the session is made": ["transpose perm twice", "resize both none", "regex", "ml labelencoder"],
    "it is no failure here": ["pad reflect too far", "onehot depth 0"],
    "it is no failure there": ["maxpool too large", "constantofshape matrix", "ml linear", "ml imputer"],
}


@pytest.fixture(scope="module")
def told() -> tuple[dict, dict]:
    code = f"import json, sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import failing_nodes; print(json.dumps(failing_nodes.told()))"
    ours, theirs = on_both(code)
    return ours, theirs


@pytest.mark.parametrize("case", sorted(failing_nodes.CASES.keys() - set(sum(APART.values(), []))))
def test_a_failing_node_has_its_exception(told: tuple[dict, dict], case: str) -> None:
    ours, theirs = (each[case] for each in told)
    assert ours[0] == theirs[0], (ours, theirs)
    if "node. Name:'node'" in ours[1] and "node. Name:'node'" in theirs[1]:
        assert ours[1] == theirs[1]
