"""Runs a fixed part of the fuzzer of hostile models (tests/fuzz), with the same cases in every run."""

import random
import sys

import pytest

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")  # the operators' case makers import onnxruntime
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))
sys.path.insert(0, str(REPOSITORY / "tests" / "fuzz"))

import hostile_models  # noqa: E402
from hostile_chains import CHAINS  # noqa: E402


def failures(loads):
    return [f"{seed} {name}: {load.verdict}, {load.memory >> 20} MiB {load.text[-300:]}" for seed, name, load in loads if not load.is_fine]


def test_small_models_take_little_whatever_they_declare():
    loads = hostile_models.sweep(range(400))
    assert not failures(loads)
    assert {"loaded", "refused"} == {load.verdict for _, _, load in loads}


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_chains_and_nests_take_little(name):
    loads = []
    for seed in range(4):
        raw = CHAINS[name](random.Random(seed)).SerializeToString()
        if len(raw) <= hostile_models.FILE_LIMIT:
            loads.append((seed, name, hostile_models.load_in_child(raw)))
    assert loads and not failures(loads)


def test_a_load_that_takes_much_is_found():
    """Checks the measurement itself with a load that needs much memory."""
    hog = hostile_models.load_in_child(b"", lambda raw: bytearray(100 << 20))
    assert hog.verdict == "loaded" and hog.memory >= 90 << 20 and not hog.is_fine

    def fails(raw):
        raise KeyError(raw)

    assert not hostile_models.load_in_child(b"", fails).is_fine
