// Generates matrix products, convolutions and related nodes, also quantised ones.
#include <algorithm>
#include <cmath>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

using Names = std::vector<std::string>;

bool matrices(const Array& a) { return a.floats() && a.rank() >= 2 && a.size() > 0 && a.dims.back() <= 32; }
bool images(const Array& a) {
  return (a.dtype == DType::float32 || a.dtype == DType::float64 || a.dtype == DType::float16) && (a.rank() == 4 || a.rank() == 3) &&
         a.size() > 0;
}

bool activate(Generator& g, std::string& x) {
  const std::string y = g.add_one(g.one_of<std::string>({"Relu", "Sigmoid", "Tanh", "HardSwish", "Neg", "Identity"}), {x});
  if (!y.empty()) x = y;
  return !y.empty();
}

bool matmul(Generator& g) {
  const std::string x =
      g.pick([](const Array& a) { return matrices(a) || ((a.dtype == DType::int32 || a.dtype == DType::int64) && a.rank() >= 2); });
  if (x.empty()) return false;
  const Array& a = g.array(x);
  const int64_t k = a.dims.back();
  std::string w;
  if (g.one_in(3)) w = g.pick([&](const Array& b) { return b.dtype == a.dtype && b.rank() >= 2 && b.dims[b.dims.size() - 2] == k; });
  if (w.empty()) w = g.constant(g.random_array(a.dtype, g.one_in(8) ? Dims{k} : Dims{k, g.between(1, 9)}));
  std::string y = g.add_one("MatMul", {x, w});
  if (y.empty()) return false;
  if (g.one_in(3) && g.array(y).floats()) {
    const std::string biased =
        g.add_one("Add", {y, g.constant(g.random_array(g.array(y).dtype, {g.array(y).rank() > 0 ? g.array(y).dims.back() : 1}))});
    if (!biased.empty()) y = biased;
    if (g.one_in(2)) activate(g, y);
    const std::string residual = g.pick([&](const Array& b) { return b.dtype == g.array(y).dtype && b.dims == g.array(y).dims; });
    if (g.one_in(2)) g.add("Add", {y, residual});
  }
  return true;
}

bool gemm(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.floats() && a.dtype != DType::bfloat16 && a.rank() == 2 && a.size() > 0; });
  if (x.empty()) return false;
  const bool ta = g.one_in(3), tb = g.one_in(2);
  const int64_t k = g.array(x).dims[ta ? 0 : 1], n = g.between(1, 9);
  Names inputs{x, g.constant(g.random_array(g.array(x).dtype, tb ? Dims{n, k} : Dims{k, n}))};
  if (!g.one_in(3)) inputs.push_back(g.constant(g.random_array(g.array(x).dtype, g.one_of<Dims>({{n}, {1, n}, {1}, {}}))));
  auto list = attributes(integer("transA", ta), integer("transB", tb));
  if (g.one_in(4)) list.push_back(real("alpha", 0.5F));
  if (g.one_in(4)) list.push_back(real("beta", 0.25F));
  return !g.add("Gemm", inputs, std::move(list)).empty();
}

struct Sliding {
  Dims kernel, strides, pads, dilations;
  explicit Sliding(Generator& g, const Array& x, bool dilate) {
    const size_t rank = x.dims.size() - 2;
    const int64_t side = g.one_of<int64_t>({1, 2, 3, 3});
    for (size_t d = 0; d < rank; ++d) {
      kernel.push_back(std::min(side, x.dims[d + 2] + 1));
      strides.push_back(g.one_of<int64_t>({1, 1, 1, 2}));
      dilations.push_back(dilate && g.one_in(8) ? 2 : 1);
    }
    pads.assign(2 * rank, g.one_in(2) ? side / 2 : 0);
    if (g.one_in(6)) pads[0] = side - 1;
  }
  std::vector<onnx::AttributeDef> list() const {
    return attributes(integers("kernel_shape", kernel), integers("strides", strides), integers("pads", pads));
  }
};

bool conv(Generator& g) {
  const std::string x = g.pick(images);
  if (x.empty()) return false;
  const Array a = g.array(x);
  const int64_t channels = a.dims[1];
  const int64_t groups = g.one_in(3) ? channels : channels % 2 == 0 && g.one_in(3) ? 2 : 1;
  const int64_t outputs = g.one_in(2) && groups != channels ? channels : groups * g.between(1, groups > 2 ? 2 : 4);
  const Sliding window(g, a, true);
  Dims dims{outputs, channels / groups};
  dims.insert(dims.end(), window.kernel.begin(), window.kernel.end());
  Array weights = g.random_array(a.dtype, dims);
  for (double& w : weights.f) w = round_to(a.dtype, w / 4);
  Names inputs{x, g.constant(weights)};
  if (g.one_in(2)) inputs.push_back(g.constant(g.random_array(a.dtype, {outputs})));
  auto list = window.list();
  list.push_back(integers("dilations", window.dilations));
  list.push_back(integer("group", groups));
  std::string y = g.add_one("Conv", inputs, std::move(list));
  if (y.empty()) return false;
  if (g.one_in(3)) {
    Array factor = g.random_array(a.dtype, {outputs}), variance = g.random_array(a.dtype, {outputs});
    for (double& v : variance.f) v = round_to(a.dtype, std::fabs(v) + 0.25);
    const std::string normal = g.add_one("BatchNormalization", {y, g.constant(factor), g.constant(g.random_array(a.dtype, {outputs})),
                                                                g.constant(g.random_array(a.dtype, {outputs})), g.constant(variance)});
    if (!normal.empty()) y = normal;
  }
  if (g.one_in(2)) activate(g, y);
  if (g.one_in(4)) g.add("Add", {y, g.pick([&](const Array& b) { return b.dtype == a.dtype && b.dims == g.array(y).dims; })});
  return true;
}

bool pool(Generator& g) {
  const std::string x = g.pick(images);
  if (x.empty() || g.array(x).dtype == DType::float16) return false;
  if (g.one_in(3)) return !g.add(g.one_in(3) ? "GlobalMaxPool" : "GlobalAveragePool", {x}).empty();
  auto list = Sliding(g, g.array(x), false).list();
  if (g.one_in(2)) return !g.add("MaxPool", {x}, std::move(list)).empty();
  list.push_back(integer("count_include_pad", g.below(2)));
  return !g.add("AveragePool", {x}, std::move(list)).empty();
}

// Adds the nodes of squeeze-and-excitation, which scales each channel by a function of the channels' means.
bool excite(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::float32 && a.rank() == 4 && a.size() > 0; });
  if (x.empty()) return false;
  const int64_t channels = g.array(x).dims[1];
  const std::string mean = g.add_one("GlobalAveragePool", {x});
  const std::string gate =
      g.add_one("Sigmoid", {g.add_one("Conv", {mean, g.constant(g.random_array(DType::float32, {channels, channels, 1, 1}))})});
  const std::string scaled = g.add_one("Mul", {x, gate});
  if (!scaled.empty() && g.one_in(2))
    g.add("Conv", {scaled, g.constant(g.random_array(DType::float32, {g.between(1, 8), channels, 1, 1}))});
  return !scaled.empty();
}

bool normalize(Generator& g) {
  const bool layers = g.one_in(2);
  const std::string x =
      g.pick([&](const Array& a) { return a.floats() && a.dtype != DType::bfloat16 && a.size() > 0 && a.rank() >= (layers ? 1 : 3); });
  if (x.empty()) return false;
  const Array a = g.array(x);
  const Dims dims{layers ? a.dims.back() : a.dims[1]};
  const std::string scale = g.constant(g.random_array(a.dtype, dims)), bias = g.constant(g.random_array(a.dtype, dims));
  if (!layers && g.one_in(3)) {
    const int64_t groups = a.dims[1] % 2 == 0 ? 2 : 1;
    return !g.add("GroupNormalization", {x, scale, bias}, attributes(integer("num_groups", groups), real("epsilon", 0.01F))).empty();
  }
  if (layers) return !g.add("LayerNormalization", {x, scale, bias}, attributes(real("epsilon", 0.01F))).empty();
  return !g.add("InstanceNormalization", {x, scale, bias}, attributes(real("epsilon", 0.01F))).empty();
}

// Adds the nodes of softmax(q k^T * s) v.
bool attention(Generator& g) {
  const std::string q = g.pick([](const Array& a) { return a.dtype == DType::float32 && a.rank() >= 3 && a.size() > 0; });
  if (q.empty()) return false;
  const Array a = g.array(q);
  auto like = [&](const Array& b) { return b.dtype == a.dtype && b.dims == a.dims; };
  const std::string k = g.pick(like), v = g.pick(like);
  std::vector<int64_t> perm;
  for (int64_t d = 0; d < a.rank(); ++d) perm.push_back(d);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  std::string scores = g.add_one("MatMul", {q, g.add_one("Transpose", {k}, attributes(integers("perm", perm)))});
  Array scale(DType::float32, {});
  scale.set(0, 0.35);
  if (g.one_in(2)) scores = g.add_one("Mul", {scores, g.constant(scale)});
  if (g.one_in(3)) scores = g.add_one("Add", {scores, g.constant(g.random_array(DType::float32, {a.dims[a.dims.size() - 2], 1}))});
  return !g.add_one("MatMul", {g.add_one("Softmax", {scores}, attributes(integer("axis", -1))), v}).empty();
}

// Makes scales for quantisation, such that no product of small numbers lies half-way between two codes.
Array scale_of(Generator& g, const Dims& dims) {
  Array scale(DType::float32, dims);
  for (size_t k = 0; k < scale.size(); ++k) scale.set(k, 0.0137 + static_cast<double>(g.below(1000)) * 3.17e-5);
  return scale;
}

struct Codes {
  std::string scale, zero;
};

Codes codes(Generator& g, DType dtype) {
  Array zero(dtype, {});
  if (g.one_in(2)) zero.set(0, dtype == DType::uint8 ? g.between(100, 140) : g.between(-6, 6));
  return {g.constant(scale_of(g, {})), g.constant(zero)};
}

// Quantises x and dequantises it again, with the pair of nodes that exporters put around operators (fake quantisation).
std::string coded(Generator& g, const std::string& x, const Codes& c) {
  const std::string q = g.add_one("QuantizeLinear", {x, c.scale, c.zero});
  return q.empty() ? q : g.add_one("DequantizeLinear", {q, c.scale, c.zero});
}
std::string coded(Generator& g, const std::string& x) { return coded(g, x, codes(g, g.one_in(2) ? DType::uint8 : DType::int8)); }

bool quantize(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::float32; });
  return !x.empty() && !coded(g, x).empty();
}

bool dequantize_codes(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::uint8 || a.dtype == DType::int8; });
  if (x.empty()) return false;
  const Codes c = codes(g, g.array(x).dtype);
  return !g.add("DequantizeLinear", {x, c.scale, c.zero}).empty();
}

// Makes quantised weights and dequantises them, with one scale for all or one per index along `axis`.
std::string coded_weights(Generator& g, const Dims& dims, int64_t axis, std::string* scale = nullptr) {
  const DType dtype = g.one_in(3) ? DType::uint8 : DType::int8;
  Array weights(dtype, dims);
  for (int64_t& w : weights.i) w = dtype == DType::int8 ? g.between(-127, 127) : g.between(0, 255);
  const bool per_axis = g.one_in(2);
  const Dims scales = per_axis ? Dims{dims[static_cast<size_t>(axis)]} : Dims{};
  Array zero(dtype, scales);
  if (g.one_in(3))
    for (int64_t& z : zero.i) z = dtype == DType::uint8 ? 128 : g.between(-4, 4);
  Names inputs{g.constant(weights), g.constant(scale_of(g, scales))};
  if (dtype == DType::uint8 || g.one_in(2)) inputs.push_back(g.constant(zero));
  if (scale != nullptr) *scale = inputs[1];
  return g.add_one("DequantizeLinear", inputs, per_axis ? attributes(integer("axis", axis)) : attributes());
}

bool quantized_matmul(Generator& g) {
  const std::string x =
      g.pick([](const Array& a) { return a.dtype == DType::float32 && a.rank() >= 2 && a.size() > 0 && a.dims.back() <= 32; });
  if (x.empty()) return false;
  const std::string a = coded(g, x);
  if (a.empty()) return false;
  const int64_t k = g.array(x).dims.back();
  std::string b;
  if (g.one_in(4))
    b = coded(g, g.pick([&](const Array& other) {
      return other.dtype == DType::float32 && other.rank() >= 2 && other.dims[other.dims.size() - 2] == k;
    }));
  if (b.empty()) b = coded_weights(g, {k, g.between(1, 9)}, 1);
  std::string y = g.add_one("MatMul", {a, b});
  if (y.empty()) return false;
  if (g.one_in(3)) {
    const std::string biased = g.add_one("Add", {y, g.constant(g.random_array(DType::float32, {g.array(y).dims.back()}))});
    if (!biased.empty()) y = biased;
  }
  if (g.one_in(3)) activate(g, y);
  const Codes c = codes(g, g.one_in(2) ? DType::uint8 : DType::int8);
  const std::string q = g.one_in(4) ? "" : g.add_one("QuantizeLinear", {y, c.scale, c.zero});
  if (!q.empty() && g.one_in(2)) g.add("DequantizeLinear", {q, c.scale, c.zero});
  return true;
}

bool quantized_conv(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::float32 && a.rank() == 4 && a.size() > 0; });
  if (x.empty()) return false;
  const Array image = g.array(x);
  const Codes input_codes = codes(g, g.one_in(2) ? DType::uint8 : DType::int8);
  const std::string a = coded(g, x, input_codes);
  const int64_t channels = image.dims[1], groups = g.one_in(3) ? channels : 1, outputs = groups * g.between(1, groups > 1 ? 1 : 5);
  const Sliding window(g, image, false);
  Dims dims{outputs, channels / groups};
  dims.insert(dims.end(), window.kernel.begin(), window.kernel.end());
  auto list = window.list();
  list.push_back(integer("group", groups));
  std::string weight_scale;
  Names inputs{a, coded_weights(g, dims, 0, &weight_scale)};
  if (g.one_in(2)) {
    Array bias = g.random_array(DType::float32, {outputs});
    if (!g.one_in(4)) {  // biases are multiples of the scale of the integer sums
      const Array unit = g.array(weight_scale);
      for (size_t m = 0; m < bias.size(); ++m)
        bias.set(m, static_cast<double>(g.between(-3000, 3000)) * g.array(input_codes.scale).f[0] * unit.f[unit.size() == 1 ? 0 : m]);
    }
    inputs.push_back(g.constant(bias));
  }
  std::string y = g.add_one("Conv", inputs, std::move(list));
  if (y.empty()) return false;
  if (g.one_in(3)) activate(g, y);
  return g.one_in(4) || !coded(g, y).empty();
}

bool bytes(const Array& a) { return a.dtype == DType::uint8 || a.dtype == DType::int8; }

// Returns codes to compute with: an existing value of bytes, or quantised floats.
std::string some_codes(Generator& g, const Generator::Condition& fits, const Codes& c, DType dtype) {
  std::string x = g.pick([&](const Array& a) { return a.dtype == dtype && fits(a); });
  if (!x.empty() && g.one_in(2)) return x;
  x = g.pick([&](const Array& a) { return a.dtype == DType::float32 && fits(a); });
  return x.empty() ? x : g.add_one("QuantizeLinear", {x, c.scale, c.zero});
}

bool qlinear_matmul(Generator& g) {
  const DType dtype = g.one_in(2) ? DType::uint8 : DType::int8, out = g.one_in(4) ? DType::int8 : DType::uint8;
  const Codes input = codes(g, dtype), output = codes(g, out), weight = codes(g, DType::int8);
  const std::string x = some_codes(
      g, [](const Array& a) { return a.rank() >= 2 && a.size() > 0 && a.dims.back() <= 32; }, input, dtype);
  if (x.empty()) return false;
  const std::string w = g.constant(g.random_array(DType::int8, {g.array(x).dims.back(), g.between(1, 9)}));
  const std::string y = g.add_one("QLinearMatMul", {x, input.scale, input.zero, w, weight.scale, weight.zero, output.scale, output.zero});
  if (!y.empty() && g.one_in(2)) g.add("DequantizeLinear", {y, output.scale, output.zero});
  return !y.empty();
}

bool qlinear_conv(Generator& g) {
  const DType dtype = g.one_in(2) ? DType::uint8 : DType::int8, out = g.one_in(4) ? DType::int8 : DType::uint8;
  const Codes input = codes(g, dtype), output = codes(g, out);
  const std::string x = some_codes(
      g, [](const Array& a) { return a.rank() == 4 && a.size() > 0; }, input, dtype);
  if (x.empty()) return false;
  const Array image = g.array(x);
  const int64_t channels = image.dims[1], groups = g.one_in(3) ? channels : channels % 2 == 0 && g.one_in(3) ? 2 : 1;
  const int64_t filters = groups * g.between(1, groups > 2 ? 2 : 4);
  const Sliding window(g, image, true);
  Dims dims{filters, channels / groups};
  dims.insert(dims.end(), window.kernel.begin(), window.kernel.end());
  const DType weight = g.one_in(4) ? DType::uint8 : DType::int8;
  const Dims scales = g.one_in(2) ? Dims{filters} : Dims{};
  Array zeros(weight, scales);
  if (g.one_in(3))
    for (int64_t& zero : zeros.i) zero = g.between(weight == DType::uint8 ? 0 : -3, 3);
  Names inputs{x,
               input.scale,
               input.zero,
               g.constant(g.random_array(weight, dims)),
               g.constant(scale_of(g, scales)),
               g.constant(zeros),
               output.scale,
               output.zero};
  if (g.one_in(2)) inputs.push_back(g.constant(g.random_array(DType::int32, {filters})));
  auto list = window.list();
  list.push_back(integers("dilations", window.dilations));
  list.push_back(integer("group", groups));
  const std::string y = g.add_one("QLinearConv", inputs, std::move(list));
  if (!y.empty() && g.one_in(2)) g.add("DequantizeLinear", {y, output.scale, output.zero});
  return !y.empty();
}

// Makes the nodes by which dynamic quantisation replaces a product.
bool dynamically_quantized_matmul(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::float32 && a.rank() == 2 && a.size() > 0; });
  if (x.empty()) return false;
  const Names q = g.add("DynamicQuantizeLinear", {x}, {}, 3);
  if (q.empty()) return false;
  const DType weight = g.one_in(3) ? DType::uint8 : DType::int8;
  Names inputs{q[0], g.constant(g.random_array(weight, {g.array(x).dims[1], g.between(1, 6)})), q[2]};
  if (g.one_in(3)) inputs.push_back(g.constant(g.random_array(weight, {})));
  const std::string sums = g.add_one("MatMulInteger", inputs), floats = g.add_one("Cast", {sums}, attributes(integer("to", 1)));
  return !g.add_one("Mul", {floats, g.add_one("Mul", {q[1], g.constant(scale_of(g, {}))})}).empty();
}

bool conv_integer(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return bytes(a) && a.rank() == 4 && a.size() > 0; });
  if (x.empty()) return false;
  const Array image = g.array(x);
  const Sliding window(g, image, true);
  Dims dims{g.between(1, 4), image.dims[1]};
  dims.insert(dims.end(), window.kernel.begin(), window.kernel.end());
  const DType weight = g.one_in(2) ? DType::uint8 : DType::int8;
  Names inputs{x, g.constant(g.random_array(weight, dims))};
  if (g.one_in(2)) inputs.push_back(g.constant(g.random_array(image.dtype, {})));
  if (inputs.size() == 3 && g.one_in(2)) inputs.push_back(g.constant(g.random_array(weight, g.one_in(2) ? Dims{dims[0]} : Dims{})));
  auto list = window.list();
  list.push_back(integers("dilations", window.dilations));
  return !g.add("ConvInteger", inputs, std::move(list)).empty();
}

bool matmul_integer(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return bytes(a) && a.rank() == 2; });
  if (x.empty()) return false;
  Array w = g.random_array(g.one_in(2) ? DType::int8 : DType::uint8, {g.array(x).dims[1], g.between(1, 6)});
  Names inputs{x, g.constant(w)};
  if (g.one_in(2)) inputs.push_back(g.constant(g.random_array(g.array(x).dtype, {})));
  return !g.add("MatMulInteger", inputs).empty();
}

}  // namespace

const std::vector<Kind>& neural_kinds() {
  static const std::vector<Kind> kinds{
      {"matmul", 6, matmul},
      {"gemm", 2, gemm},
      {"conv", 6, conv},
      {"pool", 3, pool},
      {"excite", 1, excite},
      {"normalise", 2, normalize},
      {"attention", 1, attention},
      {"quantise", 3, quantize},
      {"dequantise_codes", 1, dequantize_codes},
      {"quantised_matmul", 3, quantized_matmul},
      {"quantised_conv", 3, quantized_conv},
      {"matmul_integer", 1, matmul_integer},
      {"qlinear_matmul", 1, qlinear_matmul},
      {"qlinear_conv", 2, qlinear_conv},
      {"dynamically_quantised_matmul", 1, dynamically_quantized_matmul},
      {"conv_integer", 1, conv_integer},
  };
  return kinds;
}

}  // namespace treadle::graphs
