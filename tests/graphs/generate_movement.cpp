// Generates nodes that move elements.
#include <algorithm>
#include <numeric>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

bool any(const Array&) { return true; }
bool ranked(const Array& a) { return a.rank() > 0; }

int64_t random_axis(Generator& g, int64_t rank) {
  const int64_t axis = g.below(rank);
  return g.one_in(3) ? axis - rank : axis;
}

bool transpose(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 1; });
  if (x.empty()) return false;
  std::vector<int64_t> perm(g.array(x).dims.size());
  std::iota(perm.begin(), perm.end(), 0);
  const int64_t a = g.below(g.array(x).rank()), b = g.below(g.array(x).rank());
  std::swap(perm[static_cast<size_t>(a)], perm[static_cast<size_t>(b)]);
  if (g.one_in(2)) std::rotate(perm.begin(), perm.begin() + 1, perm.end());
  if (perm.size() == 4 && g.one_in(3)) perm = g.one_in(2) ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 3, 1, 2};
  if (g.one_in(12)) return !g.add("Transpose", {x}).empty();
  return !g.add("Transpose", {x}, attributes(integers("perm", perm))).empty();
}

bool reshape(Generator& g) {
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  // Joins neighbouring extents, cuts one into two, or chooses all of them anew.
  Dims dims = g.array(x).dims;
  for (int64_t changes = g.between(1, 3); changes > 0; --changes) {
    const int64_t d = g.below(static_cast<int64_t>(dims.size()));
    const auto at = dims.begin() + d;
    if (dims.size() > 1 && d + 1 < static_cast<int64_t>(dims.size()) && g.one_in(2)) {
      at[1] *= at[0];
      dims.erase(at);
    } else if (!dims.empty() && *at > 1 && dims.size() < 5) {
      const int64_t factor = *at % 2 == 0 ? 2 : *at % 3 == 0 ? 3 : *at;
      *at /= factor;
      dims.insert(at + g.below(2), factor);
    } else if (dims.size() < 5) {
      dims.insert(at, 1);
    }
  }
  if (g.one_in(4)) dims = {static_cast<int64_t>(g.array(x).size())};
  if (!dims.empty() && (g.num_sets() > 1 || g.one_in(2))) dims[static_cast<size_t>(g.below(static_cast<int64_t>(dims.size())))] = -1;
  for (size_t d = 0; d < dims.size() && d < g.array(x).dims.size(); ++d)
    if (dims[d] == g.array(x).dims[d] && g.one_in(3)) dims[d] = 0;
  return !g.add("Reshape", {x, g.constant_ints(dims)}).empty();
}

bool flatten(Generator& g) {
  const std::string x = g.pick(any);
  return !x.empty() && !g.add("Flatten", {x}, attributes(integer("axis", g.between(-g.array(x).rank(), g.array(x).rank())))).empty();
}

bool squeeze(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return std::count(a.dims.begin(), a.dims.end(), 1) > 0; });
  if (x.empty()) return false;
  if (g.one_in(4)) return !g.add("Squeeze", {x}).empty();
  std::vector<int64_t> axes;
  const Dims& dims = g.array(x).dims;
  for (size_t d = 0; d < dims.size(); ++d)
    if (dims[d] == 1 && (axes.empty() || g.one_in(2)))
      axes.push_back(static_cast<int64_t>(d) - (g.one_in(3) ? static_cast<int64_t>(dims.size()) : 0));
  return !g.add("Squeeze", {x, g.constant_ints(axes)}).empty();
}

bool unsqueeze(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() < 5; });
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank();
  std::vector<int64_t> axes{g.below(rank + 1)};
  if (g.one_in(4)) axes = {g.below(rank + 1), rank + 1};
  if (g.one_in(6)) axes = {-1};
  return !g.add("Unsqueeze", {x, g.constant_ints(axes)}).empty();
}

bool slice(Generator& g) {
  const std::string x = g.pick(ranked);
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank();
  std::vector<int64_t> starts, ends, axes, steps;
  const int64_t first = g.below(rank);
  for (int64_t i = 0; i < (rank > 1 && g.one_in(3) ? 2 : 1); ++i) {
    const int64_t axis = (first + i) % rank, extent = g.array(x).dims[static_cast<size_t>(axis)];
    const bool backwards = g.one_in(4);
    axes.push_back(g.one_in(4) ? axis - rank : axis);
    steps.push_back(backwards ? -g.between(1, 2) : g.one_in(3) ? g.between(1, 3) : 1);
    starts.push_back(backwards ? (g.one_in(2) ? -1 : g.between(0, extent + 1)) : g.one_in(2) ? 0 : g.between(-extent, extent));
    ends.push_back(backwards     ? (g.one_in(2) ? -1000 : g.between(-extent - 1, extent))
                   : g.one_in(3) ? INT64_MAX
                                 : g.between(-extent, extent + 1));
  }
  std::vector<std::string> inputs{x, g.constant_ints(starts), g.constant_ints(ends), g.constant_ints(axes)};
  if (g.one_in(2) || steps != std::vector<int64_t>(steps.size(), 1)) inputs.push_back(g.constant_ints(steps));
  return !g.add("Slice", inputs).empty();
}

// Returns values that can be concatenated to `first` along `axis`: `first` itself, values of the same kind, or Concats or Slices of it.
std::vector<std::string> parts_like(Generator& g, const std::string& first, int64_t axis) {
  std::vector<std::string> parts{first};
  for (int64_t count = g.between(1, 3); count > 0; --count) {
    const Array& like = g.array(first);
    parts.push_back(g.pick([&](const Array& a) {
      if (a.dtype != like.dtype || a.dims.size() != like.dims.size()) return false;
      for (size_t d = 0; d < a.dims.size(); ++d)
        if (static_cast<int64_t>(d) != axis && a.dims[d] != like.dims[d]) return false;
      return true;
    }));
    // Adds a new value, which can be computed directly in the bytes of the result.
    if (g.one_in(3) && like.floats()) {
      const std::string fresh = g.add_one(g.one_of<std::string>({"Neg", "Relu", "Tanh", "Abs", "Identity"}), {parts.back()});
      if (!fresh.empty()) parts.back() = fresh;
    }
  }
  if (g.one_in(8)) {
    Dims dims = g.array(first).dims;
    dims[static_cast<size_t>(axis)] = g.between(0, 3);
    parts.push_back(g.constant(g.random_array(g.array(first).dtype, dims)));
  }
  if (g.one_in(3)) std::reverse(parts.begin(), parts.end());
  return parts;
}

bool concat(Generator& g) {
  const std::string x = g.pick(ranked);
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank(), axis = g.below(rank);
  return !g.add("Concat", parts_like(g, x, axis), attributes(integer("axis", g.one_in(3) ? axis - rank : axis))).empty();
}

bool split(Generator& g) {
  const std::string x = g.pick(ranked);
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank(), axis = g.below(rank), extent = g.array(x).dims[static_cast<size_t>(axis)];
  const int64_t count = std::min<int64_t>(g.between(1, 4), std::max<int64_t>(extent, 1));
  const auto on = integer("axis", g.one_in(3) ? axis - rank : axis);
  if (g.one_in(2))
    return !g.add("Split", {x}, attributes(integer("axis", on.i), integer("num_outputs", count)), static_cast<size_t>(count)).empty();
  std::vector<int64_t> lengths;
  int64_t left = extent;
  for (int64_t i = 0; i + 1 < count; ++i) {
    lengths.push_back(g.between(g.one_in(8) ? 0 : 1, std::max<int64_t>(left - (count - 1 - i), 0)));
    left -= lengths.back();
  }
  lengths.push_back(left);
  return !g.add("Split", {x, g.constant_ints(lengths)}, attributes(integer("axis", on.i)), static_cast<size_t>(count)).empty();
}

// Splits a value along an axis, changes some of the parts, and joins them along the same or another axis.
bool split_and_join(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && *std::max_element(a.dims.begin(), a.dims.end()) >= 2; });
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank(), axis = g.below(rank), extent = g.array(x).dims[static_cast<size_t>(axis)];
  if (extent < 2) return false;
  const int64_t count = extent % 2 == 0 ? 2 : extent % 3 == 0 ? 3 : 2;
  std::vector<std::string> parts =
      g.add("Split", {x}, attributes(integer("axis", axis), integer("num_outputs", count)), static_cast<size_t>(count));
  if (parts.empty()) return false;
  for (std::string& part : parts)
    if (g.one_in(3)) {
      const std::string changed = g.add_one(g.one_of<std::string>({"Neg", "Identity", "Abs"}), {part});
      if (!changed.empty()) part = changed;
    }
  if (g.one_in(2)) std::reverse(parts.begin(), parts.end());
  if (g.one_in(4)) parts.push_back(parts[0]);
  return !g.add("Concat", parts, attributes(integer("axis", g.one_in(2) ? axis : g.below(rank)))).empty();
}

bool expand(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() < 4; });
  if (x.empty()) return false;
  Dims dims = g.array(x).dims;
  for (int64_t& extent : dims)
    if (extent == 1 ? g.one_in(2) : g.one_in(3)) extent = extent == 1 ? g.between(1, 4) : 1;
  if (g.one_in(3)) dims.insert(dims.begin(), g.between(1, 3));
  return !g.add("Expand", {x, g.constant_ints(dims)}).empty();
}

bool tile(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.size() < 100; });
  if (x.empty()) return false;
  Dims repeats(g.array(x).dims.size(), 1);
  for (int64_t& repeat : repeats) repeat = g.one_of<int64_t>({1, 1, 2, 3, g.one_in(10) ? 0 : 1});
  return !g.add("Tile", {x, g.constant_ints(repeats)}).empty();
}

bool pad(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.size() < 150; });
  if (x.empty()) return false;
  const Array& a = g.array(x);
  const std::string mode = g.one_of<std::string>({"constant", "constant", "edge", "reflect", "wrap"});
  std::vector<int64_t> pads(a.dims.size() * 2, 0);
  for (int64_t& p : pads)
    if (g.one_in(2)) p = mode == "constant" && g.one_in(4) ? -1 : g.between(0, 2);
  std::vector<std::string> inputs{x, g.constant_ints(pads)};
  if (mode == "constant" && g.one_in(2)) inputs.push_back(g.constant(g.random_array(a.dtype, {})));
  return !g.add("Pad", inputs, attributes(text("mode", mode))).empty();
}

bool gather(Generator& g) {
  const std::string x = g.pick(ranked);
  if (x.empty()) return false;
  const int64_t rank = g.array(x).rank(), axis = random_axis(g, rank),
                extent = g.array(x).dims[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
  if (extent == 0) return false;
  Array indices(g.one_in(3) ? DType::int32 : DType::int64, g.one_of<Dims>({{}, {1}, {2}, {3}, {2, 2}, {0}}));
  for (size_t k = 0; k < indices.size(); ++k) indices.i[k] = g.between(-extent, extent - 1);
  if (g.one_in(3))
    for (size_t k = 0; k < indices.size(); ++k) indices.i[k] = static_cast<int64_t>(k) % extent;
  return !g.add("Gather", {x, g.constant(indices)}, attributes(integer("axis", axis))).empty();
}

bool gather_elements(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0; });
  if (x.empty()) return false;
  const auto axis = static_cast<size_t>(g.below(g.array(x).rank()));
  Dims dims = g.array(x).dims;
  const int64_t extent = dims[axis];
  dims[axis] = g.between(1, 3);
  Array indices(DType::int64, dims);
  for (int64_t& index : indices.i) index = g.between(-extent, extent - 1);
  return !g.add("GatherElements", {x, g.constant(indices)}, attributes(integer("axis", static_cast<int64_t>(axis)))).empty();
}

bool scatter_elements(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0; });
  if (x.empty()) return false;
  const auto axis = static_cast<size_t>(g.below(g.array(x).rank()));
  Dims dims = g.array(x).dims;
  Array indices(DType::int64, [&] {
    Dims one = dims;
    one[axis] = 1;
    return one;
  }());
  for (int64_t& index : indices.i) index = g.between(-dims[axis], dims[axis] - 1);
  const std::string updates = g.constant(g.random_array(g.array(x).dtype, indices.dims));
  return !g.add("ScatterElements", {x, g.constant(indices), updates}, attributes(integer("axis", static_cast<int64_t>(axis)))).empty();
}

bool trilu(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 1; });
  return !x.empty() && !g.add("Trilu", {x, g.constant(Array::scalar(g.between(-1, 1)))}, attributes(integer("upper", g.below(2)))).empty();
}

bool blocks(Generator& g) {
  const bool to_space = g.one_in(2);
  const std::string x =
      g.pick([&](const Array& a) { return a.rank() == 4 && (to_space ? a.dims[1] % 4 == 0 : a.dims[2] % 2 == 0 && a.dims[3] % 2 == 0); });
  if (x.empty()) return false;
  if (!to_space) return !g.add("SpaceToDepth", {x}, attributes(integer("blocksize", 2))).empty();
  return !g.add("DepthToSpace", {x}, attributes(integer("blocksize", 2), text("mode", g.one_in(2) ? "CRD" : "DCR"))).empty();
}

bool identity(Generator& g) {
  const std::string x = g.pick(any);
  return !x.empty() && !g.add("Identity", {x}).empty();
}

}  // namespace

const std::vector<Kind>& movement_kinds() {
  static const std::vector<Kind> kinds{
      {"transpose", 6, transpose},
      {"reshape", 7, reshape},
      {"flatten", 3, flatten},
      {"squeeze", 3, squeeze},
      {"unsqueeze", 4, unsqueeze},
      {"slice", 6, slice},
      {"concat", 10, concat},
      {"split", 8, split},
      {"split_and_join", 5, split_and_join},
      {"expand", 3, expand},
      {"tile", 2, tile},
      {"pad", 3, pad},
      {"gather", 4, gather},
      {"gather_elements", 1, gather_elements},
      {"scatter_elements", 1, scatter_elements},
      {"trilu", 1, trilu},
      {"blocks", 1, blocks},
      {"identity", 4, identity},
  };
  return kinds;
}

}  // namespace treadle::graphs
