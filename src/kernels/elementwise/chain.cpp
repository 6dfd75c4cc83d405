#include "kernels/elementwise/chain.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise/broadcast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/chain.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bounds-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

struct Step;
struct Memory {
  const float* operands[kMaxChainInputs + kMaxChainSlots];  // of the block in hand
  float* dst;
  float* spill;  // a block
};

using Fn = void (*)(const Step*, Memory*, V, V, V, V, V, V, V, V);
struct Step {
  Fn fn;
  uint8_t x, y;
  Unary function;
  float a, b;
  const ChainStep* from;
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
// The same bits for an x that is not NaN: acc where it is, x where they are equal.
TREADLE_BINARY(MaxOfNumber, hn::IfThenElse(hn::Le(acc, x), x, acc));
TREADLE_BINARY(MinOfNumber, hn::IfThenElse(hn::Ge(acc, x), x, acc));
TREADLE_BINARY(Less, Truth::of(d, hn::Lt(acc, x)));
TREADLE_BINARY(LessOrEqual, Truth::of(d, hn::Le(acc, x)));
TREADLE_BINARY(Greater, Truth::of(d, hn::Gt(acc, x)));
TREADLE_BINARY(GreaterOrEqual, Truth::of(d, hn::Ge(acc, x)));
TREADLE_BINARY(Equal, Truth::of(d, hn::Eq(acc, x)));
#undef TREADLE_BINARY
// The bounds come first: Max returns its second operand if one is NaN, and a NaN becomes the lower bound.
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
// The same where x is one number, which a block of copies would have to bring from memory eight vectors at a time.
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
// Functions that take dozens of instructions want the registers for themselves.
TREADLE_STEP(function_step) {
  const D d;
  float* HWY_RESTRICT slot = m->spill;
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  const int64_t n = kVectors * static_cast<int64_t>(hn::Lanes(d));
  if (pc->from->map)
    pc->from->map(pc->from->context, slot, slot, n);
  else
    unary_f32(pc->function, pc->a, pc->b, slot, slot, n);
#define TREADLE_ONE(V_I, I) V_I = hn::LoadU(d, slot + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
  TREADLE_NEXT;
}
TREADLE_STEP(last_step) {
  (void)pc;
  const D d;
  float* HWY_RESTRICT dst = m->dst;
#define TREADLE_ONE(V_I, I) hn::StoreU(V_I, d, dst + I * hn::Lanes(d))
  TREADLE_EACH(TREADLE_ONE);
#undef TREADLE_ONE
}

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

/// Of the steps that are worth it, the one for an x of one number; null for others.
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

// Elements to float32 and back.
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
template <typename T>
void widen_elements(const void* src, int64_t first, int64_t n, int64_t stride, float* dst) {
  const T* p = static_cast<const T*>(src) + first;
  int64_t i = 0;
  if (stride == 1) {
    const D d;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes) hn::StoreU(widened(d, p + i), d, dst + i);
  }
  for (; i < n; ++i) dst[i] = static_cast<float>(p[i * stride]);
}
void read_elements(DType dtype, const void* src, int64_t first, int64_t n, int64_t stride, float* dst) {
  switch (dtype) {
    case DType::int8: return widen_elements<int8_t>(src, first, n, stride, dst);
    case DType::int32: return widen_elements<int32_t>(src, first, n, stride, dst);
    case DType::uint8:
    case DType::boolean: return widen_elements<uint8_t>(src, first, n, stride, dst);
    default: return widen_elements<float>(src, first, n, stride, dst);
  }
}
// The numbers are whole and in T's range.
template <typename T>
void narrow_elements(const float* src, int64_t n, T* dst) {
  const D d;
  const hn::RebindToSigned<D> words;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const hn::Rebind<T, D> bytes;
    hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(words, hn::LoadU(d, src + i))), bytes, dst + i);
  }
  for (; i < n; ++i) dst[i] = static_cast<T>(static_cast<int32_t>(src[i]));
}
void write_elements(DType dtype, const float* src, int64_t n, void* dst, int64_t first) {
  switch (dtype) {
    case DType::int8: return narrow_elements(src, n, static_cast<int8_t*>(dst) + first);
    case DType::uint8:
    case DType::boolean: return narrow_elements(src, n, static_cast<uint8_t*>(dst) + first);
    default: std::copy_n(src, n, static_cast<float*>(dst) + first);
  }
}

// The n elements of a block, where the steps find them.
const float* block_of(const ChainInput& input, DType dtype, const void* src, int64_t at, int64_t n, int64_t block, float* buffer) {
  const auto* floats = static_cast<const float*>(src);
  switch (input.kind) {
    case ChainInput::Kind::scalar: return buffer;
    case ChainInput::Kind::flat:
      if (dtype == DType::float32 && n == block) return floats + at;
      read_elements(dtype, src, at, n, 1, buffer);
      return buffer;
    case ChainInput::Kind::periodic: {
      int64_t place = at % input.period;
      if (dtype == DType::float32 && n == block && place + n <= input.period) return floats + place;
      for (int64_t i = 0; i < n;) {
        const int64_t count = std::min(n - i, input.period - place);
        read_elements(dtype, src, place, count, 1, buffer + i);
        i += count, place = 0;
      }
      return buffer;
    }
    case ChainInput::Kind::strided:
      for_each_run(input.strides, at, at + n, [&](int64_t first, int64_t count, const int64_t* offset) {
        read_elements(dtype, src, offset[0], count, input.strides.inner_stride(0), buffer + (first - at));
      });
      return buffer;
  }
  return buffer;
}

// Of arrays beyond L2 the block after the next one is on its way while a block is computed: with ten steps a block, too few loads are under
// way otherwise.
constexpr int64_t kFarElements = int64_t{1} << 18, kBlocksAhead = 2;
template <bool kToWrite>
HWY_INLINE void fetch_ahead(const float* block_begin, int64_t block) {
  constexpr int64_t kLine = 64 / sizeof(float);
  for (int64_t i = 0; i < block; i += kLine)
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(block_begin) + (kBlocksAhead * block + i) * sizeof(float)),
                       kToWrite);  // in integers: it may lie behind the array's end
}

}  // namespace

void chain_range(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, void* dst, int64_t begin, int64_t end) {
  const D d;
  constexpr size_t kBlock = kVectors * hn::MaxLanes(D());
  const int64_t block = kVectors * static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float buffers[kMaxChainInputs + kMaxChainSlots][kBlock];
  HWY_ALIGN float spill[kBlock], result[kBlock];
  Step steps[kMaxChainSteps + 1];
  const size_t num_steps = program.steps.size(), num_inputs = program.inputs.size();
  Memory memory{};
  memory.spill = spill;
  for (size_t i = 0; i < std::size(buffers); ++i) memory.operands[i] = buffers[i];
  struct Moving {  // an input of more than one number
    size_t index;
    const float* elements;  // null unless blocks are read where they lie
  } moving[kMaxChainInputs];
  size_t num_moving = 0;
  for (size_t i = 0; i < num_inputs; ++i) {
    // The end of a last, short block is computed, too, and thrown away: it shall at least be numbers.
    std::fill_n(buffers[i], block, 0.0f);
    if (plan.inputs[i].kind != ChainInput::Kind::scalar) {
      const bool in_place = plan.inputs[i].kind == ChainInput::Kind::flat && program.inputs[i] == DType::float32;
      moving[num_moving++] = {i, in_place ? static_cast<const float*>(inputs[i]) : nullptr};
      continue;
    }
    read_elements(program.inputs[i], inputs[i], 0, 1, 1, buffers[i]);
    std::fill_n(buffers[i] + 1, block - 1, buffers[i][0]);
  }
  for (size_t i = 0; i < num_steps; ++i) {
    const ChainStep& s = program.steps[i];
    const bool is_scalar = s.x < num_inputs && plan.inputs[s.x].kind == ChainInput::Kind::scalar;
    const Fn scalar = is_scalar ? scalar_step_of(s.op, buffers[s.x][0]) : nullptr;
    steps[i] = {scalar ? scalar : step_of(s), s.x, s.y, s.function, s.a, s.b, &s};
  }
  steps[num_steps] = {last_step, 0, 0, Unary::none, 0, 0, nullptr};
  const bool is_far = plan.size >= kFarElements;
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    for (size_t k = 0; k < num_moving; ++k) {
      const auto [i, elements] = moving[k];
      if (is_far && elements) fetch_ahead<false>(elements + at, block);
      memory.operands[i] =
          elements && n == block ? elements + at : block_of(plan.inputs[i], program.inputs[i], inputs[i], at, n, block, buffers[i]);
    }
    const bool direct = program.output == DType::float32 && n == block;
    if (is_far && direct) fetch_ahead<true>(static_cast<float*>(dst) + at, block);
    memory.dst = direct ? static_cast<float*>(dst) + at : result;
    const V zero = hn::Zero(d);
    steps[0].fn(steps, &memory, zero, zero, zero, zero, zero, zero, zero, zero);
    if (!direct) write_elements(program.output, result, n, dst, at);
  }
}

}  // namespace treadle::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace treadle::kernels {

HWY_EXPORT(chain_range);

ChainInput plan_chain_input(std::span<const int64_t> out, std::span<const int64_t> in) {
  ChainInput input;
  input.strides = plan_broadcast<1>(out, {in});
  const StridedLoop<1>& loop = input.strides;
  bool scalar = true;
  for (int i = 0; i < loop.rank; ++i) scalar &= loop.strides[0][i] == 0 || loop.dims[i] == 1;
  if (scalar || loop.size <= 1)
    input.kind = ChainInput::Kind::scalar;
  else if (loop.rank == 1)
    input.kind = ChainInput::Kind::flat;
  else if (loop.rank == 2 && loop.strides[0][0] == 0 && loop.strides[0][1] == 1)
    input.kind = ChainInput::Kind::periodic, input.period = loop.dims[1];
  else
    input.kind = ChainInput::Kind::strided;
  return input;
}

void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, void* dst, ThreadPool* pool) {
  constexpr int64_t kBlock = 128;  // of the widest vectors: no thread writes into another's block
  const int64_t blocks = (plan.size + kBlock - 1) / kBlock;
  parallel_for(pool, blocks, kElementwiseGrain / kBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(chain_range)(program, plan, inputs, dst, begin * kBlock, std::min(plan.size, end * kBlock));
  });
}

}  // namespace treadle::kernels
#endif
