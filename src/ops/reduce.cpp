// ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceSumSquare, ReduceL1, ReduceL2, ReduceLogSum, ReduceLogSumExp (ONNX, opset
// 28).
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/elementwise.h"
#include "ops/list.h"
#include "ops/reduce_loop.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Reductions. Integers are summed unsigned in 64 bits, where overflow wraps as the specification's types do.

template <typename T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, uint64_t, compute_type_t<T>>;

template <typename T>
struct Sum {
  using C = compute_type_t<T>;
  using Acc = Accumulator<T>;
  Acc start() const { return 0; }
  Acc step(Acc sum, C x) const { return sum + static_cast<Acc>(x); }
  Acc join(Acc a, Acc b) const { return a + b; }
  T finish(Acc sum, int64_t) const { return static_cast<T>(sum); }
};

template <typename T>
struct Mean : Sum<T> {
  T finish(Accumulator<T> sum, int64_t count) const {
    if constexpr (std::is_integral_v<T>) {
      if (count == 0) return 0;
      if constexpr (std::is_signed_v<T>)
        return static_cast<T>(static_cast<int64_t>(sum) / count);
      else
        return static_cast<T>(sum / static_cast<uint64_t>(count));
    } else {
      return static_cast<T>(sum / static_cast<Accumulator<T>>(count));
    }
  }
};

template <typename T>
struct Prod {
  using C = compute_type_t<T>;
  using Acc = Accumulator<T>;
  Acc start() const { return 1; }
  Acc step(Acc product, C x) const { return product * static_cast<Acc>(x); }
  Acc join(Acc a, Acc b) const { return a * b; }
  T finish(Acc product, int64_t) const { return static_cast<T>(product); }
};

template <typename T>
struct SumSquare : Sum<T> {
  using Acc = Accumulator<T>;
  Acc step(Acc sum, compute_type_t<T> x) const { return sum + static_cast<Acc>(x) * static_cast<Acc>(x); }
};

template <typename T>
T rounded_root(Accumulator<T> sum) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(std::sqrt(static_cast<double>(sum)));
  else
    return static_cast<T>(std::sqrt(sum));
}
template <typename T>
struct L2 : SumSquare<T> {
  T finish(Accumulator<T> sum, int64_t) const { return rounded_root<T>(sum); }
};

template <typename T>
struct L1 : Sum<T> {
  using Acc = Accumulator<T>;
  Acc step(Acc sum, compute_type_t<T> x) const {
    if constexpr (std::is_unsigned_v<T>)
      return sum + x;
    else if constexpr (std::is_integral_v<T>)
      return x < 0 ? sum - static_cast<Acc>(x) : sum + static_cast<Acc>(x);
    else
      return sum + std::fabs(x);
  }
};

template <typename T>
struct LogSum : Sum<T> {
  T finish(Accumulator<T> sum, int64_t) const {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
      return static_cast<T>(std::log(static_cast<double>(static_cast<int64_t>(sum))));
    else if constexpr (std::is_integral_v<T>)
      return static_cast<T>(std::log(static_cast<double>(sum)));
    else
      return static_cast<T>(std::log(sum));
  }
};

// log(sum exp(x)) with the largest element taken out, so that nothing overflows; it may grow on the way.
template <typename T>
struct LogSumExp {
  using C = std::conditional_t<std::is_integral_v<T>, double, compute_type_t<T>>;
  struct Acc {
    C max, sum;  // the sum of exp(x - max)
  };
  static constexpr C kNothing = -std::numeric_limits<C>::infinity();
  Acc start() const { return {kNothing, 0}; }
  Acc step(Acc acc, compute_type_t<T> element) const {
    C x = static_cast<C>(element);
    if (x <= acc.max) return {acc.max, acc.max == kNothing ? C{0} : acc.sum + (x == acc.max ? C{1} : std::exp(x - acc.max))};
    return {x, (acc.max == kNothing ? C{0} : acc.sum * std::exp(acc.max - x)) + C{1}};
  }
  Acc join(Acc a, Acc b) const {
    if (a.max < b.max) std::swap(a, b);
    if (b.max == kNothing) return a;
    return {a.max + (b.max != b.max ? b.max : C{0}), a.sum + b.sum * (a.max == b.max ? C{1} : std::exp(b.max - a.max))};
  }
  T finish(Acc acc, int64_t) const {
    if (acc.max == kNothing && std::is_integral_v<T>) return std::numeric_limits<T>::lowest();
    return static_cast<T>(acc.max + (acc.max == kNothing ? C{0} : std::log(acc.sum)));
  }
};

// An empty set's maximum is the lowest number there is. A NaN wins over every number, as in NumPy.
template <typename T>
struct Max {
  using Acc = compute_type_t<T>;
  Acc start() const {
    if constexpr (std::is_floating_point_v<Acc>)
      return -std::numeric_limits<Acc>::infinity();
    else
      return std::numeric_limits<Acc>::lowest();
  }
  Acc step(Acc best, Acc x) const { return x > best || x != x ? x : best; }
  Acc join(Acc a, Acc b) const { return step(a, b); }
  T finish(Acc best, int64_t) const { return static_cast<T>(best); }
};
template <typename T>
struct Min {
  using Acc = compute_type_t<T>;
  Acc start() const {
    if constexpr (std::is_floating_point_v<Acc>)
      return std::numeric_limits<Acc>::infinity();
    else
      return std::numeric_limits<Acc>::max();
  }
  Acc step(Acc best, Acc x) const { return x < best || x != x ? x : best; }
  Acc join(Acc a, Acc b) const { return step(a, b); }
  T finish(Acc best, int64_t) const { return static_cast<T>(best); }
};

std::array<bool, kMaxRank> reduced_axes(BindContext& c) {
  int rank = c.shape(0).rank();
  std::array<bool, kMaxRank> reduced{};
  int64_t count = c.has_input(1) ? c.value_count(1) : 0;
  if (count == 0) {
    reduced.fill(c.get_int("noop_with_empty_axes") == 0);
    return reduced;
  }
  for (int64_t i = 0; i < count; ++i) reduced[static_cast<size_t>(normalise_axis(c.value_at(1, i), rank))] = true;
  return reduced;
}

template <template <typename> class R>
struct Of {
  template <typename T>
  struct Kernel {
    ReducePlan plan;
    static Kernel bind(BindContext& c) { return {ReducePlan::make(c.shape(0), reduced_axes(c))}; }
    void run(RunContext& c) const { reduce(plan, R<T>{}, c.in<T>(0), c.out<T>(0), c.pool()); }
  };
};

// Inference.

/// The small values of a vector that is reduced to one: products and sums of shapes.
void propagate(InferContext& c, Dim (*fn)(const Dim& a, const Dim& b)) {
  auto values = c.known(0);
  if (!fn || !values || values->empty() || !is_integer(c.dtype(0)) || c.rank(0) != 1) return;
  Dim result = values->front();
  for (size_t i = 1; i < values->size(); ++i) result = fn(result, (*values)[i]);
  c.set_known(0, {result});
}

void infer(InferContext& c, Dim (*fn)(const Dim& a, const Dim& b)) {
  bool keepdims = c.get_int("keepdims", 1) != 0;
  bool noop = c.get_int("noop_with_empty_axes") != 0;
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  std::vector<bool> reduced(c.shape(0).size(), false);
  if (c.has_input(1)) {
    auto axes = c.known_ints(1);
    if (!axes) {
      // Which axes is not known, but perhaps how many.
      bool has_count = c.has_rank(1) && c.rank(1) == 1 && c.shape(1)[0].is_const() && !c.shape(1)[0].is_const(0);
      if (keepdims) return c.set_output(0, c.dtype(0), c.data_dependent_shape("reduced", c.rank(0)));
      if (!has_count) return c.set_output_dtype(0, c.dtype(0));
      return c.set_output(0, c.dtype(0),
                          c.data_dependent_shape("reduced", std::max(0, c.rank(0) - static_cast<int>(c.shape(1)[0].value()))));
    }
    for (int64_t axis : *axes) reduced[static_cast<size_t>(normalise_axis(axis, c.rank(0)))] = true;
    if (axes->empty() && !noop) reduced.assign(reduced.size(), true);
  } else if (!noop) {
    reduced.assign(reduced.size(), true);
  }
  SymbolicShape shape;
  for (size_t axis = 0; axis < reduced.size(); ++axis) {
    if (!reduced[axis])
      shape.push_back(c.shape(0)[axis]);
    else if (keepdims)
      shape.push_back(Dim(1));
  }
  c.set_output(0, c.dtype(0), std::move(shape));
  if (reduced.size() == 1 && reduced[0]) propagate(c, fn);
}

void infer_plain(InferContext& c) { infer(c, nullptr); }
void infer_sum(InferContext& c) {
  infer(c, [](const Dim& a, const Dim& b) { return a + b; });
}
void infer_prod(InferContext& c) {
  infer(c, [](const Dim& a, const Dim& b) { return a * b; });
}
void infer_max(InferContext& c) { infer(c, maximum); }
void infer_min(InferContext& c) { infer(c, minimum); }

Cost cost(const ShapeContext& c) {
  double written = static_cast<double>(c.output_shape(0).num_elements()) * static_cast<double>(bits_of(c.output_dtype(0))) / 8;
  return {static_cast<double>(c.num_elements(0)), c.size_bytes(0) + written};
}

// Axes were an attribute before opset 18 (13 for ReduceSum).
void axes_to_input(Graph& graph, NodeId id) {
  Attributes& attributes = graph.node(id).attributes;
  if (!attributes.has("axes")) return;
  std::vector<int64_t> axes = attributes.get_ints("axes");
  attributes.erase("axes");
  if (axes.empty()) return;
  graph.add_operand(id, graph.add_constant("axes", Tensor::vector<int64_t>(axes)));
}

OpDef reduction(std::string_view name, std::vector<int> since, int last_with_attribute, TypeSet types, void (*infer)(InferContext&),
                std::vector<KernelDef> kernels) {
  return {.name = name,
          .since = std::move(since),
          .upgrade = {{last_with_attribute, axes_to_input}},
          .inputs = {{"data", types, "T"}, {"axes", kInt64, "", Presence::optional}},
          .outputs = {{"reduced", types, "T"}},
          .attributes = {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{0}}},
          .infer = infer,
          .cost = cost,
          .kernels = std::move(kernels),
          .value_inputs = {1}};
}

template <template <typename> class R>
std::vector<KernelDef> number_kernels() {
  return typed<Of<R>::template Kernel, float, double, Float16, BFloat16, int64_t, int32_t, uint32_t, uint64_t>();
}

}  // namespace

std::vector<OpDef> reduce_ops() {
  constexpr TypeSet kTypes = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
  constexpr TypeSet kOrdered = kTypes | TypeSet{DType::int8, DType::uint8, DType::boolean};
  const std::vector<int> since = {1, 11, 13, 18}, logarithmic = {1, 11, 13, 18, 28}, ordered = {1, 11, 12, 13, 18, 20};
  return {
      reduction("ReduceSum", {1, 11, 13}, 11, kTypes, infer_sum, number_kernels<Sum>()),
      reduction("ReduceMean", since, 13, kTypes, infer_plain, number_kernels<Mean>()),
      reduction("ReduceProd", since, 13, kTypes, infer_prod, number_kernels<Prod>()),
      reduction("ReduceMax", ordered, 13, kOrdered, infer_max, number_kernels<Max>() + typed<Of<Max>::Kernel, int8_t, uint8_t, bool>()),
      reduction("ReduceMin", ordered, 13, kOrdered, infer_min, number_kernels<Min>() + typed<Of<Min>::Kernel, int8_t, uint8_t, bool>()),
      reduction("ReduceSumSquare", since, 13, kTypes, infer_plain, number_kernels<SumSquare>()),
      reduction("ReduceL1", since, 13, kTypes, infer_plain, number_kernels<L1>()),
      reduction("ReduceL2", since, 13, kTypes, infer_plain, number_kernels<L2>()),
      // Integers: opsets before 28 allowed them.
      reduction("ReduceLogSum", logarithmic, 13, kTypes, infer_plain, number_kernels<LogSum>()),
      reduction("ReduceLogSumExp", logarithmic, 13, kTypes, infer_plain, number_kernels<LogSumExp>()),
  };
}

}  // namespace treadle::ops
