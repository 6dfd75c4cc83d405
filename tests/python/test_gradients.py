"""A slice of the gradients' fuzzer (tests/operators): its cases are the same in every run."""

import sys

import pytest

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))

import fuzz_gradients  # noqa: E402


def test_rules_follow_finite_differences_and_pytorch():
    tally = fuzz_gradients.fuzz(range(0, 6))
    assert not [f for f in tally.findings if f.startswith("wrong")]
    assert tally.verdicts["same"] > 500
    assert tally.verdicts["torch"] > 120


def test_recurrent_layers_agree_with_pytorch():
    pytest.importorskip("torch")
    tally = fuzz_gradients.fuzz(range(100, 130), frozenset({"RNN", "GRU", "LSTM"}))
    assert not tally.findings
    assert tally.verdicts["torch"] == tally.verdicts["same"] > 80
