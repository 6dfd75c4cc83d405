// Operators that read or write elements whose places, or whose number, other data give.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

using Values = std::vector<Value>;

// The elements to which one index tuple of GatherND or ScatterND refers.
struct Tuple {
  Dims begin;    // coordinates of the first element: those of the batch axes, then the tuple
  size_t inner;  // number of elements that follow each other without a gap
};

Tuple tuple_at(const Array& x, const Array& indices, size_t number, size_t batch_dims) {
  const auto length = static_cast<size_t>(indices.dims.back());
  Tuple result;
  const Dims heads(indices.dims.begin(), indices.dims.end() - 1);
  const Dims at = coordinates(number, heads);
  result.begin.assign(at.begin(), at.begin() + static_cast<int64_t>(batch_dims));
  for (size_t k = 0; k < length; ++k) {
    const int64_t extent = x.dims[batch_dims + k], index = indices.i[number * length + k];
    require(index >= -extent && index < extent, "an index out of range");
    result.begin.push_back(index < 0 ? index + extent : index);
  }
  result.inner = 1;
  for (size_t d = result.begin.size(); d < x.dims.size(); ++d) result.inner *= static_cast<size_t>(x.dims[d]);
  return result;
}

size_t offset_of(const Tuple& tuple, const Array& x) {
  Dims at = tuple.begin;
  at.resize(x.dims.size(), 0);
  return place(at, x.dims);
}

size_t num_tuples(const Array& indices) { return static_cast<size_t>(count_of(Dims(indices.dims.begin(), indices.dims.end() - 1))); }

Values gather_nd(Call& c) {
  const Array &x = c.in(0), &indices = c.in(1);
  const auto batch = static_cast<size_t>(c.integer("batch_dims", 0));
  require(indices.dtype == DType::int64 && indices.rank() > 0 && x.rank() > 0, "GatherND's operands");
  require(batch < x.dims.size() && batch < indices.dims.size(), "batch_dims");
  const auto length = static_cast<size_t>(indices.dims.back());
  require(length >= 1 && length <= x.dims.size() - batch, "the length of an index");
  Dims dims(indices.dims.begin(), indices.dims.end() - 1);
  for (size_t d = 0; d < batch; ++d) require(x.dims[d] == indices.dims[d], "GatherND's batch");
  dims.insert(dims.end(), x.dims.begin() + static_cast<int64_t>(batch + length), x.dims.end());
  Array y(x.dtype, dims);
  for (size_t n = 0; n < num_tuples(indices); ++n) {
    const Tuple tuple = tuple_at(x, indices, n, batch);
    for (size_t k = 0; k < tuple.inner; ++k) y.copy(n * tuple.inner + k, x, offset_of(tuple, x) + k);
  }
  return {std::move(y)};
}

Values scatter_nd(Call& c) {
  const Array &indices = c.in(1), &updates = c.in(2);
  Array y = c.in(0);
  const std::string how = c.text("reduction", "none");
  require(indices.dtype == DType::int64 && indices.rank() > 0 && y.rank() > 0 && updates.dtype == y.dtype, "ScatterND's operands");
  const auto length = static_cast<size_t>(indices.dims.back());
  require(length >= 1 && length <= y.dims.size(), "the length of an index");
  require(how == "none" || (y.dtype != DType::boolean && !y.texts()), "a reduction of numbers");
  if (how == "max" || how == "min") require_ordered(y), require_ordered(updates);
  Dims dims(indices.dims.begin(), indices.dims.end() - 1);
  dims.insert(dims.end(), y.dims.begin() + static_cast<int64_t>(length), y.dims.end());
  require(updates.dims == dims, "the shape of the updates");
  std::map<size_t, int> written;
  for (size_t n = 0; n < num_tuples(indices); ++n) {
    const Tuple tuple = tuple_at(y, indices, n, 0);
    require(how != "none" || written[offset_of(tuple, y)]++ == 0, "two updates of one place");
    for (size_t k = 0; k < tuple.inner; ++k) {
      const size_t at = offset_of(tuple, y) + k, from = n * tuple.inner + k;
      if (how == "none" || (how == "max" && updates.number(from) > y.number(at)) || (how == "min" && updates.number(from) < y.number(at)))
        y.copy(at, updates, from);
      else if (how == "add")
        y.set(at, c.noise()(y.number(at) + updates.number(from), y.dtype));
      else if (how == "mul")
        y.set(at, c.noise()(y.number(at) * updates.number(from), y.dtype));
    }
  }
  return {std::move(y)};
}

// Returns the slices of x along `axis` at these indices, in this order.
Array chosen(const Array& x, size_t axis, const std::vector<int64_t>& order) {
  Dims dims = x.dims;
  dims[axis] = static_cast<int64_t>(order.size());
  Array y(x.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, dims);
    at[axis] = order[static_cast<size_t>(at[axis])];
    y.copy(k, x, place(at, x.dims));
  }
  return y;
}

Array flat(const Array& x) {
  Array y = x;
  y.dims = {static_cast<int64_t>(x.size())};
  return y;
}

Values compress(Call& c) {
  const bool along = c.attribute("axis") != nullptr;
  const Array x = along ? c.in(0) : flat(c.in(0));
  const auto axis = along ? static_cast<size_t>(normalize_axis(c.integer("axis", 0), x.rank())) : 0;
  const Array& condition = c.in(1);
  require(condition.dtype == DType::boolean && condition.rank() == 1 && condition.dims[0] <= x.dims[axis], "Compress's condition");
  std::vector<int64_t> order;
  for (size_t k = 0; k < condition.size(); ++k)
    if (condition.i[k] != 0) order.push_back(static_cast<int64_t>(k));
  return {chosen(x, axis, order)};
}

Values unique(Call& c) {
  const bool along = c.attribute("axis") != nullptr;
  const Array x = along ? c.in(0) : flat(c.in(0));
  const auto axis = along ? static_cast<size_t>(normalize_axis(c.integer("axis", 0), x.rank())) : 0;
  require(x.dtype != DType::boolean && x.size() > 0, "Unique's operand");
  require_ordered(x);
  // Sums that differ only by rounding may be equal or not, depending on the implementation; so rounds x to a grid.
  double grid = 0;
  if (c.noise().merges() && (x.dtype == DType::float32 || x.dtype == DType::float64)) {
    for (double v : x.f) grid = std::isfinite(v) ? std::max(grid, std::fabs(v)) : grid;
    grid *= 16 * epsilon_of(x.dtype);
  }
  // Holds, for each index along the axis, the elements of the slice at that index.
  std::vector<std::vector<double>> slices(static_cast<size_t>(x.dims[axis]));
  for (size_t k = 0; k < x.size(); ++k) {
    const double v = x.number(k);
    slices[static_cast<size_t>(coordinates(k, x.dims)[axis])].push_back(grid > 0 && std::isfinite(v) ? std::round(v / grid) * grid : v);
  }
  std::vector<int64_t> first;
  for (size_t k = 0; k < slices.size(); ++k)
    if (std::none_of(first.begin(), first.end(), [&](int64_t at) { return slices[static_cast<size_t>(at)] == slices[k]; }))
      first.push_back(static_cast<int64_t>(k));
  if (c.integer("sorted", 1) != 0)
    std::sort(first.begin(), first.end(),
              [&](int64_t a, int64_t b) { return slices[static_cast<size_t>(a)] < slices[static_cast<size_t>(b)]; });
  Array inverse = Array::ints(std::vector<int64_t>(slices.size())), counts = Array::ints(std::vector<int64_t>(first.size(), 0));
  for (size_t k = 0; k < slices.size(); ++k)
    for (size_t n = 0; n < first.size(); ++n)
      if (slices[static_cast<size_t>(first[n])] == slices[k]) inverse.i[k] = static_cast<int64_t>(n), ++counts.i[n];
  return {chosen(x, axis, first), Array::ints(first), std::move(inverse), std::move(counts)};
}

Values one_hot(Call& c) {
  const Array &indices = c.in(0), &values = c.in(2);
  require(indices.dtype == DType::int64 && c.in(1).dtype == DType::int64 && c.in(1).size() == 1 && values.dims == Dims{2},
          "OneHot's operands");
  const int64_t depth = c.in(1).i[0];
  require(depth > 0 && depth < 20, "OneHot's depth");
  const auto axis = static_cast<size_t>(normalize_axis(c.integer("axis", -1), indices.rank() + 1));
  Dims dims = indices.dims;
  dims.insert(dims.begin() + static_cast<int64_t>(axis), depth);
  Array y(values.dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, dims);
    const int64_t class_of = at[axis];
    at.erase(at.begin() + static_cast<int64_t>(axis));
    const int64_t index = indices.i[place(at, indices.dims)];
    y.copy(k, values, (index < 0 ? index + depth : index) == class_of ? 1 : 0);
  }
  return {std::move(y)};
}

Values reverse_sequence(Call& c) {
  const Array &x = c.in(0), &lengths = c.in(1);
  const int64_t batch_axis = c.integer("batch_axis", 1), time_axis = c.integer("time_axis", 0);
  require(x.rank() >= 2 && batch_axis + time_axis == 1 && lengths.dtype == DType::int64, "ReverseSequence's operands");
  const auto batch = static_cast<size_t>(batch_axis), time = static_cast<size_t>(time_axis);
  require(lengths.dims == Dims{x.dims[batch]}, "a length for each row");
  for (int64_t length : lengths.i) require(length >= 1 && length <= x.dims[time], "a length out of range");
  Array y(x.dtype, x.dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Dims at = coordinates(k, x.dims);
    const int64_t length = lengths.i[static_cast<size_t>(at[batch])];
    if (at[time] < length) at[time] = length - 1 - at[time];
    y.copy(k, x, place(at, x.dims));
  }
  return {std::move(y)};
}

Values eye_like(Call& c) {
  const Array& x = c.in(0);
  require(x.rank() == 2, "a matrix");
  Array y(c.attribute("dtype") != nullptr ? static_cast<DType>(c.integer("dtype", 1)) : x.dtype, x.dims);
  for (size_t k = 0; k < y.size(); ++k) {
    const Dims at = coordinates(k, y.dims);
    y.set(k, static_cast<int64_t>(at[1] - at[0] == c.integer("k", 0)));
  }
  return {std::move(y)};
}

// The equation must consist of letters only, such as "bij,bjk->bik".
Values einsum(Call& c) {
  const std::string equation = c.text("equation", "");
  const size_t arrow = equation.find("->");
  require(arrow != std::string::npos, "Einsum's equation");
  std::vector<std::string> terms{""};
  for (char letter : equation.substr(0, arrow)) {
    if (letter == ',')
      terms.emplace_back();
    else
      terms.back() += letter;
  }
  const std::string out = equation.substr(arrow + 2);
  require(terms.size() == c.num_inputs(), "a term for each operand");
  std::map<char, int64_t> extents;
  std::string letters = out;
  for (size_t i = 0; i < terms.size(); ++i) {
    require(c.in(i).dims.size() == terms[i].size() && c.in(i).dtype == c.in(0).dtype, "Einsum's operands");
    for (size_t d = 0; d < terms[i].size(); ++d) {
      const auto [found, fresh] = extents.emplace(terms[i][d], c.in(i).dims[d]);
      require(found->second == c.in(i).dims[d], "extents of a letter differ");
      if (letters.find(terms[i][d]) == std::string::npos) letters += terms[i][d];
    }
  }
  Dims dims, all;
  for (char letter : out) dims.push_back(extents.at(letter));
  for (char letter : letters) all.push_back(extents.at(letter));
  const Dims summed(all.begin() + static_cast<int64_t>(out.size()), all.end());
  Array y(c.in(0).dtype, dims);
  for (size_t k = 0; k < y.size(); ++k) {
    Total sum(c.noise(), y.dtype);
    for (size_t s = 0; s < static_cast<size_t>(count_of(summed)); ++s) {
      Dims at = coordinates(k, dims);
      const Dims inner = coordinates(s, summed);
      at.insert(at.end(), inner.begin(), inner.end());
      double term = 1;
      for (size_t i = 0; i < terms.size(); ++i) {
        Dims from;
        for (char letter : terms[i]) from.push_back(at[letters.find(letter)]);
        term *= c.in(i).number(place(from, c.in(i).dims));
      }
      sum.add(term);
    }
    y.set(k, c.noise()(sum.value(), y.dtype, 4));
  }
  return {std::move(y)};
}

Values dropout(Call& c) {
  Array mask(DType::boolean, c.in(0).dims);
  std::fill(mask.i.begin(), mask.i.end(), 1);
  require(!c.has(2), "a run for inference");
  return {c.in(0), std::move(mask)};
}

const OperatorTable kTable{
    {"GatherND", gather_nd}, {"ScatterND", scatter_nd}, {"Compress", compress},
    {"Unique", unique},      {"OneHot", one_hot},       {"ReverseSequence", reverse_sequence},
    {"EyeLike", eye_like},   {"Einsum", einsum},        {"Dropout", dropout},
};

}  // namespace

const OperatorTable& indexed_operators() { return kTable; }

}  // namespace treadle::graphs
