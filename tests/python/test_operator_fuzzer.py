"""A fixed part of the operator fuzzer (tests/operators), with the same cases in every run; and the comparison of whole models."""

import sys

import pytest
from onnx import AttributeProto, TensorProto, helper

from conftest import REPOSITORY

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(REPOSITORY / "tests" / "operators"))

import compare_models  # noqa: E402
import fuzz_operators  # noqa: E402
from contract import contracts  # noqa: E402


QUIET = ("wrong", "disputed", "crashed")


def lines(tally, verdicts=(*QUIET, "refused", "accepted")):
    return "\n".join(f"{f.verdict}: {f.case}\n    {f.text}" for f in tally.findings if f.verdict in verdicts)


def test_operators_agree_with_their_judges():
    tally = fuzz_operators.fuzz(range(0, 500))
    assert not lines(tally, QUIET)
    tally.findings = [f for f in tally.findings if f.case.domain != "com.microsoft"]  # onnxruntime's code is their definition, so it cannot disagree
    assert not lines(tally)
    assert len(tally.ops) > 180
    assert tally.verdicts["same"] > 0.85 * sum(tally.verdicts.values())


def test_broken_cases_end_in_an_error_or_a_value():
    tally = fuzz_operators.fuzz(range(0, 250), mode="bad")
    assert not lines(tally)
    assert tally.verdicts["error"] > 500 and tally.verdicts["value"] > 500


def test_a_shrunk_case_fails_like_the_one_it_comes_from(monkeypatch):
    """If Add is wrong for more than two elements in total, a case with the fewest elements that still fails is left."""

    def verdict_of(case):
        wrong = case.inputs[0].size + case.inputs[1].size > 2
        return ("wrong", "") if wrong else ("same", "")

    monkeypatch.setattr(fuzz_operators, "verdict_of", verdict_of)
    seed = next(s for s in range(99) if (c := fuzz_operators.make_case("Add", "", 14, s)) and verdict_of(c)[0] == "wrong")
    best = fuzz_operators.shrunk(fuzz_operators.Finding("wrong", fuzz_operators.make_case("Add", "", 14, seed), ""))
    assert best.verdict == "wrong"
    assert best.case.inputs[0].size + best.case.inputs[1].size <= 4


def test_models_are_compared_on_feeds_that_onnxruntime_takes(tmp_path, monkeypatch):
    """The two operands broadcast only for some of the extents that are drawn."""
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [value("x", "batch", None), value("w", 3, 2)], [value("y", "batch", 2)])
    path = tmp_path / "product.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    assert compare_models.compare(path) == ("same", "")
    monkeypatch.setattr(compare_models.treadle.InferenceSession, "run", lambda session, names, feeds: [2 * feeds["x"] @ feeds["w"]])
    verdict, text = compare_models.compare(path)
    assert verdict == "differs"
    assert "elements" in text


def test_varied_cases_agree_with_their_judges():
    """Cases are within the operators' contracts. What one runtime refuses on purpose and another accepts is listed in disagreements.py."""
    tally = fuzz_operators.fuzz(range(1000, 1400), mode="vary")
    assert not lines(tally)
    assert len(tally.ops) > 200
    assert tally.verdicts["same"] > 0.6 * sum(tally.verdicts.values())


def test_attributes_have_onnxruntimes_defaults():
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    newest = {}
    for schema in state.get_all_operator_schema():
        if schema.domain == "com.microsoft":
            newest[schema.name] = schema
    differing = []
    for name, schema in newest.items():
        contract = contracts().get(("com.microsoft", name))
        for attribute in contract.attributes if contract else ():
            theirs = AttributeProto.FromString(schema.attributes[attribute["name"]]._default_value) if attribute["name"] in schema.attributes else AttributeProto()
            if theirs.type and "default" in attribute:
                value = helper.get_attribute_value(theirs)
                value = value.decode() if isinstance(value, bytes) else value
                if value != pytest.approx(attribute["default"]) if isinstance(value, float) else value != attribute["default"]:
                    differing.append((name, attribute["name"], value, attribute["default"]))
    assert not differing
