#include "graph/op_def.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/values/large_memory.h"
#include "graph/infer.h"
#include "graph/unused_kernels.h"
#include "treadle/error.h"

namespace treadle {

namespace {

// Returns true for types that no ONNX operator uses. ONNX has sequences of tensors, and optionals of tensors and of such sequences;
// ai.onnx.ml has sequences of maps.
bool nests_too_deep(const Type& type) {
  if (!type.element) return false;
  const Type& element = *type.element;
  if (type.kind == Type::Kind::optional && element.kind == Type::Kind::sequence) return nests_too_deep(element);
  return element.kind == Type::Kind::sequence || element.kind == Type::Kind::optional;
}

}  // namespace

bool TypeSet::accepts(const Type& type) const {
  switch (type.kind) {
    case Type::Kind::unknown: return true;
    case Type::Kind::tensor: return type.dtype == DType::undefined || has(type.dtype);
    default: return (bits_ >> (kFirstKind + static_cast<unsigned>(type.kind)) & 1U) != 0 && !nests_too_deep(type);
  }
}

std::string TypeSet::to_string() const {
  std::string text;
  for (int i = 1; i < kNumDTypes; ++i)
    if (has(static_cast<DType>(i))) text += fmt::format("{}{}", text.empty() ? "" : ", ", name_of(static_cast<DType>(i)));
  constexpr std::string_view kinds[] = {"sparse tensor", "sequence of tensors", "optional", "map"};
  for (unsigned k = 0; k < 4; ++k)
    if (bits_ >> (kFirstKind + 2 + k) & 1U) text += fmt::format("{}{}", text.empty() ? "" : ", ", kinds[k]);
  return text;
}

int ShapeContext::axis(std::string_view name, int64_t otherwise, int rank) const {
  return normalize_axis(get_int(name, otherwise), rank, name);
}

const Type& CreateContext::type(int input) const {
  static const Type unknown;
  return has_input(input) ? graph_.type(node_.inputs[static_cast<size_t>(input)]) : unknown;
}

// For an output of the graph whose rank inference does not know, returns the type that the model declares.
const Type& CreateContext::output_type(int output) const {
  static const Type unknown;
  if (!has_output(output)) return unknown;
  const ValueId id = node_.outputs[static_cast<size_t>(output)];
  const Type& type = graph_.type(id);
  if (type.is_tensor() && !type.has_rank() && graph_.is_output(id))
    for (size_t i = 0; i < std::min(graph_.outputs.size(), graph_.declared_outputs.size()); ++i)
      if (const Type& declared = graph_.declared_outputs[i]; graph_.outputs[i] == id && declared.dtype == type.dtype) return declared;
  return type;
}

const std::string& CreateContext::input_name(int input) const {
  static const std::string absent;
  return has_input(input) ? graph_.value(node_.inputs[static_cast<size_t>(input)]).name : absent;
}

const std::string& CreateContext::output_name(int output) const {
  static const std::string absent;
  return has_output(output) ? graph_.value(node_.outputs[static_cast<size_t>(output)]).name : absent;
}

const Tensor* CreateContext::stored(int input) const {
  if (!has_input(input)) return nullptr;
  // Also returns parameters and values computed only from parameters. Programs that need this track when these change.
  const Value& value = graph_.value(node_.inputs[static_cast<size_t>(input)]);
  return value.constant.is_tensor() ? &value.constant.tensor() : nullptr;
}

const Tensor* CreateContext::constant(int input) const {
  const Tensor* tensor = stored(input);
  if (!tensor || is_aligned(*tensor)) return tensor;
  auto [found, inserted] = aligned_.try_emplace(input);
  if (inserted) found->second = clone_large(*tensor);
  return &found->second;
}

int64_t BindContext::value_at(int input, int64_t index) const {
  const Tensor& tensor = *value(input);
  if (index < 0 || index >= tensor.num_elements())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input {} has the shape {}; its element {} is asked for", input, to_string(tensor.shape()), index));
  if (tensor.dtype() == DType::int32) return tensor.data<int32_t>()[index];
  return tensor.data<int64_t>()[index];
}

namespace {

DType deciding_dtype(const KernelDef& def, const CreateContext& context) {
  return def.dtype_operand >= 0 ? context.dtype(def.dtype_operand) : context.output_dtype(-1 - def.dtype_operand);
}
bool is_of_another_dtype(const KernelDef& def, const CreateContext& context) {
  return def.dtype != DType::undefined && deciding_dtype(def, context) != def.dtype;
}
// Returns an empty string if the kernel accepts the node.
std::string why_not(const KernelDef& def, const CreateContext& context) {
  if (is_of_another_dtype(def, context)) return fmt::format("for {}, not {}", name_of(def.dtype), name_of(deciding_dtype(def, context)));
  return def.declines ? def.declines(context) : std::string();
}

}  // namespace

const KernelDef& select_kernel(const Graph& graph, const Node& node) {
  CreateContext context(graph, node);
  std::string reasons;
  for (const KernelDef& def : node.op->kernels) {
    const std::string reason = why_not(def, context);
    if (reason.empty()) return def;
    reasons += fmt::format("\n    {}: {}", def.name, reason);
  }
  if (reasons.empty()) reasons = " the operator has none in this build";
  throw Error(ErrorCode::not_implemented, "no kernel takes this node:" + reasons);
}

std::vector<UnusedKernel> unused_kernels(const Graph& graph, const Node& node, std::string_view chosen) {
  const CreateContext context(graph, node);
  std::vector<UnusedKernel> unused;
  std::map<std::string_view, std::pair<size_t, std::string>> of_dtypes;  // by kernel name: index in `unused`, and the dtypes so far
  const KernelDef* first = nullptr;
  for (const KernelDef& def : node.op->kernels) {
    const std::string reason = why_not(def, context);
    if (reason.empty() && !first) {
      first = &def;
      if (def.name != chosen) unused.push_back({std::string(def.name), fmt::format("the device's kernel {} goes before it", chosen)});
    } else if (reason.empty()) {
      unused.push_back({std::string(def.name), fmt::format("{} goes before it", chosen)});
    } else if (is_of_another_dtype(def, context)) {
      auto [known, is_new] = of_dtypes.try_emplace(def.name, unused.size(), "");
      if (is_new) unused.push_back({std::string(def.name), ""});
      auto& [entry, dtypes] = known->second;
      dtypes += (dtypes.empty() ? "" : ", ") + std::string(name_of(def.dtype));
      unused[entry].why = fmt::format("for {}, not {}", dtypes, name_of(deciding_dtype(def, context)));
    } else {
      unused.push_back({std::string(def.name), reason});
    }
  }
  return unused;
}

}  // namespace treadle
