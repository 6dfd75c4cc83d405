#include "graph/gradient.h"

#include "graph/infer.h"
#include "graph/layers.h"

namespace treadle {

std::vector<ValueId> GradientContext::op_n(std::string_view op_type, std::vector<ValueId> inputs, int num_outputs, Attributes attributes,
                                           std::string_view domain) {
  DType narrow = DType::undefined;
  if (domain == "treadle") {
    for (ValueId& input : inputs) {
      if (input == kNoValue || (type(input).dtype != DType::float16 && type(input).dtype != DType::bfloat16)) continue;
      narrow = type(input).dtype;
      input = op("Cast", {input}, {{"to", static_cast<int64_t>(DType::float32)}});
    }
  }
  NodeSpec spec{.op_type = std::string(op_type),
                .inputs = std::move(inputs),
                .attributes = std::move(attributes),
                .domain = std::string(domain),
                .name = node().name + "_grad/" + std::string(op_type),
                .num_outputs = num_outputs};
  NodeId id = graph_.add_node(std::move(spec));
  graph_.node(id).sources = node().sources;
  copy_layers(node(), graph_.node(id));
  infer_node(graph_, id);
  std::vector<ValueId> outputs = graph_.node(id).outputs;
  if (narrow == DType::undefined) return outputs;
  for (ValueId& output : outputs)
    if (type(output).dtype == DType::float32) output = op("Cast", {output}, {{"to", static_cast<int64_t>(narrow)}});
  return outputs;
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
  const Type wide = type(grad), narrow = type(operand);  // copies, because adding nodes moves the graph's values
  if (wide.has_rank() && narrow.has_rank()) {
    if (*wide.shape == *narrow.shape) return grad;
    const int extra = wide.rank() - narrow.rank();
    std::vector<int64_t> axes;
    bool exact = extra >= 0;
    for (int axis = 0; exact && axis < wide.rank(); ++axis) {
      if (axis < extra) {
        axes.push_back(axis);
        continue;
      }
      const Dim &x = (*wide.shape)[static_cast<size_t>(axis)], &y = (*narrow.shape)[static_cast<size_t>(axis - extra)];
      if (y.is_const(1) && !x.is_const(1))
        axes.push_back(axis);
      else
        exact = x == y;
    }
    if (exact) {
      const bool only_added = static_cast<int>(axes.size()) == extra;
      const ValueId summed = reduce_sum(grad, std::move(axes), extra == 0);
      return extra == 0 || only_added ? summed : reshape_like(summed, operand);
    }
  }
  return op("BroadcastGrad", {grad, shape_of(operand)}, {}, "treadle");
}

}  // namespace treadle
