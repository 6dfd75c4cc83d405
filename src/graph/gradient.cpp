#include "graph/gradient.h"

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle {

std::vector<ValueId> GradientContext::op_n(std::string_view op_type, std::vector<ValueId> inputs, int num_outputs, Attributes attributes,
                                           std::string_view domain) {
  NodeSpec spec{.op_type = std::string(op_type),
                .inputs = std::move(inputs),
                .attributes = std::move(attributes),
                .domain = std::string(domain),
                .name = node().name + "_grad/" + std::string(op_type),
                .num_outputs = num_outputs};
  NodeId id = graph_.add_node(std::move(spec));
  graph_.node(id).sources = node().sources;
  infer_node(graph_, id);
  return graph_.node(id).outputs;
}

ValueId GradientContext::op(std::string_view op_type, std::vector<ValueId> inputs, Attributes attributes, std::string_view domain) {
  return op_n(op_type, std::move(inputs), 1, std::move(attributes), domain)[0];
}

ValueId GradientContext::reduce_sum(ValueId x, std::vector<int64_t> axes, bool keepdims) {
  return op("ReduceSum", {x, ints(std::move(axes))}, {{"keepdims", int64_t{keepdims}}});
}

ValueId GradientContext::scalar(double value, ValueId like) {
  switch (type(like).dtype) {
    case DType::float32: return constant(Tensor::scalar(static_cast<float>(value)));
    case DType::float64: return constant(Tensor::scalar(value));
    default: return op("Cast", {constant(Tensor::scalar(value))}, {{"to", static_cast<int64_t>(type(like).dtype)}});
  }
}

ValueId GradientContext::unbroadcast(ValueId grad, ValueId operand) {
  const Type &wide = type(grad), &narrow = type(operand);
  if (!wide.has_rank() || !narrow.has_rank())
    throw Error(ErrorCode::not_implemented,
                "the gradient of a broadcast needs known ranks: " + to_string(wide) + " to " + to_string(narrow));
  if (*wide.shape == *narrow.shape) return grad;
  int extra = wide.rank() - narrow.rank();
  std::vector<int64_t> axes;
  bool exact = true;
  for (int axis = 0; axis < wide.rank(); ++axis) {
    if (axis < extra) {
      axes.push_back(axis);
      continue;
    }
    const Dim &x = (*wide.shape)[static_cast<size_t>(axis)], &y = (*narrow.shape)[static_cast<size_t>(axis - extra)];
    if (y.is_const(1) && !x.is_const(1))
      axes.push_back(axis);
    else if (!(x == y))
      exact = false;
  }
  if (!exact)
    throw Error(ErrorCode::not_implemented, "the gradient of a broadcast between symbols: " + to_string(wide) + " to " + to_string(narrow));
  ValueId summed = axes.empty() ? grad : reduce_sum(grad, axes, extra == 0);
  if (extra == 0 || axes.empty()) return summed;
  return static_cast<int>(axes.size()) == extra ? summed : reshape_like(summed, operand);
}

}  // namespace treadle
