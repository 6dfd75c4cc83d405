// Static quantization: inserts QuantizeLinear (Q) and DequantizeLinear (DQ) around products and convolutions, and around nodes that only
// move elements. Conv(x, W, b) -> Relu becomes Conv(DQ(Q(x)), DQ(W8), DQ(b32)) -> Q -> DQ. Here the smallest code stands for 0, so that
// saturation replaces the Relu.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/op_def.h"
#include "graph/scalar_function.h"
#include "quantize/codes.h"
#include "quantize/plan.h"
#include "treadle/error.h"

namespace treadle::quantization {
namespace {

bool is_op(const onnx::NodeDef& node, std::string_view op_type) {
  return node.op_type == op_type && (node.domain.empty() || node.domain == "ai.onnx");
}

bool is_mover(const onnx::NodeDef& node) {
  const OpDef* op = find_op(node.domain == "ai.onnx" ? "" : node.domain, node.op_type);
  return op && op->quantization == Quantization::chooses && node.outputs.size() == 1;
}

/// Returns how many operands of a node that moves elements are moved. All others are parameters, such as axes.
size_t num_moved(const onnx::NodeDef& node) { return is_op(node, "Concat") ? node.inputs.size() : 1; }

/// Returns the range of numbers that a Relu or Clip does not change; nullopt for other nodes, and if the bounds are not constant.
std::optional<Range> bounds_of(const Editor& editor, const onnx::NodeDef& node) {
  if (!is_op(node, "Relu") && !is_op(node, "Clip")) return std::nullopt;
  const ScalarFunction& function = *find_function(node.op_type);
  Range range{function.lowest, function.highest};
  for (const auto& [parameter, end] : {std::pair(&function.a, &range.low), std::pair(&function.b, &range.high)}) {
    if (parameter->input < 0) continue;
    *end = parameter->otherwise;
    const auto i = static_cast<size_t>(parameter->input);
    if (node.inputs.size() <= i || node.inputs[i].empty()) continue;
    const Tensor* bound = editor.constant(node.inputs[i]);
    if (!bound || bound->dtype() != DType::float32 || bound->num_elements() != 1) return std::nullopt;
    *end = bound->contiguous().data<float>()[0];
  }
  return range;
}

Tensor zero_of(DType dtype, int32_t zero, const Shape& shape) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (dtype == DType::int32)
      tensor.data<int32_t>()[i] = zero;
    else
      reinterpret_cast<uint8_t*>(tensor.raw())[i] = static_cast<uint8_t>(zero);
  }
  return tensor;
}

}  // namespace

StaticPlan::StaticPlan(Plan& plan) : plan_(plan) {
  const std::vector<onnx::NodeDef>& nodes = plan.editor.model.graph.nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string& output : nodes[i].outputs) producers_[output] = i;
    for (const std::string& input : nodes[i].inputs) readers_[input].push_back(i);
  }
  for (const Candidate& candidate : plan.candidates) {
    const onnx::NodeDef& taken = node(candidate.node);
    taken_[candidate.node] = candidate.report;
    take(taken.inputs[0]);
    std::string result = taken.outputs[0];
    if (taken.op_type == "Conv") {
      const auto& readers = readers_[result];
      if (readers.size() == 1 && plan.editor.num_uses(result) == 1 && bounds_of(plan.editor, node(readers[0])))
        result = node(readers[0]).outputs[0];
      take(result);
    }
    plan.compared[candidate.report] = {result, result};
  }
  follow_movers();
  mark_replaced();
}

void StaticPlan::take(const std::string& value) {
  if (!place_.emplace(value, values_.size()).second) return;
  coded_.push_back({.parent = values_.size()});
  values_.push_back(value);
}

size_t StaticPlan::group_of(size_t value) const {
  while (coded_[value].parent != value) value = coded_[value].parent;
  return value;
}

void StaticPlan::join(const std::string& a, const std::string& b) {
  const size_t first = group_of(place_.at(a)), second = group_of(place_.at(b));
  coded_[std::max(first, second)].parent = std::min(first, second);
}

// Finds nodes between quantized ones that only move elements. Such nodes can move codes instead, if their inputs and outputs have the same
// scale.
void StaticPlan::follow_movers() {
  const std::vector<onnx::NodeDef>& nodes = plan_.editor.model.graph.nodes;
  std::set<std::string> wanted(values_.begin(), values_.end());
  for (size_t i = nodes.size(); i-- > 0;)
    if (is_mover(nodes[i]) && wanted.contains(nodes[i].outputs[0]))
      for (size_t j = 0; j < num_moved(nodes[i]); ++j) wanted.insert(nodes[i].inputs[j]);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const onnx::NodeDef& mover = nodes[i];
    if (!is_mover(mover) || !wanted.contains(mover.outputs[0])) continue;
    bool any_coded = false, any_constant = false;
    for (size_t j = 0; j < num_moved(mover); ++j) {
      any_coded |= place_.contains(mover.inputs[j]);
      any_constant |= plan_.editor.constant(mover.inputs[j]) != nullptr;
    }
    if (!any_coded || any_constant) continue;
    take(mover.outputs[0]);
    for (size_t j = 0; j < num_moved(mover); ++j) {
      take(mover.inputs[j]);
    }
    // If some inputs come from a Relu and others do not, each keeps its own scale. A common scale would include negative numbers, so that
    // the Relu could not be removed.
    const bool alike = std::all_of(mover.inputs.begin(), mover.inputs.begin() + static_cast<int64_t>(num_moved(mover)),
                                   [&](const std::string& part) { return least_of(part) == least_of(mover.inputs[0]); });
    for (size_t j = 0; alike && j < num_moved(mover); ++j) join(mover.inputs[j], mover.outputs[0]);
    movers_.insert(i);
  }
}

double StaticPlan::least_of(const std::string& value) const {
  for (std::string at = value;;) {
    auto made = producers_.find(at);
    if (made == producers_.end()) return -INFINITY;
    const onnx::NodeDef& producer = node(made->second);
    if (const auto bounds = bounds_of(plan_.editor, producer)) return bounds->low;
    if (!is_mover(producer)) return -INFINITY;
    at = producer.inputs[0];
  }
}

bool StaticPlan::reads_codes(size_t reader, const std::string& value) const {
  if (auto found = taken_.find(reader); found != taken_.end()) return node(reader).inputs[0] == value;
  return movers_.contains(reader);
}

void StaticPlan::mark_replaced() {
  for (size_t i = 0; i < values_.size(); ++i) {
    auto made = producers_.find(values_[i]);
    if (made == producers_.end()) continue;  // graph inputs must keep their names
    const onnx::NodeDef& producer = node(made->second);
    const std::vector<size_t>& readers = readers_[values_[i]];
    const bool all_read_codes = !plan_.editor.is_output(values_[i]) && plan_.editor.num_uses(values_[i]) == int64_t(readers.size()) &&
                                std::all_of(readers.begin(), readers.end(), [&](size_t r) { return reads_codes(r, values_[i]); });
    const bool sum_of_codes = is_op(producer, "Add") && place_.contains(producer.inputs[0]) && place_.contains(producer.inputs[1]);
    coded_[i].replaces = all_read_codes || sum_of_codes || is_op(producer, "Conv") || movers_.contains(made->second) ||
                         bounds_of(plan_.editor, producer).has_value();
  }
}

void StaticPlan::apply(std::vector<Histogram> histograms) {
  Editor& editor = plan_.editor;
  const DType dtype = plan_.options.activation_dtype;
  for (size_t i = 0; i < values_.size(); ++i)
    if (group_of(i) != i) histograms[group_of(i)].merge(histograms[i]);
  for (size_t i = 0; i < values_.size(); ++i) {
    const size_t group = group_of(i);
    const Range range = histograms[group].range(plan_.options.method, plan_.options.percentile);
    if (group == i) {
      const Affine affine = affine_of(range.low, range.high, dtype);
      coded_[i].scale = editor.add(values_[i] + "_scale", Tensor::scalar<float>(affine.scale));
      coded_[i].zero = editor.add(values_[i] + "_zero_point", zero_of(dtype, affine.zero, Shape{}));
    }
    coded_[i].scale = coded_[group].scale, coded_[i].zero = coded_[group].zero;
    coded_[i].dequantized = coded_[i].replaces ? values_[i] : editor.unique(values_[i] + "_dequantized");
    // A Relu or Clip is redundant if the range of its output's codes is within its bounds, because quantizing saturates there.
    auto made = producers_.find(values_[i]);
    if (made == producers_.end()) continue;
    const auto bounds = bounds_of(editor, node(made->second));
    const std::string& before = node(made->second).inputs[0];
    if (bounds && producers_.contains(before) && editor.num_uses(before) == 1 && !place_.contains(before) && bounds->low <= 0 &&
        range.low >= bounds->low && range.high <= bounds->high * (1 + 1e-6))
      dropped_.insert(made->second);
  }
  std::vector<onnx::NodeDef> result;
  for (const onnx::ValueInfoDef& input : editor.model.graph.inputs)
    if (place_.contains(input.name)) add_code_nodes(input.name, input.name, result);
  std::vector<onnx::NodeDef>& nodes = editor.model.graph.nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (dropped_.contains(i)) continue;
    std::vector<std::string> inputs = nodes[i].inputs;
    for (std::string& input : inputs) {
      auto found = place_.find(input);
      if (found != place_.end() && reads_codes(i, input)) input = coded_[found->second].dequantized;
    }
    auto taken = taken_.find(i);
    if (taken != taken_.end()) add_weights(nodes[i], taken->second, result, inputs);
    std::vector<std::string> outputs = nodes[i].outputs;
    std::vector<std::pair<std::string, std::string>> codes;  // (name of a value, name of the float value from which its codes are made)
    for (std::string& output : outputs) {
      const auto& readers = readers_[output];
      if (readers.size() == 1 && dropped_.contains(readers[0])) {
        codes.emplace_back(node(readers[0]).outputs[0], output);
      } else if (auto found = place_.find(output); found != place_.end()) {
        const std::string value = output;
        if (coded_[found->second].replaces) output = editor.unique(value + "_float");
        codes.emplace_back(value, output);
      }
    }
    onnx::NodeDef copy = make_node(nodes[i].op_type, std::move(inputs), std::move(outputs), nodes[i].name, nodes[i].domain);
    const bool is_gemm = taken != taken_.end() && nodes[i].op_type == "Gemm";
    const std::string made = copy.outputs.empty() ? std::string() : copy.outputs[0];
    if (is_gemm) {  // written as product and sum: the bias stays exact, and runtimes can fuse the product
      copy.op_type = "MatMul";
      const bool has_c = copy.inputs.size() > 2 && !copy.inputs[2].empty();
      const std::string c = has_c ? copy.inputs[2] : std::string();
      copy.inputs.resize(2);
      if (has_c) copy.outputs[0] = editor.unique(made + "_product");
      const std::string product = copy.outputs[0];
      result.push_back(std::move(copy));
      if (has_c) result.push_back(make_node("Add", {product, c}, {made}, editor.unique(nodes[i].name + "_bias")));
    } else {
      copy.overload = nodes[i].overload, copy.doc_string = nodes[i].doc_string, copy.metadata_props = nodes[i].metadata_props;
      copy.attributes = std::move(nodes[i].attributes), copy.device_configurations = nodes[i].device_configurations;
      result.push_back(std::move(copy));
    }
    for (const auto& [value, source] : codes) add_code_nodes(value, source, result);
  }
  nodes = std::move(result);
}

void StaticPlan::add_weights(const onnx::NodeDef& node, size_t report, std::vector<onnx::NodeDef>& out, std::vector<std::string>& inputs) {
  Editor& editor = plan_.editor;
  const QuantizeOptions& options = plan_.options;
  const bool is_conv = node.op_type == "Conv";
  const std::string key = weights_key(node);
  StoredBytes& stored = weights_[key];
  if (stored.dequantized.empty()) {
    const Tensor values = is_conv ? editor.constant(node.inputs[1])->contiguous().clone() : product_weights(editor, node, false);
    const int axis = is_conv ? 0 : 1;
    const ByteWeights bytes = byte_weights(values, options.per_channel ? axis : -1, options.reduce_range ? 63 : 127);
    const std::string& name = node.inputs[1];
    stored.sqnr_db = bytes.sqnr_db, stored.scales = bytes.scales;
    stored.dequantized = editor.unique(name + "_dequantized");
    out.push_back(make_node("DequantizeLinear",
                            {editor.add(name + "_quantized", bytes.codes), editor.add(name + "_scale", bytes.scales),
                             editor.add(name + "_zero_point", zero_of(DType::int8, 0, bytes.scales.shape()))},
                            {stored.dequantized}, editor.unique(name + "_DequantizeLinear")));
    if (options.per_channel) set_attribute(out.back(), "axis", axis);
  }
  plan_.report.nodes[report].weight_sqnr_db = stored.sqnr_db;
  inputs[1] = stored.dequantized;
  if (!is_conv || inputs.size() < 3) return;
  // Quantizes the bias to int32 with the scale x_scale * W_scale. If a result does not fit into int32, the bias stays float.
  const Tensor* bias = editor.constant(node.inputs[2]);
  if (!bias || bias->dtype() != DType::float32) return;
  if (stored.scales.num_elements() != 1 && bias->num_elements() != stored.scales.num_elements()) return;
  const Tensor values = bias->contiguous().clone();
  const float x_scale = editor.constant(coded_[place_.at(node.inputs[0])].scale)->data<float>()[0];
  Tensor codes(DType::int32, values.shape()), scales(DType::float32, stored.scales.shape());
  for (int64_t i = 0; i < scales.num_elements(); ++i) scales.data<float>()[i] = x_scale * stored.scales.data<float>()[i];
  for (int64_t i = 0; i < values.num_elements(); ++i) {
    const double unit = scales.data<float>()[scales.num_elements() == 1 ? 0 : i];
    const double code = unit > 0 ? std::nearbyint(values.data<float>()[i] / unit) : INFINITY;
    if (!(std::fabs(code) < 1e9)) return;
    codes.data<int32_t>()[i] = static_cast<int32_t>(code);
  }
  const std::string& name = node.inputs[2];
  inputs[2] = editor.unique(name + "_dequantized");
  out.push_back(make_node("DequantizeLinear",
                          {editor.add(name + "_quantized", codes), editor.add(name + "_scale", scales),
                           editor.add(name + "_zero_point", zero_of(DType::int32, 0, scales.shape()))},
                          {inputs[2]}, editor.unique(name + "_DequantizeLinear")));
  if (options.per_channel) set_attribute(out.back(), "axis", 0);
}

void StaticPlan::add_code_nodes(const std::string& value, const std::string& source, std::vector<onnx::NodeDef>& out) {
  Editor& editor = plan_.editor;
  const Coded& coded = coded_[place_.at(value)];
  const std::string codes = editor.unique(value + "_quantized");
  out.push_back(make_node("QuantizeLinear", {source, coded.scale, coded.zero}, {codes}, editor.unique(value + "_QuantizeLinear")));
  out.push_back(
      make_node("DequantizeLinear", {codes, coded.scale, coded.zero}, {coded.dequantized}, editor.unique(value + "_DequantizeLinear")));
}

}  // namespace treadle::quantization
