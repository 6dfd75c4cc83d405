// Generates nodes on strings, which only move elements, and on optionals.
#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

bool any(const Array&) { return true; }

struct TextsOnly {
  explicit TextsOnly(Generator& generator) : g(generator) { g.want_texts(true); }
  ~TextsOnly() { g.want_texts(false); }
  Generator& g;
};

bool move_texts(Generator& g) {
  const TextsOnly texts(g);
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  const auto& kinds = g.one_in(4) ? control_kinds() : movement_kinds();
  return kinds[static_cast<size_t>(g.below(static_cast<int64_t>(kinds.size())))].make(g);
}

bool join_texts(Generator& g) {
  const TextsOnly texts(g);
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  std::string y = g.one_in(2) ? g.pick(any) : g.constant(g.random_array(DType::string, g.one_in(2) ? Dims{} : Dims{1}));
  if (g.one_in(4)) return !g.add("Equal", {x, y}).empty();
  return !g.add("StringConcat", {x, y}).empty();
}

bool choose_texts(Generator& g) {
  const std::string condition = g.pick([](const Array& a) { return a.dtype == DType::boolean; });
  const TextsOnly texts(g);
  return !condition.empty() && !g.add("Where", {condition, g.pick(any), g.pick(any)}).empty();
}

bool optional(Generator& g) {
  const std::string x = g.pick(any), o = g.pick_optional(), s = g.pick_sequence();
  if ((o.empty() || g.one_in(3)) && g.one_in(5))
    return !g.add("Optional", {}, attributes(type_of("type", g.one_of<DType>({DType::float32, DType::int64, DType::string}), g.one_in(3))))
                .empty();
  if (o.empty() || g.one_in(3)) {
    const std::string& element = !s.empty() && g.one_in(3) ? s : x;
    return !element.empty() && !g.add("Optional", {element}).empty();
  }
  if (g.one_in(4))
    return !g.add("OptionalHasElement", g.one_in(8) ? std::vector<std::string>{} : std::vector<std::string>{g.one_in(4) ? x : o}).empty();
  if (g.one_in(6)) return !g.add("Identity", {o}).empty();
  return !g.add("OptionalGetElement", {g.one_in(6) ? x : o}).empty();
}

}  // namespace

const std::vector<Kind>& text_kinds() {
  static const std::vector<Kind> kinds{
      {"move_texts", 3, move_texts},
      {"join_texts", 1, join_texts},
      {"choose_texts", 1, choose_texts},
      {"optional", 2, optional},
  };
  return kinds;
}

}  // namespace treadle::graphs
