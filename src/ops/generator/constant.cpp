// Implements Constant, ConstantOfShape, Range, EyeLike.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "kernels/movement/copy.h"
#include "ops/checks.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Constant. Each of its attributes ("value", "value_int" ...) becomes a constant of the graph.

Tensor dense(const SparseTensor& sparse) {
  if (sparse.format != SparseTensor::Format::coo) throw Error(ErrorCode::not_implemented, "sparse_value in another format than COO");
  Tensor result(sparse.values.dtype(), sparse.dense_shape);
  if (result.dtype() != DType::string) std::memset(result.raw(), 0, result.size_bytes());
  const bool linear = sparse.indices.shape().rank() == 1;
  const int rank = sparse.dense_shape.rank();
  const int64_t* indices = sparse.indices.data<int64_t>();
  const int64_t count = sparse.values.num_elements();
  if (sparse.indices.num_elements() != (linear ? count : checked_mul(count, rank)))
    throw Error(ErrorCode::invalid_model, fmt::format("{} sparse values have {} indices", count, sparse.indices.num_elements()));
  visit_access(result.dtype(), [&]<typename Access>() {
    for (int64_t i = 0; i < count; ++i) {
      int64_t at = linear ? indices[i] : 0;
      for (int axis = 0; !linear && axis < rank; ++axis) {
        const int64_t index = indices[i * rank + axis];
        if (index < 0 || index >= sparse.dense_shape[axis])
          throw Error(ErrorCode::invalid_model, fmt::format("sparse index {} is outside [0, {})", index, sparse.dense_shape[axis]));
        at = at * sparse.dense_shape[axis] + index;
      }
      if (at < 0 || at >= result.num_elements())
        throw Error(ErrorCode::invalid_model, fmt::format("sparse index {} is outside [0, {})", at, result.num_elements()));
      Access::copy(result.raw(), at, sparse.values.raw(), i);
    }
  });
  return result;
}

Datum constant_content(const Attributes& attributes) {
  const auto holding = std::count_if(attributes.begin(), attributes.end(),
                                     [](const auto& attribute) { return attribute.first.find("value") != std::string::npos; });
  if (holding > 1) throw Error(ErrorCode::invalid_model, fmt::format("{} attributes hold a value; ONNX expects one", holding));
  if (const Attribute* value = attributes.find("value")) {
    if (const auto* datum = std::get_if<Datum>(value)) return *datum;
  }
  if (const Attribute* value = attributes.find("sparse_value")) {
    // The loader has already made sparse attributes dense.
    if (const auto* datum = std::get_if<Datum>(value)) return datum->is_tensor() ? *datum : Datum(dense(datum->sparse_tensor()));
  }
  if (attributes.has("value_int")) return Tensor::scalar<int64_t>(attributes.get_int("value_int"));
  if (attributes.has("value_float")) return Tensor::scalar<float>(attributes.get_float("value_float"));
  if (attributes.has("value_string")) {
    const std::string text(attributes.get_string("value_string"));
    return Tensor::strings(Shape{}, {&text, 1});
  }
  if (attributes.has("value_ints")) return Tensor::vector<int64_t>(attributes.get_ints("value_ints"));
  if (attributes.has("value_floats")) return Tensor::vector<float>(attributes.get_floats("value_floats"));
  if (attributes.has("value_strings")) {
    const std::vector<std::string>& texts = attributes.get_strings("value_strings");
    return Tensor::strings(Shape{static_cast<int64_t>(texts.size())}, texts);
  }
  throw Error(ErrorCode::invalid_model, "none of the attributes that hold a value is present");
}

void infer_constant(InferContext& c) { c.set_output(0, Type::of(constant_content(c.attributes()))); }

void to_constant(Graph& graph, NodeId id) {
  const ValueId output = graph.node(id).outputs[0];
  const ValueId constant = graph.add_constant(graph.value(output).name, constant_content(graph.node(id).attributes));
  graph.replace_uses(output, constant);
  const std::string name = graph.value(output).name;
  graph.rename_value(output, "replaced");
  graph.rename_value(constant, name);
  graph.remove_node(id);
}

// One element of any dtype, stored as bytes.
struct Element {
  DType dtype = DType::float32;
  alignas(16) std::array<std::byte, 16> bytes{};
};

// Returns the number 1 of a dtype.
Element one_of(DType dtype) {
  Element element{dtype, {}};
  if (dtype == DType::boolean)
    element.bytes[0] = std::byte{1};
  else
    visit_dtype<NumericTypes>(dtype, [&]<typename T>() {
      const T one = static_cast<T>(1);
      std::memcpy(element.bytes.data(), &one, sizeof(T));
    });
  return element;
}

void fill_with(const Element& element, void* dst, int64_t count, ThreadPool* pool) {
  if (has_plain_bytes(element.dtype))
    return kernels::fill(static_cast<size_t>(element_bytes(element.dtype)), element.bytes.data(), dst, count, pool);
  visit_access(element.dtype, [&]<typename Access>() {
    for (int64_t i = 0; i < count; ++i) Access::copy(dst, i, element.bytes.data(), 0);
  });
}

// ConstantOfShape. It fills the output with the only element of `value`, or with float zeros if the attribute is absent.

Element fill_value(const Attributes& attributes) {
  if (!attributes.has("value")) return {};
  const Tensor& value = attributes.get_tensor("value");
  if (value.num_elements() != 1 || value.dtype() == DType::string)
    throw Error(ErrorCode::invalid_argument, fmt::format("value is {}; expected one number", describe(value)));
  Element element{value.dtype(), {}};
  std::memcpy(element.bytes.data(), value.raw(), value.size_bytes());
  return element;
}

void infer_constant_of_shape(InferContext& c) {
  const Element value = fill_value(c.attributes());
  const auto wanted = c.known(0);
  if (!wanted) {
    auto rank = known_length(c, 0);
    if (!rank) return c.set_output_dtype(0, value.dtype);
    return c.set_output(0, value.dtype, c.data_dependent_shape("fill", static_cast<int>(*rank)));
  }
  SymbolicShape out(*wanted);
  for (const Dim& extent : out)
    if (extent.is_const() && extent.value() < 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("the shape {} has a negative extent", to_string(out)));
  const Dim count = product(out);
  if (count.is_const() && count.value() <= kMaxKnownValues) {
    std::optional<int64_t> number;
    if (value.dtype == DType::int64) std::memcpy(&number.emplace(), value.bytes.data(), sizeof(int64_t));
    if (value.dtype == DType::int32) {
      int32_t narrow;
      std::memcpy(&narrow, value.bytes.data(), sizeof narrow);
      number = narrow;
    }
    if (value.dtype == DType::boolean) number = static_cast<int64_t>(value.bytes[0]);
    if (number) c.set_known(0, KnownValues(static_cast<size_t>(count.value()), Dim(*number)));
  }
  c.set_output(0, value.dtype, std::move(out));
}

struct ConstantOfShape {
  Element value;
  int64_t count;
  static ConstantOfShape bind(BindContext& c) { return {fill_value(c.node().attributes), c.output_shape(0).num_elements()}; }
  void run(RunContext& c) const { fill_with(value, c.out<void>(0), count, c.pool()); }
};

// Range. Its output has max(ceil((limit - start) / delta), 0) elements.

template <typename T>
int64_t range_length(T start, T limit, T delta) {
  if (delta == T{0}) throw Error(ErrorCode::invalid_argument, "delta = 0");
  if constexpr (std::is_integral_v<T>) {
    if (delta > 0 ? limit <= start : limit >= start) return 0;
    // Uses unsigned integers, because the difference of two signed numbers may not fit into the signed type.
    const auto distance = delta > 0 ? static_cast<uint64_t>(limit) - static_cast<uint64_t>(start)
                                    : static_cast<uint64_t>(start) - static_cast<uint64_t>(limit);
    const uint64_t step = delta > 0 ? static_cast<uint64_t>(delta) : uint64_t{0} - static_cast<uint64_t>(delta);
    const uint64_t length = (distance - 1) / step + 1;
    if (length > uint64_t{1} << 62) throw Error(ErrorCode::resource_exhausted, fmt::format("a range of {} elements", length));
    return static_cast<int64_t>(length);
  } else {
    using Compute = compute_type_t<T>;
    const double length =
        std::ceil(static_cast<double>((static_cast<Compute>(limit) - static_cast<Compute>(start)) / static_cast<Compute>(delta)));
    if (!(length < 4e18)) throw Error(ErrorCode::invalid_argument, fmt::format("a range of {} elements", length));
    return length > 0 ? static_cast<int64_t>(length) : 0;
  }
}

using RangeTypes = TypeList<float, double, Float16, BFloat16, int16_t, int32_t, int64_t>;

void infer_range(InferContext& c) {
  const DType dtype = c.dtype(0);
  check_one_element(c, 0, "start"), check_one_element(c, 1, "limit"), check_one_element(c, 2, "delta");
  const auto start = c.known(0), limit = c.known(1), delta = c.known(2);
  if (start && limit && delta && start->size() == 1 && limit->size() == 1 && delta->size() == 1) {
    const Dim first = (*start)[0], last = (*limit)[0], step = (*delta)[0];
    if (first.is_const() && last.is_const() && step.is_const()) {
      const int64_t length = range_length(first.value(), last.value(), step.value());
      c.set_output(0, dtype, {length});
      if (length > kMaxKnownValues) return;
      KnownValues values;
      for (int64_t i = 0; i < length; ++i) values.emplace_back(first.value() + i * step.value());
      return c.set_known(0, std::move(values));
    }
    if (step.is_const() && step.value() > 0) return c.set_output(0, dtype, {ceil_div(at_least_zero(last - first), step)});
    if (step.is_const() && step.value() < 0) return c.set_output(0, dtype, {ceil_div(at_least_zero(first - last), Dim(0) - step)});
  }
  const Tensor *a = c.constant(0), *b = c.constant(1), *d = c.constant(2);
  if (a && b && d && a->num_elements() == 1 && b->num_elements() == 1 && d->num_elements() == 1) {
    return c.set_output(
        0, dtype,
        {visit_dtype<RangeTypes>(dtype, [&]<typename T>() { return range_length(*a->data<T>(), *b->data<T>(), *d->data<T>()); })});
  }
  c.set_output(0, dtype, c.data_dependent_shape("range", 1));
}

template <typename T>
struct Range {
  T start, delta;
  int64_t length;
  static Range bind(BindContext& c) { return {*c.value(0)->data<T>(), *c.value(2)->data<T>(), c.output_shape(0)[0]}; }
  void run(RunContext& c) const {
    using Compute = compute_type_t<T>;
    const auto first = static_cast<Compute>(start), step = static_cast<Compute>(delta);
    for (int64_t i = 0; i < length; ++i) c.out<T>(0)[i] = static_cast<T>(first + static_cast<Compute>(i) * step);
  }
};

// EyeLike. Its output is a matrix with ones on diagonal `k` and zeros elsewhere.

DType eye_dtype(const Attributes& attributes, DType input) { return dtype_attribute(attributes, "dtype", input); }

void infer_eye_like(InferContext& c) {
  if (c.has_rank(0) && c.rank(0) != 2) throw Error(ErrorCode::invalid_argument, fmt::format("the input is of rank {}, not 2", c.rank(0)));
  Type type = c.input(0);
  type.kind = Type::Kind::tensor;
  type.dtype = eye_dtype(c.attributes(), c.dtype(0));
  c.set_output(0, std::move(type));
}

struct EyeLike {
  Element one;
  int64_t rows, columns, k;
  static EyeLike bind(BindContext& c) { return {one_of(c.output_dtype(0)), c.shape(0)[0], c.shape(0)[1], c.get_int("k")}; }
  void run(RunContext& c) const {
    std::memset(c.out<void>(0), 0, size_bytes(one.dtype, rows * columns));
    visit_access(one.dtype, [&]<typename Access>() {
      for (int64_t row = 0; row < rows; ++row)
        if (row + k >= 0 && row + k < columns) Access::copy(c.out<void>(0), row * columns + row + k, one.bytes.data(), 0);
    });
  }
};

constexpr TypeSet kEyeTypes = kNumeric | kBool;
constexpr TypeSet kFillTypes = kNumeric | kBool | kFloat8 | kSubByte;
constexpr TypeSet kRangeTypes = kFloats | TypeSet{DType::int16, DType::int32, DType::int64};

// Differentiates y_i = start + i delta.
Gradients range_gradient(GradientContext& g) {
  const ValueId dy = g.grad_output(0), one = g.scalar(1, dy), zero = g.scalar(0, dy);
  const ValueId length = g.op("Cast", {g.op("Size", {dy})}, {{"to", static_cast<int64_t>(g.type(dy).dtype)}});
  auto sum = [&](ValueId value) { return g.op("ReduceSum", {value}, {{"keepdims", int64_t{0}}}); };
  Gradients result{g.reshape_like(sum(dy), g.input(0)), kNoValue, kNoValue};
  if (g.wants(2)) result[2] = g.reshape_like(sum(g.mul(dy, g.op("Range", {zero, length, one}))), g.input(2));
  return result;
}

}  // namespace

std::vector<OpDef> constant_ops() {
  using None = AttributeDef::NoDefault;
  return {
      {.name = "Constant",
       .since = {1, 9, 11, 12, 13, 19, 21, 23, 24, 25},
       .outputs = {{"output", kAllTensors}},
       .attributes = {{"value", None{}},
                      {"sparse_value", None{}},
                      {"value_int", None{}},
                      {"value_ints", None{}},
                      {"value_float", None{}},
                      {"value_floats", None{}},
                      {"value_string", None{}},
                      {"value_strings", None{}}},
       .infer = infer_constant,
       .decompose = to_constant},
      {.name = "ConstantOfShape",
       .since = {9, 20, 21, 23, 24, 25},
       .inputs = {{"input", kInt64, "", Presence::required, of_rank(1)}},
       .outputs = {{"output", kFillTypes}},
       .attributes = {{"value", None{}}},
       .infer = infer_constant_of_shape,
       .kernels = {kernel<ConstantOfShape>()},
       .value_inputs = {0}},
      {.name = "Range",
       .since = {11, 27},
       .inputs = {{"start", kRangeTypes, "T"}, {"limit", kRangeTypes, "T"}, {"delta", kRangeTypes, "T"}},
       .outputs = {{"output", kRangeTypes, "T"}},
       .attributes = {{"stash_type", int64_t{1}}},
       .infer = infer_range,
       .kernels = typed<Range, float, double, Float16, BFloat16, int16_t, int32_t, int64_t>(),
       .gradient = range_gradient,
       .value_inputs = {0, 1, 2}},
      {.name = "EyeLike",
       .since = {9, 22},
       .inputs = {{"input", kEyeTypes}},
       .outputs = {{"output", kEyeTypes}},
       .attributes = {{"dtype", None{}, dtype_among(kNumeric | kBool)}, {"k", int64_t{0}}},
       .infer = infer_eye_like,
       .kernels = {kernel<EyeLike>()},
       .gradient = gradients::none},
  };
}

}  // namespace treadle::ops
