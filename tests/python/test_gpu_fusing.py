"""Chains of pointwise operators, also after products and convolutions, become one node on the GPU: compares values with NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_gpu import on_gpu

import treadle

FLOAT = TensorProto.FLOAT
Node = tuple[Any, ...]


def model_of(nodes: list[Any], feeds: dict[str, np.ndarray], outputs: dict[str, int], constants: dict[str, np.ndarray] | None = None, batch: str = "") -> bytes:
    """Makes a model. `batch`: a symbol for the first extent of each feed, or empty if extents are fixed."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [batch, *value.shape[1:]] if batch else value.shape)
        for name, value in feeds.items()
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        inputs,
        [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def op(op_type: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def kernels(session: treadle.InferenceSession) -> list[str]:
    """Returns the operator of each node that runs on the GPU."""
    return [fields[1] for fields in (line.split("\t") for line in session.to_text("devices").splitlines()) if fields[0] == "gpu:0"]


def floats(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("shapes", [((6, 7), (6, 7), (6, 7)), ((2, 3, 4, 5), (3, 1, 5), (2, 1, 4, 1)), ((4, 5), (), (5,)), ((3, 1), (1, 4), (3, 4)), ((0, 3), (3,), (1, 3))])
def test_a_chain_with_broadcasts_is_one_node(shapes: tuple[tuple[int, ...], ...]) -> None:
    x, row, z = (floats(*shape, seed=seed) for seed, shape in enumerate(shapes))
    feeds = {"x": x, "row": row, "z": z}
    nodes = [op("Add", "x row", "s"), op("Mul", "s z", "m"), op("Sigmoid", "m", "g"), op("Sub", "g m", "d"), op("Max", "d m", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": FLOAT}))
    whole = np.broadcast_shapes(*shapes)
    if np.broadcast_shapes(shapes[0], shapes[1]) == whole:
        assert kernels(session) == ["FusedElementwise"]
    m = (x.astype(np.float64) + row) * z
    np.testing.assert_allclose(session.run(None, feeds)[0], np.maximum(sigmoid(m) - m, m), rtol=2e-6, atol=2e-6)


# NumPy rounds after each operator, as separate nodes do. The fused node must give the same values.
def test_a_chain_of_float16_rounds_as_its_operators_do() -> None:
    random = np.random.default_rng(2)
    a, b, c = ((random.standard_normal(20_000) * 10.0 ** random.integers(-6, 5, 20_000)).astype(np.float16) for _ in range(3))
    feeds = {"a": a, "b": b, "c": c}
    nodes = [op("Mul", "a b", "p"), op("Add", "p c", "s"), op("Sub", "s a", "d"), op("Mul", "d b", "e"), op("Less", "e p", "l"), op("Where", "l e s", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": TensorProto.FLOAT16}))
    assert kernels(session) == ["FusedElementwise"]
    with np.errstate(over="ignore", invalid="ignore"):
        p = a * b
        s = p + c
        e = (s - a) * b
        expected = np.where(e < p, e, s)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_a_chain_of_bfloat16_rounds_as_its_operators_do() -> None:
    a, b = floats(3000, seed=3), floats(3000, seed=4)
    bf16 = TensorProto.BFLOAT16
    nodes = [op("Cast", "a", "p", to=bf16), op("Cast", "b", "q", to=bf16), op("Mul", "p q", "m"), op("Add", "m p", "s"), op("Relu", "s", "r"), op("Cast", "r", "y", to=FLOAT)]
    session = on_gpu(model_of(nodes, {"a": a, "b": b}, {"y": FLOAT}))
    assert kernels(session) == ["FusedElementwise"]
    p, q = torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16()
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], torch.relu(p * q + p).float().numpy())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_a_chain_of_integers_wraps_as_its_operators_do(dtype: Any) -> None:
    random, limits = np.random.default_rng(5), np.iinfo(dtype)
    a, b, c = (random.integers(limits.min, limits.max, 4000, dtype=dtype, endpoint=True) for _ in range(3))
    feeds = {"a": a, "b": b, "c": c}
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [op("Add", "a b", "s"), op("Mul", "s c", "m"), op("Less", "m a", "l"), op("Sub", "m b", "d"), op("Where", "l d s", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": number}))
    assert kernels(session) == ["FusedElementwise"]
    s = a + b
    m = s * c
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.where(m < a, m - b, s))


def test_positions_of_int64_become_a_mask_of_float32() -> None:
    places, lengths = np.arange(40, dtype=np.int64).reshape(1, 40), np.array([[3], [40], [0], [17]], np.int64)
    feeds = {"places": places, "lengths": lengths}
    nodes = [op("GreaterOrEqual", "places lengths", "behind"), op("Cast", "behind", "f", to=FLOAT), op("Mul", "f least", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": FLOAT}, {"least": np.array(-1e9, np.float32)}))
    assert kernels(session) == ["FusedElementwise"]
    np.testing.assert_array_equal(session.run(None, feeds)[0], np.where(places >= lengths, np.float32(-1e9), 0))


def test_a_chain_of_float64() -> None:
    a, b = (np.random.default_rng(seed).standard_normal((30, 5)) for seed in (6, 7))
    nodes = [op("Mul", "a b", "m"), op("Div", "m b", "d"), op("Sub", "d a", "s"), op("Abs", "s", "y")]
    session = on_gpu(model_of(nodes, {"a": a, "b": b}, {"y": TensorProto.DOUBLE}))
    assert kernels(session) == ["FusedElementwise"]
    np.testing.assert_allclose(session.run(None, {"a": a, "b": b})[0], np.abs(a * b / b - a), atol=1e-15)


def test_a_step_that_chains_do_not_know_stays_a_node() -> None:
    a, b = np.array([[7, -8, 9]], np.int64), np.array([[2], [3], [-4]], np.int64)
    nodes = [op("Add", "a a", "s"), op("Mul", "s s", "m"), op("Div", "m b", "q"), op("Sub", "q a", "d"), op("Neg", "d", "y")]
    session = on_gpu(model_of(nodes, {"a": a, "b": b}, {"y": TensorProto.INT64}))
    assert "gpu:0\tDiv" in session.to_text("devices")
    assert kernels(session) == ["FusedElementwise", "Div", "FusedElementwise"]
    quotient = np.trunc(4.0 * a * a / b).astype(np.int64)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a - quotient)
    with pytest.raises(treadle.Error, match="division by zero"):
        session.run(None, {"a": a, "b": b * 0})


def test_a_value_that_is_an_output_as_well_is_kept() -> None:
    x, z = floats(4, 50), floats(4, 50, seed=2)
    nodes = [op("Add", "x z", "s"), op("Relu", "s", "y1"), op("Mul", "y1 z", "m"), op("Tanh", "m", "t"), op("Sub", "t y1", "y2"), op("Exp", "t", "e"), op("Neg", "e", "y3")]
    session = on_gpu(model_of(nodes, {"x": x, "z": z}, {"y1": FLOAT, "y2": FLOAT, "y3": FLOAT}))
    y1, y2, y3 = session.run(None, {"x": x, "z": z})
    wide = np.maximum(x.astype(np.float64) + z, 0)
    tanh = np.tanh(wide * z)
    for got, expected in ((y1, wide), (y2, tanh - wide), (y3, -np.exp(tanh))):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    assert len(kernels(session)) < len(nodes)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_convolution_takes_residual_activation_and_a_factor_for_each_channel(groups: int, dtype: Any) -> None:
    x, w, b = floats(3, 6, 11, 9), floats(24, 6 // groups, 3, 3, seed=2) / 4, floats(24, seed=3)
    r, scale, gate = floats(3, 24, 11, 9, seed=4), floats(24, 1, 1, seed=5), np.abs(floats(3, 24, 1, 1, seed=6))
    tensors = [value.astype(dtype) for value in (x, w, b, r, scale, gate)]
    feeds = dict(zip(("x", "r", "gate"), (tensors[0], tensors[3], tensors[5]), strict=True))
    constants = dict(zip(("w", "b", "scale"), (tensors[1], tensors[2], tensors[4]), strict=True))
    nodes = [op("Conv", "x w b", "c", group=groups, pads=[1] * 4), op("Mul", "c scale", "m"), op("Add", "r m", "s"), op("LeakyRelu", "s", "a", alpha=0.25), op("Mul", "a gate", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, constants, batch="n"))
    assert kernels(session) == ["ChainedConv"]
    wide = [torch.from_numpy(value).double() for value in tensors]
    convolved = torch.nn.functional.conv2d(*wide[:3], padding=1, groups=groups)
    expected = torch.nn.functional.leaky_relu(wide[3] + convolved * wide[4], 0.25) * wide[5]
    tolerance = 1e-5 if dtype == np.float32 else 2e-2
    np.testing.assert_allclose(session.run(None, feeds)[0], expected.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("activation", ["Relu", "Sigmoid", "HardSwish", "Softplus", "Gelu", "Mish", "Tanh"])
def test_a_convolution_ends_in_an_activation(activation: str) -> None:
    x, w = floats(2, 3, 10, 8), floats(5, 3, 3, 3, seed=2)
    functions = {
        "Relu": torch.relu, "Sigmoid": torch.sigmoid, "HardSwish": torch.nn.functional.hardswish, "Softplus": torch.nn.functional.softplus,
        "Gelu": torch.nn.functional.gelu, "Mish": torch.nn.functional.mish, "Tanh": torch.tanh,
    }  # fmt: skip
    session = on_gpu(model_of([op("Conv", "x w", "c"), op(activation, "c", "y")], {"x": x}, {"y": FLOAT}, {"w": w}))
    assert kernels(session) == ["ChainedConv"]
    expected = functions[activation](torch.nn.functional.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double()))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_gate_reads_the_convolution_twice() -> None:
    x, w = floats(2, 3, 10, 8), floats(16, 3, 3, 3, seed=2)
    nodes = [op("Conv", "x w", "c"), op("Sigmoid", "c", "s"), op("Mul", "c s", "y")]
    session = on_gpu(model_of(nodes, {"x": x}, {"y": FLOAT}, {"w": w}))
    assert kernels(session) == ["ChainedConv"]
    expected = torch.nn.functional.silu(torch.nn.functional.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double()))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("a", "b"), [((70, 33), (33, 130)), ((2, 3, 7, 33), (3, 33, 13)), ((2, 1, 5, 4), (1, 3, 4, 6)), ((4, 9, 8), (8, 5)), ((5,), (5, 3)), ((3, 4, 5), (5,))])
def test_a_product_takes_bias_residual_and_activation(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, w = floats(*a), floats(*b, seed=2)
    product = x.astype(np.float64) @ w
    bias, residual = floats(product.shape[-1], seed=3), floats(*product.shape, seed=4)
    factor = floats(*product.shape[:-1], 1, seed=5)
    feeds = {"x": x, "residual": residual}
    nodes = [op("MatMul", "x w", "p"), op("Add", "p bias", "s"), op("Mul", "s factor", "f"), op("Tanh", "f", "t"), op("Add", "residual t", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": FLOAT}, {"w": w, "bias": bias, "factor": factor}))
    assert kernels(session) == (["ChainedMatMul"] if len(b) > 1 else ["MatMul", "FusedElementwise"])
    np.testing.assert_allclose(session.run(None, feeds)[0], residual + np.tanh((product + bias) * factor), rtol=2e-5, atol=2e-5)


def test_a_gemm_keeps_its_own_addend() -> None:
    x, w, c, r = floats(6, 8), floats(5, 8, seed=2), floats(5, seed=3), floats(6, 5, seed=4)
    nodes = [op("Gemm", "x w c", "g", transB=1, alpha=0.5, beta=2.0), op("Relu", "g", "a"), op("Sub", "r a", "y")]
    session = on_gpu(model_of(nodes, {"x": x, "r": r}, {"y": FLOAT}, {"w": w, "c": c}))
    assert kernels(session) == ["ChainedGemm"]
    expected = r - np.maximum(0.5 * (x.astype(np.float64) @ w.T) + 2 * c, 0)
    np.testing.assert_allclose(session.run(None, {"x": x, "r": r})[0], expected, rtol=1e-5, atol=1e-5)


# The first convolution cannot add the result of the second, which is computed later. So the second adds the result of the first.
def test_of_two_convolutions_one_takes_the_sum() -> None:
    x, v, w = floats(1, 4, 9, 9), floats(8, 4, 1, 1, seed=2), floats(8, 4, 3, 3, seed=3)
    nodes = [op("Conv", "x v", "a"), op("Conv", "x w", "b", pads=[1] * 4), op("Add", "a b", "s"), op("Relu", "s", "y")]
    session = on_gpu(model_of(nodes, {"x": x}, {"y": FLOAT}, {"v": v, "w": w}))
    assert sorted(kernels(session)) == ["ChainedConv", "Conv"]
    wide = [torch.from_numpy(value).double() for value in (x, v, w)]
    expected = torch.relu(torch.nn.functional.conv2d(wide[0], wide[1]) + torch.nn.functional.conv2d(wide[0], wide[2], padding=1))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected.numpy(), rtol=1e-5, atol=1e-5)


def test_bodies_and_extents_of_the_run_stay_on_the_host() -> None:
    x = floats(5, 6)
    branch = helper.make_graph([op("Mul", "x x", "p"), op("Neg", "p", "q"), op("Exp", "q", "t")], "branch", [], [helper.make_tensor_value_info("t", FLOAT, [5, 6])])
    nodes = [
        helper.make_node("If", ["c"], ["e"], then_branch=branch, else_branch=branch),
        op("NonZero", "x", "n"), op("Add", "n n", "m"), op("Mul", "m n", "k"),
    ]  # fmt: skip
    session = on_gpu(model_of(nodes, {"x": x, "c": np.array(True)}, {"e": FLOAT, "k": TensorProto.INT64}))
    e, k = session.run(None, {"x": x, "c": np.array(True)})
    np.testing.assert_allclose(e, np.exp(-(x.astype(np.float64) ** 2)), rtol=2e-6)
    places = np.array(np.nonzero(x))
    np.testing.assert_array_equal(k, 2 * places * places)


def test_more_operands_than_a_shader_has_addresses_for() -> None:
    values = {f"x{i}": floats(2, 3, 4, 5, seed=i) if i % 3 else floats(3, 1, 5, seed=i) for i in range(30)}
    nodes = [op("Add", f"{'s' + str(i - 1) if i > 1 else 'x0'} x{i}", f"s{i}") for i in range(1, 30)]
    session = on_gpu(model_of([*nodes, op("Tanh", "s29", "y")], values, {"y": FLOAT}))
    assert len(kernels(session)) <= 5
    np.testing.assert_allclose(session.run(None, values)[0], np.tanh(sum(v.astype(np.float64) for v in values.values())), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_chains(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = tuple(int(n) for n in random.integers(1, 6, random.integers(1, 5)))
    feeds: dict[str, np.ndarray] = {}
    values: list[tuple[str, np.ndarray]] = []
    for i in range(int(random.integers(2, 6))):
        shape = whole if i == 0 else tuple(n if random.random() < 0.6 else 1 for n in whole)[int(random.integers(0, len(whole))) :]
        feeds[f"x{i}"] = random.uniform(-2, 2, shape).astype(np.float32)
        values.append((f"x{i}", feeds[f"x{i}"].astype(np.float64)))
    unary = {"Tanh": np.tanh, "Abs": np.abs, "Neg": np.negative, "Sigmoid": sigmoid, "Relu": lambda v: np.maximum(v, 0), "Sin": np.sin}
    binary = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Max": np.maximum, "Min": np.minimum}
    nodes = []
    for i in range(int(random.integers(4, 16))):
        first = values[int(random.integers(0, len(values)))]
        if random.random() < 0.4:
            name = str(random.choice(list(unary)))
            nodes.append(op(name, first[0], f"v{i}"))
            values.append((f"v{i}", unary[name](first[1])))
        else:
            second, name = values[int(random.integers(0, len(values)))], str(random.choice(list(binary)))
            nodes.append(op(name, f"{first[0]} {second[0]}", f"v{i}"))
            values.append((f"v{i}", binary[name](first[1], second[1])))
    kept = [value for value in values if value[0].startswith("v")]
    outputs = kept[-2:] if random.random() < 0.5 else kept[-1:]
    session = on_gpu(model_of(nodes, feeds, {name: FLOAT for name, _ in outputs}))
    used = {value.name for value in session.get_inputs()}
    for got, (name, expected) in zip(session.run(None, {k: v for k, v in feeds.items() if k in used}), outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5, err_msg=name)


def test_a_precision_is_refused() -> None:
    model = model_of([op("Relu", "x", "y")], {"x": floats(2)}, {"y": FLOAT})
    on_gpu(model)
    options = treadle.SessionOptions()
    options.device, options.precision = "gpu:0", "bfloat16"
    with pytest.raises(treadle.Error, match="a device with kernels of its own has no precision"):
        treadle.InferenceSession(model, options)


# In a residual block of ResNet and a layer of BERT, each product and convolution takes one dispatch together with pointwise operators after it.
def test_blocks_of_networks_need_few_dispatches() -> None:
    block = [
        op("Conv", "x w1 b1", "c1", pads=[1] * 4), op("Relu", "c1", "r1"), op("Conv", "r1 w2 b2", "c2", pads=[1] * 4), op("Add", "c2 x", "s"), op("Relu", "s", "y"),
    ]  # fmt: skip
    constants = {"w1": floats(8, 8, 3, 3), "b1": floats(8), "w2": floats(8, 8, 3, 3, seed=2), "b2": floats(8, seed=3)}
    assert kernels(on_gpu(model_of(block, {"x": floats(1, 8, 6, 6)}, {"y": FLOAT}, constants))) == ["ChainedConv"] * 2
    feed_forward = [
        op("MatMul", "x w1", "p1"), op("Add", "p1 b1", "a1"), op("Div", "a1 root2", "d"), op("Erf", "d", "e"), op("Add", "e one", "f"), op("Mul", "a1 f", "g"), op("Mul", "g half", "h"),
        op("MatMul", "h w2", "p2"), op("Add", "p2 b2", "a2"), op("Add", "a2 x", "s"), op("LayerNormalization", "s scale shift", "y"),
    ]  # fmt: skip
    x, w1, w2 = floats(2, 5, 8), floats(8, 16), floats(16, 8, seed=2)
    constants = {"w1": w1, "b1": floats(16), "w2": w2, "b2": floats(8), "scale": floats(8), "shift": floats(8, seed=2)}
    constants |= {"root2": np.array(np.sqrt(2), np.float32), "one": np.array(1, np.float32), "half": np.array(0.5, np.float32)}
    session = on_gpu(model_of(feed_forward, {"x": x}, {"y": FLOAT}, constants))
    assert kernels(session) == ["ChainedMatMul"] * 2 + ["LayerNormalization"]
    wide = {name: torch.from_numpy(value).double() for name, value in {"x": x, **constants}.items()}
    hidden = torch.nn.functional.gelu(wide["x"] @ wide["w1"] + wide["b1"]) @ wide["w2"] + wide["b2"] + wide["x"]
    expected = torch.nn.functional.layer_norm(hidden, (8,), wide["scale"], wide["shift"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected.numpy(), rtol=1e-4, atol=1e-4)


def attention_model(kind: str, batch: int = 2, rows: int = 37, heads: int = 4, size: int = 16) -> tuple[bytes, dict[str, np.ndarray]]:
    """Attention as exporters write it, behind one product that makes Q, K and V."""
    width = heads * size
    feeds = {"x": floats(batch, rows, width)}
    constants = {"w": floats(width, 3 * width, seed=2) / 8, "scale": np.array(size**-0.5, np.float32), "rows": np.array([0, 0, width])}
    nodes = [op("MatMul", "x w", "all")]
    if kind == "parts":  # as in vision transformers
        constants |= {"split": np.array([0, 0, 3, heads, size]), **{f"i{i}": np.array(i) for i in range(3)}}
        nodes += [op("Reshape", "all split", "five"), op("Transpose", "five", "turned", perm=[2, 0, 3, 1, 4])]
        nodes += [op("Gather", f"turned i{i}", part, axis=0) for i, part in enumerate(["qt", "k", "vt"])]
        nodes.append(op("Transpose", "k", "kt", perm=[0, 1, 3, 2]))
    else:
        constants["heads"] = np.array([0, 0, heads, size])
        nodes.append(helper.make_node("Split", ["all"], ["q", "k", "v"], axis=2, num_outputs=3))
        for part, turned in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes += [op("Reshape", f"{part} heads", part + "r"), op("Transpose", part + "r", part + "t", perm=turned)]
    nodes += [op("MatMul", "qt kt", "s"), op("Mul", "s scale", "scaled")]
    mask = np.random.default_rng(5).random((batch, 1, 1, rows)) < 0.7
    mask[..., 0] = True
    probabilities = "p"
    if kind == "added":
        feeds["mask"] = np.where(mask, 0, -10000).astype(np.float32)
        nodes += [op("Add", "scaled mask", "masked"), op("Softmax", "masked", "p", axis=-1)]
    elif kind == "chosen":
        feeds["mask"], constants["never"] = mask, np.array(-1e9, np.float32)
        nodes += [op("Where", "mask scaled never", "masked"), op("Softmax", "masked", "p", axis=-1)]
    elif kind == "hidden":  # rows that see nothing get zeros, as PyTorch writes it
        mask = np.tril(np.ones((rows, rows), bool))[None, None]
        mask[..., 3, :] = False
        feeds["mask"], constants["never"], constants["zero"] = mask, np.array(-np.inf, np.float32), np.array(0, np.float32)
        nodes += [op("Where", "mask scaled never", "masked"), op("Softmax", "masked", "p", axis=-1), op("IsNaN", "p", "n"), op("Where", "n zero p", "z")]
        probabilities = "z"
    else:
        nodes.append(op("Softmax", "scaled", "p", axis=-1))
    nodes += [op("MatMul", probabilities + " vt", "o"), op("Transpose", "o", "ot", perm=[0, 2, 1, 3]), op("Reshape", "ot rows", "y")]
    return model_of(nodes, feeds, {"y": FLOAT}, constants, batch="" if kind == "hidden" else "n"), feeds


@pytest.mark.parametrize("kind", ["plain", "parts", "added", "chosen", "hidden"])
def test_attention_that_is_written_out_is_one_node(kind: str) -> None:
    model, feeds = attention_model(kind)
    session = on_gpu(model)
    made = kernels(session)
    assert made.count("FusedAttention") == 1 and "Softmax" not in made and "Transpose" not in made, made
    plain = treadle.SessionOptions()
    plain.graph_optimization_level = treadle.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = treadle.InferenceSession(model, plain).run(None, feeds)[0]
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_that_is_written_out_is_one_node(interleaved: bool) -> None:
    batch, heads, rows, size = 2, 3, 5, 8
    feeds = {"x": floats(batch, rows, heads, size), "c": floats(1, 1, rows, size, seed=2), "s": floats(1, 1, rows, size, seed=3)}
    integers = {"zero": [0], "one": [1], "two": [2], "half": [size // 2], "end": [size], "axis": [3], "last": [-1], "whole": [0, 0, 0, -1]}
    constants = {name: np.array(value) for name, value in integers.items()}
    nodes = [op("Transpose", "x", "t", perm=[0, 2, 1, 3])]
    if interleaved:
        nodes += [op("Slice", "t zero end axis two", "even"), op("Slice", "t one end axis two", "odd"), op("Neg", "odd", "n")]
        nodes += [op("Unsqueeze", "n last", "nu"), op("Unsqueeze", "even last", "eu"), op("Concat", "nu eu", "pairs", axis=-1)]
        nodes.append(op("Reshape", "pairs whole", "r"))
    else:
        nodes += [op("Slice", "t zero half axis one", "a"), op("Slice", "t half end axis one", "b"), op("Neg", "b", "n"), op("Concat", "n a", "r", axis=-1)]
    nodes += [op("Mul", "t c", "tc"), op("Mul", "r s", "rs"), op("Add", "tc rs", "y")]
    session = on_gpu(model_of(nodes, feeds, {"y": FLOAT}, constants))
    assert kernels(session) == ["FusedRotary"]
    x = feeds["x"].astype(np.float64).swapaxes(1, 2)
    turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) if interleaved else np.concatenate([-x[..., 4:], x[..., :4]], -1)
    np.testing.assert_allclose(session.run(None, feeds)[0], x * feeds["c"] + turned * feeds["s"], rtol=1e-5, atol=1e-5)


# The extents are known in the run only, so that the mask may have more samples, heads or rows than the scores, which it then broadcasts.
@pytest.mark.parametrize("mask", [(3, 1, 1, 5), (1, 4, 1, 5), (1, 1, 6, 5), (3, 4, 6, 5), (4, 6, 5), (6, 5), (3, 1, 1, 1), (1, 1, 1, 5)])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("rows", [1, 6])
def test_a_mask_that_broadcasts_the_scores(mask: tuple[int, ...], heads: int, rows: int) -> None:
    feeds = {name: floats(1, heads, length, 8, seed=length) for name, length in (("q", rows), ("k", 5), ("v", 5))} | {"mask": floats(*mask, seed=7)}
    inputs = [helper.make_tensor_value_info(name, FLOAT, ["n", "h", f"{name.replace('v', 'k')}_rows", 8]) for name in "qkv"]
    inputs.append(helper.make_tensor_value_info("mask", FLOAT, [f"m{i}" for i in range(len(mask))]))
    nodes = [op("Transpose", "k", "kt", perm=[0, 1, 3, 2]), op("MatMul", "q kt", "s"), op("Mul", "s half", "scaled"), op("Add", "scaled mask", "m")]
    nodes += [op("Softmax", "m", "p", axis=-1), op("MatMul", "p v", "y")]
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    graph = helper.make_graph(nodes, "stretched", inputs, [helper.make_tensor_value_info("y", FLOAT, None)], [scale])
    session = on_gpu(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString())
    assert kernels(session) == ["FusedAttention"]
    scores = feeds["q"].astype(np.float64) @ feeds["k"].swapaxes(2, 3) / 2 + feeds["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(session.run(None, feeds)[0], weights / weights.sum(-1, keepdims=True) @ feeds["v"], rtol=2e-5, atol=2e-5)
