// Rows of the table (data_bounds.h) for operators that take indices: gather, scatter, selection, and positions of other kinds.
#include <cmath>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
using Numbers = std::vector<double>;

int64_t from_front(int64_t index, int64_t extent) { return index < 0 ? index + extent : index; }

/// Returns `x` with `value` at `place`.
Numbers with(Numbers x, int64_t place, double value) {
  x[static_cast<size_t>(place)] = value;
  return x;
}
Numbers count_to(int64_t n) {
  Numbers x;
  for (int64_t i = 1; i <= n; ++i) x.push_back(static_cast<double>(i));
  return x;
}
Datum indices(const Shape& shape, std::vector<int64_t> x) { return tensor<int64_t>(shape, std::move(x)); }

std::vector<BoundsRow> gather_rows() {
  auto first_axis = [](int64_t v) { return BoundsCase{{counting({5}), ints({0, v})}}; };
  auto middle_axis = [](int64_t v) { return BoundsCase{{counting({2, 3, 2}), ints({v})}, {{"axis", int64_t{1}}}}; };
  auto of_middle = [](int64_t v) {
    const auto at = static_cast<double>(2 * from_front(v, 3));
    return Numbers{at + 1, at + 2, at + 7, at + 8};
  };
  auto packed = [](int64_t v) { return BoundsCase{{Tensor::strings(Shape{3}, std::vector<std::string>{"a", "b", "c"}), ints({v})}}; };
  return {
      {"ai.onnx", "Gather", 1, first_axis, -5, 4, Beyond::refused,
       [](int64_t v) {
         return Numbers{1, static_cast<double>(from_front(v, 5) + 1)};
       }},
      {"ai.onnx", "Gather", 1, middle_axis, -3, 2, Beyond::refused, of_middle},
      {"ai.onnx", "Gather", 1, packed, -3, 2, Beyond::refused, [](int64_t) { return Numbers{}; }},
      {"ai.onnx", "GatherElements", 1,
       [](int64_t v) {
         return BoundsCase{{counting({3, 2}), indices({1, 2}, {v, 0})}};
       },
       -3, 2, Beyond::refused,
       [](int64_t v) {
         return Numbers{static_cast<double>(2 * from_front(v, 3) + 1), 2};
       }},
      {"ai.onnx", "GatherND", 1,
       [](int64_t v) {
         return BoundsCase{{counting({3, 2}), indices({1, 2}, {v, 1})}};
       },
       -3, 2, Beyond::refused, [](int64_t v) { return Numbers{static_cast<double>(2 * from_front(v, 3) + 2)}; }},
      {"com.microsoft", "GatherND", 1,
       [](int64_t v) {
         return BoundsCase{{counting({3, 2}), indices({1, 2}, {v, 1})}};
       },
       -3, 2, Beyond::refused, [](int64_t v) { return Numbers{static_cast<double>(2 * from_front(v, 3) + 2)}; }},
      {"ai.onnx.ml", "ArrayFeatureExtractor", 1,
       [](int64_t v) {
         return BoundsCase{{counting({2, 3}), ints({0, v})}};
       },
       -3, 2, Beyond::refused,
       [](int64_t v) {
         const auto at = static_cast<double>(from_front(v, 3));
         return Numbers{1, at + 1, 4, at + 4};
       }},
  };
}

std::vector<BoundsRow> scatter_rows() {
  auto elements = [](int opset) {
    return [opset](int64_t v) {
      BoundsCase c{{counting({3, 2}), indices({1, 2}, {v, 0}), tensor<float>({1, 2}, {70, 80})}};
      c.opset = opset;
      return c;
    };
  };
  auto scattered = [](int64_t v) { return with(with(count_to(6), 1, 80), 2 * from_front(v, 3), 70); };
  auto cache = [](const char* mode) {
    return [mode](int64_t v) {
      return BoundsCase{{counting({1, 4, 1}), tensor<float>({1, 2, 1}, {70, 80}), ints({v})}, {{"mode", std::string(mode)}}};
    };
  };
  auto ring = [](int64_t v) { return with(with(count_to(4), v % 4, 70), (v % 4 + 1) % 4, 80); };
  return {
      {"ai.onnx", "Scatter", 1, elements(10), -3, 2, Beyond::refused, scattered},
      {"ai.onnx", "ScatterElements", 1, elements(18), -3, 2, Beyond::refused, scattered},
      {"ai.onnx", "ScatterND", 1,
       [](int64_t v) {
         return BoundsCase{{counting({4}), indices({1, 1}, {v}), tensor<float>({1}, {70})}};
       },
       -4, 3, Beyond::refused, [](int64_t v) { return with(count_to(4), from_front(v, 4), 70); }},
      {"ai.onnx", "TensorScatter", 2, cache("linear"), 0, 2, Beyond::refused,
       [](int64_t v) { return with(with(count_to(4), v, 70), v + 1, 80); }},
      {"ai.onnx", "TensorScatter", 2, cache("circular"), 0, kMax, Beyond::refused, ring, {2, 3}},
  };
}

std::vector<BoundsRow> selection_rows() {
  auto one_hot = [](int64_t v) { return BoundsCase{{ints({v}), scalar(3), tensor<float>({2}, {7, 9})}}; };
  auto marked = [](int64_t v) {
    const Numbers none{7, 7, 7};
    return v >= -3 && v < 3 ? with(none, from_front(v, 3), 9) : none;
  };
  auto of_depth = [](int64_t v) { return BoundsCase{{ints({1}), scalar(v), tensor<float>({2}, {7, 9})}}; };
  auto row_of_depth = [](int64_t v) {
    Numbers row(static_cast<size_t>(v), 7);
    return v > 1 ? with(row, 1, 9) : row;
  };
  auto largest = [](int64_t v) { return BoundsCase{{tensor<float>({4}, {3, 9, 5, 1}), ints({v})}, {}, 2}; };
  auto in_order = [](int64_t v) {
    const double values[] = {9, 5, 3, 1}, places[] = {1, 2, 0, 3};
    Numbers both(values, values + v);
    both.insert(both.end(), places, places + v);
    return both;
  };
  auto kept = [](int64_t v) {
    return BoundsCase{
        {tensor<float>({1, 3, 4}, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}), tensor<float>({1, 1, 3}, {.5F, .9F, .7F}), ints({v})}};
  };
  auto boxes = [](int64_t v) {
    Numbers rows;
    const double best_first[] = {1, 2, 0};
    for (int64_t i = 0; i < std::min<int64_t>(v, 3); ++i) rows.insert(rows.end(), {0, 0, best_first[i]});
    return rows;
  };
  return {
      {"ai.onnx", "OneHot", 0, one_hot, -3, 2, Beyond::defined, marked},
      {"ai.onnx", "OneHot", 1, of_depth, 0, 6, Beyond::too_large, row_of_depth},
      {"ai.onnx", "TopK", 1, largest, 0, 4, Beyond::refused, in_order},
      {"ai.onnx", "NonMaxSuppression", 2, kept, 0, 3, Beyond::defined, boxes},
  };
}

// Rows for operators whose axis is an input.
std::vector<BoundsRow> axis_rows() {
  std::vector<BoundsRow> rows;
  const struct {
    const char* name;
    double (*of_two)(double, double);
  } kReductions[] = {
      {"ReduceL1", [](double a, double b) { return a + b; }},
      {"ReduceL2", [](double a, double b) { return std::sqrt(a * a + b * b); }},
      {"ReduceLogSum", [](double a, double b) { return std::log(a + b); }},
      {"ReduceLogSumExp", [](double a, double b) { return std::log(std::exp(a) + std::exp(b)); }},
      {"ReduceMax", [](double, double b) { return b; }},
      {"ReduceMean", [](double a, double b) { return (a + b) / 2; }},
      {"ReduceMin", [](double a, double) { return a; }},
      {"ReduceProd", [](double a, double b) { return a * b; }},
      {"ReduceSum", [](double a, double b) { return a + b; }},
      {"ReduceSumSquare", [](double a, double b) { return a * a + b * b; }},
  };
  for (const auto& [name, of_two] : kReductions)
    rows.push_back({"ai.onnx", name, 1,
                    [](int64_t v) {
                      return BoundsCase{{counting({2, 2}), ints({v})}};
                    },
                    -2, 1, Beyond::refused,
                    [of_two = of_two](int64_t v) {
                      return from_front(v, 2) == 0 ? Numbers{of_two(1, 3), of_two(2, 4)} : Numbers{of_two(1, 2), of_two(3, 4)};
                    }});
  auto running = [](int64_t v) { return BoundsCase{{counting({2, 2}), scalar(v)}}; };
  rows.push_back({"ai.onnx", "CumSum", 1, running, -2, 1, Beyond::refused, [](int64_t v) {
                    return from_front(v, 2) == 0 ? Numbers{1, 2, 4, 6} : Numbers{1, 3, 3, 7};
                  }});
  rows.push_back({"ai.onnx", "CumProd", 1, running, -2, 1, Beyond::refused, [](int64_t v) {
                    return from_front(v, 2) == 0 ? Numbers{1, 2, 3, 8} : Numbers{1, 2, 3, 12};
                  }});
  auto same = [](int64_t) { return Numbers{1}; };
  rows.push_back({"ai.onnx", "Squeeze", 1,
                  [](int64_t v) {
                    return BoundsCase{{counting({1, 1}), ints({v})}};
                  },
                  -2, 1, Beyond::refused, same});
  rows.push_back({"ai.onnx", "Unsqueeze", 1,
                  [](int64_t v) {
                    return BoundsCase{{counting({1}), ints({v})}};
                  },
                  -2, 1, Beyond::refused, same});
  rows.push_back({"com.microsoft", "ExpandDims", 1,
                  [](int64_t v) {
                    return BoundsCase{{counting({1}), scalar(v)}};
                  },
                  -2, 1, Beyond::refused, same});
  return rows;
}

}  // namespace

std::vector<BoundsRow> indexing_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {gather_rows, scatter_rows, selection_rows, axis_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
