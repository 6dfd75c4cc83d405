// Moves a Pad into the `pads` of the convolution or pool that reads it, so that no padded copy of the image is written:
//   Conv: if the padding is zero, like Conv's own.
//   AveragePool: if the padding is zero and the pool counts pads (count_include_pad); a pool without pads is set to count them.
//   MaxPool: if the padding is -infinity; or zero, if the image is never negative and each window contains an image element.
//
// Applies only if all readers of the padded image are such nodes; otherwise the copy is needed anyway. Declines for other padding values,
// modes that repeat the image, negative pads (crops), pads of batch or channels, windows placed by `auto_pad`, and ceil_mode.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/scalar_function.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

using Ints = std::vector<int64_t>;

struct Padding {
  ValueId image;
  Ints begin, end;    // pads at the begin and end of each spatial axis
  double number = 0;  // value of the padded elements
};

std::optional<double> padded_number(const Graph& graph, const Node& pad) {
  if (!pad.has_input(2)) return 0;
  const Tensor* number = graph.constant_tensor(pad.inputs[2]);
  if (!number || number->num_elements() != 1) return std::nullopt;
  if (number->dtype() == DType::float32) return static_cast<double>(*number->data<float>());
  if (number->dtype() == DType::float64) return *number->data<double>();
  return std::nullopt;
}

std::optional<Padding> padding_of(const Graph& graph, const Node* pad) {
  if (!pad || !pad->is("Pad") || pad->attributes.get_string("mode", "constant") != "constant") return std::nullopt;
  const Type& type = graph.type(pad->inputs[0]);
  if (!type.is_tensor() || !type.has_rank() || type.rank() < 3) return std::nullopt;
  const auto given = constant_ints(graph, pad->inputs[1]);
  const auto number = padded_number(graph, *pad);
  if (!given || !number || std::isnan(*number) || (*number == 0 && std::signbit(*number))) return std::nullopt;
  const size_t rank = static_cast<size_t>(type.rank());
  Ints axes(rank);
  for (size_t i = 0; i < rank; ++i) axes[i] = static_cast<int64_t>(i);
  if (pad->has_input(3)) {
    const auto chosen = constant_ints(graph, pad->inputs[3]);
    if (!chosen) return std::nullopt;
    axes = *chosen;
  }
  if (given->size() != 2 * axes.size()) return std::nullopt;
  Padding padding{pad->inputs[0], Ints(rank - 2), Ints(rank - 2), *number};
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + type.rank() : axes[i], begin = (*given)[i], end = (*given)[i + axes.size()];
    if (begin < 0 || end < 0 || axis < 0 || axis >= type.rank()) return std::nullopt;
    if (axis < 2 && begin + end > 0) return std::nullopt;
    if (axis < 2) continue;
    padding.begin[static_cast<size_t>(axis - 2)] = begin, padding.end[static_cast<size_t>(axis - 2)] = end;
  }
  return padding;
}

bool is_never_negative(const Graph& graph, ValueId id) {
  const Node* node = producer_of(graph, id);
  const ScalarFunction* function = node ? function_of(*node) : nullptr;
  if (!function) return false;
  if (function->lowest >= 0) return true;
  if (function->a.name != "min") return false;  // only functions with a lower bound have the parameter `min`
  const auto parameters = parameters_of(graph, *node, *function);
  return parameters && parameters->a >= 0;
}

/// Returns the sum of the reader's own `pads` and the padding of the Pad; nullopt if the reader does not support the sum.
std::optional<Ints> joined_pads(const Graph& graph, const Node& reader, const Padding& padding) {
  const bool is_conv = reader.is("Conv"), is_average = reader.is("AveragePool");
  if (!is_conv && !is_average && !reader.is("MaxPool")) return std::nullopt;
  if (reader.outputs.size() > 1) return std::nullopt;  // MaxPool's indices refer to the padded image
  const std::string_view placed = reader.attributes.get_string("auto_pad", "NOTSET");
  const size_t axes = padding.begin.size();
  Ints pads = reader.attributes.get_ints("pads");
  if (placed == "VALID" || pads.empty()) pads.assign(2 * axes, 0);
  if ((!placed.empty() && placed != "NOTSET" && placed != "VALID") || pads.size() != 2 * axes) return std::nullopt;
  const bool has_own = std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad != 0; });
  if (std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) return std::nullopt;
  for (size_t i = 0; i < axes; ++i) pads[i] += padding.begin[i], pads[i + axes] += padding.end[i];
  if (is_conv) return padding.number == 0 ? std::optional(pads) : std::nullopt;

  if (reader.attributes.get_int("ceil_mode") != 0) return std::nullopt;
  const Ints& kernel = reader.attributes.get_ints("kernel_shape");
  for (size_t i = 0; i < axes; ++i)  // ONNX forbids windows that contain only pads
    if (kernel.size() != axes || pads[i] >= kernel[i] || pads[i + axes] >= kernel[i]) return std::nullopt;
  if (is_average)
    return padding.number == 0 && (!has_own || reader.attributes.get_int("count_include_pad") != 0) ? std::optional(pads) : std::nullopt;
  if (std::isinf(padding.number) && padding.number < 0) return pads;
  if (padding.number != 0 || !is_never_negative(graph, padding.image)) return std::nullopt;
  // Declines dilated windows, because they may miss the image. Also declines if an image may be empty and windows are no larger than pads.
  const Ints& dilations = reader.attributes.get_ints("dilations");
  if (std::any_of(dilations.begin(), dilations.end(), [](int64_t dilation) { return dilation != 1; })) return std::nullopt;
  for (size_t i = 0; i < axes; ++i) {
    const Dim& extent = (*graph.type(padding.image).shape)[2 + i];
    if (pads[i] + pads[i + axes] >= kernel[i] && !(extent.is_const() && extent.value() > 0)) return std::nullopt;
  }
  return pads;
}

class AbsorbPad final : public Rule {
 public:
  std::string_view name() const override { return "absorb-pad"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (node.inputs.empty() || node.outputs.empty()) return std::nullopt;
    const std::optional<Padding> padding = padding_of(graph, producer_of(graph, node.inputs[0]));
    if (!padding) return std::nullopt;
    const std::optional<Ints> pads = joined_pads(graph, node, *padding);
    if (!pads && node.attributes.has("kernel_shape"))
      return no_patch(node, [&] {
        return fmt::format(
            "the Pad before it writes {}, and its own pads cannot take that: a convolution and an average take zeros, a maximum "
            "-infinity; `auto_pad`, `ceil_mode` and indices stand in the way",
            padding->number);
      });
    if (!pads) return std::nullopt;
    if (graph.is_output(node.inputs[0])) return no_patch(node, "the padded image before it is an output of the model");
    for (const Use& use : graph.value(node.inputs[0]).uses)
      if (use.input != 0 || !joined_pads(graph, graph.node(use.node), *padding))
        return no_patch(node, "the padded image before it is made all the same, for", &graph.node(use.node), "");
    NodeSpec spec{.op_type = node.op_type, .inputs = node.inputs, .attributes = node.attributes, .name = node.name};
    spec.inputs[0] = padding->image;
    spec.attributes.erase("auto_pad");
    spec.attributes.set("pads", *pads);
    if (node.is("AveragePool")) spec.attributes.set("count_include_pad", int64_t{1});
    Patch patch;
    patch.replace(node.outputs[0], patch.add(std::move(spec)));
    return patch;
  }
};

}  // namespace

Pass absorb_pad() { return rule_pass<AbsorbPad>(kBasic, kAlways, "Pad of zeros -> the pads of the convolution or pool that reads it"); }

}  // namespace treadle::passes
