"""Recordings of what the ancestors did (tests/ancestors), for the tests that compare with them."""

import json
import sys

import numpy as np

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "ancestors"))  # this folder has the networks that both the ancestors and the tests use

import networks
import onnx_networks
import operator_cases
import random_graphs

__all__ = ["Recorded", "close", "networks", "onnx_networks", "operator_cases", "random_graphs"]


class Recorded:
    """The recorded scenarios of one ancestor. `unread` lists those that no test has asked for."""

    def __init__(self, ancestor):
        content = json.loads((REPOSITORY / "tests" / "ancestors" / "recorded" / f"{ancestor}.json").read_text())
        assert content["seed"] == networks.SEED, "record again: the inputs have changed"
        self.version = content["version"]
        self._scenarios = content["scenarios"]
        self._read = set()

    def __call__(self, scenario, inputs=None):
        """Returns a scenario's facts. `inputs` must be the numbers that it was recorded with."""
        facts = self._scenarios[scenario]
        self._read.add(scenario)
        assert ("inputs" in facts) == (inputs is not None)
        if inputs is not None:
            assert facts["inputs"] == networks.checksum(inputs), "record again: the inputs have changed"
        return facts

    @property
    def unread(self):
        return sorted(set(self._scenarios) - self._read)


def close(got, expected, rtol=1e-4, atol=2e-6):
    """Checks that shapes are equal and that values agree within float32's rounding for another order of operations."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)
