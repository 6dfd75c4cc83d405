// Implements SplitToSequence (opset 11, 24), ConcatFromSequence (opset 11).
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/base/checked.h"
#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

std::vector<int64_t> integers(const Tensor& tensor) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < tensor.num_elements(); ++i)
    values.push_back(tensor.dtype() == DType::int32 ? tensor.data<int32_t>()[i] : tensor.data<int64_t>()[i]);
  return values;
}

struct SplitToSequence {
  static constexpr bool allocates = true;
  int axis;
  bool has_split, keep;

  static SplitToSequence bind(BindContext& c) {
    return {c.axis("axis", 0, c.shape(0).rank()), c.has_input(1), c.has_input(1) || c.get_int("keepdims", 1) != 0};
  }

  std::vector<int64_t> lengths(RunContext& c, int64_t extent) const {
    if (!has_split) return std::vector<int64_t>(static_cast<size_t>(extent), 1);
    const Tensor& split = c.input(1).tensor();
    std::vector<int64_t> given = integers(split);
    if (split.shape().rank() == 0) {
      int64_t chunk = given[0];
      if (chunk <= 0) throw Error(ErrorCode::invalid_argument, fmt::format("split = {}; expected a positive length", chunk));
      std::vector<int64_t> parts;
      for (int64_t left = extent; left > 0; left -= chunk) parts.push_back(std::min(left, chunk));
      return parts;
    }
    int64_t sum = 0;
    for (int64_t part : given) {
      if (part < 0) throw Error(ErrorCode::invalid_argument, fmt::format("split holds {}", part));
      sum = checked_add(sum, part);
    }
    if (sum != extent)
      throw Error(ErrorCode::invalid_argument, fmt::format("the lengths in split sum up to {}, the axis has {}", sum, extent));
    return given;
  }

  void run(RunContext& c) const {
    const Tensor& x = c.input(0).tensor();
    const Shape& shape = x.shape();
    int64_t outer = shape.product(0, axis), inner = shape.product(axis + 1, shape.rank()), at = 0;
    Sequence sequence{x.dtype(), {}};
    for (int64_t length : lengths(c, shape[axis])) {
      Shape part = shape;
      part[axis] = length;
      if (!keep) part.erase(axis);
      Tensor piece(x.dtype(), part);
      move_blocks(x.dtype(), outer, length * inner, x.raw(), at * inner, shape[axis] * inner, piece.raw(), 0, length * inner, c.pool());
      at += length;
      sequence.elements.emplace_back(std::move(piece));
    }
    c.set_output(0, std::move(sequence));
  }
};

void infer_split(InferContext& c) {
  Type element = Type::tensor(c.dtype(0));
  if (c.has_rank(0)) {
    element.shape = c.shape(0);
    int axis = c.axis("axis", 0, c.rank(0));
    if (c.has_input(1))
      (*element.shape)[static_cast<size_t>(axis)] = c.data_dependent_dim("part");
    else if (c.get_int("keepdims", 1) != 0)
      (*element.shape)[static_cast<size_t>(axis)] = 1;
    else
      element.shape->erase(element.shape->begin() + axis);
  }
  c.set_output(0, Type::sequence(std::move(element)));
}

struct ConcatFromSequence {
  static constexpr bool allocates = true;
  int64_t axis;
  bool new_axis;

  static ConcatFromSequence bind(BindContext& c) { return {c.get_int("axis"), c.get_int("new_axis", 0) != 0}; }

  void run(RunContext& c) const {
    const Sequence& sequence = c.input(0).sequence();
    if (sequence.elements.empty()) throw Error(ErrorCode::invalid_argument, "an empty sequence cannot be joined: its shape is not known");
    const Tensor& first = sequence.elements[0].tensor();
    Shape shape = first.shape();
    int at = normalize_axis(axis, shape.rank() + (new_axis ? 1 : 0));
    if (new_axis) shape.insert(at, 0);
    shape[at] = 0;
    for (const Datum& element : sequence.elements) {
      const Tensor& tensor = element.tensor();
      Shape own = tensor.shape();
      bool fits = tensor.dtype() == first.dtype() && own.rank() == first.shape().rank();
      if (fits && new_axis) own.insert(at, 1);
      for (int i = 0; fits && i < shape.rank(); ++i) fits = i == at || own[i] == shape[i];
      if (!fits)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the elements {} and {} cannot be joined along axis {}", describe(first), describe(tensor), at));
      shape[at] = checked_add(shape[at], own[at]);
    }
    Tensor out = c.allocate_output(0, shape);
    int64_t outer = shape.product(0, at), inner = shape.product(at + 1, shape.rank()), place = 0;
    for (const Datum& element : sequence.elements) {
      Tensor tensor = element.tensor().contiguous();
      int64_t length = new_axis ? inner : tensor.shape()[at] * inner;
      move_blocks(tensor.dtype(), outer, length, tensor.raw(), 0, length, out.raw(), place, shape[at] * inner, c.pool());
      place += length;
    }
  }
};

void infer_concat(InferContext& c) {
  const Type& sequence = c.input(0);
  if (sequence.kind != Type::Kind::sequence || !sequence.element) return;
  const Type& element = *sequence.element;
  if (!element.shape) return c.set_output_dtype(0, element.dtype);
  SymbolicShape shape = *element.shape;
  bool new_axis = c.get_int("new_axis", 0) != 0;
  int axis = normalize_axis(c.get_int("axis"), static_cast<int>(shape.size()) + (new_axis ? 1 : 0));
  for (Dim& dim : shape)
    if (!dim.is_const()) dim = c.data_dependent_dim("element");
  if (new_axis) shape.insert(shape.begin() + axis, Dim(0));
  shape[static_cast<size_t>(axis)] = c.data_dependent_dim("joined");
  c.set_output(0, element.dtype, std::move(shape));
}

Gradients split_to_sequence_gradient(GradientContext& g) {
  const bool drops_axis = g.input(1) == kNoValue && g.attributes().get_int("keepdims", 1) == 0;
  const ValueId joined =
      g.op("ConcatFromSequence", {g.grad_output(0)}, {{"axis", g.attributes().get_int("axis", 0)}, {"new_axis", int64_t{drops_axis}}});
  return {g.reshape_like(joined, g.input(0))};
}

Gradients concat_from_sequence_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  return {g.op("SplitLikeSequence", {g.input(0), g.grad_output(0)}, attributes, "treadle")};
}

}  // namespace

std::vector<OpDef> sequence_join_ops() {
  return {
      {.name = "SplitToSequence",
       .since = {11, 24},
       .inputs = {{"input", kAllTensors}, {"split", kInt32Or64, "", Presence::optional}},
       .outputs = {{"output_sequence", kSequences}},
       .attributes = {{"axis", int64_t{0}}, {"keepdims", int64_t{1}}},
       .infer = infer_split,
       .kernels = {kernel<SplitToSequence>()},
       .gradient = split_to_sequence_gradient},
      {.name = "ConcatFromSequence",
       .since = {11},
       .inputs = {{"input_sequence", kSequences}},
       .outputs = {{"concat_result", kAllTensors}},
       .attributes = {{"axis", AttributeDef::Required{}}, {"new_axis", int64_t{0}}},
       .infer = infer_concat,
       .kernels = {kernel<ConcatFromSequence>()},
       .gradient = concat_from_sequence_gradient},
  };
}

}  // namespace treadle::ops
