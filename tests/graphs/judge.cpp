#include "tests/graphs/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/graphs/interpreter.h"

namespace treadle::graphs {
namespace {

constexpr double kAnything = std::numeric_limits<double>::infinity();
// Factor by which an error may exceed the errors of the random runs. Errors of random runs partly cancel, while those of an implementation
// may all have the same sign.
constexpr double kWorse = 8;

std::vector<Value> interpret_with(const Case& c, const Feeds& feeds, Noise noise) {
  Scope scope;
  for (const auto& input : c.model.graph.inputs) {
    const auto feed = feeds.find(input.name);
    require(feed != feeds.end(), "an input has no feed");
    scope.set(input.name, feed->second);
  }
  return interpret(c.model.graph, scope, noise);
}

std::vector<const Array*> arrays_of(const Value& value) {
  std::vector<const Array*> arrays;
  if (!value.is_sequence) return {&value.array};
  for (const Array& element : value.elements) arrays.push_back(&element);
  return arrays;
}

bool same_layout(const std::vector<const Array*>& a, const std::vector<const Array*>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Array* x, const Array* y) { return x->dims == y->dims; });
}

void widen(const Array& exact, const Array& noisy, std::vector<double>& off) {
  for (size_t k = 0; k < exact.size(); ++k) {
    if (exact.texts()) {
      if (exact.s[k] != noisy.s[k]) off[k] = kAnything;
      continue;
    }
    const double a = exact.number(k), b = noisy.number(k);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    off[k] = exact.floats() && std::isfinite(a) && std::isfinite(b) ? std::max(off[k], std::fabs(a - b)) : kAnything;
  }
}

void finish(const Array& exact, std::vector<double>& off) {
  if (!exact.floats() || off.empty()) return;
  double squares = 0;
  for (double d : off) squares += std::isfinite(d) ? d * d : 0;
  const double typical = std::sqrt(squares / static_cast<double>(off.size()));
  const double epsilon = epsilon_of(exact.dtype), least = epsilon_of(exact.dtype) * 1e-4;
  for (size_t k = 0; k < off.size(); ++k)
    if (off[k] != kAnything) off[k] = kWorse * std::max(off[k], typical) + 4 * epsilon * std::fabs(exact.f[k]) + least;
}

std::string compare_arrays(const Array& actual, const Array& expected, const std::vector<double>& slack) {
  if (actual.dtype != expected.dtype)
    return "dtype " + std::string(name_of(actual.dtype)) + ", expected " + std::string(name_of(expected.dtype));
  auto shape = [](const Dims& dims) { return to_string(Shape(std::span<const int64_t>(dims))); };
  if (actual.dims != expected.dims) return "shape " + shape(actual.dims) + ", expected " + shape(expected.dims);
  if (actual.texts()) {
    for (size_t k = 0; k < actual.size(); ++k)
      if (slack[k] != kAnything && actual.s[k] != expected.s[k])
        return "[" + std::to_string(k) + "] = \"" + actual.s[k] + "\", expected \"" + expected.s[k] + "\"";
    return {};
  }
  size_t wrong = 0, first = 0;
  for (size_t k = 0; k < actual.size(); ++k) {
    const double a = actual.number(k), e = expected.number(k);
    if (a == e || (std::isnan(a) && std::isnan(e)) || slack[k] == kAnything || std::fabs(a - e) <= slack[k]) continue;
    if (wrong++ == 0) first = k;
  }
  if (wrong == 0) return {};
  return std::to_string(wrong) + " of " + std::to_string(actual.size()) + " elements wrong, first [" + std::to_string(first) +
         "] = " + std::to_string(actual.number(first)) + ", expected " + std::to_string(expected.number(first)) + " within " +
         std::to_string(slack[first]);
}

}  // namespace

Judgement judge(const Case& c, int runs) {
  Judgement result;
  for (const Feeds& feeds : c.sets) {
    std::vector<Expected> expected;
    for (Value& value : interpret_with(c, feeds, Noise())) {
      expected.emplace_back();
      for (const Array* array : arrays_of(value)) expected.back().slack.emplace_back(array->size(), 0.0);
      expected.back().value = std::move(value);
    }
    for (uint32_t run = 0; run < static_cast<uint32_t>(runs); ++run) {
      std::vector<Value> noisy;
      try {
        noisy = interpret_with(c, feeds, Noise(run + 1));
      } catch (const Invalid&) {  // thrown if rounding decides whether the graph is valid
        for (Expected& output : expected) output.decided = false;
        break;
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto exact = arrays_of(expected[i].value), other = arrays_of(noisy[i]);
        expected[i].decided = expected[i].decided && same_layout(exact, other);
        for (size_t k = 0; expected[i].decided && k < exact.size(); ++k) widen(*exact[k], *other[k], expected[i].slack[k]);
      }
    }
    for (Expected& output : expected) {
      const auto arrays = arrays_of(output.value);
      for (size_t k = 0; k < arrays.size(); ++k) finish(*arrays[k], output.slack[k]);
    }
    result.push_back(std::move(expected));
  }
  return result;
}

std::string compare(const Datum& actual, const Expected& expected) {
  if (!expected.decided) return {};
  const bool is_sequence = actual.kind() == Datum::Kind::sequence;
  if (!(is_sequence || actual.is_tensor()) || is_sequence != expected.value.is_sequence) return "another kind of value";
  const Value value = from_datum(actual);
  const auto have = arrays_of(value), want = arrays_of(expected.value);
  if (have.size() != want.size()) return std::to_string(have.size()) + " elements, expected " + std::to_string(want.size());
  for (size_t k = 0; k < have.size(); ++k) {
    std::string difference = compare_arrays(*have[k], *want[k], expected.slack[k]);
    if (!difference.empty()) return (is_sequence ? "element " + std::to_string(k) + ": " : "") + difference;
  }
  return {};
}

}  // namespace treadle::graphs
