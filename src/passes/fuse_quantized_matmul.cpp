// Products of 8-bit numbers, of which files write the arithmetic around:
//   MatMul(DequantizeLinear(a), DequantizeLinear(b))                  -> QuantizedMatMul(a, b)
//   Cast(MatMulInteger(a, b)) * (a_scale * b_scale)                   -> QuantizedMatMul(a, b)
// Sums of integers are exact where those of floats round. Only on machines with instructions for it; only with one scale for a, and with
// one for b or one for each of its columns.
#include <algorithm>

#include "kernels/gemm/gemm_bytes.h"
#include "passes/matching.h"
#include "passes/rules.h"

namespace treadle::passes {
namespace {

bool is_byte(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_tensor() && (type.dtype == DType::uint8 || type.dtype == DType::int8);
}

bool is_one(const Graph& graph, ValueId id) {
  const Type& type = graph.type(id);
  return type.is_static() && type.static_shape().num_elements() == 1;
}

struct Quantised {
  ValueId value = kNoValue, scale = kNoValue, zero = kNoValue;
};

// A value that is DequantizeLinear of bytes by one scale, or by one for each place of its last axis.
std::optional<Quantised> dequantised(const Graph& graph, ValueId id, bool per_column) {
  const Node* node = producer_of(graph, id);
  if (!node || !node->is("DequantizeLinear") || !is_byte(graph, node->inputs[0]) || graph.type(id).dtype != DType::float32)
    return std::nullopt;
  const Type &x = graph.type(node->inputs[0]), &scale = graph.type(node->inputs[1]);
  if (!x.has_rank() || x.rank() < 2 || scale.dtype != DType::float32 || node->attributes.get_int("block_size") != 0) return std::nullopt;
  if (!is_one(graph, node->inputs[1])) {
    const int64_t axis = node->attributes.get_int("axis", 1);
    if (!per_column || x.rank() != 2 || (axis != 1 && axis != -1) || !scale.has_rank() || scale.rank() != 1) return std::nullopt;
  }
  Quantised q{node->inputs[0], node->inputs[1], node->has_input(2) ? node->inputs[2] : kNoValue};
  if (q.zero != kNoValue && !is_byte(graph, q.zero)) return std::nullopt;
  return q;
}

Patch product(const Node& node, const Quantised& a, const Quantised& b) {
  std::vector<ValueId> inputs{a.value, a.scale, a.zero, b.value, b.scale};
  if (b.zero != kNoValue) inputs.push_back(b.zero);
  Patch patch;
  patch.replace(node.outputs[0],
                patch.add({.op_type = "QuantizedMatMul", .inputs = std::move(inputs), .domain = "treadle", .name = node.name}));
  return patch;
}

class FuseQuantizedMatMul final : public Rule {
 public:
  std::string_view name() const override { return "fuse-quantized-matmul"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!kernels::has_fast_byte_products()) return std::nullopt;
    if (node.is("MatMul")) {
      auto a = dequantised(graph, node.inputs[0], false), b = dequantised(graph, node.inputs[1], true);
      if (!a || !b) return std::nullopt;
      return product(node, *a, *b);
    }
    if (!node.is("Mul")) return std::nullopt;
    for (size_t i : {0U, 1U})
      if (auto patch = match_integers(graph, node, node.inputs[i], node.inputs[1 - i])) return patch;
    return std::nullopt;
  }

 private:
  static std::optional<Patch> match_integers(const Graph& graph, const Node& node, ValueId sums, ValueId scales) {
    const Node *cast = producer_of(graph, sums), *both = producer_of(graph, scales);
    if (!cast || !cast->is("Cast") || !both || !both->is("Mul") || graph.type(sums).dtype != DType::float32) return std::nullopt;
    const Node* integers = producer_of(graph, cast->inputs[0]);
    if (!integers || !integers->is("MatMulInteger") || !is_used_once(graph, sums) || !is_used_once(graph, cast->inputs[0]))
      return std::nullopt;
    const Type &b = graph.type(integers->inputs[1]), &y = graph.type(node.outputs[0]);
    if (!b.is_static() || b.rank() != 2 || !graph.type(integers->inputs[0]).has_rank() || graph.type(integers->inputs[0]).rank() < 2 ||
        !graph.same_type_and_shape(sums, node.outputs[0]) || !y.has_rank())
      return std::nullopt;
    const int64_t columns = b.static_shape()[1];
    if (integers->has_input(2) && !is_one(graph, integers->inputs[2])) return std::nullopt;
    for (size_t i : {0U, 1U}) {
      const ValueId a_scale = both->inputs[i], b_scale = both->inputs[1 - i];
      const Type& per_column = graph.type(b_scale);
      if (!is_one(graph, a_scale) || !per_column.is_static() || graph.type(a_scale).dtype != DType::float32) continue;
      if (!is_one(graph, b_scale) && per_column.static_shape() != Shape{columns}) continue;
      if (integers->has_input(3)) {
        const Type& zero = graph.type(integers->inputs[3]);
        if (!zero.is_static() || (!is_one(graph, integers->inputs[3]) && zero.static_shape() != Shape{columns})) return std::nullopt;
      }
      return product(node, {integers->inputs[0], a_scale, integers->has_input(2) ? integers->inputs[2] : kNoValue},
                     {integers->inputs[1], b_scale, integers->has_input(3) ? integers->inputs[3] : kNoValue});
    }
    return std::nullopt;
  }
};

}  // namespace

std::unique_ptr<Rule> fuse_quantized_matmul() { return std::make_unique<FuseQuantizedMatMul>(); }

}  // namespace treadle::passes
