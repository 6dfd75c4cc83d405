// Gradients of sequence operators. The gradient of a sequence is the sequence of the gradients of its elements. The rules use
// SequenceZeros, SequenceAdd and SplitLikeSequence of the treadle domain.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

void infer_like_sequence(InferContext& c) { c.set_output(0, c.input(0)); }

Tensor zeros_of(const Tensor& like) {
  Tensor zeros(like.dtype(), like.shape());
  std::memset(zeros.raw(), 0, zeros.size_bytes());
  return zeros;
}

/// Makes a sequence of tensors of zeros, with the dtypes and shapes of the elements of another sequence.
struct SequenceZeros {
  static constexpr bool allocates = true;
  static SequenceZeros bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    const Sequence& sequence = c.input(0).sequence();
    Sequence zeros{sequence.element_dtype, {}};
    for (const Datum& element : sequence.elements) zeros.elements.emplace_back(zeros_of(element.tensor()));
    c.set_output(0, std::move(zeros));
  }
};

/// Adds the elements of two sequences, pair by pair.
struct SequenceAdd {
  static constexpr bool allocates = true;
  static SequenceAdd bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    const Sequence &a = c.input(0).sequence(), &b = c.input(1).sequence();
    check_equal(static_cast<int64_t>(a.elements.size()), static_cast<int64_t>(b.elements.size()), "elements of two gradients");
    Sequence sum{a.element_dtype, {}};
    for (size_t i = 0; i < a.elements.size(); ++i) sum.elements.emplace_back(added(a.elements[i].tensor(), b.elements[i].tensor()));
    c.set_output(0, std::move(sum));
  }
  static Tensor added(const Tensor& first, const Tensor& second) {
    if (first.dtype() != second.dtype() || !(first.shape() == second.shape()))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the gradients {} and {} are of no one value", describe(first), describe(second)));
    const Tensor a = first.contiguous(), b = second.contiguous();
    Tensor sum(a.dtype(), a.shape());
    visit_dtype<FloatTypes>(a.dtype(), [&]<typename T>() {
      for (int64_t i = 0; i < a.num_elements(); ++i)
        sum.data<T>()[i] = static_cast<T>(static_cast<compute_type_t<T>>(a.data<T>()[i]) + static_cast<compute_type_t<T>>(b.data<T>()[i]));
    });
    return sum;
  }
};

/// Splits a tensor along an axis into parts with the extents of a sequence's elements. This is the inverse of concatenating them.
struct SplitLikeSequence {
  static constexpr bool allocates = true;
  int64_t axis;
  bool new_axis;

  static SplitLikeSequence bind(BindContext& c) { return {c.get_int("axis"), c.get_int("new_axis", 0) != 0}; }
  void run(RunContext& c) const {
    const Sequence& sequence = c.input(0).sequence();
    const Tensor joined = c.input(1).tensor().contiguous();
    const int at = normalize_axis(axis, joined.shape().rank());
    const int64_t outer = joined.shape().product(0, at), inner = joined.shape().product(at + 1, joined.shape().rank());
    Sequence parts{joined.dtype(), {}};
    int64_t place = 0;
    for (const Datum& element : sequence.elements) {
      const Shape& shape = element.tensor().shape();
      check_equal(shape.rank() + (new_axis ? 1 : 0), joined.shape().rank(), "axes of a part of a gradient, and of what was joined");
      const int64_t length = new_axis ? 1 : shape[at];
      if (length > joined.shape()[at] - place)
        throw Error(ErrorCode::invalid_argument, fmt::format("the gradient {} is shorter than its parts", describe(joined)));
      check_equal(shape.num_elements(), outer * length * inner, "elements of a part of a gradient, and of what was joined");
      Tensor part(joined.dtype(), shape);
      move_blocks(joined.dtype(), outer, length * inner, joined.raw(), place * inner, joined.shape()[at] * inner, part.raw(), 0,
                  length * inner, c.pool());
      parts.elements.emplace_back(std::move(part));
      place += length;
    }
    check_equal(place, joined.shape()[at], "extents of what was joined, and of the gradient");
    c.set_output(0, std::move(parts));
  }
};

}  // namespace

std::vector<OpDef> sequence_gradient_ops() {
  return {{.name = "SequenceZeros",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"sequence", kSequences}},
           .outputs = {{"zeros", kSequences}},
           .infer = infer_like_sequence,
           .kernels = {kernel<SequenceZeros>()}},
          {.name = "SequenceAdd",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"A", kSequences}, {"B", kSequences}},
           .outputs = {{"C", kSequences}},
           .infer = infer_like_sequence,
           .kernels = {kernel<SequenceAdd>()},
           .gradient =
               [](GradientContext& g) {
                 return std::vector{g.grad_output(0), g.grad_output(0)};
               }},
          {.name = "SplitLikeSequence",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"sequence", kSequences}, {"joined", kFloats}},
           .outputs = {{"parts", kSequences}},
           .attributes = {{"axis", AttributeDef::Required{}}, {"new_axis", int64_t{0}}},
           .infer = infer_like_sequence,
           .kernels = {kernel<SplitLikeSequence>()}}};
}

}  // namespace treadle::ops
