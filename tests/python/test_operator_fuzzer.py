"""A slice of the operator fuzzer (tests/operators): its cases are the same in every run."""

import sys

import pytest

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))

import fuzz_operators  # noqa: E402


def lines(tally):
    return "\n".join(f"{f.verdict}: {f.case}\n    {f.text}" for f in tally.findings if f.verdict != "lacking")


def test_operators_agree_with_their_judges():
    tally = fuzz_operators.fuzz(range(0, 500))
    assert not lines(tally)
    assert len(tally.ops) > 180
    assert tally.verdicts["same"] > 0.85 * sum(tally.verdicts.values())


def test_broken_cases_end_in_an_error_or_a_value():
    tally = fuzz_operators.fuzz(range(0, 250), bad=True)
    assert not lines(tally)
    assert tally.verdicts["error"] > 500 and tally.verdicts["value"] > 500


def test_a_shrunk_case_fails_like_the_one_it_comes_from(monkeypatch):
    """Of an Add that is wrong for sums of more than one element, one with two elements is left."""

    def verdict_of(case):
        wrong = case.inputs[0].size + case.inputs[1].size > 2
        return ("wrong", "") if wrong else ("same", "")

    monkeypatch.setattr(fuzz_operators, "verdict_of", verdict_of)
    seed = next(s for s in range(99) if (c := fuzz_operators.make_case("Add", "", 14, s)) and verdict_of(c)[0] == "wrong")
    best = fuzz_operators.shrunk(fuzz_operators.Finding("wrong", fuzz_operators.make_case("Add", "", 14, seed), ""))
    assert best.verdict == "wrong"
    assert best.case.inputs[0].size + best.case.inputs[1].size <= 4
