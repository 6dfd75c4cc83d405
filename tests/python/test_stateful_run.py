"""States that stay in the runtime from run to run: the values are the same as when a caller feeds them."""

import types

import numpy as np
import pytest
from onnx import TensorProto, helper

import treadle

from conftest import SHARED_DATA

PAIRS = {"past_key": "present_key", "past_value": "present_value"}


def accumulator(axis):
    """Returns a model of present = Concat(past, x) and total = sum of present, for [?, ?] floats, and a counter of fixed shape."""
    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["past", "x"], ["present"], axis=axis),
            helper.make_node("ReduceSum", ["present"], ["total"], keepdims=0),
            helper.make_node("Add", ["count", "one"], ["next"]),
        ],
        "accumulator",
        [
            helper.make_tensor_value_info("past", TensorProto.FLOAT, ["rows", "columns"]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["new_rows", "new_columns"]),
            helper.make_tensor_value_info("count", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("present", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("next", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return treadle.InferenceSession(model.SerializeToString())


@pytest.mark.parametrize("axis", [0, 1])
def test_states_grow_run_by_run(axis):
    session = accumulator(axis)
    start = np.zeros((0, 3) if axis == 0 else (2, 0), np.float32)
    runs = session.stateful({"past": "present", "count": "next"}, {"past": start})
    parts, rng = [start], np.random.default_rng(0)
    for step in range(40):
        part = rng.standard_normal((1 + step % 3, 3) if axis == 0 else (2, 1 + step % 3)).astype(np.float32)
        parts.append(part)
        (total,) = runs.run(None, {"x": part})
        whole = np.concatenate(parts, axis)
        np.testing.assert_allclose(total, whole.sum(dtype=np.float64), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(runs.state("past"), whole)
        assert runs.state("count") == [step + 1]


def test_arrays_handed_in_and_out_keep_their_values():
    session = accumulator(0)
    start = np.ones((1, 2), np.float32)
    runs = session.stateful({"past": "present", "count": "next"}, {"past": start})
    seen = []
    for step in range(8):
        present, _ = runs.run(["present", "total"], {"x": np.full((1, 2), step, np.float32)})
        seen.append((present, present.copy(), runs.state("past"), runs.state("past").copy()))
    np.testing.assert_array_equal(start, np.ones((1, 2)))
    for present, kept, state, state_kept in seen:
        np.testing.assert_array_equal(present, kept)
        np.testing.assert_array_equal(state, state_kept)


def test_a_sequence_may_go_back_and_take_another_way():
    session = accumulator(0)
    runs = session.stateful({"past": "present", "count": "next"}, {"past": np.zeros((0, 1), np.float32)})
    for value in (1, 2):
        runs.run(None, {"x": np.full((1, 1), value, np.float32)})
    fork = runs.state("past")
    runs.run(None, {"x": np.full((1, 1), 3, np.float32)})
    runs.set_state("past", fork)
    runs.run(None, {"x": np.full((1, 1), 4, np.float32)})
    assert runs.state("past").ravel().tolist() == [1, 2, 4]
    assert fork.ravel().tolist() == [1, 2]


def test_after_an_error_the_states_are_those_before():
    session = accumulator(0)
    runs = session.stateful({"past": "present", "count": "next"}, {"past": np.ones((1, 2), np.float32)})
    runs.run(None, {"x": np.ones((1, 2), np.float32)})
    with pytest.raises(treadle.errors.InvalidArgument):
        runs.run(None, {"x": np.ones((1, 5), np.float32)})
    assert runs.state("past").shape == (2, 2)
    assert runs.state("count") == [1]
    runs.run(None, {"x": np.ones((1, 2), np.float32)})
    assert runs.state("past").shape == (3, 2)


def test_feeds_may_be_any_mapping():
    session = accumulator(0)
    feeds = types.MappingProxyType({"past": np.ones((1, 2), np.float32), "x": np.ones((1, 2), np.float32), "count": np.zeros(1, np.int64)})
    assert session.run(["total"], feeds) == [4]


def test_wrong_names_and_missing_values_are_named():
    session = accumulator(0)
    with pytest.raises(treadle.errors.InvalidArgument, match='no output "absent"'):
        session.stateful({"past": "absent"})
    with pytest.raises(treadle.errors.InvalidArgument, match='no input "absent"'):
        session.stateful({"absent": "present"})
    with pytest.raises(treadle.errors.InvalidArgument, match='"past" has no fixed shape'):
        session.stateful({"past": "present"})
    runs = session.stateful({"past": "present", "count": "next"}, {"past": np.zeros((0, 1), np.float32)})
    with pytest.raises(treadle.errors.InvalidArgument, match='"count" is a state'):
        runs.run(None, {"x": np.zeros((1, 1), np.float32), "count": np.zeros(1, np.int64)})
    with pytest.raises(ValueError, match="'x'"):
        runs.run(None, {})
    with pytest.raises(treadle.errors.InvalidArgument, match='no state "x"'):
        runs.state("x")


@pytest.mark.skipif(SHARED_DATA is None, reason="the shared models are not here")
def test_a_kv_cache_gives_what_feeding_it_by_hand_gives():
    session = treadle.InferenceSession(str(SHARED_DATA / "models" / "char_gpt_kv.onnx"))
    empty = np.zeros((3, 1, 4, 0, 32), np.float32)
    prompt = np.random.default_rng(0).integers(0, 65, (1, 20))

    def decode(step, steps=60):
        ids, tokens, scores = prompt, [], []
        for _ in range(steps):
            logits = step(ids)
            scores.append(logits[0, -1])
            ids = logits[:, -1:].argmax(-1)
            tokens.append(int(ids[0, 0]))
        return tokens, np.array(scores)

    past = {"past_key": empty, "past_value": empty}

    def by_hand(ids):
        logits, past["past_key"], past["past_value"] = session.run(None, {"input_ids": ids, **past})
        return logits

    runs = session.stateful(PAIRS, {name: empty for name in PAIRS})
    plain_tokens, plain_scores = decode(by_hand)
    tokens, scores = decode(lambda ids: runs.run(None, {"input_ids": ids})[0])
    assert tokens == plain_tokens
    np.testing.assert_array_equal(scores, plain_scores)
    np.testing.assert_array_equal(runs.state("past_key"), past["past_key"])
