// Fused chains of pointwise operators, in one pass over memory. A chain is a program for an accumulator of eight vectors. Each step is a
// function that takes the accumulator in registers, applies its operator (possibly with an operand from memory), and calls the next step in
// tail position, which compiles to a jump. Nothing is written between steps, so a chain costs about as much as one compiled loop.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/threads/thread_pool.h"
#include "kernels/elementwise/unary_f32.h"
#include "kernels/strided_loop.h"
#include "treadle/dtype.h"

namespace treadle::kernels {

inline constexpr int kMaxChainInputs = 16, kMaxChainSlots = 16;
inline constexpr size_t kMaxChainSteps = 256;

/// Operation of a step on the accumulator `acc` (the value so far); `x` and `y` are its operands from memory. Truth values are 0 and 1.
enum class ChainOp : uint8_t {
  load,  // sets acc = x
  keep,  // also writes acc to the temporary slot x
  add,
  sub,
  reverse_sub,
  mul,
  div,
  reverse_div,
  max,
  min,  // the operators from add to min compute acc op x, or x op acc if reversed; max and min return NaN if either is NaN
  less,
  less_or_equal,
  greater,
  greater_or_equal,
  equal,  // the operators from less to equal compute acc op x
  logical_and,
  logical_or,
  logical_not,
  select,  // acc = acc ? x : y
  unary,   // acc = any function of unary_f32, with parameters a and b
  floor,
  ceil,
  round,
  sign,
  is_nan,
  truth,     // acc = acc != 0
  quantize,  // acc = round(clamp(acc, a - x, b - x)) + x, ties to even
};

struct ChainStep {
  ChainOp op;
  uint8_t x = 0, y = 0;  // index of an input, or kMaxChainInputs plus the index of a temporary slot
  Unary function = Unary::none;
  float a = 0, b = 0;
  /// For unary: if not null, this function is called instead of `function`; dst may be src.
  void (*map)(const void* context, const float* src, float* dst, int64_t n) = nullptr;
  const void* context = nullptr;
};

struct ChainProgram {
  std::vector<ChainStep> steps;
  std::vector<DType> inputs;      // float32, bool, uint8, int8 or int32; all are read as float32
  DType output = DType::float32;  // float32, bool, uint8 or int8
};

/// Describes the layout of an input relative to the output's index space.
struct ChainInput {
  enum class Kind : uint8_t { flat, scalar, periodic, strided };
  Kind kind = Kind::flat;
  int64_t period = 0;      ///< for a periodic input: element i is element i % period of the input
  StridedLoop<1> strides;  ///< used for a strided input
};
struct ChainPlan {
  int64_t size = 0;
  ChainInput inputs[kMaxChainInputs];
};

/// Plans an input. @throws Error(invalid_argument) if it does not broadcast to `out`.
ChainInput plan_chain_input(std::span<const int64_t> out, std::span<const int64_t> in);

/// Runs the chain on all threads of the pool. dst may be a flat float32 input if the output is float32; otherwise dst must not overlap
/// inputs. Denormals, NaN and infinities have no special treatment: each step computes the operator's formula.
void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, void* dst, ThreadPool* pool);
/// Computes only elements [begin, end), into dst, on the calling thread.
void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, int64_t begin, int64_t end, void* dst);

}  // namespace treadle::kernels
