#include "gpu/epilogue.h"

#include <algorithm>
#include <vector>

#include "gpu/epilogue_writer.h"
#include "gpu/shaders.h"
#include "graph/op_def.h"
#include "ops/treadle/chained_products.h"

namespace treadle::gpu {

// Finds out how an operand is broadcast, from the axes along which it has more than one index. The channels of a convolution's result are
// axis 1, the columns of a matrix product its last axis.
Epilogue::Lies Epilogue::lies(const Graph& graph, ValueId operand, ValueId result, bool is_convolution) {
  const SymbolicShape &shape = *graph.type(operand).shape, &whole = *graph.type(result).shape;
  if (shape.size() > whole.size()) return kNone;
  const size_t rank = whole.size(), added = rank - shape.size(), channels = is_convolution ? 1 : rank - 1;
  bool is_whole = true, is_by_channel = true, is_by_row = true, is_number = true;
  for (size_t axis = 0; axis < rank; ++axis) {
    const Dim extent = axis < added ? Dim(1) : shape[axis - added];
    const bool extends = extent != Dim(1);
    if (extends && extent != whole[axis]) return kNone;
    // In the result of a convolution, a row has the elements of one channel of one image.
    const bool is_of_row = is_convolution ? axis <= channels : axis < channels;
    is_number &= !extends;
    is_whole &= extent == whole[axis];
    is_by_channel &= axis == channels ? extent == whole[axis] : !extends;
    is_by_row &= is_of_row ? extent == whole[axis] : !extends;
  }
  return is_number ? kNumber : is_whole ? kAsResult : is_by_channel ? kByChannel : is_by_row ? kByRow : kNone;
}

std::optional<Epilogue> Epilogue::of(const Graph& graph, const Node& node) {
  Epilogue epilogue;
  epilogue.product = node.op_type;
  if (node.domain.empty()) return epilogue;
  if (!node.op || node.domain != "treadle" || !node.op_type.starts_with("Chained")) return std::nullopt;
  const auto has_rank = [&](ValueId id) { return id == kNoValue || graph.type(id).has_rank(); };
  if (!has_rank(node.outputs[0]) || !std::all_of(node.inputs.begin(), node.inputs.end(), has_rank)) return std::nullopt;
  epilogue.product.erase(0, std::string_view("Chained").size());
  epilogue.first_ = ops::first_chain_input(*node.op);
  const ValueId result = node.outputs[0];
  const bool is_convolution = epilogue.product == "Conv";
  if (!is_convolution && graph.type(node.inputs[1]).shape->size() < 2) return std::nullopt;  // B is a vector: Y has no axis of columns
  std::vector<DType> inputs{graph.type(result).dtype};
  for (size_t i = epilogue.first_; i < node.inputs.size(); ++i) {
    const size_t operand = i - epilogue.first_;
    if (operand >= kMaxOperands || node.inputs[i] == kNoValue) return std::nullopt;
    epilogue.lies_[operand] = lies(graph, node.inputs[i], result, is_convolution);
    if (epilogue.lies_[operand] == kNone) return std::nullopt;
    inputs.push_back(graph.type(node.inputs[i]).dtype);
  }
  std::vector<ElementwiseStep> steps;
  for (const std::string& text : node.attributes.get_strings("steps")) steps.push_back(ElementwiseStep::parse(text));
  std::optional<Formula> formula = chain_formula(steps, inputs, inputs[0]);
  if (!formula) return std::nullopt;
  epilogue.formula_ = std::move(*formula);
  return epilogue;
}

const vulkan::Shader* Epilogue::shader(const std::string& file, DType dtype) const {
  const std::span<const uint32_t> code = find_code(file, dtype);
  if (code.empty()) return nullptr;
  if (!formula_) return &vulkan::Shader::of(code, {}, file);
  EpilogueWriter writer(code);
  std::vector<Value> values;
  for (size_t i = 0; i <= kMaxOperands; ++i) values.push_back(writer.argument(i));
  size_t used = 1;
  while (used <= kMaxOperands && lies_[used - 1] != kNone) ++used;
  const Value result = formula_(writer, std::span(values).first(used));
  return &vulkan::Shader::of(writer.finish(result), lies_, file);
}

std::array<const void*, Epilogue::kMaxOperands> Epilogue::operands(RunContext& c, int64_t element_bytes, int64_t row_bytes) const {
  std::array<const void*, kMaxOperands> addresses{};
  for (size_t i = 0; i < kMaxOperands && lies_[i] != kNone; ++i) {
    const int64_t offset = lies_[i] == kAsResult ? element_bytes : lies_[i] == kByRow ? row_bytes : 0;
    addresses[i] = c.in<std::byte>(static_cast<int>(first_ + i)) + offset;
  }
  return addresses;
}

}  // namespace treadle::gpu
