// Generates control flow, with bodies that capture values, and sequences.
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

// Returns a value that the body computed. If there is none, returns a copy of a value that the body captures.
std::string result_of(Generator& inner, const Generator::Condition& fits) {
  std::string y = inner.pick_own(fits);
  if (!y.empty()) return y;
  const std::string x = inner.pick(fits);
  return x.empty() ? x : inner.add_one("Identity", {x});
}

// Makes a sequence an output of both branches.
bool add_sequences(Generator& one, Generator& other) {
  std::string a = one.pick_sequence(), b = other.pick_sequence();
  if (a.empty() || b.empty() || one.value(a).array.dtype != other.value(b).array.dtype) return false;
  a = one.add_one("Identity", {a}), b = other.add_one("Identity", {b});
  if (a.empty() || b.empty()) return false;
  one.add_output(a);
  other.add_output(b);
  return true;
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
    if (g.one_in(6) && add_sequences(one, other)) continue;
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

std::vector<Value> per_set(const Generator& g, const std::string& name) {
  std::vector<Value> values;
  for (size_t set = 0; set < g.num_sets(); ++set) {
    values.push_back(g.value(name, set));
    values.back().is_stored = false;
  }
  return values;
}

bool loop(Generator& g) {
  if (g.depth() > 1) return false;
  Array truth(DType::boolean, {});
  truth.i[0] = 1;
  const std::string trips =
      g.one_in(4)
          ? g.pick([](const Array& a) { return a.dtype == DType::int64 && a.size() == 1 && a.rank() == 0 && a.i[0] >= 0 && a.i[0] < 6; })
          : g.constant(Array::scalar(g.one_in(8) ? 0 : g.between(1, 4)));
  if (trips.empty()) return false;
  Names inputs{trips, g.one_in(2) ? std::string() : g.constant(truth)};
  Generator inner(g);
  inner.add_formal(std::vector<Value>(g.num_sets(), Array::scalar(0)));
  const std::string go_on = inner.add_formal(std::vector<Value>(g.num_sets(), truth));
  Names carried;
  for (int64_t i = g.between(0, 2); i > 0; --i) {
    const std::string x = g.pick(any);
    if (x.empty()) return false;
    inputs.push_back(x);
    carried.push_back(inner.add_formal(per_set(g, x)));
  }
  inner.grow(static_cast<int>(g.between(1, 6)));
  std::string again =
      g.one_in(4) ? inner.pick_own([](const Array& a) { return a.dtype == DType::boolean && a.size() == 1 && a.rank() == 0; }) : go_on;
  if (again.empty()) again = go_on;
  if (again == go_on) again = inner.add_one("Identity", {go_on});
  inner.add_output(again);
  for (const std::string& state : carried) {
    const Array like = inner.array(state);
    const bool may_change = g.one_in(4);  // true if the extents of the state may change between iterations
    const std::string next = result_of(inner, [&](const Array& a) {
      return a.dtype == like.dtype && (may_change ? a.dims.size() == like.dims.size() : a.dims == like.dims);
    });
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

// Collects rows in a sequence, as exporters write a loop that appends to a list.
bool collecting_loop(Generator& g) {
  if (g.depth() > 1) return false;
  const std::string x = g.pick([](const Array& a) { return a.rank() < 4 && a.size() < 60; });
  if (x.empty()) return false;
  std::string list = g.one_in(2) ? g.pick_sequence() : std::string();
  if (list.empty() || g.value(list).array.dtype != g.array(x).dtype)
    list = g.add_one("SequenceEmpty", {}, attributes(integer("dtype", static_cast<int64_t>(g.array(x).dtype))));
  if (list.empty()) return false;
  Array truth(DType::boolean, {});
  truth.i[0] = 1;
  Generator inner(g);
  inner.add_formal(std::vector<Value>(g.num_sets(), Array::scalar(0)));
  const std::string go_on = inner.add_formal(std::vector<Value>(g.num_sets(), truth));
  const std::string inner_list = inner.add_formal(per_set(g, list)), state = inner.add_formal(per_set(g, x));
  inner.grow(static_cast<int>(g.between(1, 4)));
  const Array like = inner.array(state);
  const std::string again = inner.add_one("Identity", {go_on});
  const std::string next = result_of(inner, [&](const Array& a) { return a.dtype == like.dtype && a.dims == like.dims; });
  std::string longer = next.empty()
                           ? next
                           : inner.add_one("SequenceInsert", g.one_in(3) ? Names{inner_list, next, inner.constant(Array::scalar(0))}
                                                                         : Names{inner_list, g.one_in(2) ? next : state});
  if (!longer.empty() && g.one_in(4)) longer = inner.add_one("SequenceErase", {longer, inner.constant(Array::scalar(g.between(-1, 0)))});
  if (longer.empty()) return false;
  inner.add_output(again);
  inner.add_output(longer);
  inner.add_output(next);
  return !g.add("Loop", {g.constant(Array::scalar(g.between(0, 4))), "", list, x}, attributes(body("body", inner.take_graph())), 2).empty();
}

// An input that a Scan slices. All such inputs have the same extent along the axis that is sliced.
struct Scanned {
  std::string name;
  int64_t axis;
};

std::vector<Scanned> choose_scanned(Generator& g) {
  const std::string first =
      g.pick([](const Array& a) { return a.rank() > 0 && a.size() > 0 && *std::max_element(a.dims.begin(), a.dims.end()) <= 8; });
  if (first.empty()) return {};
  std::vector<Scanned> result{{first, g.one_in(2) ? 0 : g.below(g.array(first).rank())}};
  const int64_t length = g.array(first).dims[static_cast<size_t>(result[0].axis)];
  while (result.size() < 3 && g.one_in(3)) {
    const std::string other =
        g.pick([&](const Array& a) { return a.size() > 0 && std::find(a.dims.begin(), a.dims.end(), length) != a.dims.end(); });
    if (other.empty()) break;
    const Dims& dims = g.array(other).dims;
    auto at = std::find(dims.begin(), dims.end(), length) - dims.begin();
    if (g.one_in(2)) at = static_cast<int64_t>(dims.size()) - 1 - (std::find(dims.rbegin(), dims.rend(), length) - dims.rbegin());
    result.push_back({other, at});
  }
  return result;
}

std::vector<onnx::AttributeDef> scan_attributes(Generator& g, const std::vector<Scanned>& scanned, const std::vector<std::string>& rows,
                                                Generator& inner) {
  auto some = [&](size_t count) {
    std::vector<int64_t> directions(count, 1);
    for (int64_t& direction : directions) direction = g.one_in(3) ? 0 : 1;
    return directions;
  };
  std::vector<int64_t> axes, out_axes;
  for (const Scanned& x : scanned) axes.push_back(g.one_in(4) ? x.axis - g.array(x.name).rank() : x.axis);
  auto list = attributes(integer("num_scan_inputs", static_cast<int64_t>(scanned.size())), integers("scan_input_axes", axes));
  if (g.one_in(3)) list.push_back(integers("scan_input_directions", some(scanned.size())));
  if (!rows.empty() && g.one_in(3)) list.push_back(integers("scan_output_directions", some(rows.size())));
  if (!rows.empty() && g.one_in(3)) {
    for (const std::string& row : rows) {
      const int64_t rank = inner.array(row).rank() + 1;
      out_axes.push_back(g.below(rank) - (g.one_in(3) ? rank : 0));
    }
    list.push_back(integers("scan_output_axes", out_axes));
  }
  return list;
}

bool scan(Generator& g) {
  if (g.depth() > 1) return false;
  const std::vector<Scanned> scanned = choose_scanned(g);
  if (scanned.empty()) return false;
  Generator inner(g);
  Names inputs, states;
  for (int64_t i = g.between(0, 2); i > 0; --i) {
    const std::string x = g.pick(any);
    inputs.push_back(x);
    states.push_back(inner.add_formal(per_set(g, x)));
  }
  for (const Scanned& x : scanned) {
    std::vector<Value> first_rows;
    for (const Value& whole : per_set(g, x.name)) {
      Dims dims = whole.array.dims;
      dims.erase(dims.begin() + x.axis);
      first_rows.emplace_back(g.random_array(whole.array.dtype, dims));
    }
    inputs.push_back(x.name);
    inner.add_formal(first_rows);
  }
  inner.grow(static_cast<int>(g.between(1, 6)));
  for (const std::string& state : states) {
    const Array like = inner.array(state);
    const std::string next = result_of(inner, [&](const Array& a) { return a.dtype == like.dtype && a.dims == like.dims; });
    if (next.empty()) return false;
    inner.add_output(next);
  }
  Names rows;
  for (int64_t i = g.between(states.empty() ? 1 : 0, 2); i > 0; --i) {
    rows.push_back(result_of(inner, [](const Array& a) { return a.rank() < 4 && a.size() < 100; }));
    if (rows.back().empty()) return false;
    inner.add_output(rows.back());
  }
  auto list = scan_attributes(g, scanned, rows, inner);
  list.push_back(body("body", inner.take_graph()));
  return !g.add("Scan", inputs, std::move(list), states.size() + rows.size()).empty();
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

// Maps a body over the elements of a sequence, which have equal shapes.
bool sequence_map(Generator& g) {
  if (g.depth() > 1) return false;
  const std::string s = g.pick_sequence();
  if (s.empty()) return false;
  std::vector<Value> first;
  for (size_t set = 0; set < g.num_sets(); ++set) {
    const Value& sequence = g.value(s, set);
    if (sequence.elements.empty()) return false;
    first.emplace_back(sequence.elements[0]);
  }
  Generator inner(g);
  inner.add_formal(first);
  Names inputs{s};
  if (g.one_in(3)) {
    const std::string x = g.pick(any);
    if (x.empty()) return false;
    inputs.push_back(x);
    inner.add_formal(per_set(g, x));
  }
  inner.grow(static_cast<int>(g.between(1, 4)));
  const int64_t outputs = g.between(1, 2);
  for (int64_t i = 0; i < outputs; ++i) {
    const std::string y = result_of(inner, any);
    if (y.empty()) return false;
    inner.add_output(y);
  }
  return !g.add("SequenceMap", inputs, attributes(body("body", inner.take_graph())), static_cast<size_t>(outputs)).empty();
}

}  // namespace

const std::vector<Kind>& control_kinds() {
  static const std::vector<Kind> kinds{
      {"if", 3, if_then_else},
      {"loop", 3, loop},
      {"scan", 2, scan},
      {"collecting_loop", 1, collecting_loop},
      {"sequence_construct", 3, sequence_construct},
      {"split_to_sequence", 2, split_to_sequence},
      {"sequence_at", 3, sequence_at},
      {"sequence_change", 3, sequence_change},
      {"sequence_read", 5, sequence_read},
      {"sequence_map", 1, sequence_map},
  };
  return kinds;
}

}  // namespace treadle::graphs
