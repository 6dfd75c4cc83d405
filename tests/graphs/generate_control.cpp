// Control flow with bodies that capture, and sequences.
#include <algorithm>

#include "tests/graphs/generator.h"

namespace treadle::graphs {
namespace {

using Names = std::vector<std::string>;

bool any(const Array&) { return true; }

std::string condition(Generator& g) {
  std::string c = g.pick([](const Array& a) { return a.dtype == DType::boolean && a.size() == 1; });
  if (!c.empty() && !g.one_in(6)) return c;
  const std::string x = g.pick([](const Array& a) { return a.dtype == DType::float32 && a.size() > 0; });
  if (x.empty() || g.one_in(6)) {
    Array truth(DType::boolean, {});
    truth.i[0] = g.below(2);
    return g.constant(truth);
  }
  Array zero(DType::float32, {});
  const std::string sum = g.add_one("ReduceSum", {x}, attributes(integer("keepdims", 0)));
  return sum.empty() ? sum : g.add_one("Greater", {sum, g.constant(zero)});
}

// Something the body made of its own, else a copy of what it captures.
std::string result_of(Generator& inner, const Generator::Condition& fits) {
  std::string y = inner.pick_own(fits);
  if (!y.empty()) return y;
  const std::string x = inner.pick(fits);
  return x.empty() ? x : inner.add_one("Identity", {x});
}

bool if_then_else(Generator& g) {
  if (g.depth() > 1) return false;
  const std::string c = condition(g);
  if (c.empty()) return false;
  Generator one(g), other(g);
  one.grow(static_cast<int>(g.between(1, 5)));
  other.grow(static_cast<int>(g.between(1, 5)));
  const int64_t outputs = g.between(1, 2);
  for (int64_t i = 0; i < outputs; ++i) {
    const std::string a = result_of(one, any);
    if (a.empty()) return false;
    const Array& like = one.array(a);
    const bool same_shape = g.one_in(2);
    const std::string b = result_of(
        other, [&](const Array& x) { return x.dtype == like.dtype && x.rank() == like.rank() && (!same_shape || x.dims == like.dims); });
    if (b.empty()) return false;
    one.add_output(a);
    other.add_output(b);
  }
  return !g.add("If", {c}, attributes(body("then_branch", one.take_graph()), body("else_branch", other.take_graph())),
                static_cast<size_t>(outputs))
              .empty();
}

std::vector<Array> per_set(const Generator& g, const std::string& name) {
  std::vector<Array> values;
  for (size_t set = 0; set < g.num_sets(); ++set) values.push_back(g.value(name, set).array);
  return values;
}

bool loop(Generator& g) {
  if (g.depth() > 1) return false;
  Array truth(DType::boolean, {});
  truth.i[0] = 1;
  const std::string trips =
      g.one_in(4)
          ? g.pick([](const Array& a) { return a.dtype == DType::int64 && a.size() == 1 && a.rank() == 0 && a.i[0] >= 0 && a.i[0] < 6; })
          : g.constant(Array::scalar(g.between(1, 4)));
  if (trips.empty()) return false;
  Names inputs{trips, g.one_in(2) ? std::string() : g.constant(truth)};
  Generator inner(g);
  inner.add_formal(DType::int64, std::vector<Array>(g.num_sets(), Array::scalar(0)));
  const std::string go_on = inner.add_formal(DType::boolean, std::vector<Array>(g.num_sets(), truth));
  Names carried;
  for (int64_t i = g.between(0, 2); i > 0; --i) {
    const std::string x = g.pick(any);
    if (x.empty()) return false;
    inputs.push_back(x);
    carried.push_back(inner.add_formal(g.array(x).dtype, per_set(g, x)));
  }
  inner.grow(static_cast<int>(g.between(1, 6)));
  std::string again =
      g.one_in(4) ? inner.pick_own([](const Array& a) { return a.dtype == DType::boolean && a.size() == 1 && a.rank() == 0; }) : go_on;
  if (again.empty()) again = go_on;
  if (again == go_on) again = inner.add_one("Identity", {go_on});
  inner.add_output(again);
  for (const std::string& state : carried) {
    const Array like = inner.array(state);
    const std::string next = result_of(inner, [&](const Array& a) { return a.dtype == like.dtype && a.dims == like.dims; });
    if (next.empty()) return false;
    inner.add_output(next);
  }
  const int64_t rows = g.between(carried.empty() ? 1 : 0, 2);
  for (int64_t i = 0; i < rows; ++i) {
    const std::string row = result_of(inner, [](const Array& a) { return a.rank() < 4 && a.size() < 100; });
    if (row.empty()) return false;
    inner.add_output(row);
  }
  return !g.add("Loop", inputs, attributes(body("body", inner.take_graph())), carried.size() + static_cast<size_t>(rows)).empty();
}

bool scan(Generator& g) {
  if (g.depth() > 1) return false;
  const std::string scanned =
      g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0 && *std::max_element(a.dims.begin(), a.dims.end()) <= 8; });
  if (scanned.empty()) return false;
  const int64_t axis = g.one_in(2) ? 0 : g.below(g.array(scanned).rank());
  Generator inner(g);
  Names inputs, states;
  for (int64_t i = g.between(0, 2); i > 0; --i) {
    const std::string x = g.pick(any);
    inputs.push_back(x);
    states.push_back(inner.add_formal(g.array(x).dtype, per_set(g, x)));
  }
  std::vector<Array> first_rows;
  for (const Array& x : per_set(g, scanned)) {
    Dims dims = x.dims;
    dims.erase(dims.begin() + axis);
    first_rows.push_back(g.random_array(x.dtype, dims));
  }
  inputs.push_back(scanned);
  inner.add_formal(g.array(scanned).dtype, first_rows);
  inner.grow(static_cast<int>(g.between(1, 6)));
  for (const std::string& state : states) {
    const Array like = inner.array(state);
    const std::string next = result_of(inner, [&](const Array& a) { return a.dtype == like.dtype && a.dims == like.dims; });
    if (next.empty()) return false;
    inner.add_output(next);
  }
  const int64_t rows = g.between(states.empty() ? 1 : 0, 2);
  for (int64_t i = 0; i < rows; ++i) {
    const std::string row = result_of(inner, [](const Array& a) { return a.rank() < 4 && a.size() < 100; });
    if (row.empty()) return false;
    inner.add_output(row);
  }
  auto list = attributes(body("body", inner.take_graph()), integer("num_scan_inputs", 1), integers("scan_input_axes", {axis}));
  if (g.one_in(3)) list.push_back(integers("scan_input_directions", {1}));
  if (rows > 0 && g.one_in(3)) list.push_back(integers("scan_output_directions", std::vector<int64_t>(static_cast<size_t>(rows), 1)));
  return !g.add("Scan", inputs, std::move(list), states.size() + static_cast<size_t>(rows)).empty();
}

bool sequence_construct(Generator& g) {
  const std::string x = g.pick(any);
  if (x.empty()) return false;
  const Array& like = g.array(x);
  Names parts{x};
  for (int64_t count = g.below(4); count > 0; --count)
    parts.push_back(
        g.pick([&](const Array& a) { return a.dtype == like.dtype && a.rank() == like.rank() && (g.one_in(3) || a.dims == like.dims); }));
  return std::none_of(parts.begin(), parts.end(), [](const std::string& p) { return p.empty(); }) &&
         !g.add("SequenceConstruct", parts).empty();
}

bool split_to_sequence(Generator& g) {
  const std::string x = g.pick([](const Array& a) { return a.rank() > 0 && a.dtype != DType::bfloat16; });
  if (x.empty()) return false;
  const int64_t axis = g.below(g.array(x).rank());
  if (g.one_in(3)) return !g.add("SplitToSequence", {x}, attributes(integer("axis", axis), integer("keepdims", g.below(2)))).empty();
  return !g.add("SplitToSequence", {x, g.constant(Array::scalar(g.between(1, 3)))}, attributes(integer("axis", axis))).empty();
}

std::string index_into(Generator& g, const std::string& sequence, bool beyond) {
  const auto count = static_cast<int64_t>(g.value(sequence).elements.size());
  return g.constant(Array::scalar(g.between(-count, count - (beyond ? 0 : 1))));
}

bool sequence_at(Generator& g) {
  const std::string s = g.pick_sequence();
  return !s.empty() && !g.value(s).elements.empty() && !g.add("SequenceAt", {s, index_into(g, s, false)}).empty();
}

bool sequence_change(Generator& g) {
  const std::string s = g.pick_sequence();
  if (s.empty()) return false;
  if (g.one_in(3) && !g.value(s).elements.empty()) return !g.add("SequenceErase", {s, index_into(g, s, false)}).empty();
  const Value& sequence = g.value(s);
  const std::string x = g.pick([&](const Array& a) {
    return a.dtype == sequence.array.dtype && (sequence.elements.empty() || a.rank() == sequence.elements[0].rank());
  });
  if (x.empty()) return false;
  return !g.add("SequenceInsert", g.one_in(2) ? Names{s, x} : Names{s, x, index_into(g, s, true)}).empty();
}

bool sequence_read(Generator& g) {
  const std::string s = g.pick_sequence();
  if (s.empty()) return false;
  if (g.one_in(5)) return !g.add("SequenceLength", {s}).empty();
  if (g.one_in(8)) return !g.add("Identity", {s}).empty();
  if (g.value(s).elements.empty()) return false;
  const bool new_axis = g.one_in(3);
  return !g.add("ConcatFromSequence", {s},
                attributes(integer("axis", g.below(g.value(s).elements[0].rank() + (new_axis ? 1 : 0))), integer("new_axis", new_axis)))
              .empty();
}

}  // namespace

const std::vector<Kind>& control_kinds() {
  static const std::vector<Kind> kinds{
      {"if", 3, if_then_else},
      {"loop", 3, loop},
      {"scan", 2, scan},
      {"sequence_construct", 3, sequence_construct},
      {"split_to_sequence", 2, split_to_sequence},
      {"sequence_at", 3, sequence_at},
      {"sequence_change", 3, sequence_change},
      {"sequence_read", 5, sequence_read},
  };
  return kinds;
}

}  // namespace treadle::graphs
