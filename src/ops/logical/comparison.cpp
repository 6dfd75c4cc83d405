// Implements Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And, Or, Xor: operators on two tensors with broadcasting, whose result is
// boolean.
#include <string>

#include "graph/op_def.h"
#include "kernels/elementwise/compare.h"
#include "ops/functions.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"

namespace treadle::ops {
namespace {

using kernels::ChainOp;

struct EqualFn {
  template <typename T>
  bool operator()(const T& a, const T& b) const {
    return a == b;
  }
  static void rows(const int64_t* a, const int64_t* b, bool* out, int64_t n) { kernels::equal(a, b, out, n); }
};
struct LessFn {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b;
  }
  static void rows(const int64_t* a, const int64_t* b, bool* out, int64_t n) { kernels::less(a, b, out, n); }
};
struct LessOrEqualFn {
  template <typename T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
  static void rows(const int64_t* a, const int64_t* b, bool* out, int64_t n) { kernels::less_or_equal(a, b, out, n); }
};
struct GreaterFn {
  template <typename T>
  bool operator()(T a, T b) const {
    return a > b;
  }
  static void rows(const int64_t* a, const int64_t* b, bool* out, int64_t n) { kernels::less(b, a, out, n); }
};
struct GreaterOrEqualFn {
  template <typename T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
  static void rows(const int64_t* a, const int64_t* b, bool* out, int64_t n) { kernels::less_or_equal(b, a, out, n); }
};
// Uses & instead of &&, which would branch: the compiler can then vectorize the loop.
struct AndFn {
  bool operator()(bool a, bool b) const { return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0; }
};
struct OrFn {
  bool operator()(bool a, bool b) const { return (static_cast<unsigned>(a) | static_cast<unsigned>(b)) != 0; }
};
struct XorFn {
  bool operator()(bool a, bool b) const { return a != b; }
};

void infer_known(InferContext& c, std::optional<Dim> (*fn)(const Dim& a, const Dim& b)) {
  auto shape = broadcast_inputs(c);
  if (!shape) return c.set_output_dtype(0, DType::boolean);
  c.set_output(0, DType::boolean, *shape);
  if (is_integer(c.dtype(0)) || c.dtype(0) == DType::boolean) propagate_binary(c, *shape, fn);
}

// Returns true if a < b for all values of the symbols, false if a >= b for all; nullopt if that depends on the symbols' values.
std::optional<bool> is_less(const Dim& a, const Dim& b) {
  Dim difference = b - a;
  if (is_nonnegative(difference - Dim(1))) return true;
  if (is_nonnegative(Dim(0) - difference)) return false;
  return std::nullopt;
}
std::optional<Dim> as_dim(std::optional<bool> value) { return value ? std::optional<Dim>(Dim(*value ? 1 : 0)) : std::nullopt; }
std::optional<Dim> opposite(std::optional<bool> value) { return value ? std::optional<Dim>(Dim(*value ? 0 : 1)) : std::nullopt; }

void infer_equal(InferContext& c) {
  infer_known(c, [](const Dim& a, const Dim& b) -> std::optional<Dim> {
    if (a == b) return Dim(1);
    if (is_less(a, b) == true || is_less(b, a) == true) return Dim(0);
    return std::nullopt;
  });
}
void infer_less(InferContext& c) {
  infer_known(c, [](const Dim& a, const Dim& b) { return as_dim(is_less(a, b)); });
}
void infer_less_or_equal(InferContext& c) {
  infer_known(c, [](const Dim& a, const Dim& b) { return opposite(is_less(b, a)); });
}
void infer_greater(InferContext& c) {
  infer_known(c, [](const Dim& a, const Dim& b) { return as_dim(is_less(b, a)); });
}
void infer_greater_or_equal(InferContext& c) {
  infer_known(c, [](const Dim& a, const Dim& b) { return opposite(is_less(a, b)); });
}

std::optional<Dim> known_and(const Dim& a, const Dim& b) {
  if (a.is_const(0) || b.is_const(0)) return Dim(0);
  if (a.is_const() && b.is_const()) return Dim(1);
  return std::nullopt;
}
std::optional<Dim> known_or(const Dim& a, const Dim& b) {
  if (!a.is_const() || !b.is_const()) return std::nullopt;
  return Dim(a.value() != 0 || b.value() != 0 ? 1 : 0);
}
std::optional<Dim> known_xor(const Dim& a, const Dim& b) {
  if (!a.is_const() || !b.is_const()) return std::nullopt;
  return Dim((a.value() != 0) != (b.value() != 0) ? 1 : 0);
}

template <typename F>
std::vector<KernelDef> ordering_kernels() {
  return comparison_kernels<F, float, int64_t, double, int32_t, Float16, BFloat16, int8_t, int16_t, uint8_t, uint16_t, uint32_t,
                            uint64_t>();
}

OpDef comparison(std::string_view name, std::vector<int> since, TypeSet types, void (*infer)(InferContext&),
                 std::vector<KernelDef> kernels) {
  std::vector<UpgradeStep> upgrade;
  if (since.front() == 1) upgrade.push_back({1, upgrade_broadcast_axis});
  return {.name = name,
          .since = std::move(since),
          .upgrade = std::move(upgrade),
          .inputs = {{"A", types, "T"}, {"B", types, "T"}},
          .outputs = {{"C", kBool, "T1"}},
          .infer = infer,
          .cost = elementwise_cost<1>,
          .kernels = std::move(kernels),
          .pointwise = true};
}

OpDef logic(std::string_view name, void (*infer)(InferContext&), std::vector<KernelDef> kernels) {
  OpDef op = comparison(name, {1, 7}, kBool, infer, std::move(kernels));
  op.alias = {may_reuse(0, 0), may_reuse(0, 1)};
  return op;
}

}  // namespace

std::vector<OpDef> comparison_ops() {
  return {
      with_chain_steps(comparison("Equal", {1, 7, 11, 13, 19}, kNumeric | kBool | kString, infer_equal,
                                  ordering_kernels<EqualFn>() + comparison_kernels<EqualFn, bool, std::string>()),
                       ChainOp::equal, ChainOp::equal),
      with_chain_steps(comparison("Less", {1, 7, 9, 13}, kNumeric, infer_less, ordering_kernels<LessFn>()), ChainOp::less,
                       ChainOp::greater),
      with_chain_steps(comparison("LessOrEqual", {12, 16}, kNumeric, infer_less_or_equal, ordering_kernels<LessOrEqualFn>()),
                       ChainOp::less_or_equal, ChainOp::greater_or_equal),
      with_chain_steps(comparison("Greater", {1, 7, 9, 13}, kNumeric, infer_greater, ordering_kernels<GreaterFn>()), ChainOp::greater,
                       ChainOp::less),
      with_chain_steps(comparison("GreaterOrEqual", {12, 16}, kNumeric, infer_greater_or_equal, ordering_kernels<GreaterOrEqualFn>()),
                       ChainOp::greater_or_equal, ChainOp::less_or_equal),
      with_boolean_steps(logic(
                             "And", [](InferContext& c) { infer_known(c, known_and); }, binary_kernels<AndFn, bool>()),
                         ChainOp::logical_and),
      with_boolean_steps(logic(
                             "Or", [](InferContext& c) { infer_known(c, known_or); }, binary_kernels<OrFn, bool>()),
                         ChainOp::logical_or),
      logic(
          "Xor", [](InferContext& c) { infer_known(c, known_xor); }, binary_kernels<XorFn, bool>()),
  };
}

}  // namespace treadle::ops
