#include "passes/quantization.h"

#include <cmath>

namespace treadle::passes {

std::optional<Quantization> quantization_by(const Graph& graph, ValueId scale_id, ValueId zero_id) {
  const Tensor *scale = graph.constant_tensor(scale_id), *zero = graph.constant_tensor(zero_id);
  if (!scale || !zero || scale->dtype() != DType::float32 || scale->num_elements() != 1 || zero->num_elements() != 1) return std::nullopt;
  Quantization q{scale_id, zero_id, scale->data<float>()[0], 0, zero->dtype()};
  if (q.dtype == DType::uint8)
    q.origin = zero->data<uint8_t>()[0];
  else if (q.dtype == DType::int8)
    q.origin = zero->data<int8_t>()[0];
  else
    return std::nullopt;
  if (!(q.step > 0) || !std::isfinite(q.step)) return std::nullopt;
  return q;
}

std::optional<Quantization> quantization_of(const Graph& graph, const Node* node, std::string_view op_type) {
  if (!node || !node->is(op_type) || !node->has_input(2)) return std::nullopt;
  const DType real = graph.type(op_type == "QuantizeLinear" ? node->inputs[0] : node->outputs[0]).dtype;
  if (real != DType::float32 || node->attributes.get_int("precision") > 1 || node->attributes.get_int("block_size") != 0)
    return std::nullopt;
  return quantization_by(graph, node->inputs[1], node->inputs[2]);
}

}  // namespace treadle::passes
