#include "kernels/elementwise/chain.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/broadcast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/chain.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/elementwise/chain_steps-inl.h"

HWY_BEFORE_NAMESPACE();
namespace treadle::kernels::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

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
// Returns n elements from `at` on, as steps read them: in place, or copied to `buffer`. @param place  at % period, for periodic inputs
const float* block_of(const ChainInput& input, DType dtype, const void* src, int64_t at, int64_t place, int64_t n, int64_t block,
                      float* buffer) {
  const auto* floats = static_cast<const float*>(src);
  switch (input.kind) {
    case ChainInput::Kind::scalar: return buffer;
    case ChainInput::Kind::flat: read_elements(dtype, src, at, n, 1, buffer); return buffer;
    case ChainInput::Kind::periodic: {
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

// For arrays that exceed L2, prefetches two blocks ahead: the many steps of a block would otherwise leave too few loads in flight.
constexpr int64_t kFarElements = int64_t{1} << 18, kBlocksAhead = 2;
template <bool kToWrite>
HWY_INLINE void fetch_ahead(const char* block_begin, int64_t block_bytes) {
  for (int64_t i = 0; i < block_bytes; i += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(block_begin) + kBlocksAhead * block_bytes + i),
                       kToWrite);  // an integer instead of a pointer, as the address may be after the array
}

/// Memory for inputs of which more than one block is gathered at a time.
class Gathered {
 public:
  /// Returns memory for `length` floats; null if there is not enough.
  float* take(int64_t length) {
    const int64_t begin = used_, end = begin + (length + kAlignment - 1) / kAlignment * kAlignment;
    if (end > kRoom) return nullptr;
    used_ = end;
    return memory_ + begin;
  }

  /// Copies a short periodic input repeatedly, so that a block that starts anywhere in the first period is contiguous. Returns the copy;
  /// null if the input is not periodic or there is not enough memory.
  const float* add(const ChainInput& input, DType dtype, const void* src, int64_t block) {
    const int64_t length = input.period + block;
    if (input.kind != ChainInput::Kind::periodic || dtype != DType::float32) return nullptr;
    float* begin = take(length);
    if (begin == nullptr) return nullptr;
    for (int64_t at = 0; at < length; at += input.period)
      std::copy_n(static_cast<const float*>(src), std::min(input.period, length - at), begin + at);
    return begin;
  }

  /// Returns memory for several gathered blocks of an input with short runs; null if runs are long or memory is short. Several blocks,
  /// since a vector load right after the scalar stores of its elements would wait until all of them have reached the cache.
  float* take_ahead(const ChainInput& input, DType dtype, int64_t block) {
    if (input.kind != ChainInput::Kind::strided || dtype != DType::float32 || input.strides.inner() >= kShortRun) return nullptr;
    float* begin = take(kAhead * block);
    if (begin != nullptr) std::fill_n(begin, kAhead * block, 0.0F);
    return begin;
  }
  static constexpr int64_t kAhead = 8;  // number of blocks that are gathered ahead

 private:
  static constexpr int64_t kRoom = 8192, kAlignment = 16;  // in floats: size of the memory, and alignment of its parts
  HWY_ALIGN float memory_[kRoom];
  int64_t used_ = 0;
};

/// An input that is gathered block by block.
struct Moved {
  size_t index = 0;
  const ChainInput* input = nullptr;
  DType dtype = DType::float32;
  const void* src = nullptr;
  float* buffer = nullptr;         // memory for one block
  int64_t place = 0, stride = 0;   // position in the period, and its increment per block (precomputed to avoid a slow division)
  const float* wrapped = nullptr;  // copy of a periodic input with repeated periods; null: there is none
  float* ahead = nullptr;          // elements [first, last), gathered ahead; null: not gathered ahead
  int64_t first = 0, last = 0;

  /// Returns the n elements of the block that begins at element `at`. @param end  end of all blocks
  const float* next(int64_t at, int64_t n, int64_t block, int64_t end) {
    if (ahead != nullptr) {
      if (at >= last) {
        first = at, last = std::min(end, at + Gathered::kAhead * block);
        gather_elements(input->strides, first, last, static_cast<const float*>(src), ahead);
      }
      return ahead + (at - first);
    }
    const float* from = wrapped != nullptr ? wrapped + place : block_of(*input, dtype, src, at, place, n, block, buffer);
    place += stride;
    if (place >= input->period) place -= input->period;
    return from;
  }
};

/// Returns true if no step other than loads reads the input.
bool only_loaded(const ChainProgram& program, size_t input) {
  return std::ranges::none_of(program.steps, [&](const ChainStep& s) {
    return (s.x == input && s.op != ChainOp::load && reads_x(s.op)) || (s.y == input && s.op == ChainOp::select);
  });
}

}  // namespace

/// Computes elements [begin, end) of the result.
void chain_range(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, void* dst, int64_t begin, int64_t end) {
  const D d;
  const int64_t block = kVectors * static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float buffers[kMaxChainInputs + kMaxChainSlots][kBlock];
  HWY_ALIGN float spill[kBlock], result[kBlock];
  Step steps[kMaxChainSteps + 1];
  Assembly assembly{program, plan, buffers, {}};
  Memory memory{};
  memory.spill = spill;
  for (size_t i = 0; i < std::size(buffers); ++i) memory.operands[i] = buffers[i];
  struct Lying {  // an input whose blocks are read in place
    size_t index;
    const char* block;
    int64_t element_size;
  } lying[kMaxChainInputs];
  Moved moved[kMaxChainInputs];
  Gathered gathered;
  size_t num_lying = 0, num_moved = 0;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    // In a last, short block, the lanes without elements are computed too, and their results are dropped. They should hold valid numbers.
    std::fill_n(buffers[i], block, 0.0f);
    const ChainInput& input = plan.inputs[i];
    const bool is_flat = input.kind == ChainInput::Kind::flat;
    assembly.as_bytes[i] = is_flat && bits_of(program.inputs[i]) == 8 && only_loaded(program, i);
    if (assembly.as_bytes[i] || (is_flat && program.inputs[i] == DType::float32)) {
      const auto size = static_cast<int64_t>(bits_of(program.inputs[i]) / 8);
      lying[num_lying++] = {i, static_cast<const char*>(inputs[i]) + begin * size, size};
    } else if (input.kind == ChainInput::Kind::scalar) {
      read_elements(program.inputs[i], inputs[i], 0, 1, 1, buffers[i]);
      std::fill_n(buffers[i] + 1, block - 1, buffers[i][0]);
    } else {
      const int64_t period = std::max<int64_t>(1, input.period);
      moved[num_moved++] = {.index = i,
                            .input = &input,
                            .dtype = program.inputs[i],
                            .src = inputs[i],
                            .buffer = buffers[i],
                            .place = begin % period,
                            .stride = block % period,
                            .wrapped = gathered.add(input, program.inputs[i], inputs[i], block),
                            .ahead = gathered.take_ahead(input, program.inputs[i], block)};
    }
  }
  assembly.assemble(steps);
  const auto result_size = static_cast<int64_t>(bits_of(program.output) / 8);
  const bool is_far = plan.size >= kFarElements;
  for (int64_t at = begin; at < end; at += block) {
    const int64_t n = std::min(block, end - at);
    for (Lying& input : std::span(lying, num_lying)) {
      const int64_t bytes = block * input.element_size;
      if (is_far) fetch_ahead<false>(input.block, bytes);
      const void* from =
          n == block ? input.block : std::memcpy(buffers[input.index], input.block, static_cast<size_t>(n * input.element_size));
      memory.operands[input.index] = static_cast<const float*>(from);
      input.block += bytes;
    }
    for (Moved& input : std::span(moved, num_moved)) memory.operands[input.index] = input.next(at, n, block, end);
    char* results = static_cast<char*>(dst) + (at - begin) * result_size;
    if (is_far && n == block) fetch_ahead<true>(results, block * result_size);
    memory.dst = n == block ? results : static_cast<void*>(result);
    const V zero = hn::Zero(d);
    steps[0].fn(steps, &memory, zero, zero, zero, zero, zero, zero, zero, zero);
    if (n != block) std::memcpy(results, result, static_cast<size_t>(n * result_size));
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Compilers emit this instruction, which clears the upper halves of vector registers, at the end of functions that use them, but not if
  // these have vector arguments, as the steps of a chain do. Without it, each SSE instruction depends on the old value of its register: an
  // optimizer's update after a chain took 3.7 times as long.
  _mm256_zeroupper();
#endif
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
  constexpr int64_t kBlock = 128;  // the block size of the widest vectors, so that threads write to separate blocks
  const int64_t blocks = (plan.size + kBlock - 1) / kBlock;
  parallel_for(pool, blocks, kElementwiseGrain / kBlock, [&](int64_t begin, int64_t end) {
    run_chain(program, plan, inputs, begin * kBlock, std::min(plan.size, end * kBlock),
              static_cast<char*>(dst) + begin * kBlock * static_cast<int64_t>(bits_of(program.output) / 8));
  });
}

void run_chain(const ChainProgram& program, const ChainPlan& plan, const void* const* inputs, int64_t begin, int64_t end, void* dst) {
  HWY_DYNAMIC_DISPATCH(chain_range)(program, plan, inputs, dst, begin, end);
}

}  // namespace treadle::kernels
#endif
