// (x * c1) * c2 -> x * (c1 * c2), and the same for +, with constants of one element, where this is exact: for integers, which wrap, and for
// float factors that are powers of two of at least 1 (scaling up is exact, and overflows in both forms). Otherwise, floats would be rounded
// twice in one form and once in the other.
#include <cmath>

#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

template <typename T>
bool is_growing_power_of_two(T x) {
  int exponent = 0;
  return std::isfinite(x) && x >= 1 && std::frexp(x, &exponent) == T{0.5};
}

// Returns the merged constant, with the shape of the operand of higher rank (all extents are 1), or nullopt.
std::optional<Tensor> merged(const Tensor& a, const Tensor& b, bool multiply) {
  if (a.dtype() != b.dtype() || a.num_elements() != 1 || b.num_elements() != 1) return std::nullopt;
  const Shape& shape = a.shape().rank() >= b.shape().rank() ? a.shape() : b.shape();
  auto integers = [&]<typename T>() {
    uint64_t x = static_cast<uint64_t>(*a.data<T>()), y = static_cast<uint64_t>(*b.data<T>());
    T result = static_cast<T>(multiply ? x * y : x + y);
    return Tensor::of<T>(shape, std::span<const T>(&result, 1));
  };
  auto floats = [&]<typename T>() -> std::optional<Tensor> {
    T x = *a.data<T>(), y = *b.data<T>(), result = x * y;
    if (!multiply || !is_growing_power_of_two(x) || !is_growing_power_of_two(y) || !std::isfinite(result)) return std::nullopt;
    return Tensor::of<T>(shape, std::span<const T>(&result, 1));
  };
  switch (a.dtype()) {
    case DType::int64: return integers.operator()<int64_t>();
    case DType::int32: return integers.operator()<int32_t>();
    case DType::uint64: return integers.operator()<uint64_t>();
    case DType::uint32: return integers.operator()<uint32_t>();
    case DType::float32: return floats.operator()<float>();
    case DType::float64: return floats.operator()<double>();
    default: return std::nullopt;
  }
}

class MergeConstantOperands final : public Rule {
 public:
  std::string_view name() const override { return "merge-constant-operands"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    bool multiply = node.is("Mul");
    if (!multiply && !node.is("Add")) return std::nullopt;
    for (size_t i : {0U, 1U}) {
      const Tensor* outer = graph.constant_tensor(node.inputs[i]);
      const Node* inner = producer_of(graph, node.inputs[1 - i]);
      if (!outer || !inner || !inner->is(node.op_type)) continue;
      for (size_t k : {0U, 1U}) {
        const Tensor* first = graph.constant_tensor(inner->inputs[k]);
        if (!first) continue;
        if (!is_used_once(graph, node.inputs[1 - i])) {
          declined(node, "several nodes read the result of", inner, " before it, or it is an output of the model");
          continue;
        }
        std::optional<Tensor> constant = merged(*first, *outer, multiply);
        if (!constant) {
          declined(node, "its constant and that of", inner,
                   " are not merged: only single integers, and factors that are powers of two of at least 1, give the same bits");
          continue;
        }
        Patch patch;
        ValueId c = patch.constant(node.name + "/constant", *constant);
        patch.replace(node.outputs[0], patch.add({.op_type = node.op_type, .inputs = {inner->inputs[1 - k], c}, .name = node.name}));
        return patch;
      }
    }
    return std::nullopt;
  }
};

}  // namespace

Pass merge_constant_operands() { return rule_pass<MergeConstantOperands>(kBasic, kHidesPatterns, "(x * c1) * c2 -> x * c, where exact"); }

}  // namespace treadle::passes
