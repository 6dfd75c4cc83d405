"""What the ancestors were recorded to do (tests/ancestors), for the tests that replay it."""

import json
import sys

import numpy as np

from conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "ancestors"))  # the networks, which ancestors and tests share

import networks
import onnx_networks
import operator_cases
import random_graphs

__all__ = ["Recorded", "close", "networks", "onnx_networks", "operator_cases", "random_graphs"]


class Recorded:
    """The scenarios of one ancestor. Those that were not asked for by a test are told by `unread`."""

    def __init__(self, ancestor):
        content = json.loads((REPOSITORY / "tests" / "ancestors" / "recorded" / f"{ancestor}.json").read_text())
        assert content["seed"] == networks.SEED, "record again: the inputs have changed"
        self.version = content["version"]
        self._scenarios = content["scenarios"]
        self._read = set()

    def __call__(self, scenario, inputs=None):
        """A scenario's facts; `inputs` must be the numbers it was recorded with."""
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
    """Numbers of one shape that agree as float32 computed in another order does."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)
