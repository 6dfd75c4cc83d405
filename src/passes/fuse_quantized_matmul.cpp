// Products of 8-bit numbers whose scaling is written as separate operators:
//   MatMul(DequantizeLinear(a), DequantizeLinear(b))                  -> QuantizedMatMul(a, b)
//   Gemm(DequantizeLinear(a), DequantizeLinear(b), c)                 -> QuantizedMatMul(a, b) + c, on the host, if b is constant
//   Cast(MatMulInteger(a, b)) * (a_scale * b_scale)                   -> QuantizedMatMul(a, b)
// Sums of integers are exact where sums of floats are rounded. On the host, only if the CPU has fast byte products. There must be one scale
// for a, and one for b or for each of its columns.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/gemm/gemm_bytes.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

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

struct Quantized {
  ValueId value = kNoValue, scale = kNoValue, zero = kNoValue;
};

// Matches a DequantizeLinear of 8-bit codes with one scale, or with per_column one scale for each index of the last axis (in a matrix that
// is transposed, of the first).
std::optional<Quantized> dequantized(const Graph& graph, ValueId id, bool per_column, bool transposed = false) {
  const Node* node = producer_of(graph, id);
  if (!node || !node->is("DequantizeLinear") || !is_byte(graph, node->inputs[0]) || graph.type(id).dtype != DType::float32)
    return std::nullopt;
  const Type &x = graph.type(node->inputs[0]), &scale = graph.type(node->inputs[1]);
  if (!x.has_rank() || x.rank() < 2 || scale.dtype != DType::float32 || node->attributes.get_int("block_size") != 0) return std::nullopt;
  if (!is_one(graph, node->inputs[1])) {
    const int64_t axis = node->attributes.get_int("axis", 1), columns = transposed ? 0 : 1;
    if (!per_column || x.rank() != 2 || (axis != columns && axis != columns - 2) || !scale.has_rank() || scale.rank() != 1)
      return std::nullopt;
  }
  Quantized q{node->inputs[0], node->inputs[1], node->has_input(2) ? node->inputs[2] : kNoValue};
  if (q.zero != kNoValue && !is_byte(graph, q.zero)) return std::nullopt;
  return q;
}

NodeSpec product_spec(const Node& node, const Quantized& a, const Quantized& b) {
  std::vector<ValueId> inputs{a.value, a.scale, a.zero, b.value, b.scale};
  if (b.zero != kNoValue) inputs.push_back(b.zero);
  return {.op_type = "QuantizedMatMul", .inputs = std::move(inputs), .domain = "treadle", .name = node.name};
}
Patch product(const Node& node, const Quantized& a, const Quantized& b) {
  Patch patch;
  patch.replace(node.outputs[0], patch.add(product_spec(node, a, b)));
  return patch;
}

class FuseQuantizedMatMul final : public Rule {
 public:
  explicit FuseQuantizedMatMul(const PipelineOptions& options) : on_host_(options.device == nullptr) {}
  std::string_view name() const override { return "fuse-quantized-matmul"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (on_host_ && !kernels::has_fast_byte_products()) {
      if (is_of_bytes(graph, node)) declined(node, "this machine has no instructions for sums of products of bytes");
      return std::nullopt;
    }
    if (node.is("MatMul")) {
      auto a = dequantized(graph, node.inputs[0], false), b = dequantized(graph, node.inputs[1], true);
      if (a && b) return product(node, *a, *b);
      if (is_of_bytes(graph, node))
        declined(node, [&] {
          const size_t other = a ? 1 : 0;
          const Node* made = producer_of(graph, node.inputs[other]);
          return fmt::format("the {} operand is {}{}; bytes with one float32 scale{} are needed", other == 0 ? "left" : "right",
                             found(graph, node.inputs[other]), made ? fmt::format(" of {} {}", made->op_type, made->name) : "",
                             other == 0 ? "" : ", or one for each column,");
        });
      return std::nullopt;
    }
    if (node.is("Gemm") && on_host_) return match_gemm(graph, node);
    if (!node.is("Mul")) return std::nullopt;
    for (size_t i : {0U, 1U})
      if (auto patch = match_integers(graph, node, node.inputs[i], node.inputs[1 - i])) return patch;
    return std::nullopt;
  }

 private:
  /// Returns true if an operand was dequantized from bytes. Only for such products is it worth reporting why they were not fused.
  static bool is_of_bytes(const Graph& graph, const Node& node) {
    return node.is("MatMul") && std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
             const Node* made = producer_of(graph, id);
             return made && made->is("DequantizeLinear") && is_byte(graph, made->inputs[0]);
           });
  }
  static std::optional<Patch> match_gemm(const Graph& graph, const Node& node) {
    const bool transposed = node.attributes.get_int("transB") != 0;
    auto a = dequantized(graph, node.inputs[0], false), b = dequantized(graph, node.inputs[1], true, transposed);
    if (!a || !b || !graph.constant_tensor(b->value)) return std::nullopt;
    if (node.attributes.get_int("transA") != 0 || node.attributes.get_float("alpha", 1) != 1 || node.attributes.get_float("beta", 1) != 1)
      return no_patch(node, "it scales its operands, or transposes the left one");
    Patch patch;
    if (transposed)
      b->value = patch.add({.op_type = "Transpose", .inputs = {b->value}, .attributes = {{"perm", std::vector<int64_t>{1, 0}}}});
    ValueId y = patch.add(product_spec(node, *a, *b));
    if (node.has_input(2)) y = patch.add({.op_type = "Add", .inputs = {y, node.inputs[2]}, .name = node.name});
    patch.replace(node.outputs[0], y);
    return patch;
  }
  static std::optional<Patch> match_integers(const Graph& graph, const Node& node, ValueId sums, ValueId scales) {
    const Node *cast = producer_of(graph, sums), *both = producer_of(graph, scales);
    if (!cast || !cast->is("Cast") || !both || !both->is("Mul") || graph.type(sums).dtype != DType::float32) return std::nullopt;
    const Node* integers = producer_of(graph, cast->inputs[0]);
    if (!integers || !integers->is("MatMulInteger")) return std::nullopt;
    if (!is_used_once(graph, sums) || !is_used_once(graph, cast->inputs[0]))
      return no_patch(node, "other nodes read the sums, too, of", integers);
    const Type &b = graph.type(integers->inputs[1]), &y = graph.type(node.outputs[0]);
    if (!b.is_static() || b.rank() != 2 || !graph.type(integers->inputs[0]).has_rank() || graph.type(integers->inputs[0]).rank() < 2 ||
        !graph.same_type_and_shape(sums, node.outputs[0]) || !y.has_rank())
      return no_patch(node, [&] {
        return fmt::format("{} times {}: a matrix of known extents on the right, and scales that do not stretch the sums, are needed",
                           found(graph, integers->inputs[0]), found(graph, integers->inputs[1]));
      });
    const int64_t columns = b.static_shape()[1];
    if (integers->has_input(2) && !is_one(graph, integers->inputs[2]))
      return no_patch(node, "the left operand has more than one zero point, of", integers);
    for (size_t i : {0U, 1U}) {
      const ValueId a_scale = both->inputs[i], b_scale = both->inputs[1 - i];
      const Type& per_column = graph.type(b_scale);
      if (!is_one(graph, a_scale) || !per_column.is_static() || graph.type(a_scale).dtype != DType::float32) continue;
      if (!is_one(graph, b_scale) && per_column.static_shape() != Shape{columns}) continue;
      if (integers->has_input(3)) {
        const Type& zero = graph.type(integers->inputs[3]);
        if (!zero.is_static() || (!is_one(graph, integers->inputs[3]) && zero.static_shape() != Shape{columns}))
          return no_patch(node, [&] {
            return fmt::format("the right operand's zero points are {}; one, or {} of them, are needed", found(graph, integers->inputs[3]),
                               columns);
          });
      }
      return product(node, {integers->inputs[0], a_scale, integers->has_input(2) ? integers->inputs[2] : kNoValue},
                     {integers->inputs[1], b_scale, integers->has_input(3) ? integers->inputs[3] : kNoValue});
    }
    return no_patch(node, [&] {
      return fmt::format("the scales are {} and {}; one for the left operand, and one or {} for the right one, are needed",
                         found(graph, both->inputs[0]), found(graph, both->inputs[1]), columns);
    });
  }

  const bool on_host_;
};

}  // namespace

Pass fuse_quantized_matmul() {
  return rule_pass<FuseQuantizedMatMul>(kExtended, {.not_before_autodiff = true, .removes_quantization = true, .makes = "QuantizedMatMul"},
                                        "products of dequantised operands -> QuantizedMatMul");
}

}  // namespace treadle::passes
