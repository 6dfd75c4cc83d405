// Generates arithmetic on extents, and nodes that read its results.
#include <algorithm>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

bool any(const Array&) { return true; }
bool ints_1d(const Array& a) { return a.dtype == DType::int64 && a.rank() == 1 && a.size() > 0 && a.size() <= 6; }
bool small_ints(const Array& a) { return a.dtype == DType::int64 && a.rank() <= 2 && a.size() <= 6; }

bool shape(Generator& g) {
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  if (g.one_in(4)) return !g.add("Shape", {x}, attributes(integer("start", g.between(-1, 2)), integer("end", g.between(-1, 4)))).empty();
  return !g.add("Shape", {x}).empty();
}

bool size(Generator& g) {
  const std::string x = g.pick(any);
  return !x.empty() && !g.add("Size", {x}).empty();
}

// Selects one extent of a value, as a scalar or a vector.
bool extent(Generator& g) {
  const std::string s = g.pick(ints_1d);
  if (s.empty()) return false;
  const int64_t count = static_cast<int64_t>(g.array(s).size()), at = g.between(-count, count - 1);
  return !g.add("Gather", {s, g.one_in(2) ? g.constant(Array::scalar(at)) : g.constant_ints({at})}, attributes(integer("axis", 0))).empty();
}

bool arithmetic(Generator& g) {
  const std::string a = g.pick(small_ints), b = g.one_in(2) ? g.pick(small_ints) : g.constant_ints({g.between(-1, 4)});
  if (a.empty() || b.empty()) return false;
  switch (g.below(8)) {
    case 0:
      return !g.add("Cast", {a},
                    attributes(
                        integer("to", static_cast<int64_t>(g.one_of<DType>({DType::int32, DType::float32, DType::int64, DType::boolean})))))
                  .empty();
    case 1: return !g.add("Where", {g.add_one("Equal", {a, b}), a, b}).empty();
    case 2: return !g.add("Flatten", {a}, attributes(integer("axis", 0))).empty();
    case 3: return !g.add("Expand", {a, g.constant_ints({g.between(1, 2), g.between(1, 3)})}).empty();
    case 4: return !g.add("Reshape", {a, g.constant_ints({-1})}).empty();
    default: return !g.add(g.one_of<std::string>({"Max", "Min", "Mul", "Add", "Sub", "Div", "Mod"}), {a, b}).empty();
  }
}

bool join(Generator& g) {
  std::vector<std::string> parts;
  for (int64_t count = g.between(1, 3); count > 0; --count)
    parts.push_back(g.one_in(4) ? g.constant_ints({g.between(-1, 3)}) : g.pick(ints_1d));
  return std::none_of(parts.begin(), parts.end(), [](const std::string& p) { return p.empty(); }) &&
         !g.add("Concat", parts, attributes(integer("axis", 0))).empty();
}

// Adds a Reshape of x to a shape whose extents are taken apart and put together again: the shape of x, or that of another value. Exporters
// often write such nodes.
bool reshape_by_extents(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.rank() < 5; });
  if (x.empty()) return false;
  std::string other = g.pick([&](const Array& a) { return a.size() == g.array(x).size() && a.rank() > 0; });
  const std::string shape = g.add_one("Shape", {other});
  if (shape.empty()) return false;
  std::vector<std::string> parts;
  for (int64_t d = 0; d < g.array(other).rank(); ++d) {
    if (g.one_in(5)) {
      parts.push_back(g.constant_ints({-1}));
      continue;
    }
    std::string part =
        g.add_one("Gather", {shape, g.one_in(2) ? g.constant(Array::scalar(d)) : g.constant_ints({d})}, attributes(integer("axis", 0)));
    if (!part.empty() && g.array(part).rank() == 0) part = g.add_one("Unsqueeze", {part, g.constant_ints({0})});
    parts.push_back(part);
  }
  const std::string target = g.add_one("Concat", parts, attributes(integer("axis", 0)));
  return !target.empty() && !g.add("Reshape", {x, target}).empty();
}

// Uses integers of any origin for Reshape, Expand, Tile, Slice and the like.
bool use(Generator& g) {
  const std::string x = g.pick(any), s = g.pick(ints_1d);
  if (x.empty() || s.empty()) return false;
  switch (g.below(6)) {
    case 0: return !g.add("Reshape", {x, s}).empty();
    case 1: return !g.add("Expand", {x, s}).empty();
    case 2: return !g.add("Tile", {x, s}).empty();
    case 3:
      return !g.add("ConstantOfShape", {s},
                    attributes(tensor("value", g.random_array(g.one_of<DType>({DType::float32, DType::int64}), {1}))))
                  .empty();
    case 4: return !g.add("Slice", {x, g.constant_ints({0}), s, g.constant_ints({0})}).empty();
    default: return !g.add("Gather", {x, s}, attributes(integer("axis", 0))).empty();
  }
}

bool range(Generator& g) {
  const std::string limit = g.pick([](const Array& a) { return a.dtype == DType::int64 && a.rank() == 0; });
  if (limit.empty()) return false;
  return !g.add("Range", {g.constant(Array::scalar(g.between(-1, 1))), limit, g.constant(Array::scalar(g.between(1, 2)))}).empty();
}

}  // namespace

const std::vector<Kind>& shape_kinds() {
  static const std::vector<Kind> kinds{
      {"shape", 5, shape},   {"size", 1, size},
      {"extent", 4, extent}, {"arithmetic", 5, arithmetic},
      {"join", 4, join},     {"reshape_by_extents", 2, reshape_by_extents},
      {"use", 6, use},       {"range", 1, range},
  };
  return kinds;
}

}  // namespace treadle::graphs
