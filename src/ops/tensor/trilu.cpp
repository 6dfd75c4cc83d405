// Implements Trilu, which sets one triangle of each matrix to zero, and ReverseSequence, which reverses the first steps of each sequence.
#include <fmt/format.h>

#include <algorithm>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kWhole = kNumeric | kBool | kString | kComplex;

void infer_trilu(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) < 2)
    throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}, at least 2 expected", c.rank(0)));
  check_one_element(c, 1, "k");
  c.set_output(0, c.input(0));
}

struct Trilu : TriluPlan {
  DType dtype;

  static Trilu bind(BindContext& c) { return {TriluPlan::bind(c), c.dtype(0)}; }
  void run(RunContext& c) const {
    const void* src = c.in<void>(0);
    void* dst = c.out<void>(0);
    visit_access(dtype, [&]<typename Access>() {
      parallel_for(c.pool(), matrices * rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(columns, 1)), [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t row = line % rows, first = line * columns;
          // The column of the diagonal, clamped to [0, columns], because k may be any number.
          const int64_t diagonal = k > columns ? columns : k < -rows ? -int64_t{1} : row + k;
          const int64_t edge = std::clamp<int64_t>(upper ? diagonal : diagonal + 1, 0, columns);
          const int64_t kept_from = upper ? edge : 0, kept_to = upper ? columns : edge;
          if (src != dst) keep<Access>(dst, src, first + kept_from, first + kept_to);
          clear<Access>(dst, first, first + kept_from);
          clear<Access>(dst, first + kept_to, first + columns);
        }
      });
    });
  }

 private:
  template <typename Access>
  void keep(void* dst, const void* src, int64_t begin, int64_t end) const {
    if (dtype == DType::string) {
      for (int64_t i = begin; i < end; ++i) Access::copy(dst, i, src, i);
    } else {
      std::memcpy(static_cast<std::byte*>(dst) + begin * element_bytes(dtype),
                  static_cast<const std::byte*>(src) + begin * element_bytes(dtype),
                  static_cast<size_t>((end - begin) * element_bytes(dtype)));
    }
  }
  template <typename Access>
  void clear(void* dst, int64_t begin, int64_t end) const {
    if (dtype == DType::string) {
      std::for_each(static_cast<std::string*>(dst) + begin, static_cast<std::string*>(dst) + end, [](std::string& text) { text.clear(); });
    } else {
      std::memset(static_cast<std::byte*>(dst) + begin * element_bytes(dtype), 0,
                  static_cast<size_t>((end - begin) * element_bytes(dtype)));
    }
  }
};

void infer_reverse_sequence(InferContext& c) {
  c.set_output(0, c.input(0));
  const int64_t batch = c.get_int("batch_axis", 1), time = c.get_int("time_axis", 0);
  if (batch < 0 || batch > 1 || time != 1 - batch)
    throw Error(ErrorCode::invalid_argument, fmt::format("batch_axis = {} and time_axis = {}; one must be 0 and the other 1", batch, time));
  if (!c.has_rank(0)) return;
  if (c.rank(0) < 2) throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}, at least 2 expected", c.rank(0)));
  if (c.has_rank(1) && c.rank(1) == 1) unify(c.shape(0)[static_cast<size_t>(batch)], c.shape(1)[0], "batch and number of sequence_lens");
}

struct ReverseSequence : ReverseSequencePlan {
  DType dtype;

  static ReverseSequence bind(BindContext& c) { return {ReverseSequencePlan::bind(c), c.dtype(0)}; }
  void run(RunContext& c) const {
    const int64_t* lengths = c.in<int64_t>(1);
    for (int64_t b = 0; b < batch; ++b)
      if (lengths[b] < 0 || lengths[b] > time)
        throw Error(ErrorCode::invalid_argument, fmt::format("sequence_lens[{}] = {} is outside [0, {}]", b, lengths[b], time));
    const auto* in = c.in<std::byte>(0);
    auto* out = c.out<std::byte>(0);
    const int64_t bytes = has_plain_bytes(dtype) ? element_bytes(dtype) : 0;
    // Either of the two axes may be the outer one. The loop goes through the output in the order of memory.
    const bool time_first = time_stride > batch_stride;
    const int64_t outer = time_first ? time : batch, within = time_first ? batch : time;
    parallel_for(c.pool(), outer, std::max<int64_t>(1, 32'768 / std::max<int64_t>(1, within * inner)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t k = 0; k < within; ++k) {
          const int64_t t = time_first ? i : k, b = time_first ? k : i, from = t < lengths[b] ? lengths[b] - 1 - t : t;
          const int64_t read = from * time_stride + b * batch_stride, written = t * time_stride + b * batch_stride;
          if (bytes > 0)
            std::memcpy(out + written * bytes, in + read * bytes, static_cast<size_t>(inner * bytes));
          else
            move_blocks(dtype, 1, inner, in, read, inner, out, written, inner, nullptr);
        }
      }
    });
  }
};

Gradients trilu_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0)};
  if (g.input(1) != kNoValue) inputs.push_back(g.input(1));
  return {g.op("Trilu", std::move(inputs), {{"upper", g.attributes().get_int("upper", 1)}})};
}

// ReverseSequence is its own inverse, and its gradient reverses dY in the same way.
Gradients reverse_sequence_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("ReverseSequence", {g.grad_output(0), g.input(1)}, attributes)};
}

}  // namespace

std::vector<OpDef> trilu_ops() {
  return {
      {.name = "Trilu",
       .since = {14},
       .inputs = {{"input", kWhole, "T"}, {"k", kInt64, "", Presence::optional}},
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"upper", int64_t{1}}},
       .infer = infer_trilu,
       .cost = move_cost,
       .alias = {may_reuse(0, 0)},
       .kernels = {kernel<Trilu>()},
       .gradient = trilu_gradient,
       .value_inputs = {1}},
      {.name = "ReverseSequence",
       .since = {10, 28},
       .inputs = {{"input", kWhole, "T"}, {"sequence_lens", kInt64}},
       .outputs = {{"Y", kWhole, "T"}},
       .attributes = {{"batch_axis", int64_t{1}}, {"time_axis", int64_t{0}}},
       .infer = infer_reverse_sequence,
       .cost = move_cost,
       .kernels = {kernel<ReverseSequence>()},
       .gradient = reverse_sequence_gradient},
  };
}

}  // namespace treadle::ops
