// Generates recurrent networks, caches, and nodes that enlarge images.
#include <algorithm>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

using Names = std::vector<std::string>;

Array small_array(Generator& g, DType dtype, const Dims& dims) {
  Array a = g.random_array(dtype, dims);
  for (double& x : a.f) x = round_to(dtype, x / 4);
  return a;
}

// Makes a recurrent network over [length, batch, features], with the nodes that exporters put around it.
bool recurrent(Generator& g) {
  std::string x = g.pick([](const Array& a) {
    return (a.dtype == DType::float32 || (a.dtype == DType::float64 || a.dtype == DType::float16)) && a.size() > 0 && a.rank() >= 1 &&
           a.rank() <= 4 && a.dims.back() <= 16;
  });
  if (x.empty()) return false;
  const Array first = g.array(x);
  if (first.rank() < 3)
    x = g.add_one("Unsqueeze", {x, g.constant_ints(first.rank() == 1 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{1})});
  if (first.rank() == 4) x = g.add_one("Reshape", {x, g.constant_ints({0, -1, first.dims.back()})});
  if (x.empty()) return false;
  const DType dtype = first.dtype;
  const std::string op = g.one_of<std::string>({"LSTM", "LSTM", "GRU", "RNN"});
  const std::string direction = g.one_of<std::string>({"forward", "forward", "reverse", "bidirectional"});
  const bool batch_first = g.one_in(6);
  const int64_t gates = op == "LSTM" ? 4 : op == "GRU" ? 3 : 1, hidden = g.between(1, 6), d = direction == "bidirectional" ? 2 : 1;
  const Dims dims = g.array(x).dims;
  const int64_t batch = dims[batch_first ? 0 : 1], length = dims[batch_first ? 1 : 0];
  const bool one_set = g.num_sets() == 1;
  Names inputs{x, g.constant(small_array(g, dtype, {d, gates * hidden, dims[2]})),
               g.constant(small_array(g, dtype, {d, gates * hidden, hidden}))};
  auto leave_out = [&](size_t count) {
    while (inputs.size() < count) inputs.emplace_back();
  };
  if (g.one_in(2)) inputs.push_back(g.constant(small_array(g, dtype, {d, 2 * gates * hidden})));
  if (one_set && g.one_in(3)) {
    leave_out(4);
    Array lengths(DType::int32, {batch});
    for (int64_t& n : lengths.i) n = g.between(1, length);
    inputs.push_back(g.constant(lengths));
  }
  const Dims state = batch_first ? Dims{batch, d, hidden} : Dims{d, batch, hidden};
  for (size_t i = 5; i < (op == "LSTM" ? 7U : 6U); ++i) {
    if (!g.one_in(3)) continue;
    std::string initial = g.pick([&](const Array& a) { return a.dtype == dtype && a.dims == state; });
    if (initial.empty() && one_set) initial = g.constant(g.random_array(dtype, state));
    if (initial.empty()) continue;
    leave_out(i);
    inputs.push_back(initial);
  }
  if (op == "LSTM" && g.one_in(6)) {
    leave_out(7);
    inputs.push_back(g.constant(small_array(g, dtype, {d, 3 * hidden})));
  }
  auto list = attributes(integer("hidden_size", hidden), text("direction", direction));
  if (batch_first) list.push_back(integer("layout", 1));
  if (op == "GRU" && g.one_in(2)) list.push_back(integer("linear_before_reset", 1));
  if (op == "LSTM" && g.one_in(8)) list.push_back(integer("input_forget", 1));
  if (g.one_in(8)) list.push_back(real("clip", 0.5F));
  if (g.one_in(4)) {
    const int64_t functions = d * (op == "LSTM" ? 3 : op == "GRU" ? 2 : 1);
    std::vector<std::string> names;
    std::vector<float> alphas, betas;
    for (int64_t i = 0; i < functions; ++i) {
      names.push_back(g.one_of<std::string>({"Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "HardSigmoid", "Softsign"}));
      if (names.back() == "LeakyRelu" || names.back() == "Elu" || names.back() == "HardSigmoid") alphas.push_back(0.25F);
      if (names.back() == "HardSigmoid") betas.push_back(0.625F);
    }
    list.push_back(texts("activations", names));
    if (!alphas.empty() && g.one_in(2)) list.push_back(reals("activation_alpha", alphas));
    if (!betas.empty() && g.one_in(2)) list.push_back(reals("activation_beta", betas));
  }
  const Names y = g.add(op, inputs, std::move(list), op == "LSTM" ? 3 : 2);
  if (y.empty()) return false;
  if (g.one_in(2) && d == 1) {
    g.add("Squeeze", {y[0], g.constant_ints({batch_first ? 2 : 1})});
  } else if (g.one_in(2) && !batch_first) {
    const std::string turned = g.add_one("Transpose", {y[0]}, attributes(integers("perm", {0, 2, 1, 3})));
    g.add("Reshape", {turned, g.constant_ints({0, 0, -1})});
  }
  return true;
}

bool conv_transpose(Generator& g) {
  const std::string x = g.pick([](const Array& a) {
    return (a.dtype == DType::float32 || a.dtype == DType::float64 || a.dtype == DType::float16) && (a.rank() == 3 || a.rank() == 4) &&
           a.size() > 0;
  });
  if (x.empty()) return false;
  const Array a = g.array(x);
  const size_t rank = a.dims.size() - 2;
  const int64_t channels = a.dims[1], groups = g.one_in(4) ? channels : channels % 2 == 0 && g.one_in(4) ? 2 : 1;
  Dims dims{channels, g.between(1, groups > 2 ? 2 : 4)}, strides, dilations, pads(2 * rank, 0), more;
  const int64_t side = g.one_of<int64_t>({1, 2, 2, 3, 4}), stride = g.one_of<int64_t>({1, 2, 2, 3});
  for (size_t d = 0; d < rank; ++d) {
    dims.push_back(side);
    strides.push_back(g.one_in(6) ? 1 : stride);
    dilations.push_back(g.one_in(8) ? 2 : 1);
    more.push_back(g.one_in(6) ? 1 : 0);
  }
  if (g.one_in(3)) std::fill(pads.begin(), pads.end(), side / 2);
  if (g.one_in(6)) pads[0] = 1;
  Names inputs{x, g.constant(small_array(g, a.dtype, dims))};
  if (g.one_in(2)) inputs.push_back(g.constant(g.random_array(a.dtype, {dims[1] * groups})));
  auto list = attributes(integers("kernel_shape", Dims(rank, side)), integers("strides", strides), integers("dilations", dilations),
                         integers("output_padding", more), integer("group", groups));
  if (g.one_in(4)) {
    list.push_back(text("auto_pad", g.one_of<std::string>({"SAME_UPPER", "SAME_LOWER", "VALID"})));
  } else if (g.num_sets() == 1 && g.one_in(4)) {  // output_shape is a little smaller than the full size
    Dims wanted;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t whole = strides[d] * (a.dims[d + 2] - 1) + more[d] + (side - 1) * dilations[d] + 1;
      wanted.push_back(std::max<int64_t>(1, whole - g.below(4)));
    }
    list.push_back(integers("output_shape", wanted));
  } else {
    list.push_back(integers("pads", pads));
  }
  std::string y = g.add_one("ConvTranspose", inputs, std::move(list));
  if (!y.empty() && g.one_in(3)) g.add(g.one_of<std::string>({"Relu", "Sigmoid", "Tanh"}), {y});
  return !y.empty();
}

// Appends rows to an input, as a cache does. The result may be fed back as that input (settings.h, `states`).
bool append(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() >= 1; });
  if (x.empty() || x[0] != 'x') return false;
  const Array a = g.array(x);
  const auto axis = static_cast<size_t>(g.one_in(2) ? 0 : g.below(a.rank()));
  std::string rows = g.pick([&](const Array& b) {
    if (b.dtype != a.dtype || b.rank() != a.rank()) return false;
    for (size_t d = 0; d < a.dims.size(); ++d)
      if (d != axis && a.dims[d] != b.dims[d]) return false;
    return true;
  });
  if (rows.empty() || rows == x) {
    Dims dims = a.dims;
    dims[axis] = g.between(1, 2);
    rows = g.constant(g.random_array(a.dtype, dims));
    if (a.floats()) rows = g.add_one("Neg", {rows});
  }
  const std::string y = rows.empty() ? rows : g.add_one("Concat", {x, rows}, attributes(integer("axis", static_cast<int64_t>(axis))));
  if (!y.empty() && g.one_in(2)) g.add("Identity", {y});
  return !y.empty();
}

bool resize(Generator& g) {
  const std::string mode = g.one_of<std::string>({"nearest", "nearest", "linear", "cubic"});
  const std::string x = g.pick([&](const Array& a) {
    return (mode == "nearest" || a.dtype == DType::float32 || a.dtype == DType::float64) && a.dtype != DType::boolean &&
           a.dtype != DType::bfloat16 && a.dtype != DType::float16 && a.rank() >= (mode == "nearest" ? 1 : 3) && a.rank() <= 4 &&
           a.size() > 0;
  });
  if (x.empty()) return false;
  const Array a = g.array(x);
  const size_t first = a.rank() >= 3 ? 2 : 0;
  const bool by_sizes = g.num_sets() == 1 && g.one_in(3);
  Array scales(DType::float32, {a.rank()}), sizes(DType::int64, {a.rank()});
  const double scale = g.one_of<double>({2, 2, 2, 0.5, 1.5, 3, 0.75, 1});
  for (size_t d = 0; d < a.dims.size(); ++d) {
    scales.f[d] = d < first ? 1 : g.one_in(6) ? 1 : scale;
    sizes.i[d] = d < first ? a.dims[d] : g.between(1, 7);
  }
  auto list = attributes(text("mode", mode));
  const bool crops = a.floats() && g.one_in(8);
  std::vector<std::string> where{"half_pixel", "asymmetric", "pytorch_half_pixel"};
  if (by_sizes) where.emplace_back("align_corners");
  if (crops) {
    list.push_back(text("coordinate_transformation_mode", "tf_crop_and_resize"));
    if (g.one_in(2)) list.push_back(real("extrapolation_value", 1.25F));
  } else if (!g.one_in(4)) {
    list.push_back(text("coordinate_transformation_mode", g.one_of(where)));
  }
  if (mode != "nearest" && g.one_in(4)) list.push_back(integer("antialias", 1));
  if (mode == "cubic" && g.one_in(4)) list.push_back(integer("exclude_outside", 1));
  if (by_sizes && first > 0 && g.one_in(4))
    list.push_back(text("keep_aspect_ratio_policy", g.one_of<std::string>({"not_larger", "not_smaller"})));
  if (mode == "nearest" && g.one_in(2))
    list.push_back(text("nearest_mode", g.one_of<std::string>({"floor", "ceil", "round_prefer_ceil", "round_prefer_floor"})));
  const bool keeps_ratio = list.back().name == "keep_aspect_ratio_policy";
  if (first > 0 && (keeps_ratio || g.one_in(3))) {  // resizes only some axes, which are named in any order
    Dims axes;
    for (size_t d = a.dims.size(); d-- > first;) axes.push_back(static_cast<int64_t>(d) - (g.one_in(2) ? a.rank() : 0));
    Array some_scales(DType::float32, {static_cast<int64_t>(axes.size())}), some_sizes(DType::int64, some_scales.dims);
    for (size_t n = 0; n < axes.size(); ++n) {
      const auto d = static_cast<size_t>(axes[n] < 0 ? axes[n] + a.rank() : axes[n]);
      some_scales.f[n] = scales.f[d], some_sizes.i[n] = sizes.i[d];
    }
    list.push_back(integers("axes", axes));
    scales = some_scales, sizes = some_sizes;
  }
  std::string roi;
  if (crops) {  // the crops lie at positions between pixels, so that rounding cannot decide what is inside
    Array ends(DType::float32, {2 * static_cast<int64_t>(scales.size())});
    for (size_t n = 0; n < scales.size(); ++n) {
      ends.set(n, scales.f[n] == 1 ? 0 : g.one_of<double>({0, 0.137, -0.211}));
      ends.set(n + scales.size(), scales.f[n] == 1 ? 1 : g.one_of<double>({1, 0.871, 1.319}));
    }
    roi = g.constant(ends);
  }
  if (by_sizes) return !g.add("Resize", {x, roi, "", g.constant(sizes)}, std::move(list)).empty();
  return !g.add("Resize", {x, roi, g.constant(scales)}, std::move(list)).empty();
}

}  // namespace

const std::vector<Kind>& recurrent_kinds() {
  static const std::vector<Kind> kinds{
      {"recurrent", 2, recurrent},
      {"conv_transpose", 2, conv_transpose},
      {"resize", 2, resize},
      {"append", 2, append},
  };
  return kinds;
}

}  // namespace treadle::graphs
