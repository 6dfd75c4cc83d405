#include "graph/function_body.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle {

int64_t FunctionBody::rank(size_t i) {
  const Type& type = graph_.type(node_.inputs.at(i));
  if (!type.is_tensor() || !type.has_rank()) throw Error(ErrorCode::not_implemented, "the rank of the image is not known");
  asked_ += fmt::format(" rank {}={}", i, type.rank());
  return type.rank();
}

Shape FunctionBody::shape(size_t i) {
  const Type& type = graph_.type(node_.inputs.at(i));
  if (!type.is_static()) throw Error(ErrorCode::not_implemented, "the extents of the weights are not known");
  asked_ += fmt::format(" shape {}={}", i, to_string(type));
  return type.static_shape();
}

std::string FunctionBody::op(std::string_view op_type, std::vector<std::string> inputs, Attributes attributes, std::string_view domain) {
  while (!inputs.empty() && inputs.back().empty()) inputs.pop_back();
  nodes_.push_back(
      {std::string(op_type), std::string(domain), std::move(inputs), std::move(attributes), fmt::format("value_{}", nodes_.size())});
  return nodes_.back().output;
}

Attributes FunctionBody::own(std::initializer_list<std::string_view> names) const {
  Attributes list;
  for (std::string_view name : names)
    if (const Attribute* value = node_.attributes.find(name)) list.set(name, *value);
  return list;
}

std::string FunctionBody::function(const ScalarFunction& function, const std::string& x, float a, float b) {
  if (function.op_type == "-") throw Error(ErrorCode::not_implemented, fmt::format("the activation {} has no form in ONNX", function.name));
  std::vector<std::string> inputs{x};
  Attributes attributes;
  auto give = [&](const ScalarFunction::Parameter& parameter, float value) {
    if (parameter.name.empty()) return;
    if (parameter.input < 0) return attributes.set(parameter.name, value);
    inputs.resize(std::max(inputs.size(), static_cast<size_t>(parameter.input) + 1));
    inputs[static_cast<size_t>(parameter.input)] = number(value);
  };
  give(function.a, a);
  give(function.b, b);
  if (!function.attribute.empty()) attributes.set(function.attribute, std::string(function.value));
  return op(function.op_type.empty() ? function.name : function.op_type, std::move(inputs), std::move(attributes), function.domain);
}

void FunctionBody::give(size_t i, const std::string& value) { nodes_.push_back({"Identity", "", {value}, {}, outputs_[i]}); }

int function_opset(const ScalarFunction* function) {
  if (!function || !function->domain.empty()) return 1;
  if (function->op_type == "-")
    throw Error(ErrorCode::not_implemented, fmt::format("the activation {} has no form in ONNX", function->name));
  const OpDef* op = find_op("", function->op_type.empty() ? function->name : function->op_type);
  return op ? op->since.front() : 1;
}

}  // namespace treadle
