// Generates nodes that read or write elements whose places, or whose number, other data give.
#include <algorithm>
#include <numeric>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

// Makes tuples of `length` indices. They belong to the axes of `dims`, from the axis `first` on.
Array tuples_into(Generator& g, const Dims& heads, const Dims& dims, size_t first, int64_t length) {
  Dims shape = heads;
  shape.push_back(length);
  Array tuples(DType::int64, shape);
  for (size_t k = 0; k < tuples.size(); ++k) {
    const int64_t extent = dims[first + k % static_cast<size_t>(length)];
    tuples.i[k] = g.between(g.one_in(2) ? -extent : 0, extent - 1);
  }
  return tuples;
}

bool gather_nd(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0; });
  if (x.empty()) return false;
  const Dims dims = g.array(x).dims;
  const int64_t batch = dims.size() > 1 && g.num_sets() == 1 && g.one_in(3) ? 1 : 0;
  const int64_t length = g.between(1, static_cast<int64_t>(dims.size()) - batch);
  Dims heads(dims.begin(), dims.begin() + batch);
  if (!g.one_in(3)) heads.push_back(g.between(1, 3));
  return !g.add("GatherND", {x, g.constant(tuples_into(g, heads, dims, static_cast<size_t>(batch), length))},
                attributes(integer("batch_dims", batch)))
              .empty();
}

bool scatter_nd(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0; });
  if (x.empty()) return false;
  const Array a = g.array(x);
  const int64_t length = g.between(1, a.rank()), count = g.between(1, 3);
  const Array indices = tuples_into(g, {count}, a.dims, 0, length);
  Dims dims{count};
  dims.insert(dims.end(), a.dims.begin() + length, a.dims.end());
  std::string updates = g.pick([&](const Array& b) { return b.dtype == a.dtype && b.dims == dims; });
  if (updates.empty() || g.one_in(3)) {
    if (g.num_sets() > 1 && length < a.rank()) return false;
    updates = g.constant(g.random_array(a.dtype, dims));
  }
  auto list = attributes();
  if (g.one_in(3) && a.dtype != DType::bfloat16) list.push_back(text("reduction", g.one_of<std::string>({"add", "mul", "max", "min"})));
  return !g.add("ScatterND", {x, g.constant(indices), updates}, std::move(list)).empty();
}

bool compress(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0; });
  if (x.empty()) return false;
  const bool along = g.one_in(2);
  const int64_t axis = g.below(g.array(x).rank()),
                extent = along ? g.array(x).dims[static_cast<size_t>(axis)] : static_cast<int64_t>(g.array(x).size());
  std::string condition = g.pick([&](const Array& a) { return a.dtype == DType::boolean && a.rank() == 1 && a.dims[0] <= extent; });
  if (condition.empty() || g.one_in(4))
    condition = g.constant(g.random_array(DType::boolean, {std::min<int64_t>(extent, g.between(0, 6))}));
  return !g.add("Compress", {x, condition},
                along ? attributes(integer("axis", axis - (g.one_in(3) ? g.array(x).rank() : 0))) : attributes())
              .empty();
}

bool unique(Generator& g) {
  const std::string x = g.pick([](const Array& a) {
    return (a.dtype == DType::float32 || a.dtype == DType::float64 || a.dtype == DType::int64 || a.dtype == DType::int8) && a.size() > 0 &&
           a.rank() > 0;
  });
  if (x.empty()) return false;
  auto list = attributes(integer("sorted", g.below(2)));
  if (g.one_in(3)) list.push_back(integer("axis", g.below(g.array(x).rank())));
  return !g.add("Unique", {x}, std::move(list), static_cast<size_t>(g.between(1, 4))).empty();
}

bool one_hot(Generator& g) {
  std::string x = g.pick([](const Array& a) { return a.dtype == DType::int64 && a.rank() < 3 && a.size() < 20; });
  if (x.empty()) return false;
  const DType dtype = g.one_of<DType>({DType::float32, DType::float32, DType::int64, DType::int32});
  return !g.add("OneHot",
                {x, g.constant(g.one_in(2) ? Array::scalar(g.between(1, 5)) : Array::ints({g.between(1, 5)})),
                 g.constant(g.random_array(dtype, {2}))},
                attributes(integer("axis", g.between(-1, g.array(x).rank()))))
              .empty();
}

bool reverse_sequence(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() >= 2 && a.size() > 0 && a.dtype != DType::bfloat16; });
  if (x.empty() || g.num_sets() > 1) return false;
  const int64_t batch = g.below(2);
  Array lengths(DType::int64, {g.array(x).dims[static_cast<size_t>(batch)]});
  for (int64_t& n : lengths.i) n = g.between(1, g.array(x).dims[static_cast<size_t>(1 - batch)]);
  return !g.add("ReverseSequence", {x, g.constant(lengths)}, attributes(integer("batch_axis", batch), integer("time_axis", 1 - batch)))
              .empty();
}

bool eye_like(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() == 2; });
  if (x.empty()) return false;
  auto list = attributes(integer("k", g.between(-2, 2)));
  if (g.array(x).dtype == DType::bfloat16 || g.one_in(2)) list.push_back(integer("dtype", static_cast<int64_t>(DType::float32)));
  return !g.add("EyeLike", {x}, std::move(list)).empty();
}

bool einsum(Generator& g) {
  const std::string x =
      g.pick([](const Array& a) { return (a.dtype == DType::float32 || a.dtype == DType::float64) && a.rank() >= 1 && a.rank() <= 4; });
  if (x.empty()) return false;
  const Array a = g.array(x);
  const std::string letters = std::string("abcd").substr(0, a.dims.size());
  std::string order = letters;
  if (g.one_in(3)) {  // an Einsum with one operand, whose axes are permuted or summed
    for (int64_t swaps = g.below(3); swaps > 0; --swaps) std::swap(order[static_cast<size_t>(g.below(a.rank()))], order[0]);
    order.resize(static_cast<size_t>(g.between(g.one_in(4) ? 0 : 1, a.rank())));
    return !g.add("Einsum", {x}, attributes(text("equation", letters + "->" + order))).empty();
  }
  // Some letters of the second operand are those of the first one, with the same extents.
  std::string theirs, y;
  Dims dims;
  if (g.one_in(2)) {
    y = g.pick([&](const Array& b) { return b.dtype == a.dtype && b.dims == a.dims; });
    theirs = letters;
    if (a.rank() > 1 && g.one_in(2)) {  // the form that attention uses: bhid,bhjd->bhij
      theirs[theirs.size() - 2] = 'z';
      order[order.size() - 1] = 'z';
      if (a.rank() > 2 && g.one_in(4)) order.erase(0, 1);
    } else if (g.one_in(2)) {
      order.resize(static_cast<size_t>(g.below(a.rank() + 1)));
    }
  } else {
    if (g.num_sets() > 1 && a.rank() > 1) return false;
    const auto at = static_cast<size_t>(g.below(a.rank()));
    theirs = g.one_in(2) ? std::string{letters[at], 'z'} : std::string{'z', letters[at]};
    for (char letter : theirs) dims.push_back(letter == 'z' ? g.between(1, 4) : a.dims[at]);
    y = g.constant(g.random_array(a.dtype, dims));
    order[at] = 'z';
  }
  if (g.one_in(4)) return !g.add("Einsum", {y, x}, attributes(text("equation", theirs + "," + letters + "->" + order))).empty();
  return !g.add("Einsum", {x, y}, attributes(text("equation", letters + "," + theirs + "->" + order))).empty();
}

bool dropout(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.floats(); });
  return !x.empty() && !g.add("Dropout", {x}, {}, static_cast<size_t>(g.between(1, 2))).empty();
}

}  // namespace

const std::vector<Kind>& indexed_kinds() {
  static const std::vector<Kind> kinds{
      {"gather_nd", 2, gather_nd}, {"scatter_nd", 3, scatter_nd}, {"compress", 2, compress},
      {"unique", 1, unique},       {"one_hot", 1, one_hot},       {"reverse_sequence", 1, reverse_sequence},
      {"eye_like", 1, eye_like},   {"einsum", 2, einsum},         {"dropout", 1, dropout},
  };
  return kinds;
}

}  // namespace treadle::graphs
