// Implements operators whose output size depends on the elements: NonZero, Compress, Unique.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <complex>
#include <numeric>

#include "core/base/checked.h"
#include "core/values/dispatch.h"
#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/index_plans.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

constexpr TypeSet kWhole = kNumeric | kBool | kString | kComplex;
using ComparableTypes = concat_t<concat_t<NumericTypes, ComplexTypes>, TypeList<bool, std::string>>;

void infer_nonzero(InferContext& c) {
  const Dim rank = c.has_rank(0) ? Dim(c.rank(0)) : c.data_dependent_dim("rank");
  c.set_output(0, DType::int64,
               {rank, c.has_rank(0) ? data_dependent_dim(c, "nonzero", product(c.shape(0))) : c.data_dependent_dim("nonzero")});
}

template <typename T>
bool is_nonzero(const T& value) {
  if constexpr (std::is_same_v<T, std::string>)
    return !value.empty();
  else
    return !(value == T{});
}

struct NonZero {
  static constexpr bool allocates = true;
  DType dtype;
  Shape shape;
  static NonZero bind(BindContext& c) { return {c.dtype(0), c.shape(0)}; }
  void run(RunContext& c) const {
    visit_dtype<ComparableTypes>(dtype, [&]<typename T>() {
      const T* data = c.in<T>(0);
      const int64_t size = shape.num_elements(), count = std::count_if(data, data + size, is_nonzero<T>);
      const Tensor output = c.allocate_output(0, Shape{shape.rank(), count});
      auto* coordinates = output.data<int64_t>();
      int64_t column = 0;
      for (int64_t i = 0; i < size; ++i) {
        if (!is_nonzero(data[i])) continue;
        int64_t rest = i;
        for (int axis = shape.rank() - 1; axis >= 0; --axis) {
          coordinates[axis * count + column] = rest % shape[axis];
          rest /= shape[axis];
        }
        ++column;
      }
    });
  }
};

// Infers an output that contains some of the elements or, with `axis`, some of the slices.
void infer_along(InferContext& c, int output, std::string_view hint) {
  const bool has_axis = c.attributes().has("axis");
  if (!c.has_rank(0))
    return has_axis ? c.set_output_dtype(output, c.dtype(0)) : c.set_output(output, c.dtype(0), {c.data_dependent_dim(hint)});
  if (!has_axis) return c.set_output(output, c.dtype(0), {data_dependent_dim(c, hint, product(c.shape(0)))});
  SymbolicShape out = c.shape(0);
  Dim& extent = out[static_cast<size_t>(c.axis("axis", 0, c.rank(0)))];
  extent = data_dependent_dim(c, hint, extent);
  c.set_output(output, c.dtype(0), std::move(out));
}

void infer_compress(InferContext& c) { infer_along(c, 0, "compress"); }

struct Compress {
  static constexpr bool allocates = true;
  DType dtype;
  AlongAxis along;
  int64_t conditions;
  static Compress bind(BindContext& c) {
    const AlongAxis along = AlongAxis::bind(c);
    return {c.dtype(0), along, std::min(c.num_elements(1), along.extent)};
  }
  void run(RunContext& c) const {
    const bool* keep = c.in<bool>(1);
    const int64_t count = std::count(keep, keep + conditions, true);
    const Tensor output = c.allocate_output(0, along.with_extent(count));
    int64_t to = 0;
    for (int64_t i = 0; i < conditions; ++i) {
      if (!keep[i]) continue;
      int64_t run = 1;
      while (i + run < conditions && keep[i + run]) ++run;
      move_blocks(dtype, along.outer, run * along.inner, c.in<void>(0), i * along.inner, along.extent * along.inner, output.raw(),
                  to * along.inner, count * along.inner, c.pool());
      to += run, i += run;
    }
  }
};

void infer_unique(InferContext& c) {
  infer_along(c, 0, "unique");
  Dim count = c.data_dependent_dim("unique"), elements = c.data_dependent_dim("elements");
  if (c.has_rank(0)) {
    elements = c.attributes().has("axis") ? c.shape(0)[static_cast<size_t>(c.axis("axis", 0, c.rank(0)))] : product(c.shape(0));
    count = data_dependent_dim(c, "unique", elements);
  }
  c.set_output(1, DType::int64, {count});
  c.set_output(2, DType::int64, {elements});
  c.set_output(3, DType::int64, {count});
}

// Compares two numbers. Returns -1, 0 or 1. As in numpy.unique, NaN is larger than all numbers and equal to NaN.
template <typename T>
int compare(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>) {
    const int real = compare(a.real(), b.real());
    return real != 0 ? real : compare(a.imag(), b.imag());
  } else {
    if (a < b) return -1;
    if (b < a) return 1;
    if (a == b) return 0;
    return static_cast<int>(a != a) - static_cast<int>(b != b);
  }
}

// Returns a key for hashing. Numbers that compare equal have equal keys: all NaN share one key, and 0 and -0 share one.
template <typename T>
uint64_t key_of(T value) {
  if constexpr (std::is_integral_v<T>) return static_cast<uint64_t>(value);
  const auto wide = static_cast<double>(value);
  return wide != wide ? ~uint64_t{0} : std::bit_cast<uint64_t>(wide == 0 ? 0.0 : wide);
}

struct Unique {
  static constexpr bool allocates = true;
  DType dtype;
  AlongAxis along;
  bool sorted, has_output[4];

  static Unique bind(BindContext& c) {
    Unique k{};
    k.dtype = c.dtype(0), k.along = AlongAxis::bind(c);
    k.sorted = c.get_int("sorted", 1) != 0;
    for (int i = 0; i < 4; ++i) k.has_output[i] = c.has_output(i);
    c.request_scratch(static_cast<size_t>(checked_add(checked_mul(k.along.extent, 5), k.table_size())) * sizeof(int64_t));
    return k;
  }
  int64_t table_size() const {
    const bool single = along.outer == 1 && along.inner == 1;
    return single ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(checked_mul(along.extent, 2)) + 1)) : 0;
  }

  template <typename T>
  int compare_slices(const T* data, int64_t a, int64_t b) const {
    const int64_t extent = along.extent, inner = along.inner;
    for (int64_t o = 0; o < along.outer; ++o) {
      const T *x = data + (o * extent + a) * inner, *y = data + (o * extent + b) * inner;
      for (int64_t i = 0; i < inner; ++i)
        if (int result = compare(x[i], y[i])) return result;
    }
    return 0;
  }

  /// The groups of equal slices. `first` and `counts` have the first slice and the size of each group, `inverse` the group of each slice.
  struct Groups {
    int64_t *order, *inverse, *first, *counts;
    int64_t count = 0;
  };

  // Numbers the groups in ascending order of their values.
  template <typename T>
  void group_by_sorting(const T* data, Groups& g) const {
    const int64_t n = along.extent;
    std::iota(g.order, g.order + n, 0);
    std::sort(g.order, g.order + n, [&](int64_t a, int64_t b) {
      const int result = compare_slices(data, a, b);
      return result != 0 ? result < 0 : a < b;
    });
    g.count = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i == 0 || compare_slices(data, g.order[i - 1], g.order[i]) != 0) g.first[g.count] = g.order[i], g.counts[g.count++] = 0;
      g.inverse[g.order[i]] = g.count - 1;
      ++g.counts[g.count - 1];
    }
    std::iota(g.order, g.order + g.count, 0);
    if (!sorted) std::sort(g.order, g.order + g.count, [&](int64_t a, int64_t b) { return g.first[a] < g.first[b]; });
  }

  // Numbers the groups in the order of their first occurrence, by hashing. Only for single numbers as slices. Returns false if there are
  // unusually many collisions, which would make hashing slow.
  template <typename T>
  bool group_by_hashing(const T* data, int64_t* table, Groups& g) const {
    const int64_t n = along.extent, size = table_size();
    const auto mask = static_cast<uint64_t>(size - 1);
    const int shift = std::countl_zero(mask);
    std::fill_n(table, size, -1);
    int64_t steps_left = 16 * n + 1024;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t key = key_of(data[i]);
      uint64_t at = shift == 64 ? 0 : key * 0x9E3779B97F4A7C15U >> shift;
      while (table[at] >= 0 && key_of(data[g.first[table[at]]]) != key) {
        if (--steps_left < 0) return false;
        at = (at + 1) & mask;
      }
      if (table[at] < 0) g.first[g.count] = i, g.counts[g.count] = 0, table[at] = g.count++;
      g.inverse[i] = table[at];
      ++g.counts[table[at]];
    }
    std::iota(g.order, g.order + g.count, 0);
    if (sorted)
      std::sort(g.order, g.order + g.count, [&](int64_t a, int64_t b) { return compare(data[g.first[a]], data[g.first[b]]) < 0; });
    return true;
  }

  void run(RunContext& c) const {
    const int64_t n = along.extent;
    int64_t *scratch = c.scratch<int64_t>(), *place = scratch + 4 * n, *table = place + n;
    Groups g{scratch, scratch + n, scratch + 2 * n, scratch + 3 * n};
    visit_dtype<ComparableTypes>(dtype, [&]<typename T>() {
      const T* data = c.in<T>(0);
      constexpr bool kNumber =
          !std::is_same_v<T, std::string> && !std::is_same_v<T, std::complex<float>> && !std::is_same_v<T, std::complex<double>>;
      if constexpr (kNumber)
        if (along.outer == 1 && along.inner == 1 && group_by_hashing(data, table, g)) return;
      group_by_sorting(data, g);
    });
    // Writes the groups in the order of the output: order[p] is the group at position p, and place[g] is the position of group g.
    const int64_t groups = g.count, *order = g.order, *first = g.first;
    for (int64_t p = 0; p < groups; ++p) place[order[p]] = p;

    if (has_output[0]) {
      const Tensor y = c.allocate_output(0, along.with_extent(groups));
      for (int64_t p = 0; p < groups; ++p)
        move_blocks(dtype, along.outer, along.inner, c.in<void>(0), first[order[p]] * along.inner, n * along.inner, y.raw(),
                    p * along.inner, groups * along.inner, nullptr);
    }
    auto write = [&](int output, int64_t count, auto value) {
      if (!has_output[output]) return;
      const Tensor made = c.allocate_output(output, Shape{count});
      for (int64_t i = 0; i < count; ++i) made.data<int64_t>()[i] = value(i);
    };
    write(1, groups, [&](int64_t p) { return first[order[p]]; });
    write(2, n, [&](int64_t i) { return place[g.inverse[i]]; });
    write(3, groups, [&](int64_t p) { return g.counts[order[p]]; });
  }
};

// Compress is a Gather at the positions where the condition is true, and is differentiated as such.
Gradients compress_gradient(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0);
  const ValueId places = g.op("Reshape", {g.op("NonZero", {g.input(1)}), g.ints({-1})});
  if (g.attributes().has("axis"))
    return {g.op("GatherGrad", {dy, places, g.shape_of(x)}, {{"axis", g.attributes().get_int("axis", 0)}}, "treadle")};
  const ValueId size = g.op("Reshape", {g.op("Size", {x}), g.ints({1})});
  return {g.reshape_like(g.op("GatherGrad", {dy, places, size}, {{"axis", int64_t{0}}}, "treadle"), x)};
}

// Unique is a Gather of the first occurrences, and is differentiated as such.
Gradients unique_gradient(GradientContext& g) {
  const ValueId x = g.input(0), dy = g.grad_output(0), first = require_output(g, 1);
  if (g.attributes().has("axis"))
    return {g.op("GatherGrad", {dy, first, g.shape_of(x)}, {{"axis", g.attributes().get_int("axis", 0)}}, "treadle")};
  const ValueId size = g.op("Reshape", {g.op("Size", {x}), g.ints({1})});
  return {g.reshape_like(g.op("GatherGrad", {dy, first, size}, {{"axis", int64_t{0}}}, "treadle"), x)};
}

}  // namespace

std::vector<OpDef> nonzero_ops() {
  using None = AttributeDef::NoDefault;
  return {
      {.name = "NonZero",
       .since = {9, 13},
       .inputs = {{"X", kWhole}},
       .outputs = {{"Y", kInt64}},
       .infer = infer_nonzero,
       .kernels = {kernel<NonZero>()}},
      {.name = "Compress",
       .since = {9, 11, 28},
       .inputs = {{"input", kWhole, "T"}, {"condition", kBool, "", Presence::required, of_rank(1)}},
       .outputs = {{"output", kWhole, "T"}},
       .attributes = {{"axis", None{}}},
       .infer = infer_compress,
       .kernels = {kernel<Compress>()},
       .gradient = compress_gradient},
      {.name = "Unique",
       .since = {11, 28},
       .inputs = {{"X", kWhole, "T"}},
       .outputs = {{"Y", kWhole, "T"},
                   {"indices", kInt64, "", Presence::optional},
                   {"inverse_indices", kInt64, "", Presence::optional},
                   {"counts", kInt64, "", Presence::optional}},
       .attributes = {{"axis", None{}}, {"sorted", int64_t{1}}},
       .infer = infer_unique,
       .kernels = {kernel<Unique>()},
       .gradient = unique_gradient},
  };
}

}  // namespace treadle::ops
