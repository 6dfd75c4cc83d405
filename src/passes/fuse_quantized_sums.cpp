// What follows a product or convolution of bytes becomes a part of it, if nothing else reads the values between:
//   Quantize(QuantizedMatMul(a, b) + bias)                   -> QuantizedMatMul(a, b) with bytes as its result
//   Quantize(Dequantize(QuantizedMatMul(a, b)) + addend)     -> QuantizedMatMul(a, b, addend)
//   Quantize(Relu(Dequantize(y) + Dequantize(r)))            -> y with the residual r; y is a QuantizedMatMul or NhwcQLinearConv
//   ByteTable(y)                                             -> y with the table
//
// Every quantization of the file is kept. Quotients of scales are computed ahead, so that a number close to the middle between two codes
// may be rounded the other way: each fused quantization may change a code by one. Without this pass (--skip-pass fuse-quantized-sums) it
// does not.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "kernels/gemm/gemm_bytes.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/quantization.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

/// The nodes behind a product up to the QuantizeLinear: [DequantizeLinear], [Add], [Relu], QuantizeLinear.
struct Tail {
  std::vector<NodeId> nodes;
  ValueId addend = kNoValue;  // the other operand of Add
  Quantization to;
};

class QuantizedSums {
 public:
  explicit QuantizedSums(Rewriter& rewriter) : rewriter_(rewriter), g_(rewriter.graph()) {}

  void run() {
    for (const NodeId id : g_.order()) {
      if (!g_.is_alive(id) || !is_product(g_.node(id))) continue;
      while (rewriter_.change(id, [&] { return take_next(id); })) {
      }
    }
  }

 private:
  static bool is_matmul(const Node& node) { return node.is("QuantizedMatMul", "treadle"); }
  static bool is_product(const Node& node) { return is_matmul(node) || node.is("NhwcQLinearConv", "treadle"); }
  static bool has(const Node& node, std::string_view name) { return node.has_input(*input_named(node, name)); }
  ValueId input(const Node& node, std::string_view name) const { return node.inputs[*input_named(node, name)]; }
  void set_input(NodeId id, std::string_view name, ValueId value) {
    const size_t place = *input_named(g_.node(id), name);
    if (g_.node(id).inputs.size() <= place) g_.resize_inputs(id, place + 1);
    g_.set_input(id, place, value);
  }

  bool take_next(NodeId id) {
    const Node& node = g_.node(id);
    if (has(node, "table") || !is_used_once(g_, node.outputs[0])) return false;
    if (take_table(id)) return true;
    if (has(node, "residual")) return false;
    return is_matmul(node) && !has(node, "y_scale") ? take_first(id) : take_sum(id);
  }

  bool take_table(NodeId id) {
    const ValueId y = g_.node(id).outputs[0];
    const Node& next = g_.node(g_.value(y).uses[0].node);
    if (!next.is("ByteTable", "treadle") || next.inputs[0] != y) return false;
    const ValueId table = next.inputs[1];
    const DType dtype = g_.type(next.outputs[0]).dtype;
    rewriter_.absorb(id, next.id);
    set_input(id, "table", table);
    g_.node(id).attributes.set("dtype", static_cast<int64_t>(dtype));
    g_.value(y).type.dtype = dtype;
    return true;
  }

  /// Turns the floats of a QuantizedMatMul into bytes.
  bool take_first(NodeId id) {
    const Node& node = g_.node(id);
    std::optional<Tail> tail = tail_of(node, node.outputs[0]);
    if (!tail) return false;
    const ValueId b_zero = has(node, "b_zero_point") ? input(node, "b_zero_point") : kNoValue;
    const Tensor* zeros = b_zero != kNoValue && !is_one(b_zero) ? g_.constant_tensor(b_zero) : nullptr;
    const bool all_zero = zeros && zeros->is_contiguous() && are_zero(*zeros);
    if (b_zero != kNoValue && !is_one(b_zero) && !all_zero)
      return declined(node, "the columns of its right operand have zero points of their own");
    if (tail->addend != kNoValue && !is_row(node, tail->addend, tail->to.step))
      return declined(node, "the addend behind it is no constant row of its columns");
    if (all_zero) set_input(id, "b_zero_point", kNoValue);
    if (tail->addend != kNoValue) set_input(id, "bias", tail->addend);
    set_input(id, "y_scale", tail->to.scale), set_input(id, "y_zero_point", tail->to.zero);
    absorb(id, *tail);
    return true;
  }

  /// Takes a sum that is quantized again.
  bool take_sum(NodeId id) {
    const Node& node = g_.node(id);
    const std::optional<Quantization> from = result_of(node);
    const Node& reader = g_.node(g_.value(node.outputs[0]).uses[0].node);
    const auto back = quantization_of(g_, &reader, "DequantizeLinear");
    if (!from || !back || !(*from == *back) || !is_used_once(g_, reader.outputs[0])) return false;
    std::optional<Tail> tail = tail_of(node, reader.outputs[0]);
    if (!tail || tail->addend == kNoValue || !std::isfinite(from->step / tail->to.step)) return false;
    tail->nodes.insert(tail->nodes.begin(), reader.id);
    const Node* other = producer_of(g_, tail->addend);
    if (const auto residual = quantization_of(g_, other, "DequantizeLinear")) {
      if (!g_.same_type_and_shape(tail->addend, reader.outputs[0]) || g_.type(other->inputs[0]).dtype != residual->dtype ||
          !std::isfinite(residual->step / tail->to.step))
        return declined(node, "the operand of the sum behind it is not known to have its result's shape");
      const ValueId bytes = other->inputs[0];
      g_.move_before(id, tail->nodes.back());  // needed because the residual may be computed after the product
      set_input(id, "residual", bytes), set_input(id, "residual_scale", residual->scale);
      set_input(id, "residual_zero_point", residual->zero);
      set_input(id, "total_scale", tail->to.scale), set_input(id, "total_zero_point", tail->to.zero);
      absorb(id, *tail);
      return true;
    }
    if (!is_matmul(node) || has(node, "addend") || !is_row(node, tail->addend, tail->to.step))
      return declined(node, "the operand of the sum behind it is neither dequantized nor a constant row of its columns");
    set_input(id, "addend", tail->addend);
    set_input(id, "sum_scale", tail->to.scale), set_input(id, "sum_zero_point", tail->to.zero);
    absorb(id, *tail);
    return true;
  }

  /// Returns what follows the float value up to a QuantizeLinear: an addition, a Relu, both, or nothing. Nullopt if others read it.
  std::optional<Tail> tail_of(const Node& product, ValueId value) const {
    Tail tail;
    const ValueId start = value;
    auto next = [&]() -> const Node* {
      const Node& reader = g_.node(g_.value(value).uses[0].node);
      tail.nodes.push_back(reader.id);
      if (reader.outputs.size() == 1) value = reader.outputs[0];
      return &reader;
    };
    const Node* node = next();
    if (node->is("Add") && is_used_once(g_, value) && g_.same_type_and_shape(value, start)) {
      tail.addend = node->inputs[node->inputs[0] == start ? 1 : 0];
      node = next();
    }
    const bool relu = node->is("Relu") && is_used_once(g_, value);
    if (relu) node = next();
    const auto to = quantization_of(g_, node, "QuantizeLinear");
    if (!to || node->inputs[0] == node->inputs[1]) return std::nullopt;
    // Codes cannot be below the zero point, so that saturation has the effect of Relu.
    if (relu && static_cast<float>(to->origin) != to->low()) {
      declined(product, [&] { return fmt::format("a Relu is behind it, and the zero point is {}, not the least number", to->origin); });
      return std::nullopt;
    }
    tail.to = *to;
    return tail;
  }

  std::optional<Quantization> result_of(const Node& node) const {
    const bool sum = is_matmul(node) && has(node, "sum_scale");
    return sum ? quantization_by(g_, input(node, "sum_scale"), input(node, "sum_zero_point"))
               : quantization_by(g_, input(node, "y_scale"), input(node, "y_zero_point"));
  }
  static bool are_zero(const Tensor& bytes) {
    return std::all_of(bytes.raw(), bytes.raw() + bytes.size_bytes(), [](std::byte byte) { return byte == std::byte{0}; });
  }
  bool is_one(ValueId id) const {
    const Type& type = g_.type(id);
    return type.is_static() && type.static_shape().num_elements() == 1;
  }
  /// Returns true for a constant of one number, or of one for each column, in shapes [N], [1, N] etc., that are finite in units of `step`.
  bool is_row(const Node& matmul, ValueId id, float step) const {
    const Tensor* row = g_.constant_tensor(id);
    const Type &b = g_.type(input(matmul, "B")), &y = g_.type(matmul.outputs[0]);
    if (!row || row->dtype() != DType::float32 || !row->is_contiguous() || !b.has_rank() || !y.has_rank() || row->shape().rank() > y.rank())
      return false;
    const int64_t count = row->num_elements();
    if (count != 1 && (row->shape().back() != count || b.shape->back() != Dim(count))) return false;
    return std::ranges::all_of(row->span<float>(), [&](float x) { return std::isfinite(x / step); });
  }

  void absorb(NodeId id, const Tail& tail) {
    const Node* other = producer_of(g_, tail.addend);
    const NodeId unread = other && other->is("DequantizeLinear") ? other->id : kNoNode;
    for (const NodeId gone : tail.nodes) rewriter_.absorb(id, gone);
    const ValueId y = g_.node(id).outputs[0];
    g_.node(id).attributes.set("dtype", static_cast<int64_t>(tail.to.dtype));
    g_.value(y).type.dtype = tail.to.dtype;
    if (unread != kNoNode && g_.value(g_.node(unread).outputs[0]).uses.empty() && !g_.is_output(g_.node(unread).outputs[0]))
      g_.remove_node(unread);
  }

  Rewriter& rewriter_;
  Graph& g_;
};

}  // namespace

Pass fuse_quantized_sums() {
  return graph_pass("fuse-quantized-sums", kLayout, {.not_before_autodiff = true, .only_in_memory = true, .for_host = true},
                    "products of bytes, and additions and quantizations behind them -> one node",
                    [](Graph& graph, PassContext&, int64_t limit) {
                      return Rewriter(graph, limit).for_each_graph([](Rewriter& inside) { QuantizedSums(inside).run(); });
                    });
}

}  // namespace treadle::passes
