"""Tests gradient rules that the gradient fuzzer does not reach: computed axes, indices down columns, layers with states, crops."""

from __future__ import annotations

import numpy as np
import pytest
import treadle
from treadle import executor

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402


def model(text: str, opset: int = 21, domains: str = ""):
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}{domains}]>\n' + text)


def bind(proto, **arrays: np.ndarray):
    return executor.bind(proto, arrays, grad_req={name: "write" if value.dtype == np.float32 else "null" for name, value in arrays.items()})


def gradients_of(proto, flows: list[np.ndarray] | None = None, **arrays: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    bound = bind(proto, **arrays)
    outputs = [np.array(y) for y in bound.forward(is_train=True)]
    bound.backward([np.ones_like(y) for y in outputs] if flows is None else flows)
    return outputs, {name: np.array(grad) for name, grad in bound.grad_dict.items() if grad is not None}


def floats(*shapes: tuple[int, ...], seed: int = 3) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def tensors(*arrays: np.ndarray) -> list:
    return [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("axes", [[1], [0, -1], [-1, 1, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_products_over_computed_axes(zeros: int, axes: list[int], keepdims: int) -> None:
    proto = model(f"""agraph (float[2, 3, 4] x, int64[{len(axes)}] a) => (float[?] y) {{
      minus = Neg(a) b = Neg(minus)
      y = ReduceProd <keepdims = {keepdims}> (x, b)
    }}""".replace("[?]", ""))
    x = floats((2, 3, 4))[0] + 2
    x[0, 1, 2] = 0 if zeros else 1
    x[0, 2, 2] = x[0, 1, 3] = x[1, 1, 2] = 0 if zeros == 2 else 1
    (t,) = tensors(x)
    y = t
    for axis in axes:
        y = y.prod(axis, keepdim=True)
    flow = np.random.default_rng(0).uniform(0.5, 1.5, y.shape).astype(np.float32)
    (y * torch.tensor(flow)).sum().backward()
    if not keepdims:
        flow = flow.reshape([n for i, n in enumerate(x.shape) if i not in [a % 3 for a in axes]])
    _, grads = gradients_of(proto, [flow], x=x, a=np.array(axes))
    np.testing.assert_allclose(grads["x"], t.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shows", [True, False])
def test_pools_whose_indices_count_down_the_columns(shows: bool) -> None:
    proto = model(f"""agraph (float[2, 3, 5, 7] x) => (float[n, c, h, w] y{', float[n, c, h, w] f' if shows else ''}) {{
      y, i = MaxPool <kernel_shape = [2, 3], strides = [2, 2], storage_order = 1> (x)
      {'f = Cast <to = 1> (i)' if shows else ''}
    }}""")
    (x,) = floats((2, 3, 5, 7))
    (t,) = tensors(x)
    torch.nn.functional.max_pool2d(t, (2, 3), 2).sum().backward()
    bound = bind(proto, x=x)
    outputs = bound.forward(is_train=True)
    bound.backward([np.ones_like(outputs[0])] + ([np.zeros_like(outputs[1])] if shows else []))
    np.testing.assert_allclose(bound.grad_dict["x"], t.grad)
    if shows:
        np.testing.assert_array_equal(outputs[1], treadle.InferenceSession(proto.SerializeToString()).run(["f"], {"x": x})[0])


def causal_conv(x, w, b, past, silu: bool):
    both = torch.cat([past, x], 2)
    y = torch.nn.functional.conv1d(both, w, b, groups=w.shape[0])
    return torch.nn.functional.silu(y) if silu else y, both[:, :, both.shape[2] - w.shape[2] + 1 :]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("taps", [1, 4])
@pytest.mark.parametrize("length", [2, 6])
def test_causal_convolutions_with_a_state(silu: bool, taps: int, length: int) -> None:
    proto = model(f"""agraph (float[n, 5, l] x, float[5, 1, {taps}] w, float[5] b, float[n, 5, {taps - 1}] p) => (float[n, 5, l] y, float[n, 5, {taps - 1}] s) {{
      y, s = CausalConvWithState <activation = "{'silu' if silu else 'none'}"> (x, w, b, p)
    }}""", opset=27)
    arrays = floats((2, 5, length), (5, 1, taps), (5,), (2, 5, taps - 1))
    flows = floats((2, 5, length), (2, 5, taps - 1), seed=4)
    expected = tensors(*arrays)
    outputs = causal_conv(*expected, silu)
    sum((y * torch.tensor(flow)).sum() for y, flow in zip(outputs, flows)).backward()
    ours, grads = gradients_of(proto, flows, **dict(zip("xwbp", arrays)))
    for y, want in zip(ours, outputs):
        np.testing.assert_allclose(y, want.detach(), rtol=1e-5, atol=1e-6)
    for name, want in zip("xwbp", expected):
        np.testing.assert_allclose(grads[name], want.grad, rtol=1e-4, atol=1e-5)


def test_a_causal_convolution_without_state_and_bias() -> None:
    proto = model("agraph (float[2, 5, 6] x, float[5, 1, 3] w) => (float[2, 5, 6] y) { y = CausalConvWithState(x, w) }", opset=27)
    arrays = floats((2, 5, 6), (5, 1, 3))
    x, w = tensors(*arrays)
    causal_conv(x, w, None, torch.zeros(2, 5, 2, dtype=torch.float64), False)[0].sum().backward()
    _, grads = gradients_of(proto, x=arrays[0], w=arrays[1])
    np.testing.assert_allclose(grads["x"], x.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads["w"], w.grad, rtol=1e-4, atol=1e-5)


def linear_attention(q, k, v, past, decay, beta, rule: str, q_heads: int, kv_heads: int):
    batch, length = q.shape[:2]
    q, k, v = (x.reshape(batch, length, heads, -1) for x, heads in ((q, q_heads), (k, kv_heads), (v, kv_heads)))
    state, outputs, many = past, [], max(q_heads, kv_heads)
    for t in range(length):
        if "gated" in rule:
            d = decay[:, t].reshape(batch, kv_heads, -1, 1)
            state = state * torch.exp(d)
        row = v[:, t]
        if "delta" in rule:
            row = (row - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t].unsqueeze(-1)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], row)
        queries, states = q[:, t].repeat_interleave(many // q_heads, 1), state.repeat_interleave(many // kv_heads, 1)
        outputs.append(torch.einsum("bhk,bhkv->bhv", queries, states).reshape(batch, -1) / q.shape[-1] ** 0.5)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("per_key", [True, False])
def test_linear_attention(rule: str, heads: tuple[int, int], per_key: bool) -> None:
    q_heads, kv_heads = heads
    length, batch, key, value = 7, 2, 3, 5
    features = kv_heads * key if per_key else kv_heads
    shared = 1 if per_key else kv_heads  # number of betas per key
    proto = model(f"""agraph (float[n, l, {q_heads * key}] q, float[n, l, {kv_heads * key}] k, float[n, l, {kv_heads * value}] v, float[n, {kv_heads}, {key}, {value}] p,
                              float[n, l, {features}] d, float[n, l, {shared}] b) => (float[n, l, o] y, float[n, {kv_heads}, {key}, {value}] s) {{
      y, s = LinearAttention <q_num_heads = {q_heads}, kv_num_heads = {kv_heads}, update_rule = "{rule}"> (q, k, v, p, d, b)
    }}""", opset=27)
    arrays = floats((batch, length, q_heads * key), (batch, length, kv_heads * key), (batch, length, kv_heads * value), (batch, kv_heads, key, value), (batch, length, features),
                    (batch, length, shared))
    expected = tensors(*arrays)
    outputs = linear_attention(*expected, rule, q_heads, kv_heads)
    flows = [np.random.default_rng(5).uniform(-1, 1, tuple(y.shape)).astype(np.float32) for y in outputs]
    sum((y * torch.tensor(flow)).sum() for y, flow in zip(outputs, flows)).backward()
    ours, grads = gradients_of(proto, flows, **dict(zip("qkvpdb", arrays)))
    for y, want in zip(ours, outputs):
        np.testing.assert_allclose(y, want.detach(), rtol=1e-4, atol=1e-5)
    for name, want in zip("qkvpdb", expected):
        np.testing.assert_allclose(grads[name], np.zeros(want.shape) if want.grad is None else want.grad, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops(mode: str) -> None:
    proto = model(f"""agraph (float[2, 3, 6, 5] x, float[4, 4] r, int32[4] b) => (float[4, 3, 3, 4] y) {{
      size = Constant <value = int64[2] {{3, 4}}> ()
      y = com.microsoft.CropAndResize <mode = "{mode}", extrapolation_value = 7.0> (x, r, b, size)
    }}""", domains=', "com.microsoft" : 1')
    (x,) = floats((2, 3, 6, 5))
    r = np.array([[0, 0, 1, 1], [0.21, 0.13, 0.83, 0.77], [-0.4, 0.1, 0.6, 1.3], [0.9, 0.8, 0.2, 0.1]], np.float32)
    arrays = {"r": r, "b": np.array([0, 1, 1, 0], np.int32)}
    session = treadle.InferenceSession(proto.SerializeToString())
    flow = np.random.default_rng(0).uniform(0.5, 1.5, (4, 3, 3, 4)).astype(np.float32)
    bound = executor.bind(proto, {"x": x, **arrays}, grad_req={"x": "write", "r": "null", "b": "null"})
    bound.forward(is_train=True)
    bound.backward([flow])
    # A crop is linear in the image, so each element's gradient is the transposed map of that element.
    expected = np.zeros(x.shape)
    base = session.run(None, {"x": np.zeros_like(x), **arrays})[0]
    for place in np.ndindex(*x.shape):
        one = np.zeros_like(x)
        one[place] = 1
        expected[place] = np.vdot(session.run(None, {"x": one, **arrays})[0].astype(np.float64) - base, flow)
    np.testing.assert_allclose(bound.grad_dict["x"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric: str) -> None:
    proto = model(f"""agraph (float[5, 7] a, float[20, 7] b) => (float[5, 20] y) {{
      y = com.microsoft.CDist <metric = "{metric}"> (a, b)
    }}""", domains=', "com.microsoft" : 1')
    a, b = floats((5, 7), (20, 7))
    a += 10
    b += 10  # far from the origin, |a|^2 - 2 a.b + |b|^2 would cancel
    b[3] = a[2]  # the distance is 0, which has no direction
    s, t = tensors(a, b)
    distances = torch.cdist(s, t, compute_mode="donot_use_mm_for_euclid_dist")
    if metric == "sqeuclidean":
        distances = ((s[:, None] - t) ** 2).sum(2)
    flow = np.random.default_rng(0).uniform(0.5, 1.5, (5, 20)).astype(np.float32)
    (distances * torch.tensor(flow)).sum().backward()
    (ours,), grads = gradients_of(proto, [flow], a=a, b=b)
    np.testing.assert_allclose(ours, distances.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads["a"], s.grad, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grads["b"], t.grad, rtol=1e-4, atol=1e-4)
