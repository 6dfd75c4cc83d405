"""Decoding on a GPU: caches of keys and values with a length for each sample, and a small decoder whose weights have 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Case, Source, coded_query, group_query, padded_query, windowed_query
from onnx import TensorProto, helper, numpy_helper
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


def test_a_batch_without_new_tokens_keeps_its_caches() -> None:
    model, feeds = cached([1, 2], 3, 0, past=4)
    y, key, value = on_gpu(model).run(None, feeds)
    assert y.shape == (2, 0, 32)
    np.testing.assert_array_equal(key, feeds["past_k"])
    np.testing.assert_array_equal(value, feeds["past_v"])


def test_caches_that_past_and_present_share_stay_on_the_device() -> None:
    model, feeds = cached([0], 1, 1, past=6)
    session, host = on_gpu(model), treadle.InferenceSession(model)
    caches = {name: treadle.OrtValue.ortvalue_from_numpy(feeds[name], "gpu:0") for name in ("past_k", "past_v")}
    expected = {name: feeds[name] for name in caches}
    for step in range(4):
        fed = {name: floats(*feeds[name].shape, seed=10 * step + i) for i, name in enumerate("qkv")}
        fed |= {"lengths": np.array([step], np.int32), "total": np.array(step + 1, np.int32)}
        binding = session.io_binding()
        for name, value in fed.items():
            binding.bind_cpu_input(name, value)
        for name, output in (("past_k", "k_out"), ("past_v", "v_out")):
            binding.bind_ortvalue_input(name, caches[name])
            binding.bind_ortvalue_output(output, caches[name])
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        y, expected["past_k"], expected["past_v"] = host.run(None, {**fed, **expected})
        np.testing.assert_allclose(binding.copy_outputs_to_cpu()[-1], y, rtol=2e-5, atol=2e-5)
        for name, cache in caches.items():
            np.testing.assert_array_equal(cache.numpy(), expected[name])


WIDTH, HEADS, KV_HEADS, SIZE, WORDS, BLOCK = 64, 4, 2, 16, 50, 32


def decoder(layers: int, bits: int, dtype: Any) -> bytes:
    """A small LLaMA as onnxruntime-genai's builder writes it, with weights of `bits` bits, and floats of `dtype`."""
    random, weights, nodes = np.random.default_rng(8), {}, []

    def node(op_type: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [output], output, domain=domain, **attributes))
        return output

    def product(x: str, name: str, rows: int, columns: int) -> str:
        blocks = rows // BLOCK
        weights[name] = random.integers(0, 256, (columns, blocks, BLOCK * bits // 8)).astype(np.uint8)
        weights[name + "_scales"] = (random.random(columns * blocks) * 0.04 * 2 ** (4 - bits)).astype(np.float32)
        return node("MatMulNBits", [x, name, name + "_scales"], name + "_y", "com.microsoft", K=rows, N=columns, bits=bits, block_size=BLOCK)

    def norm(x: str, name: str) -> str:
        weights[name] = (1 + 0.1 * random.standard_normal(WIDTH)).astype(np.float32)
        return node("RMSNormalization", [x, name], name + "_y")

    weights["table"] = random.standard_normal((WORDS, WIDTH)).astype(np.float32)
    angles = np.arange(64)[:, None] / 100.0 ** (np.arange(SIZE // 2) * 2 / SIZE)
    weights["cos"], weights["sin"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    weights |= {"one": np.array([1]), "axis": np.array([1])}
    node("ReduceSum", ["mask", "axis"], "ones", keepdims=0)
    node("Cast", [node("Sub", ["ones", "one"], "last")], "seqlens", to=TensorProto.INT32)
    node("Shape", ["mask"], "extents")
    node("Cast", [node("Gather", ["extents", "axis"], "whole")], "total", to=TensorProto.INT32)
    h = node("Gather", ["table", "ids"], "h")
    qkv = (HEADS + 2 * KV_HEADS) * SIZE
    for i in range(layers):
        x = product(norm(h, f"norm{i}"), f"qkv{i}", WIDTH, qkv)
        past = [f"past_{part}{i}" for part in "kv"]
        outputs = [f"attended{i}", *(f"present_{part}{i}" for part in "kv")]
        nodes.append(helper.make_node("GroupQueryAttention", [x, "", "", *past, "seqlens", "total", "cos", "sin"], outputs, f"attention{i}",
                                      domain="com.microsoft", num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1))  # fmt: skip
        h = node("Add", [h, product(f"attended{i}", f"o{i}", HEADS * SIZE, WIDTH)], f"h{i}a")
        x = norm(h, f"mlp_norm{i}")
        gate, up = product(x, f"gate{i}", WIDTH, 2 * WIDTH), product(x, f"up{i}", WIDTH, 2 * WIDTH)
        gated = node("Mul", [node("Mul", [gate, node("Sigmoid", [gate], f"sigmoid{i}")], f"swish{i}"), up], f"gated{i}")
        h = node("Add", [h, product(gated, f"down{i}", 2 * WIDTH, WIDTH)], f"h{i}b")
    product(norm(h, "last_norm"), "head", WIDTH, 64)
    weights = {name: value.astype(dtype) if value.dtype == np.float32 else value for name, value in weights.items()}
    caches, number = [f"{part}{i}" for i in range(layers) for part in "kv"], helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    cache = lambda kind, rows: [helper.make_tensor_value_info(f"{kind}_{name}", number, ["n", KV_HEADS, rows, SIZE]) for name in caches]  # noqa: E731
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "s"]), helper.make_tensor_value_info("mask", TensorProto.INT64, ["n", "all"])]
    graph = helper.make_graph(
        nodes,
        "decoder",
        inputs + cache("past", "past"),
        [helper.make_tensor_value_info("head_y", number, ["n", "s", 64]), *cache("present", "present")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize(("bits", "dtype"), [(4, np.float32), (8, np.float32), (4, np.float16)])
def test_a_decoder_with_packed_weights_runs_on_the_device_whole(bits: int, dtype: Any) -> None:
    layers, batch, tolerance = 2, 2, 2e-4 if dtype == np.float32 else 3e-2
    model = decoder(layers, bits, dtype)
    session, host = on_gpu(model), treadle.InferenceSession(model)
    assert on_host(session) == set(), session.to_text("devices")
    made = [line.split("\t")[1] for line in session.to_text("devices").splitlines()]
    assert made.count("BlockedMatMul") == 5 * layers + 1 and "DequantizeLinear" not in made, made
    names = [f"{part}{i}" for i in range(layers) for part in "kv"]
    caches = {f"past_{name}": np.zeros((batch, KV_HEADS, 0, SIZE), dtype) for name in names}
    ids, length = np.random.default_rng(3).integers(0, WORDS, (batch, 5)), 5
    for _ in range(4):
        feeds = {"ids": ids, "mask": np.ones((batch, length), np.int64), **caches}
        got, expected = session.run(None, feeds), host.run(None, feeds)
        for ours, theirs in zip(got, expected):
            np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance * np.abs(theirs).max(initial=1))
        caches = {f"past_{name}": cache for name, cache in zip(names, got[1:])}
        ids, length = got[0][:, -1:].argmax(-1) % WORDS, length + 1
