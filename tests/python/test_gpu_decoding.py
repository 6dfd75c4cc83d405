"""Decoding on a GPU: caches of keys and values with a length for each sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Case, Source, coded_query, group_query, padded_query, windowed_query
from onnx import TensorProto, helper
from test_gpu import on_gpu
from test_microsoft_attention import decoder_masked, multi_head

import treadle


def on_host(session: treadle.InferenceSession) -> set[str]:
    """The operators that run on the host, besides those that make extents."""
    lines = [line.split("\t") for line in session.to_text("devices").splitlines()]
    return {op_type for device, op_type, *rest in lines if device == "cpu" and "read by the host only" not in rest[-1]}


def check(case: Case, fixed: bool | None, host: set[str]) -> None:
    expected, session = case.treadle(fixed), on_gpu(case.model(fixed))
    got = session.run(None, case.feeds())
    assert on_host(session) <= host, session.to_text("devices")
    for ours, theirs in zip(case.compared(got), case.compared(expected)):
        assert ours.dtype == theirs.dtype, case.describe()
        close = {"rtol": case.tolerance, "atol": case.tolerance} if ours.dtype.kind == "f" else {"rtol": 0, "atol": 1}
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), err_msg=case.describe(), **close)


@pytest.mark.parametrize("make", [group_query, windowed_query, padded_query, multi_head, decoder_masked])
@pytest.mark.parametrize("seed", range(12))
def test_attention_with_caches_is_the_hosts(make: Any, seed: int) -> None:
    fixed = seed % 2 == 0
    check(make(Source(seed)), fixed, set() if fixed else {"Attention"})  # attention needs to know the features of a head


@pytest.mark.parametrize("seed", range(4))
def test_caches_of_codes(seed: int) -> None:
    check(coded_query(Source(seed)), True, {"BitShift"})


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cached(lengths: list[int], total: int, tokens: int, past: int) -> tuple[bytes, dict[str, np.ndarray]]:
    batch = len(lengths)
    feeds = {
        "q": floats(batch, tokens, 32), "k": floats(batch, tokens, 16, seed=2), "v": floats(batch, tokens, 16, seed=3),
        "past_k": floats(batch, 2, past, 8, seed=4), "past_v": floats(batch, 2, past, 8, seed=5),
        "lengths": np.array(lengths, np.int32), "total": np.array(total, np.int32),
    }  # fmt: skip
    node = helper.make_node("GroupQueryAttention", list(feeds), ["y", "k_out", "v_out"], "node", domain="com.microsoft", num_heads=4, kv_num_heads=2)
    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape) for name, value in feeds.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "one", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), feeds


@pytest.mark.parametrize(("lengths", "total", "tokens"), [([6], 6, 1), ([-1], 5, 1), ([4], 9, 1), ([4], 1, 2), ([4, 4], 7, 2)])
def test_lengths_that_do_not_fit_are_errors(lengths: list[int], total: int, tokens: int) -> None:
    model, feeds = cached(lengths, total, tokens, past=5)
    with pytest.raises(treadle.Error):
        treadle.InferenceSession(model).run(None, feeds)
    session = on_gpu(model)
    with pytest.raises(treadle.Error):
        session.run(None, feeds)
    good = cached([4] * len(lengths), 5, 1, past=5)[1]
    if tokens == 1:  # the session stays usable
        assert np.isfinite(session.run(None, good)[0]).all()
