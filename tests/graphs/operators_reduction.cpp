// Computes reductions, and operators that sort or sum along an axis.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

// Terms are rounded as an implementation may: in any order, with at least float32's precision.
double term(Call& c, double value, DType dtype) { return c.noise()(value, dtype == DType::float64 ? dtype : DType::float32, 4); }

// Calls f(indices of elements) for each output element, with the indices of the input elements from which it is computed.
template <typename F>
Array reduce_over(const Array& x, DType dtype, const std::vector<bool>& reduced, bool keepdims, F f) {
  Dims kept, full;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    full.push_back(reduced[d] ? 1 : x.dims[d]);
    if (!reduced[d] || keepdims) kept.push_back(full.back());
  }
  Array y(dtype, full);
  std::vector<std::vector<size_t>> groups(y.size());
  for (size_t k = 0; k < x.size(); ++k) {
    Dims at = coordinates(k, x.dims);
    for (size_t d = 0; d < at.size(); ++d)
      if (reduced[d]) at[d] = 0;
    groups[place(at, full)].push_back(k);
  }
  for (size_t k = 0; k < y.size(); ++k) f(y, k, groups[k]);
  y.dims = kept;
  return y;
}

std::vector<bool> axes_of(Call& c, const Array& x) {
  const bool given = c.has(1) && !c.ints_in(1).empty();
  if (!given && c.integer("noop_with_empty_axes", 0) != 0) return std::vector<bool>(x.dims.size(), false);
  std::vector<bool> reduced(x.dims.size(), !given);
  if (given)
    for (int64_t axis : c.ints_in(1)) reduced[static_cast<size_t>(normalize_axis(axis, x.rank()))] = true;
  return reduced;
}

// Computes g(sum of f(x)) along the reduced axes.
template <typename F, typename G>
Values reduce_sum(Call& c, F f, G g) {
  const Array& x = c.in(0);
  require(x.dtype != DType::boolean, "no sum of bool");
  return {reduce_over(x, x.dtype, axes_of(c, x), c.integer("keepdims", 1) != 0, [&](Array& y, size_t k, const std::vector<size_t>& group) {
    Total total(c.noise(), x.dtype);
    for (size_t at : group) total.add(f(x.number(at)));
    const double sum = total.value();
    require(x.floats() || std::fabs(sum) < 1e9, "an integer sum out of range");
    y.set(k, c.noise()(g(sum, static_cast<double>(group.size())), y.dtype, 2));
  })};
}

Values reduce_mean(Call& c) {
  require(c.in(0).floats(), "means of floats only");
  return reduce_sum(
      c, [](double x) { return x; },
      [](double sum, double n) {
        require(n > 0, "a mean of nothing");
        return sum / n;
      });
}

Values reduce_prod(Call& c) {
  const Array& x = c.in(0);
  require(x.dtype != DType::boolean, "no product of bool");
  return {reduce_over(x, x.dtype, axes_of(c, x), c.integer("keepdims", 1) != 0, [&](Array& y, size_t k, const std::vector<size_t>& group) {
    Total total(c.noise(), x.dtype, Total::Of::product);
    for (size_t at : group) total.add(x.number(at));
    const double product = total.value();
    require(x.floats() || std::fabs(product) < 1e9, "an integer product out of range");
    y.set(k, product);
  })};
}

Values reduce_extreme(Call& c, bool largest) {
  const Array& x = c.in(0);
  return {reduce_over(x, x.dtype, axes_of(c, x), c.integer("keepdims", 1) != 0, [&](Array& y, size_t k, const std::vector<size_t>& group) {
    require(!group.empty(), "an extreme of nothing");
    size_t best = group[0];
    for (size_t at : group) {
      if (std::isnan(x.number(best))) break;
      if (std::isnan(x.number(at)) || (largest ? x.number(at) > x.number(best) : x.number(at) < x.number(best))) best = at;
    }
    y.copy(k, x, best);
  })};
}

Values reduce_log_sum_exp(Call& c) {
  return reduce_sum(
      c, [](double x) { return std::exp(x); },
      [](double sum, double) {
        require(sum > 0, "the logarithm of nothing");
        return std::log(sum);
      });
}

Values arg_extreme(Call& c, bool largest) {
  const Array& x = c.in(0);
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", 0), x.rank()));
  std::vector<bool> reduced(x.dims.size(), false);
  reduced[axis] = true;
  const bool last = c.integer("select_last_index", 0) != 0;
  require_ordered(x);
  return {reduce_over(x, DType::int64, reduced, c.integer("keepdims", 1) != 0, [&](Array& y, size_t k, const std::vector<size_t>& group) {
    require(!group.empty(), "an extreme of nothing");
    size_t best = 0;
    for (size_t i = 1; i < group.size(); ++i) {
      const double a = x.number(group[i]), b = x.number(group[best]);
      if ((largest ? a > b : a < b) || (last && a == b)) best = i;
    }
    y.i[k] = static_cast<int64_t>(best);
  })};
}

// Returns, for each line along `axis`, the places of its elements.
std::vector<std::vector<size_t>> lines_along(const Array& x, size_t axis) {
  Dims heads = x.dims;
  heads[axis] = 1;
  std::vector<std::vector<size_t>> lines(static_cast<size_t>(count_of(heads)));
  for (size_t k = 0; k < lines.size(); ++k) {
    Dims at = coordinates(k, heads);
    for (at[axis] = 0; at[axis] < x.dims[axis]; ++at[axis]) lines[k].push_back(place(at, x.dims));
  }
  return lines;
}

Values softmax(Call& c, bool logarithm) {
  const Array& x = c.in(0);
  require(x.floats(), "floats were expected");
  Array y(x.dtype, x.dims);
  for (const auto& line : lines_along(x, static_cast<size_t>(normalize_axis(c.integer("axis", -1), x.rank())))) {
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t at : line) largest = std::max(largest, x.f[at]);
    Total total(c.noise(), x.dtype);
    for (size_t at : line) total.add(std::exp(x.f[at] - largest));
    const double sum = total.value();
    for (size_t at : line) {
      const double shifted = x.f[at] - largest;
      y.set(at, c.noise()(logarithm ? term(c, shifted, x.dtype) - std::log(sum) : std::exp(shifted) / sum, x.dtype, 4));
    }
  }
  return {std::move(y)};
}

Values cumulative_sum(Call& c) {
  const Array& x = c.in(0);
  require(x.dtype != DType::boolean && c.in(1).size() == 1, "CumSum's operands");
  Array y(x.dtype, x.dims);
  const bool exclusive = c.integer("exclusive", 0) != 0;
  for (auto line : lines_along(x, static_cast<size_t>(normalize_axis(c.in(1).i[0], x.rank())))) {
    if (c.integer("reverse", 0) != 0) std::reverse(line.begin(), line.end());
    double sum = 0;
    const bool rounds = x.floats() && c.noise().on();  // partial sums may be rounded, so that numbers cancel to 0
    for (size_t at : line) {
      if (exclusive) y.set(at, c.noise()(sum, x.dtype));
      sum += !rounds ? x.number(at) : c.noise().nearest() ? x.number(at) : term(c, x.number(at), x.dtype);
      if (rounds) sum = round_to(x.dtype == DType::float64 ? x.dtype : DType::float32, sum);
      if (!exclusive) y.set(at, c.noise()(sum, x.dtype));
    }
  }
  return {std::move(y)};
}

Values top_k(Call& c) {
  const Array& x = c.in(0);
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", -1), x.rank()));
  require(c.in(1).size() == 1 && c.in(1).i[0] >= 0 && c.in(1).i[0] <= x.dims[axis], "k");
  const auto k = static_cast<size_t>(c.in(1).i[0]);
  const bool largest = c.integer("largest", 1) != 0;
  require_ordered(x);
  Array values(x.dtype, [&] {
    Dims dims = x.dims;
    dims[axis] = static_cast<int64_t>(k);
    return dims;
  }());
  Array indices(DType::int64, values.dims);
  const auto from = lines_along(x, axis), to = lines_along(values, axis);
  for (size_t line = 0; line < from.size(); ++line) {
    std::vector<size_t> order(from[line].size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const double p = x.number(from[line][a]), q = x.number(from[line][b]);
      return largest ? p > q : p < q;
    });
    for (size_t i = 0; i < k; ++i) {
      values.copy(to[line][i], x, from[line][order[i]]);
      indices.i[to[line][i]] = static_cast<int64_t>(order[i]);
    }
  }
  return {std::move(values), std::move(indices)};
}

double same(double x) { return x; }
double plain_sum(double sum, double) { return sum; }

const OperatorTable kTable{
    {"ReduceSum", [](Call& c) { return reduce_sum(c, same, plain_sum); }},
    {"ReduceMean", reduce_mean},
    {"ReduceProd", reduce_prod},
    {"ReduceMax", [](Call& c) { return reduce_extreme(c, true); }},
    {"ReduceMin", [](Call& c) { return reduce_extreme(c, false); }},
    {"ReduceL1",
     [](Call& c) {
       return reduce_sum(
           c, [](double x) { return std::fabs(x); }, plain_sum);
     }},
    {"ReduceL2",
     [](Call& c) {
       return reduce_sum(
           c, [](double x) { return x * x; }, [](double sum, double) { return std::sqrt(sum); });
     }},
    {"ReduceSumSquare",
     [](Call& c) {
       return reduce_sum(
           c, [](double x) { return x * x; }, plain_sum);
     }},
    {"ReduceLogSumExp", reduce_log_sum_exp},
    {"ArgMax", [](Call& c) { return arg_extreme(c, true); }},
    {"ArgMin", [](Call& c) { return arg_extreme(c, false); }},
    {"Softmax", [](Call& c) { return softmax(c, false); }},
    {"LogSoftmax", [](Call& c) { return softmax(c, true); }},
    {"CumSum", cumulative_sum},
    {"TopK", top_k},
};

}  // namespace

const OperatorTable& reduction_operators() { return kTable; }

}  // namespace treadle::graphs
