#include "ops/nn/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

enum class AutoPad : uint8_t { notset, same_upper, same_lower, valid };

AutoPad auto_pad_of(const Attributes& attributes) {
  const std::string_view name = attributes.get_string("auto_pad", "NOTSET");
  if (name == "NOTSET" || name.empty()) return AutoPad::notset;
  if (name == "SAME_UPPER") return AutoPad::same_upper;
  if (name == "SAME_LOWER") return AutoPad::same_lower;
  if (name == "VALID") return AutoPad::valid;
  throw Error(ErrorCode::invalid_argument, fmt::format("auto_pad is \"{}\", not NOTSET, SAME_UPPER, SAME_LOWER or VALID", name));
}

void check_positive(std::string_view name, int64_t value) {
  // The limit keeps sums and products of such numbers from overflowing.
  if (value < 1 || value > INT32_MAX) throw Error(ErrorCode::invalid_argument, fmt::format("{} contains {}", name, value));
}

struct Pads {
  int64_t begin[3] = {}, end[3] = {};
};

Pads explicit_pads(const Attributes& attributes, size_t rank) {
  Pads pads;
  const std::vector<int64_t>& values = attributes.get_ints("pads");
  if (values.empty()) return pads;
  if (values.size() != 2 * rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("pads has {} elements for {} spatial axes", values.size(), rank));
  for (size_t i = 0; i < rank; ++i) {
    pads.begin[i] = values[i], pads.end[i] = values[rank + i];
    // A decomposition, crop_negative_pads(), has replaced negative pads by a Slice before the node.
    if (std::min(values[i], values[rank + i]) < 0 || std::max(values[i], values[rank + i]) > INT32_MAX)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("pads contains {} and {}; 0 to {} expected", values[i], values[rank + i], INT32_MAX));
  }
  return pads;
}

void check_rank(size_t rank) {
  if (rank < 1 || rank > 3)
    throw Error(ErrorCode::not_implemented, fmt::format("a window over {} spatial axes; there is one for 1 to 3", rank));
}

/// Checks that at least one window fits into an axis with its pads. In ceil_mode, this window may extend past the end pad, provided it
/// begins in the input or in the begin pad.
/// @param reach     extent that the window spans, including dilation
/// @param overhang  how far the window may extend past the end pad; 0 without ceil_mode
void check_fits(const Dim& reach, const Dim& extent, const Pads& pads, size_t axis, int64_t overhang) {
  if (!reach.is_const() || !extent.is_const()) return;  // symbols are checked during the run
  const int64_t begins = checked_add(extent.value(), pads.begin[axis]);
  const int64_t room = checked_add(checked_add(begins, checked_add(pads.end[axis], overhang)), -reach.value());
  if (room >= 0 && (overhang == 0 || begins > 0)) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("a window that spans {} does not fit into an extent of {} with pads {} and {}",
                                                       to_string(reach), to_string(extent), pads.begin[axis], pads.end[axis]));
}

}  // namespace

std::array<int64_t, 3> spatial_ints(const Attributes& attributes, std::string_view name, size_t rank, int64_t otherwise) {
  check_rank(rank);
  std::array<int64_t, 3> result{otherwise, otherwise, otherwise};
  const std::vector<int64_t>& values = attributes.get_ints(name);
  if (values.empty()) return result;
  if (values.size() != rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} elements for {} spatial axes", name, values.size(), rank));
  std::copy(values.begin(), values.end(), result.begin());
  return result;
}

SymbolicShape infer_window(const Attributes& attributes, const SymbolicShape& in, const SymbolicShape& kernel) {
  const size_t rank = in.size();
  check_rank(rank);
  if (kernel.size() != rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("a window of rank {} over {} spatial axes", kernel.size(), rank));
  const auto strides = spatial_ints(attributes, "strides", rank, 1), dilations = spatial_ints(attributes, "dilations", rank, 1);
  const AutoPad auto_pad = auto_pad_of(attributes);
  const Pads pads = auto_pad == AutoPad::notset ? explicit_pads(attributes, rank) : Pads{};
  const bool ceil_mode = attributes.get_int("ceil_mode") != 0;
  SymbolicShape out;
  for (size_t i = 0; i < rank; ++i) {
    check_positive("strides", strides[i]), check_positive("dilations", dilations[i]);
    if (kernel[i].is_const()) check_positive("the window's shape", kernel[i].value());
    if (auto_pad == AutoPad::same_upper || auto_pad == AutoPad::same_lower) {
      out.push_back(ceil_div(in[i], strides[i]));
      continue;
    }
    const Dim reach = (kernel[i] - 1) * dilations[i] + 1;
    const Dim room = in[i] + (Dim(pads.begin[i]) + pads.end[i] - reach);
    check_fits(reach, in[i], pads, i, ceil_mode ? strides[i] - 1 : 0);
    if (!ceil_mode || strides[i] == 1) {
      out.push_back(floor_div(room, strides[i]) + 1);
    } else {
      // In ceil_mode, the last window must begin inside the input or its begin pad.
      out.push_back(minimum(ceil_div(room, strides[i]) + 1, ceil_div(in[i] + pads.begin[i], strides[i])));
    }
  }
  return out;
}

kernels::Window bind_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                            std::span<const int64_t> kernel) {
  const size_t rank = in.size();
  const auto strides = spatial_ints(attributes, "strides", rank, 1), dilations = spatial_ints(attributes, "dilations", rank, 1);
  const AutoPad auto_pad = auto_pad_of(attributes);
  const bool ceil_mode = attributes.get_int("ceil_mode") != 0;
  Pads pads;
  if (auto_pad == AutoPad::notset) {
    pads = explicit_pads(attributes, rank);
  } else if (auto_pad != AutoPad::valid) {
    for (size_t i = 0; i < rank; ++i) {
      const int64_t total = std::max<int64_t>((out[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - in[i], 0);
      pads.begin[i] = auto_pad == AutoPad::same_upper ? total / 2 : total - total / 2;
      pads.end[i] = total - pads.begin[i];
    }
  }
  for (size_t i = 0; i < rank && (auto_pad == AutoPad::notset || auto_pad == AutoPad::valid); ++i) {
    check_fits((kernel[i] - 1) * dilations[i] + 1, in[i], pads, i, ceil_mode ? strides[i] - 1 : 0);
  }
  int64_t both[6];
  std::copy_n(pads.begin, rank, both), std::copy_n(pads.end, rank, both + rank);
  return kernels::make_window(in, out, kernel, {strides.data(), rank}, {both, 2 * rank}, {dilations.data(), rank});
}

kernels::Window bind_pool(const BindContext& c) {
  return bind_window(c.node().attributes, spatial(c.shape(0)), spatial(c.output_shape(0)), c.get_ints("kernel_shape"));
}

kernels::Window bind_gradient_window(const Attributes& attributes, std::span<const int64_t> in, std::span<const int64_t> out,
                                     std::span<const int64_t> kernel, const Shape& dy, std::string_view of) {
  const SymbolicShape expected = infer_window(attributes, {in.begin(), in.end()}, {kernel.begin(), kernel.end()});
  for (size_t i = 0; i < expected.size(); ++i)
    if (!expected[i].is_const(out[i]))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradient {} does not have the {}'s extents {}", to_string(dy), of, to_string(expected)));
  return bind_window(attributes, in, out, kernel);
}

std::vector<AttributeDef> window_attributes(std::initializer_list<AttributeDef> more) {
  std::vector<AttributeDef> attributes{{"auto_pad", std::string_view("NOTSET")}, {"dilations"}, {"kernel_shape"}, {"pads"}, {"strides"}};
  attributes.insert(attributes.end(), more);
  return attributes;
}

std::vector<AttributeDef> pool_attributes(std::initializer_list<AttributeDef> more) {
  std::vector<AttributeDef> attributes{{"kernel_shape", AttributeDef::Required{}},
                                       {"auto_pad", std::string_view("NOTSET")},
                                       {"strides"},
                                       {"pads"},
                                       {"dilations"},
                                       {"ceil_mode", int64_t{0}}};
  attributes.insert(attributes.end(), more);
  return attributes;
}

std::vector<AttributeDef> convolution_attributes(std::initializer_list<AttributeDef> more) {
  std::vector<AttributeDef> attributes = window_attributes(more);
  attributes.push_back({"group", int64_t{1}, between(1, INT32_MAX)});
  return attributes;
}

void crop_negative_pads(Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::vector<int64_t> pads = node.attributes.get_ints("pads");
  const size_t rank = pads.size() / 2;
  if (pads.size() % 2 != 0 || auto_pad_of(node.attributes) != AutoPad::notset ||
      std::ranges::none_of(pads, [](int64_t p) { return p < 0; }))
    return;
  std::vector<int64_t> starts, ends, axes;
  for (size_t i = 0; i < rank; ++i) {
    int64_t &begin = pads[i], &end = pads[rank + i];
    if (std::min(begin, end) < -INT32_MAX) throw Error(ErrorCode::invalid_argument, fmt::format("pads contains {} and {}", begin, end));
    axes.push_back(static_cast<int64_t>(2 + i));
    starts.push_back(begin < 0 ? -begin : 0);
    ends.push_back(end < 0 ? end : INT64_MAX);
    begin = std::max<int64_t>(begin, 0), end = std::max<int64_t>(end, 0);
  }
  if (node.has_output(1)) throw Error(ErrorCode::not_implemented, "indices of a pool whose negative pads cut the image");
  NodeSpec spec{.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .domain = node.domain, .name = node.name};
  spec.attributes.set("pads", std::move(pads));
  auto ints = [&](const std::vector<int64_t>& values) { return graph.add_constant(spec.name + "/crop", Tensor::vector<int64_t>(values)); };
  const NodeId crop = graph.add_node(
      {.op_type = "Slice", .inputs = {spec.inputs[0], ints(starts), ints(ends), ints(axes)}, .name = spec.name + "/crop"}, id);
  spec.inputs[0] = graph.node(crop).outputs[0];
  const NodeId cropped = graph.add_node(std::move(spec), id);
  graph.replace_uses(graph.node(id).outputs[0], graph.node(cropped).outputs[0]);
  graph.remove_node(id);
}

void check_kernel_shape(const Attributes& attributes, std::span<const int64_t> kernel) {
  const std::vector<int64_t>& wanted = attributes.get_ints("kernel_shape");
  if (!wanted.empty() && !std::equal(wanted.begin(), wanted.end(), kernel.begin(), kernel.end()))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("kernel_shape is [{}], W has the window [{}]", fmt::join(wanted, ","), fmt::join(kernel, ",")));
}

}  // namespace treadle::ops
