"""Gradients through quantised integers: straight through the rounding, equal to those of the same networks in floats; or an error that names the
node."""

from __future__ import annotations

import numpy as np
import pytest
import treadle
from treadle import executor

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402


def model(text: str):
    return parser.parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)


def gradients_of(text: str, flow: np.ndarray | None = None, **arrays: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    bound = executor.bind(model(text), arrays, grad_req={name: "write" if value.dtype == np.float32 else "null" for name, value in arrays.items()})
    (y, *_) = bound.forward(is_train=True)
    bound.backward([np.ones_like(y) if flow is None else flow])
    return np.array(y), {name: np.array(grad) for name, grad in bound.grad_dict.items() if grad is not None}


def floats(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


DYNAMIC = """agraph (float[4, 6] x, float[6, 5] w0, int8[5, 3] w8, float ws) => (float[4, 3] y) {
  h = MatMul(x, w0)
  q, s, z = DynamicQuantizeLinear(h)
  p = MatMulInteger(q, w8, z)
  f = Cast <to = 1> (p)
  ss = Mul(s, ws)
  y = Mul(f, ss)
}"""


def test_parameters_before_a_dynamically_quantised_product_learn():
    x, w0, flow = floats((4, 6), (6, 5), (4, 3))
    w8, ws = np.random.default_rng(0).integers(-127, 128, (5, 3)).astype(np.int8), np.float32(0.01)
    y, grads = gradients_of(DYNAMIC, flow, x=x, w0=w0, w8=w8, ws=np.array(ws))
    wide = x.astype(np.float64) @ w0
    weights = w8.astype(np.float64) * 0.01
    np.testing.assert_allclose(y, wide @ weights, atol=0.02)
    np.testing.assert_allclose(grads["w0"], x.T @ (flow @ weights.T), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads["x"], flow @ weights.T @ w0.T, rtol=1e-5, atol=1e-6)


def test_both_factors_of_an_integer_product_learn():
    """The model quantises the weights itself, and adds an int32 bias between the product and the Cast."""
    text = """agraph (float[4, 6] x, float[6, 5] w, float xs, float ws, int32[5] bias) => (float[4, 5] y) {
      zx = Constant <value = uint8 {128}> ()
      zw = Constant <value = int8[5] {3, 0, -2, 1, 0}> ()
      ones = Constant <value = float[5] {1, 1, 1, 1, 1}> ()
      wss = Mul(ones, ws)
      xq = QuantizeLinear(x, xs, zx)
      wq = QuantizeLinear <axis = 1> (w, wss, zw)
      p = MatMulInteger(xq, wq, zx, zw)
      b = Add(p, bias)
      f = Cast <to = 1> (b)
      s = Mul(xs, ws)
      y = Mul(f, s)
    }"""
    x, w, flow = floats((4, 6), (6, 5), (4, 5))
    scales = {"xs": np.array(0.01, np.float32), "ws": np.array(0.02, np.float32)}
    bias = np.array([10, -3, 0, 5, 7], np.int32)
    y, grads = gradients_of(text, flow, x=x, w=w, bias=bias, **scales)
    xr, wr = np.round(x / 0.01) * 0.01, np.round(w / 0.02) * 0.02
    np.testing.assert_allclose(y, xr @ wr + bias * 0.01 * 0.02, atol=1e-4)
    np.testing.assert_allclose(grads["x"], flow @ wr.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grads["w"], xr.T @ flow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pads", ["pads = [1, 1, 1, 1]", 'auto_pad = "SAME_UPPER", strides = [2, 2]'])
def test_parameters_before_an_integer_convolution_learn(pads):
    torch = pytest.importorskip("torch")
    text = f"""agraph (float[2, 3, 6, 6] x, float[3] k, int8[4, 3, 3, 3] w8) => (float[n, 4, h, w] y) {{
      axes = Constant <value = int64[2] {{1, 2}}> ()
      kk = Unsqueeze(k, axes)
      a = Mul(x, kk)
      q, s, z = DynamicQuantizeLinear(a)
      p = ConvInteger <{pads}> (q, w8, z)
      f = Cast <to = 1> (p)
      y = Mul(f, s)
    }}"""
    x, k = floats((2, 3, 6, 6), (3,))
    w8 = np.random.default_rng(0).integers(-10, 11, (4, 3, 3, 3)).astype(np.int8)
    _, grads = gradients_of(text, x=x, k=k, w8=w8)
    xt, kt = torch.tensor(x, requires_grad=True), torch.tensor(k, requires_grad=True)
    image = xt * kt[:, None, None]
    if "auto" in pads:
        image = torch.nn.functional.pad(image, (0, 1, 0, 1))
    y = torch.nn.functional.conv2d(image, torch.tensor(w8, dtype=torch.float32), stride=2 if "auto" in pads else 1, padding=0 if "auto" in pads else 1)
    y.sum().backward()
    np.testing.assert_allclose(grads["k"], kt.grad, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(grads["x"], xt.grad, rtol=1e-4, atol=1e-4)


def test_integers_that_only_move_carry_gradients():
    text = """agraph (float[4, 6] x, float s) => (float[n, m] y) {
      z = Constant <value = int8 {0}> ()
      q = QuantizeLinear(x, s, z)
      i = Constant <value = int64[3] {2, 0, 2}> ()
      g = Gather(q, i)
      a, b = Split <axis = 1, num_outputs = 2> (g)
      one = Constant <value = int64[1] {1}> ()
      three = Constant <value = int64[1] {3}> ()
      c = Slice(a, one, three, one)
      d = Cast <to = 6> (c)
      y = Cast <to = 1> (d)
    }"""
    (x,) = floats((4, 6))
    _, grads = gradients_of(text, x=x, s=np.array(0.01, np.float32))
    expected = np.zeros((4, 6))
    expected[[0, 2], 1:3] = 1 / 0.01
    expected[2, 1:3] *= 2
    np.testing.assert_allclose(grads["x"], expected, rtol=1e-5)


def rounded(real, scale, zero, low, high):
    """Returns codes with a straight-through gradient: 1 inside the range, 0 where values are cut off."""
    torch = pytest.importorskip("torch")
    steps = real / scale
    codes = torch.round(steps.detach()) + zero
    inside = (codes >= low) & (codes <= high)
    return torch.where(inside, steps + (torch.round(steps) - steps).detach() + zero, codes.clamp(low, high))


@pytest.mark.parametrize("per_line", [True, False])
def test_quantised_products_are_straight_through(per_line):
    torch = pytest.importorskip("torch")
    shape_a, shape_b = ("[4]", "[5]") if per_line else ("", "")
    text = f"""agraph (float[4, 6] x, float[6, 5] w, float{shape_a} xs, float{shape_b} ws, float ys, float one) => (float[4, 5] y) {{
      zx = Constant <value = uint8{shape_a} {{{'120, 121, 119, 130' if per_line else '120'}}}> ()
      zw = Constant <value = int8{shape_b} {{{'3, 0, -2, 1, 0' if per_line else '2'}}}> ()
      zy = Constant <value = int8 {{-3}}> ()
      xq = QuantizeLinear <axis = 0> (x, xs, zx)
      wq = QuantizeLinear <axis = 1> (w, ws, zw)
      q = QLinearMatMul(xq, xs, zx, wq, ws, zw, ys, zy)
      y = Cast <to = 1> (q)
    }}"""
    x, w, flow = floats((4, 6), (6, 5), (4, 5))
    random = np.random.default_rng(1)
    xs = np.asarray(random.uniform(0.01, 0.02, 4 if per_line else ()), np.float32)
    ws = np.asarray(random.uniform(0.01, 0.02, 5 if per_line else ()), np.float32)
    arrays = {"x": x, "w": w, "xs": xs, "ws": ws, "ys": np.array(0.009, np.float32)}
    y, grads = gradients_of(text, flow, **arrays, one=np.array(1, np.float32))
    t = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in arrays.items()}
    zx = torch.tensor([[120], [121], [119], [130]]) if per_line else 120
    zw = torch.tensor([3, 0, -2, 1, 0]) if per_line else 2
    sx, sw = (t["xs"].unsqueeze(1) if per_line else t["xs"]), t["ws"]
    a, b = (rounded(t["x"], sx, zx, 0, 255) - zx) * sx, (rounded(t["w"], sw, zw, -128, 127) - zw) * sw
    expected = rounded(a @ b, t["ys"], -3, -128, 127)
    np.testing.assert_array_equal(y, expected.detach())
    assert (np.abs(y) >= 125).any() and (np.abs(y) < 100).any()
    (expected * torch.tensor(flow)).sum().backward()
    for name, value in t.items():
        np.testing.assert_allclose(grads[name], value.grad, rtol=2e-3, atol=2e-3 * float(value.grad.abs().max()), err_msg=name)


@pytest.mark.parametrize("bias", [True, False])
def test_quantised_convolutions_are_straight_through(bias):
    torch = pytest.importorskip("torch")
    text = f"""agraph (float[2, 4, 6, 6] x, float[6, 2, 3, 3] w, float xs, float[6] ws, float ys, int32[6] b) => (float[2, 6, 6, 6] y) {{
      zx = Constant <value = uint8 {{120}}> ()
      zw = Constant <value = int8[6] {{0, 0, 0, 0, 0, 0}}> ()
      zy = Constant <value = uint8 {{128}}> ()
      xq = QuantizeLinear(x, xs, zx)
      wq = QuantizeLinear <axis = 0> (w, ws, zw)
      q = QLinearConv <group = 2, pads = [1, 1, 1, 1]> (xq, xs, zx, wq, ws, zw, ys, zy{', b' if bias else ''})
      y = Cast <to = 1> (q)
    }}"""
    x, w, flow = floats((2, 4, 6, 6), (6, 2, 3, 3), (2, 6, 6, 6))
    ws = np.random.default_rng(1).uniform(0.01, 0.02, 6).astype(np.float32)
    arrays = {"x": x, "w": w, "xs": np.array(0.011, np.float32), "ws": ws, "ys": np.array(0.02, np.float32)}
    b = np.array([900, -700, 0, 3000, 50, 1], np.int32)
    y, grads = gradients_of(text, flow, **arrays, b=b)
    t = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in arrays.items()}
    sw = t["ws"].reshape(6, 1, 1, 1)
    image, filters = (rounded(t["x"], t["xs"], 120, 0, 255) - 120) * t["xs"], rounded(t["w"], sw, 0, -128, 127) * sw
    real = torch.nn.functional.conv2d(image, filters, torch.tensor(b) * t["xs"] * t["ws"] if bias else None, padding=1, groups=2)
    expected = rounded(real, t["ys"], 128, 0, 255)
    np.testing.assert_array_equal(y, expected.detach())
    (expected * torch.tensor(flow)).sum().backward()
    for name, value in t.items():
        np.testing.assert_allclose(grads[name], value.grad, rtol=2e-3, atol=2e-3 * float(value.grad.abs().max()), err_msg=name)


@pytest.mark.parametrize("node, named", [
    ("p = BitwiseAnd(q, q)", "BitwiseAnd"),
    ("p = Mul(q, q)", "Mul"),
])
def test_integers_that_lose_the_gradient_are_named(node, named):
    text = f"""agraph (float[4, 4] x) => (float[4, 4] y) {{
      s = Constant <value = float {{0.01}}> ()
      z = Constant <value = int8 {{0}}> ()
      q = QuantizeLinear(x, s, z)
      {node}
      y = Cast <to = 1> (p)
    }}"""
    with pytest.raises(treadle.Error, match=named):
        gradients_of(text, x=floats((4, 4))[0])


def test_bits_of_another_type_have_no_gradient():
    text = """<ir_version: 13, opset_import: ["" : 26]> agraph (float[4] x) => (float[4] y) {
      b = BitCast <to = TO> (x)
      b2 = Add(b, b)
      c = BitCast <to = 1> (b2)
      y = Mul(c, x)
    }"""
    (x,) = floats((4,))
    bound = executor.bind(parser.parse_model(text.replace("TO", "1")), {"x": x})
    bound.forward(is_train=True)
    bound.backward([np.ones(4, np.float32)])
    np.testing.assert_allclose(bound.grad_dict["x"], 4 * x, rtol=1e-6)
    with pytest.raises(treadle.Error, match="BitCast(.|\n)*the bits of i32.* have no gradient"):
        executor.bind(parser.parse_model(text.replace("TO", "6")), {"x": x}).forward(is_train=True)


@pytest.mark.parametrize(
    ("shape", "scales", "axis", "block"),
    [((7,), (7,), 0, 0), ((3, 5), (5,), -1, 0), ((4, 6), (4, 3), 1, 2), ((4, 7), (4, 3), 1, 3), ((5, 2), (2, 2), 0, 4), ((5,), (3,), 0, 2)],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_scales_of_lines_and_blocks_have_gradients(shape, scales, axis, block, symbolic) -> None:
    """y = (x - zero) scale, so the scale's gradient is the sum of dy (x - zero) over its elements."""
    random = np.random.default_rng(3)
    x, s = random.integers(-100, 100, shape).astype(np.int8), random.uniform(0.25, 2, scales).astype(np.float32)
    extents = ", ".join(f"e{i}" if symbolic else str(n) for i, n in enumerate(scales))
    text = f"""agraph (int8[{", ".join(map(str, shape))}] x, float[{extents}] s) => (float[?] y) {{
      y = DequantizeLinear <axis = {axis}{f", block_size = {block}" if block else ""}> (x, s)
    }}""".replace("[?]", "")
    flow = random.uniform(0.5, 1.5, shape).astype(np.float32)
    of_element = np.indices(shape)[axis] // block if block else np.indices(shape)[axis]
    places = [of_element if i == axis % len(shape) else g for i, g in enumerate(np.indices(shape))] if block else [of_element]
    expected = np.zeros(scales)
    np.add.at(expected, tuple(places), flow * x)
    y, grads = gradients_of(text, flow, x=x, s=s)
    np.testing.assert_allclose(y, x * s[tuple(places)], rtol=1e-6)
    np.testing.assert_allclose(grads["s"], expected, rtol=1e-5)
