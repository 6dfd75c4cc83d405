// Implements SequenceEmpty, SequenceConstruct, SequenceAt, SequenceInsert, SequenceErase, SequenceLength (opset 11).
#include <fmt/format.h>

#include <utility>

#include "graph/infer.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

/// Returns the type of a sequence's elements; what is not known of it is unset.
Type element_type(const InferContext& c, int input) {
  const Type& type = c.input(input);
  return type.kind == Type::Kind::sequence && type.element ? *type.element : Type{};
}

/// Returns the type of elements that come from either of two sequences: the common dtype, and the shape if it is the same for both.
Type common_type(const Type& a, const Type& b) {
  if (a.kind == Type::Kind::unknown || a.dtype == DType::undefined) return b;
  if (b.kind == Type::Kind::unknown || b.dtype == DType::undefined) return a;
  if (a.kind != b.kind || a.dtype != b.dtype)
    throw Error(ErrorCode::invalid_argument, fmt::format("a sequence of {} cannot hold {}", to_string(a), to_string(b)));
  Type result = a;
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) result.shape.reset();
  return result;
}

struct SequenceEmpty {
  static constexpr bool allocates = true;
  DType dtype;
  static SequenceEmpty bind(BindContext& c) { return {static_cast<DType>(c.get_int("dtype", static_cast<int64_t>(DType::float32)))}; }
  void run(RunContext& c) const { c.set_output(0, Sequence{dtype, {}}); }
};

void infer_empty(InferContext& c) {
  int64_t dtype = c.get_int("dtype", static_cast<int64_t>(DType::float32));
  if (dtype < 1 || dtype >= kNumDTypes) throw Error(ErrorCode::invalid_model, fmt::format("dtype = {} is no type of ONNX", dtype));
  c.set_output(0, Type::sequence(Type::tensor(static_cast<DType>(dtype))));
}

struct SequenceConstruct {
  static constexpr bool allocates = true;
  int num_inputs;
  static SequenceConstruct bind(BindContext& c) { return {c.num_inputs()}; }
  void run(RunContext& c) const {
    Sequence sequence{c.input(0).tensor().dtype(), {}};
    for (int i = 0; i < num_inputs; ++i) sequence.elements.push_back(c.input(i));
    c.set_output(0, std::move(sequence));
  }
};

// If the shapes of the elements differ, the element type of the sequence has no shape.
void infer_construct(InferContext& c) {
  Type element = c.input(0);
  for (int i = 1; i < c.num_inputs(); ++i) {
    element = common_type(element, c.input(i));
    if (element.shape && c.input(i).shape != element.shape) element.shape.reset();
  }
  c.set_output(0, Type::sequence(std::move(element)));
}

/// Reads the scalar `position`. @throws Error(invalid_argument) if it is outside [-count, count); insertions also allow `count`
size_t read_position(const Datum& datum, size_t count, bool insertion) {
  const Tensor& tensor = datum.tensor();
  if (tensor.num_elements() != 1)
    throw Error(ErrorCode::invalid_argument, fmt::format("position is {}, expected a scalar", describe(tensor)));
  int64_t position = tensor.dtype() == DType::int32 ? *tensor.data<int32_t>() : *tensor.data<int64_t>();
  auto limit = static_cast<int64_t>(count);
  if (position < -limit || position > limit || (position == limit && !insertion))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("position {} is outside [{}, {}{}", position, -limit, limit, insertion ? "]" : ")"));
  return static_cast<size_t>(position < 0 ? position + limit : position);
}

struct SequenceAt {
  static constexpr bool allocates = true;
  static SequenceAt bind(BindContext&) { return {}; }
  void run(RunContext& c) const {
    const Sequence& sequence = c.input(0).sequence();
    c.set_output(0, sequence.elements[read_position(c.input(1), sequence.elements.size(), false)]);
  }
};

void infer_at(InferContext& c) {
  Type element = element_type(c, 0);
  if (element.kind == Type::Kind::tensor && element.shape) {
    // The element type has symbols of one element, but other elements may have other extents. So non-constant extents are replaced by new
    // symbols.
    for (Dim& dim : *element.shape)
      if (!dim.is_const()) dim = c.data_dependent_dim("element");
  }
  c.set_output(0, std::move(element));
}

struct SequenceInsert {
  static constexpr bool allocates = true;
  bool has_position;
  static SequenceInsert bind(BindContext& c) { return {c.has_input(2)}; }
  void run(RunContext& c) const {
    Sequence sequence = c.input(0).sequence();
    const Tensor& tensor = c.input(1).tensor();
    if (!sequence.elements.empty() && sequence.element_dtype != DType::undefined && sequence.element_dtype != tensor.dtype())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a sequence of {} cannot hold {}", name_of(sequence.element_dtype), describe(tensor)));
    size_t position = has_position ? read_position(c.input(2), sequence.elements.size(), true) : sequence.elements.size();
    sequence.element_dtype = tensor.dtype();
    sequence.elements.insert(sequence.elements.begin() + static_cast<std::ptrdiff_t>(position), Datum(c.input(1)));
    c.set_output(0, std::move(sequence));
  }
};

void infer_insert(InferContext& c) {
  Type element = common_type(element_type(c, 0), c.input(1));
  // Only the dtype is certain: for an empty sequence the element type may be a guess, and other elements may have other extents.
  Type old = element_type(c, 0);
  if (!(old == c.input(1))) element.shape.reset();
  c.set_output(0, Type::sequence(std::move(element)));
}

struct SequenceErase {
  static constexpr bool allocates = true;
  bool has_position;
  static SequenceErase bind(BindContext& c) { return {c.has_input(1)}; }
  void run(RunContext& c) const {
    Sequence sequence = c.input(0).sequence();
    if (sequence.elements.empty()) throw Error(ErrorCode::invalid_argument, "nothing can be erased from an empty sequence");
    size_t position = has_position ? read_position(c.input(1), sequence.elements.size(), false) : sequence.elements.size() - 1;
    sequence.elements.erase(sequence.elements.begin() + static_cast<std::ptrdiff_t>(position));
    c.set_output(0, std::move(sequence));
  }
};

void infer_same(InferContext& c) { c.set_output(0, c.input(0)); }

struct SequenceLength {
  static constexpr bool allocates = true;
  static SequenceLength bind(BindContext&) { return {}; }
  void run(RunContext& c) const { c.set_output(0, Tensor::scalar(static_cast<int64_t>(c.input(0).sequence().elements.size()))); }
};

void infer_length(InferContext& c) {
  c.set_output(0, DType::int64, SymbolicShape{});
  c.set_known(0, {c.data_dependent_dim("length")});
}

/// Converts a position to one counted from the start, because the sequence in the gradient has one element more or less.
ValueId from_start(GradientContext& g, ValueId position, ValueId sequence) {
  ValueId at = position;
  if (g.type(at).dtype != DType::int64) at = g.op("Cast", {at}, {{"to", static_cast<int64_t>(DType::int64)}});
  const ValueId none = g.constant(Tensor::scalar<int64_t>(0));
  return g.op("Where", {g.op("Less", {at, none}), g.add(at, g.op("SequenceLength", {sequence})), at});
}

std::vector<ValueId> with_position(std::vector<ValueId> inputs, ValueId position) {
  if (position != kNoValue) inputs.push_back(position);
  return inputs;
}

Gradients sequence_construct_gradient(GradientContext& g) {
  Gradients result;
  for (size_t i = 0; i < g.node().inputs.size(); ++i)
    result.push_back(g.op("SequenceAt", {g.grad_output(0), g.constant(Tensor::scalar(static_cast<int64_t>(i)))}));
  return result;
}

Gradients sequence_at_gradient(GradientContext& g) {
  const ValueId sequence = g.input(0), position = from_start(g, g.input(1), sequence);
  const ValueId others = g.op("SequenceErase", {g.op("SequenceZeros", {sequence}, {}, "treadle"), position});
  return {g.op("SequenceInsert", {others, g.grad_output(0), position})};
}

// Without a position, SequenceInsert appends the element.
Gradients sequence_insert_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0);
  const ValueId position = g.input(2) == kNoValue ? kNoValue : from_start(g, g.input(2), g.input(0));
  const ValueId at = position == kNoValue ? g.constant(Tensor::scalar<int64_t>(-1)) : position;
  return {g.op("SequenceErase", with_position({dy}, position)), g.op("SequenceAt", {dy, at})};
}

Gradients sequence_erase_gradient(GradientContext& g) {
  const ValueId sequence = g.input(0);
  const ValueId position = g.input(1) == kNoValue ? kNoValue : from_start(g, g.input(1), sequence);
  const ValueId at = position == kNoValue ? g.constant(Tensor::scalar<int64_t>(-1)) : position;
  const ValueId erased = zeros_like(g, g.op("SequenceAt", {sequence, at}));
  return {g.op("SequenceInsert", with_position({g.grad_output(0), erased}, position))};
}

}  // namespace

std::vector<OpDef> sequence_ops() {
  return {
      {.name = "SequenceEmpty",
       .since = {11},
       .outputs = {{"output", kSequences}},
       .attributes = {{"dtype"}},
       .infer = infer_empty,
       .kernels = {kernel<SequenceEmpty>()}},
      {.name = "SequenceConstruct",
       .since = {11},
       .inputs = {{"inputs", kAllTensors, "T", Presence::variadic}},
       .outputs = {{"output_sequence", kSequences}},
       .infer = infer_construct,
       .kernels = {kernel<SequenceConstruct>()},
       .gradient = sequence_construct_gradient},
      {.name = "SequenceAt",
       .since = {11},
       .inputs = {{"input_sequence", kSequences}, {"position", kInt32Or64}},
       .outputs = {{"tensor", kAnything}},
       .infer = infer_at,
       .kernels = {kernel<SequenceAt>()},
       .gradient = sequence_at_gradient},
      {.name = "SequenceInsert",
       .since = {11},
       .inputs = {{"input_sequence", kSequences}, {"tensor", kAllTensors}, {"position", kInt32Or64, "", Presence::optional}},
       .outputs = {{"output_sequence", kSequences}},
       .infer = infer_insert,
       .kernels = {kernel<SequenceInsert>()},
       .gradient = sequence_insert_gradient},
      {.name = "SequenceErase",
       .since = {11},
       .inputs = {{"input_sequence", kSequences}, {"position", kInt32Or64, "", Presence::optional}},
       .outputs = {{"output_sequence", kSequences}},
       .infer = infer_same,
       .kernels = {kernel<SequenceErase>()},
       .gradient = sequence_erase_gradient},
      {.name = "SequenceLength",
       .since = {11},
       .inputs = {{"input_sequence", kSequences}},
       .outputs = {{"length", kInt64}},
       .infer = infer_length,
       .kernels = {kernel<SequenceLength>()}},
  };
}

}  // namespace treadle::ops
