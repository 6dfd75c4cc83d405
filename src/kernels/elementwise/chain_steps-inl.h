// The steps of a chain (chain.h) on vectors in registers, compiled for each instruction set (Highway's foreach_target), and the translation
// of a program into these steps.
#if defined(TREADLE_KERNELS_ELEMENTWISE_CHAIN_STEPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TREADLE_KERNELS_ELEMENTWISE_CHAIN_STEPS_INL_H_
#undef TREADLE_KERNELS_ELEMENTWISE_CHAIN_STEPS_INL_H_
#else
#define TREADLE_KERNELS_ELEMENTWISE_CHAIN_STEPS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/bounds-inl.h"
#include "kernels/elementwise/chain.h"
#include "kernels/elementwise/saturation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct Step;
struct Memory {
  const float* operands[kMaxChainInputs + kMaxChainSlots];  // operands of the present block; they are bytes if a load step widens them
  void* dst;
  float* spill;  // memory for one block
};

using Fn = void (*)(const Step*, Memory*, V, V, V, V, V, V, V, V);
struct Step {
  Fn fn;
  uint8_t x, y;
  float a, b;
  UnaryLoop function;  // the loop of a unary step that has no ChainStep::map
  const ChainStep* from;
  float whole = 0, divisor = 1;  // for a quantizing step: 1.5 * 2^23 plus the zero point, and the scale by which it divides
};

constexpr int kVectors = 8;

#define TREADLE_NEXT return pc[1].fn(pc + 1, m, v0, v1, v2, v3, v4, v5, v6, v7)
#define TREADLE_STEP(NAME) void NAME(const Step* pc, Memory* m, V v0, V v1, V v2, V v3, V v4, V v5, V v6, V v7)
#define TREADLE_EACH(EXPRESSION) \
  EXPRESSION(v0, 0);             \
  EXPRESSION(v1, 1);             \
  EXPRESSION(v2, 2);             \
  EXPRESSION(v3, 3);             \
  EXPRESSION(v4, 4);             \
  EXPRESSION(v5, 5);             \
  EXPRESSION(v6, 6);             \
  EXPRESSION(v7, 7)

struct Truth {
  template <class M>
  static HWY_INLINE V of(D d, M mask) {
    return hn::IfThenElseZero(mask, hn::Set(d, 1.0f));
  }
};
HWY_INLINE V keep_nan(V a, V result) { return hn::IfThenElse(hn::Eq(a, a), result, a); }

#define TREADLE_BINARY(NAME, EXPRESSION)                    \
  struct NAME {                                             \
    static HWY_INLINE V of(D d, V acc, V x, float, float) { \
      (void)d;                                              \
      return (EXPRESSION);                                  \
    }                                                       \
  }
TREADLE_BINARY(Load, ((void)acc, x));
TREADLE_BINARY(AddOf, hn::Add(acc, x));
TREADLE_BINARY(SubOf, hn::Sub(acc, x));
TREADLE_BINARY(ReverseSub, hn::Sub(x, acc));
TREADLE_BINARY(MulOf, hn::Mul(acc, x));
TREADLE_BINARY(DivOf, hn::Div(acc, x));
TREADLE_BINARY(ReverseDiv, hn::Div(x, acc));
TREADLE_BINARY(MaxOf, keep_nan(acc, at_least(acc, x)));
TREADLE_BINARY(MinOf, keep_nan(acc, at_most(acc, x)));
// Like MaxOf and MinOf, but for an x that is not NaN: they return acc if acc is NaN, and x if both are equal.
TREADLE_BINARY(MaxOfNumber, hn::IfThenElse(hn::Le(acc, x), x, acc));
TREADLE_BINARY(MinOfNumber, hn::IfThenElse(hn::Ge(acc, x), x, acc));
TREADLE_BINARY(Less, Truth::of(d, hn::Lt(acc, x)));
TREADLE_BINARY(LessOrEqual, Truth::of(d, hn::Le(acc, x)));
TREADLE_BINARY(Greater, Truth::of(d, hn::Gt(acc, x)));
TREADLE_BINARY(GreaterOrEqual, Truth::of(d, hn::Ge(acc, x)));
TREADLE_BINARY(Equal, Truth::of(d, hn::Eq(acc, x)));
#undef TREADLE_BINARY
// Clamps first: at_least() returns its second operand if one is NaN, so NaN becomes the lower bound.
struct Quantize {
  static HWY_INLINE V of(D d, V acc, V zero, float low, float high) {
    const V bounded = at_most(at_least(acc, hn::Sub(hn::Set(d, low), zero)), hn::Sub(hn::Set(d, high), zero));
    return hn::Add(hn::Round(bounded), zero);
  }
};

#define TREADLE_UNARY(NAME, EXPRESSION)                    \
  struct NAME {                                            \
    static HWY_INLINE V of(D d, V acc, float a, float b) { \
      (void)d, (void)a, (void)b;                           \
      return (EXPRESSION);                                 \
    }                                                      \
  }
TREADLE_UNARY(Not, hn::Sub(hn::Set(d, 1.0f), acc));
TREADLE_UNARY(Relu, at_least(hn::Zero(d), acc));
TREADLE_UNARY(Clip, at_most(hn::Set(d, b), at_least(hn::Set(d, a), acc)));
TREADLE_UNARY(LeakyRelu, hn::IfThenElse(hn::Lt(acc, hn::Zero(d)), hn::Mul(hn::Set(d, a), acc), acc));
TREADLE_UNARY(Sqrt, hn::Sqrt(acc));
TREADLE_UNARY(Reciprocal, hn::Div(hn::Set(d, 1.0f), acc));
TREADLE_UNARY(Abs, hn::Abs(acc));
TREADLE_UNARY(Neg, hn::Neg(acc));
TREADLE_UNARY(Square, hn::Mul(acc, acc));
TREADLE_UNARY(Floor, hn::Floor(acc));
TREADLE_UNARY(Ceil, hn::Ceil(acc));
TREADLE_UNARY(Round, hn::Round(acc));
TREADLE_UNARY(Sign,
              hn::IfThenElse(hn::Eq(acc, hn::Zero(d)), acc, hn::IfThenElse(hn::Eq(acc, acc), hn::CopySign(hn::Set(d, 1.0f), acc), acc)));
TREADLE_UNARY(IsNaN, hn::IfThenElse(hn::Eq(acc, acc), hn::Zero(d), hn::Set(d, 1.0f)));
TREADLE_UNARY(ToTruth, hn::IfThenElse(hn::Eq(acc, hn::Zero(d)), hn::Zero(d), hn::Set(d, 1.0f)));
#undef TREADLE_UNARY

// Loads elements as float32.
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V widened(DF d, const float* p) {
  return hn::LoadU(d, p);
}
template <class DF, class V = hn::Vec<DF>>
HWY_INLINE V widened(DF d, const int32_t* p) {
  return hn::ConvertTo(d, hn::LoadU(hn::RebindToSigned<DF>(), p));
}
template <class DF, typename T, class V = hn::Vec<DF>>
HWY_INLINE V widened(DF d, const T* bytes) {
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<DF>(), hn::LoadU(hn::Rebind<T, DF>(), bytes)));
}

template <class F>
TREADLE_STEP(binary_step) {
  const D d;
  const float* HWY_RESTRICT x = m->operands[pc->x];
  const float a = pc->a, b = pc->b;
#define TREADLE_ONE(V_I, I) V_I = F::of(d, V_I, hn::LoadU(d, x + I * hn::Lanes(d)), a, b)
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
// Like binary_step, for a scalar x: x stays in a register instead of being loaded as a block of eight vectors.
template <class F>
TREADLE_STEP(scalar_step) {
  const D d;
  const V x = hn::Set(d, *m->operands[pc->x]);
  const float a = pc->a, b = pc->b;
#define TREADLE_ONE(V_I, I) V_I = F::of(d, V_I, x, a, b)
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
template <class F>
TREADLE_STEP(unary_step) {
  const D d;
  const float a = pc->a, b = pc->b;
#define TREADLE_ONE(V_I, I) V_I = F::of(d, V_I, a, b)
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
TREADLE_STEP(select_step) {
  const D d;
  const float *HWY_RESTRICT x = m->operands[pc->x], *HWY_RESTRICT y = m->operands[pc->y];
#define TREADLE_ONE(V_I, I) \
  V_I = hn::IfThenElse(hn::Eq(V_I, hn::Zero(d)), hn::LoadU(d, y + I * hn::Lanes(d)), hn::LoadU(d, x + I * hn::Lanes(d)))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
TREADLE_STEP(keep_step) {
  const D d;
  float* HWY_RESTRICT slot = const_cast<float*>(m->operands[pc->x]);
#define TREADLE_ONE(V_I, I) hn::StoreU(V_I, d, slot + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
  TREADLE_NEXT;
}
// Calls a long function with a block that was stored to memory, as the function needs all registers.
HWY_INLINE void call_function(const Step* pc, const float* src, float* dst) {
  const int64_t n = kVectors * static_cast<int64_t>(hn::Lanes(D()));
  if (pc->from->map)
    pc->from->map(pc->from->context, src, dst, n);
  else
    pc->function(src, dst, n, pc->a, pc->b);
}
TREADLE_STEP(function_step) {
  const D d;
  float* HWY_RESTRICT slot = m->spill;
  TREADLE_EACH(TREADLE_ONE);
  call_function(pc, slot, slot);
#undef TREADLE_ONE
#define TREADLE_ONE(V_I, I) V_I = hn::LoadU(d, slot + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
// The last step of a chain if it calls a function: the function writes the result.
TREADLE_STEP(function_last_step) {
  const D d;
  float* HWY_RESTRICT slot = m->spill;
#define TREADLE_ONE(V_I, I) hn::StoreU(V_I, d, slot + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  call_function(pc, slot, static_cast<float*>(m->dst));
}
// Loads an operand of bytes and widens them in registers. kDequantizes: also computes (x - a) * b.
template <typename T, bool kDequantizes>
TREADLE_STEP(load_bytes_step) {
  const D d;
  const T* HWY_RESTRICT x = reinterpret_cast<const T*>(m->operands[pc->x]);
  const V zero = hn::Set(d, pc->a), scale = hn::Set(d, pc->b);
  const auto taken = [&](V code) HWY_ATTR { return kDequantizes ? hn::Mul(hn::Sub(code, zero), scale) : code; };
#define TREADLE_ONE(V_I, I) V_I = taken(widened(d, x + I * hn::Lanes(d)))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
TREADLE_STEP(last_step) {
  (void)pc;
  const D d;
  float* HWY_RESTRICT dst = static_cast<float*>(m->dst);
#define TREADLE_ONE(V_I, I) hn::StoreU(V_I, d, dst + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
}
// The inputs are integers plus 1.5 * 2^23, so that their lowest byte is the integer's two's complement. Stores this byte plus `bias`.
HWY_INLINE void store_lowest_bytes(D d, V v0, V v1, V v2, V v3, V v4, V v5, V v6, V v7, [[maybe_unused]] uint8_t bias,
                                   uint8_t* HWY_RESTRICT dst) {
#if HWY_TARGET != HWY_SCALAR
  // Packing works within blocks of 16 bytes. Four vectors become interleaved bytes (a c a c .. b e b e ..), are reordered to a, b, c, e
  // within each block, and then the blocks of each vector are put next to each other.
  const hn::Repartition<int32_t, D> ints;
  const hn::Repartition<int16_t, D> halves;
  const hn::Repartition<uint8_t, D> bytes;
  constexpr uint32_t kBlocks = hn::MaxLanes(D()) / 4;
  HWY_ALIGN static constexpr uint8_t kOfVectors[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  HWY_ALIGN uint32_t of_blocks[4 * kBlocks];
  for (uint32_t i = 0; i < 4 * kBlocks; ++i) of_blocks[i] = i % kBlocks * 4 + i / kBlocks;
  const auto lowest = hn::Set(ints, 255);
  const auto half = [&](V x, V y) HWY_ATTR {
    return hn::ReorderDemote2To(halves, hn::And(hn::BitCast(ints, x), lowest), hn::And(hn::BitCast(ints, y), lowest));
  };
  const auto packed = [&](V a, V b, V c, V e) HWY_ATTR {
    const auto mixed = hn::BitCast(bytes, hn::Or(half(a, b), hn::ShiftLeft<8>(half(c, e))));
    const auto vectors = hn::TableLookupBytes(mixed, hn::LoadDup128(bytes, kOfVectors));
    const hn::Repartition<uint32_t, D> lanes;
    const auto in_order = hn::TableLookupLanes(hn::BitCast(lanes, vectors), hn::SetTableIndices(lanes, of_blocks));
    return hn::Add(hn::BitCast(bytes, in_order), hn::Set(bytes, bias));
  };
  (void)d;
  hn::StoreU(packed(v0, v1, v2, v3), bytes, dst);
  hn::StoreU(packed(v4, v5, v6, v7), bytes, dst + hn::Lanes(bytes));
#else
  for (const V& v : {v0, v1, v2, v3, v4, v5, v6, v7})
    *dst++ = static_cast<uint8_t>(hn::GetLane(hn::BitCast(hn::RebindToSigned<D>(), v)) + bias);
  (void)d;
#endif
}
constexpr float kWhole = 12582912.0f;
// Stores results that are integers and fit a byte, signed or not.
TREADLE_STEP(last_bytes_step) {
  (void)pc;
  const D d;
  const V whole = hn::Set(d, kWhole);
#define TREADLE_ONE(V_I, I) V_I = hn::Add(V_I, whole)
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  store_lowest_bytes(d, v0, v1, v2, v3, v4, v5, v6, v7, 0, static_cast<uint8_t*>(m->dst));
}
// Quantizes to bytes and stores them. The bounds a and b are relative to the zero point; kDivides: first divides by the scale. One addition
// rounds (ties to even) and adds the zero point without its lowest bit y: an odd number would change which ties are even.
template <bool kDivides>
TREADLE_STEP(quantize_last_step) {
  const D d;
  const V low = hn::Set(d, pc->a), high = hn::Set(d, pc->b), whole = hn::Set(d, pc->whole), scale = hn::Set(d, pc->divisor);
  const auto taken = [&](V v) HWY_ATTR { return kDivides ? hn::Div(v, scale) : v; };
#define TREADLE_ONE(V_I, I) V_I = hn::Add(at_most(at_least(taken(V_I), low), high), whole)
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  store_lowest_bytes(d, v0, v1, v2, v3, v4, v5, v6, v7, pc->y, static_cast<uint8_t*>(m->dst));
}

#if TREADLE_QUANTIZES_BY_SATURATION
// Like quantize_last_step, for a range that covers all bytes.
template <typename Code, bool kDivides>
TREADLE_STEP(quantize_whole_range_last_step) {
  const D d;
  const hn::Repartition<Code, D> bytes;
  const V scale = hn::Set(d, pc->divisor), inverse = hn::Set(d, pc->b);
  const auto zero = hn::Set(hn::Repartition<int16_t, D>(), static_cast<int16_t>(pc->whole));
  const auto codes = [&](V a, V b, V c, V e) HWY_ATTR {
    if constexpr (kDivides) return divided_codes<Code>(a, b, c, e, scale, inverse, zero);
    return saturated_codes<Code>(a, b, c, e, zero);
  };
  Code* HWY_RESTRICT dst = static_cast<Code*>(m->dst);
  hn::StoreU(codes(v0, v1, v2, v3), bytes, dst);
  hn::StoreU(codes(v4, v5, v6, v7), bytes, dst + hn::Lanes(bytes));
}
#endif

Fn unary_of(Unary function) {
  switch (function) {
    case Unary::relu: return unary_step<Relu>;
    case Unary::clip: return unary_step<Clip>;
    case Unary::leaky_relu: return unary_step<LeakyRelu>;
    case Unary::sqrt: return unary_step<Sqrt>;
    case Unary::reciprocal: return unary_step<Reciprocal>;
    case Unary::abs: return unary_step<Abs>;
    case Unary::neg: return unary_step<Neg>;
    case Unary::square: return unary_step<Square>;
    default: return function_step;
  }
}

Fn step_of(const ChainStep& step) {
  switch (step.op) {
    case ChainOp::load: return binary_step<Load>;
    case ChainOp::keep: return keep_step;
    case ChainOp::add: return binary_step<AddOf>;
    case ChainOp::sub: return binary_step<SubOf>;
    case ChainOp::reverse_sub: return binary_step<ReverseSub>;
    case ChainOp::mul:
    case ChainOp::logical_and: return binary_step<MulOf>;
    case ChainOp::div: return binary_step<DivOf>;
    case ChainOp::reverse_div: return binary_step<ReverseDiv>;
    case ChainOp::max:
    case ChainOp::logical_or: return binary_step<MaxOf>;
    case ChainOp::min: return binary_step<MinOf>;
    case ChainOp::less: return binary_step<Less>;
    case ChainOp::less_or_equal: return binary_step<LessOrEqual>;
    case ChainOp::greater: return binary_step<Greater>;
    case ChainOp::greater_or_equal: return binary_step<GreaterOrEqual>;
    case ChainOp::equal: return binary_step<Equal>;
    case ChainOp::quantize: return binary_step<Quantize>;
    case ChainOp::select: return select_step;
    case ChainOp::logical_not: return unary_step<Not>;
    case ChainOp::floor: return unary_step<Floor>;
    case ChainOp::ceil: return unary_step<Ceil>;
    case ChainOp::round: return unary_step<Round>;
    case ChainOp::sign: return unary_step<Sign>;
    case ChainOp::is_nan: return unary_step<IsNaN>;
    case ChainOp::truth: return unary_step<ToTruth>;
    case ChainOp::unary: return unary_of(step.function);
  }
  return last_step;
}

/// Returns the variant of a step for a scalar x; null for steps without one.
Fn scalar_step_of(ChainOp op, float x) {
  switch (op) {
    case ChainOp::add: return scalar_step<AddOf>;
    case ChainOp::sub: return scalar_step<SubOf>;
    case ChainOp::reverse_sub: return scalar_step<ReverseSub>;
    case ChainOp::mul: return scalar_step<MulOf>;
    case ChainOp::div: return scalar_step<DivOf>;
    case ChainOp::reverse_div: return scalar_step<ReverseDiv>;
    case ChainOp::max: return std::isnan(x) ? nullptr : scalar_step<MaxOfNumber>;
    case ChainOp::min: return std::isnan(x) ? nullptr : scalar_step<MinOfNumber>;
    default: return nullptr;
  }
}

bool reads_x(ChainOp op) {
  switch (op) {
    case ChainOp::logical_not:
    case ChainOp::unary:
    case ChainOp::floor:
    case ChainOp::ceil:
    case ChainOp::round:
    case ChainOp::sign:
    case ChainOp::is_nan:
    case ChainOp::truth: return false;
    default: return true;
  }
}
constexpr size_t kBlock = kVectors * hn::MaxLanes(D());

/// Translates a program into steps. Merges the dequantization of an input into its load, and the quantization of the output into one step.
struct Assembly {
  const ChainProgram& program;
  const ChainPlan& plan;
  const float (&buffers)[kMaxChainInputs + kMaxChainSlots][kBlock];
  bool as_bytes[kMaxChainInputs];  // for each input: true if it is loaded as bytes, in place

  bool is_scalar(const ChainStep& s) const {
    return reads_x(s.op) && s.x < program.inputs.size() && plan.inputs[s.x].kind == ChainInput::Kind::scalar;
  }
  float scalar(const ChainStep& s) const { return buffers[s.x][0]; }
  bool is(size_t i, ChainOp op) const { return i < program.steps.size() && program.steps[i].op == op && is_scalar(program.steps[i]); }
  bool ends_in_bytes() const { return is(program.steps.size() - 1, ChainOp::quantize) && bits_of(program.output) == 8; }

  template <typename T>
  Step load_bytes(size_t& i) const {
    const ChainStep& s = program.steps[i];
    if (!is(i + 1, ChainOp::sub) || !is(i + 2, ChainOp::mul)) return {load_bytes_step<T, false>, s.x, 0, 0, 0, nullptr, &s};
    i += 2;
    return {load_bytes_step<T, true>, s.x, 0, scalar(program.steps[i - 1]), scalar(program.steps[i]), nullptr, &s};
  }
#if TREADLE_QUANTIZES_BY_SATURATION
  template <typename Code>
  Step quantize_whole_range(const ChainStep& s, float divisor) const {
    const Fn fn = divisor == 1 ? quantize_whole_range_last_step<Code, false> : quantize_whole_range_last_step<Code, true>;
    return {fn, 0, 0, 0, inverse_of(divisor), nullptr, &s, scalar(s), divisor};
  }
#endif
  Step quantize_last(const ChainStep& s, float divisor) const {
#if TREADLE_QUANTIZES_BY_SATURATION
    if (s.a == 0 && s.b == 255) return quantize_whole_range<uint8_t>(s, divisor);
    if (s.a == -128 && s.b == 127) return quantize_whole_range<int8_t>(s, divisor);
#endif
    const float zero = scalar(s), lowest_bit = static_cast<float>(static_cast<int>(zero) & 1);
    return {divisor == 1 ? quantize_last_step<false> : quantize_last_step<true>,
            0,
            static_cast<uint8_t>(lowest_bit),
            s.a - zero,
            s.b - zero,
            nullptr,
            &s,
            kWhole + zero - lowest_bit,
            divisor};
  }
  /// Returns the step that starts with step i, and advances `i` to the last step merged into it.
  Step take(size_t& i) const {
    const ChainStep& s = program.steps[i];
    const bool from_bytes = s.op == ChainOp::load && s.x < program.inputs.size() && as_bytes[s.x];
    if (from_bytes) return program.inputs[s.x] == DType::int8 ? load_bytes<int8_t>(i) : load_bytes<uint8_t>(i);
    const bool is_last = i + 1 == program.steps.size();
    if (is_last && ends_in_bytes()) return quantize_last(s, 1);
    if (i + 2 == program.steps.size() && is(i, ChainOp::div) && ends_in_bytes()) return quantize_last(program.steps[++i], scalar(s));
    Fn fn = is_scalar(s) ? scalar_step_of(s.op, scalar(s)) : nullptr;
    if (!fn) fn = step_of(s);
    if (is_last && fn == function_step && program.output == DType::float32) fn = function_last_step;
    return {fn, s.x, s.y, s.a, s.b, s.op == ChainOp::unary ? unary_loop_of(s.function, s.a) : nullptr, &s};
  }
  void assemble(Step* steps) const {
    for (size_t i = 0; i < program.steps.size(); ++i) *steps++ = take(i);
    // If the previous step has written the result, this last one is never called.
    *steps = {bits_of(program.output) == 8 ? last_bytes_step : last_step, 0, 0, 0, 0, nullptr, nullptr};
  }
};

#undef TREADLE_EACH
#undef TREADLE_STEP
#undef TREADLE_NEXT

}  // namespace
}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TREADLE_KERNELS_ELEMENTWISE_CHAIN_STEPS_INL_H_
