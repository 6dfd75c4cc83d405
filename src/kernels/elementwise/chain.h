// Chains of pointwise operators in one pass over memory. A chain is a program for one accumulator of eight vectors: each step is a function
// that takes the accumulator in registers, applies its operator, with an operand from memory where it has two, and ends in a call of the
// next step, which compilers turn into a jump. Between two steps nothing is written, so that the chain costs about what one compiled loop
// would.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/strided_loop.h"
#include "treadle/dtype.h"

namespace treadle::kernels {

inline constexpr int kMaxChainInputs = 16, kMaxChainSlots = 16;
inline constexpr size_t kMaxChainSteps = 256;

/// What a step does to the accumulator `acc`; `x` and `y` are its operands from memory. Truth values are 0 and 1.
enum class ChainOp : uint8_t {
  load,  // x
  keep,  // acc is also written to slot x
  add,
  sub,
  reverse_sub,
  mul,
  div,
  reverse_div,
  max,
  min,  // acc op x, or x op acc; max and min give NaN if either is NaN
  less,
  less_or_equal,
  greater,
  greater_or_equal,
  equal,  // acc op x
  logical_and,
  logical_or,
  logical_not,
  select,  // acc ? x : y
  unary,   // any function of unary_f32, with parameters a and b
  floor,
  ceil,
  round,
  sign,
  is_nan,
  truth,     // acc != 0
  quantize,  // round(clamp(acc, a - x, b - x)) + x, ties to even
};

struct ChainStep {
  ChainOp op;
  uint8_t x = 0, y = 0;  // an input, or kMaxChainInputs + a slot
  Unary function = Unary::none;
  float a = 0, b = 0;
  /// unary: instead of `function`; dst may be src.
  void (*map)(const void* context, const float* src, float* dst, int64_t n) = nullptr;
  const void* context = nullptr;
};

struct ChainProgram {
  std::vector<ChainStep> steps;
  std::vector<DType> inputs;      // float32, bool, uint8, int8 or int32; all are read as float32
  DType output = DType::float32;  // float32, bool, uint8 or int8
};

/// How an input lies in the output's index space.
struct ChainInput {
  enum class Kind : uint8_t { flat, scalar, periodic, strided };
  Kind kind = Kind::flat;
  int64_t period = 0;      ///< periodic: element i is element i % period of the input
  StridedLoop<1> strides;  ///< strided
};
struct ChainPlan {
  int64_t size = 0;
  ChainInput inputs[kMaxChainInputs];
};

/// @throws Error(invalid_argument) if an input does not broadcast to `out`.
ChainInput plan_chain_input(std::span<const int64_t> out, std::span<const int64_t> in);

/// dst may be a flat input in float32 where the output is float32, and must not overlap inputs otherwise. No denormal, NaN or infinity is
/// treated apart: each step is the operator's formula.
void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, void* dst, ThreadPool* pool);
/// The elements from begin to end only, to dst, by the calling thread.
void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, int64_t begin, int64_t end, void* dst);

}  // namespace treadle::kernels
