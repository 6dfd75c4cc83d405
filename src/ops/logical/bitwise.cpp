// Implements BitShift, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot.
#include <type_traits>

#include "graph/op_def.h"
#include "kernels/elementwise/compare.h"
#include "ops/list.h"
#include "ops/math/elementwise.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

struct BitAndFn {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct BitOrFn {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct BitXorFn {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct BitNotFn {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};

struct BitShiftFn {
  bool left;

  static BitShiftFn bind(BindContext& c) {
    std::string_view direction = c.get_string("direction");
    if (direction != "LEFT" && direction != "RIGHT")
      throw Error(ErrorCode::invalid_model, "direction = \"" + std::string(direction) + "\"; it must be LEFT or RIGHT");
    return {direction == "LEFT"};
  }
  // Shifts by a negative number, or by at least the width, give 0, but right shifts of negative numbers give -1.
  template <typename T>
  T operator()(T x, T by) const {
    using U = std::make_unsigned_t<T>;
    constexpr U kWidth = sizeof(T) * 8;
    bool beyond = static_cast<U>(by) >= kWidth;
    if (left) return beyond ? T{0} : static_cast<T>(static_cast<uint64_t>(x) << static_cast<U>(by));
    if (beyond) return x < 0 ? static_cast<T>(-1) : T{0};
    return static_cast<T>(x >> static_cast<U>(by));
  }
  template <typename T>
    requires(std::is_same_v<T, uint32_t> || std::is_same_v<T, uint64_t>)
  void rows(const T* x, const T* by, T* out, int64_t n) const {
    left ? kernels::shift_left(x, by, out, n) : kernels::shift_right(x, by, out, n);
  }
};

template <typename F>
std::vector<KernelDef> integer_kernels() {
  return binary_kernels<F, int64_t, int32_t, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>();
}

OpDef bitwise(std::string_view name, std::vector<int> since, std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = std::move(since),
          .inputs = {{"A", kIntegers, "T"}, {"B", kIntegers, "T"}},
          .outputs = {{"C", kIntegers, "T"}},
          .infer = infer_broadcast,
          .cost = elementwise_cost<1>,
          .alias = {may_reuse(0, 0), may_reuse(0, 1)},
          .kernels = std::move(kernels),
          .pointwise = true};
}

OpDef bit_shift() {
  OpDef op = bitwise("BitShift", {11, 28}, integer_kernels<BitShiftFn>());
  op.attributes = {{"direction", AttributeDef::Required{}}};
  return op;
}

OpDef bitwise_not() {
  return {.name = "BitwiseNot",
          .since = {18},
          .inputs = {{"X", kIntegers, "T"}},
          .outputs = {{"Y", kIntegers, "T"}},
          .infer = infer_same_as_input,
          .cost = elementwise_cost<1>,
          .alias = {may_reuse(0, 0)},
          .kernels = unary_kernels<BitNotFn, int64_t, int32_t, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>(),
          .pointwise = true};
}

}  // namespace

std::vector<OpDef> bitwise_ops() {
  return {bit_shift(), bitwise("BitwiseAnd", {18}, integer_kernels<BitAndFn>()), bitwise("BitwiseOr", {18}, integer_kernels<BitOrFn>()),
          bitwise("BitwiseXor", {18}, integer_kernels<BitXorFn>()), bitwise_not()};
}

}  // namespace treadle::ops
