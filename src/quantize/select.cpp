#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/pattern.h"
#include "quantize/plan.h"
#include "treadle/error.h"

namespace treadle::quantization {
namespace {

bool is_standard(const onnx::NodeDef& node) { return node.domain.empty() || node.domain == "ai.onnx"; }

bool any_matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) { return matches(pattern, name); });
}

/// Returns true if all weights are finite. Copies elements before reading them, because weights in a file may be unaligned.
bool all_finite(const Tensor& tensor) {
  const Tensor weights = tensor.contiguous();
  for (int64_t i = 0; i < weights.num_elements(); ++i) {
    float value = 0;
    std::memcpy(&value, weights.raw() + i * static_cast<int64_t>(sizeof(float)), sizeof(float));
    if (!std::isfinite(value)) return false;
  }
  return true;
}

/// Returns the reason why a node must stay float; empty if it can be quantized.
std::string reason_against(const Plan& plan, const onnx::NodeDef& node, const std::string& name) {
  const QuantizeOptions& options = plan.options;
  if (!options.op_types.empty() && std::find(options.op_types.begin(), options.op_types.end(), node.op_type) == options.op_types.end())
    return fmt::format("{} is not among the operators asked for", node.op_type);
  if (!options.include.empty() && !any_matches(options.include, name)) return "its name matches no pattern to include";
  if (any_matches(options.exclude, name)) return "its name matches a pattern to exclude";
  if (node.inputs.size() < 2 || node.outputs.size() != 1) return "it has no weights";
  const Tensor* weights = plan.editor.constant(node.inputs[1]);
  if (!weights) return "its weights are not constant";
  if (plan.editor.constant(node.inputs[0])) return "its input is constant";
  if (weights->dtype() != DType::float32) return fmt::format("its weights are {}", name_of(weights->dtype()));
  const int rank = weights->shape().rank();
  if (node.op_type == "Conv" ? rank < 3 : rank != 2) return fmt::format("its weights have rank {}", rank);
  // There is no lower limit for convolutions: a small one that stays float between quantized ones costs more, because of conversions.
  const int64_t least = node.op_type == "Conv" ? 1 : std::max<int64_t>(1, options.min_weight_elements);
  if (weights->num_elements() < least) return fmt::format("its weights are {} numbers only", weights->num_elements());
  if (!all_finite(*weights)) return "its weights are not finite";
  if (node.op_type == "Gemm") {
    if (int_attribute(node, "transA", 0) != 0) return "transA is set";
    const bool has_c = node.inputs.size() > 2 && !node.inputs[2].empty();
    if (has_c && float_attribute(node, "beta", 1) != 1) return "beta is not 1";
  }
  return {};
}

}  // namespace

void select_nodes(Plan& plan) {
  const std::vector<onnx::NodeDef>& nodes = plan.editor.model.graph.nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const onnx::NodeDef& node = nodes[i];
    const bool is_conv = node.op_type == "Conv";
    if (!is_standard(node) || !(is_conv || node.op_type == "MatMul" || node.op_type == "Gemm")) continue;
    if (is_conv && plan.options.mode != QuantizeMode::qdq) continue;
    if (node.outputs.empty()) continue;
    QuantizedNode entry{node.name.empty() ? node.outputs[0] : node.name, node.op_type, node.outputs[0]};
    entry.reason = reason_against(plan, node, entry.name);
    if (entry.reason.empty()) plan.candidates.push_back({i, plan.report.nodes.size()});
    plan.report.nodes.push_back(std::move(entry));
  }
  const auto count = static_cast<int64_t>(plan.candidates.size());
  std::vector<Candidate> kept;
  for (int64_t i = 0; i < count; ++i) {
    const Candidate& candidate = plan.candidates[static_cast<size_t>(i)];
    QuantizedNode& entry = plan.report.nodes[candidate.report];
    if (i < plan.options.skip_first)
      entry.reason = fmt::format("it is among the first {}", plan.options.skip_first);
    else if (count - i <= plan.options.skip_last)
      entry.reason = fmt::format("it is among the last {}", plan.options.skip_last);
    else
      entry.quantized = true, kept.push_back(candidate);
  }
  plan.candidates = std::move(kept);
}

void replace_nodes(Plan& plan,
                   const std::function<void(const onnx::NodeDef& node, QuantizedNode& entry, std::vector<onnx::NodeDef>& out)>& replace) {
  std::map<size_t, size_t> taken;
  for (const Candidate& candidate : plan.candidates) taken[candidate.node] = candidate.report;
  std::vector<onnx::NodeDef>& graph = plan.editor.model.graph.nodes;
  std::vector<onnx::NodeDef> nodes = std::move(graph), result;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto found = taken.find(i);
    if (found == taken.end()) {
      result.push_back(std::move(nodes[i]));
      continue;
    }
    replace(nodes[i], plan.report.nodes[found->second], result);
    plan.compared[found->second] = {nodes[i].outputs[0], nodes[i].outputs[0]};
  }
  graph = std::move(result);
}

Tensor product_weights(const Editor& editor, const onnx::NodeDef& node, bool outputs_first) {
  const Tensor weights = editor.constant(node.inputs[1])->contiguous();
  const bool is_gemm = node.op_type == "Gemm", stored_outputs_first = is_gemm && int_attribute(node, "transB", 0) != 0;
  const float alpha = is_gemm ? float_attribute(node, "alpha", 1) : 1;
  if (alpha == 1 && stored_outputs_first == outputs_first && reinterpret_cast<uintptr_t>(weights.raw()) % alignof(float) == 0)
    return weights;
  const int64_t rows = weights.shape()[0], columns = weights.shape()[1];
  const bool transposes = stored_outputs_first != outputs_first;
  Tensor result(DType::float32, transposes ? Shape{columns, rows} : Shape{rows, columns});
  Tensor aligned = reinterpret_cast<uintptr_t>(weights.raw()) % alignof(float) == 0 ? weights : weights.clone();
  const float* from = aligned.data<float>();
  float* to = result.data<float>();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[transposes ? c * rows + r : r * columns + c] = alpha * from[r * columns + c];
  return result;
}

std::string weights_key(const onnx::NodeDef& node) {
  const bool is_gemm = node.op_type == "Gemm";
  return fmt::format("{}/{}/{}/{}", node.op_type == "Conv", is_gemm && int_attribute(node, "transB", 0) != 0,
                     is_gemm ? float_attribute(node, "alpha", 1) : 1.0F, node.inputs[1]);
}

std::string product_name(Editor& editor, const onnx::NodeDef& node) {
  return node.op_type == "Gemm" && node.inputs.size() > 2 && !node.inputs[2].empty() ? editor.unique(node.outputs[0] + "_product")
                                                                                     : node.outputs[0];
}

void add_gemm_bias(Editor& editor, const onnx::NodeDef& node, const std::string& product, std::vector<onnx::NodeDef>& out) {
  if (product == node.outputs[0]) return;
  out.push_back(make_node("Add", {product, node.inputs[2]}, {node.outputs[0]}, editor.unique(node.name + "_bias")));
}

}  // namespace treadle::quantization
