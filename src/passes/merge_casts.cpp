// Cast(x, A) -> x if x has dtype A. Cast(Cast(x, B), C) -> Cast(x, C), and Cast(Cast(x, B), A) -> x, if B holds every value of A exactly.
// If A is an integer type and B a float type, C must be A, because out-of-range conversions from float are undefined, whereas integers
// wrap. Floats of 8 bits or less, complex numbers and strings are left alone: their casts saturate, drop parts or format text.
#include <fmt/format.h>

#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

struct Range {
  bool is_float = false, is_signed = true;
  int digits = 0;         // number of binary digits of the integer or significand, without the sign
  int exponent_bits = 0;  // bits of a float's exponent; 0 for integers
};

std::optional<Range> range_of(DType dtype) {
  switch (dtype) {
    case DType::boolean: return Range{false, false, 1};
    case DType::uint8: return Range{false, false, 8};
    case DType::uint16: return Range{false, false, 16};
    case DType::uint32: return Range{false, false, 32};
    case DType::uint64: return Range{false, false, 64};
    case DType::int8: return Range{false, true, 7};
    case DType::int16: return Range{false, true, 15};
    case DType::int32: return Range{false, true, 31};
    case DType::int64: return Range{false, true, 63};
    case DType::float16: return Range{true, true, 11, 5};
    case DType::bfloat16: return Range{true, true, 8, 8};
    case DType::float32: return Range{true, true, 24, 8};
    case DType::float64: return Range{true, true, 53, 11};
    default: return std::nullopt;
  }
}

// Returns true if every value of `a`, including infinities and -0, is a value of `b`. The lowest value of a signed integer, -2^(n-1), needs
// only one significant digit.
bool holds(const Range& b, const Range& a) {
  if (a.is_float) return b.is_float && b.digits >= a.digits && b.exponent_bits >= a.exponent_bits;
  return b.digits >= a.digits && (b.is_signed || !a.is_signed) && (!b.is_float || b.exponent_bits > 5 || a.digits < 16);
}

class MergeCasts final : public Rule {
 public:
  std::string_view name() const override { return "merge-casts"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Cast")) return std::nullopt;
    if (node.op->returns_input(graph, node)) return Patch::replacement(node.outputs[0], node.inputs[0]);
    const Node* inner = producer_of(graph, node.inputs[0]);
    if (!inner || !inner->is("Cast")) return std::nullopt;
    ValueId x = inner->inputs[0];
    DType a = graph.type(x).dtype, b = graph.type(node.inputs[0]).dtype, c = graph.type(node.outputs[0]).dtype;
    auto from = range_of(a), through = range_of(b), to = range_of(c);
    // A Cast to bool computes x != 0, so bool can hold only bool itself.
    if (!from || !through || !to || !holds(*through, *from))
      return no_patch(node, [&] {
        return fmt::format("the Cast before it goes through {}, which does not hold every value of {}", name_of(b), name_of(a));
      });
    if (a == c) return Patch::replacement(node.outputs[0], x);
    if (from->is_float != through->is_float && a != DType::boolean)
      return no_patch(node, [&] {
        return fmt::format("from {} through {} only {} gives the same for values out of range, not {}", name_of(a), name_of(b), name_of(a),
                           name_of(c));
      });
    Patch patch;
    patch.replace(node.outputs[0], patch.add({.op_type = "Cast", .inputs = {x}, .attributes = node.attributes, .name = node.name}));
    return patch;
  }
};

}  // namespace

Pass merge_casts() {
  return rule_pass<MergeCasts>(kBasic, kAlways,
                               "Cast(Cast(x)) -> Cast(x) or x, where the first loses nothing; Cast to the same dtype -> x");
}

}  // namespace treadle::passes
