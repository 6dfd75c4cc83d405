// Rows of the table (data_bounds.h) for operators that slice, pad, repeat and resize by numbers in their inputs.
#include <algorithm>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
using Numbers = std::vector<double>;

/// Returns first, first + 1, …, last.
Numbers range(int64_t first, int64_t last) {
  Numbers x;
  for (int64_t i = first; i <= last; ++i) x.push_back(static_cast<double>(i));
  return x;
}
int64_t clamped(int64_t at, int64_t extent) { return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent); }

std::vector<BoundsRow> slice_rows() {
  auto starts = [](int64_t v) { return BoundsCase{{counting({5}), ints({v}), ints({5})}}; };
  auto ends = [](int64_t v) { return BoundsCase{{counting({5}), ints({0}), ints({v})}}; };
  auto backwards = [](int64_t v) { return BoundsCase{{counting({5}), ints({v}), ints({-6}), ints({0}), ints({-1})}}; };
  auto backwards_to = [](int64_t v) { return BoundsCase{{counting({5}), ints({4}), ints({v}), ints({0}), ints({-1})}}; };
  auto axes = [](int64_t v) { return BoundsCase{{counting({2, 2}), ints({1}), ints({2}), ints({v})}}; };
  auto steps = [](int64_t v) { return BoundsCase{{counting({5}), ints({v > 0 ? 0 : 4}), ints({v > 0 ? 5 : -6}), ints({0}), ints({v})}}; };
  auto reversed = [](Numbers x) { return Numbers(x.rbegin(), x.rend()); };
  auto experimental = [](auto make) {
    return [make](int64_t v) {
      BoundsCase c = make(v);
      c.opset = 1;
      return c;
    };
  };
  auto to_the_end = [](int64_t v) { return range(clamped(v, 5) + 1, 5); };
  auto up_to = [](int64_t v) { return range(1, clamped(v, 5)); };
  auto along = [](int64_t v) { return v == 0 || v == -2 ? Numbers{3, 4} : Numbers{2, 4}; };
  return {
      {"ai.onnx", "DynamicSlice", 1, experimental(starts), -5, 5, Beyond::defined, to_the_end},
      {"ai.onnx", "DynamicSlice", 2, experimental(ends), -5, 5, Beyond::defined, up_to},
      {"ai.onnx", "DynamicSlice", 3, experimental(axes), -2, 1, Beyond::refused, along},
      {"ai.onnx", "Slice", 1, starts, -5, 5, Beyond::defined, to_the_end},
      {"ai.onnx", "Slice", 2, ends, -5, 5, Beyond::defined, up_to},
      {"ai.onnx", "Slice", 1, backwards, -5, 4, Beyond::defined,
       // A start before the axis selects the first element: the specification clamps it to [0, extent - 1].
       [reversed](int64_t v) { return reversed(range(1, std::min<int64_t>(clamped(v, 5), 4) + 1)); }},
      {"ai.onnx", "Slice", 2, backwards_to, -5, 4, Beyond::defined,
       [reversed](int64_t v) { return reversed(range(v < -5 ? 1 : std::min<int64_t>(clamped(v, 5), 4) + 2, 5)); }},
      {"ai.onnx", "Slice", 3, axes, -2, 1, Beyond::refused, along},
      {"ai.onnx",
       "Slice",
       4,
       steps,
       2,
       5,
       Beyond::defined,
       [](int64_t v) {
         Numbers taken;
         for (int64_t at = v > 0 ? 1 : 5; at >= 1 && at <= 5;) {
           taken.push_back(static_cast<double>(at));
           if (v > 5 || v < -5) break;
           at += v;
         }
         return taken;
       },
       {-1, -2, -5}},
  };
}

std::vector<BoundsRow> pad_rows() {
  auto before = [](int64_t v) { return BoundsCase{{counting({3}), ints({v, 1})}}; };
  auto padded = [](int64_t v) {
    Numbers row = {1, 2, 3, 0};
    if (v < 0) row.erase(row.begin(), row.begin() - v);
    if (v > 0) row.insert(row.begin(), static_cast<size_t>(v), 0);
    return row;
  };
  auto after = [](int64_t v) { return BoundsCase{{counting({3}), ints({1, v})}}; };
  auto padded_after = [](int64_t v) {
    Numbers row = {0, 1, 2, 3};
    row.resize(static_cast<size_t>(4 + v), 0);
    return row;
  };
  // Shifts the data so far that only padding remains. The length stays the same.
  auto shifted = [](int64_t v) {
    const int64_t by = std::clamp(v, -(kMax / 2), kMax / 2);
    return BoundsCase{{counting({3}), ints({by, -by})}};
  };
  auto moved = [](int64_t v) {
    Numbers row(3, 0);
    for (int64_t i = 0; i < 3; ++i)
      if (v > -3 && v < 3 && i - v >= 0 && i - v < 3) row[static_cast<size_t>(i)] = static_cast<double>(i - v + 1);
    return row;
  };
  auto axes = [](int64_t v) { return BoundsCase{{counting({1, 2}), ints({1, 0}), Datum(), ints({v})}}; };
  return {
      {"ai.onnx", "Pad", 1, before, -4, 6, Beyond::too_large, padded},
      {"ai.onnx", "Pad", 1, after, -4, 6, Beyond::too_large, padded_after},
      {"ai.onnx", "Pad", 1, shifted, -2, 2, Beyond::defined, moved, {0}},
      {"ai.onnx", "Pad", 3, axes, -2, 1, Beyond::refused,
       [](int64_t v) {
         return v == 0 || v == -2 ? Numbers{0, 0, 1, 2} : Numbers{0, 1, 2};
       }},
      {"com.microsoft", "Pad", 1, before, -4, 6, Beyond::too_large, padded},
  };
}

std::vector<BoundsRow> repeat_rows() {
  auto cut = [](int64_t v) { return BoundsCase{{counting({4}), ints({v})}}; };
  // Half of the difference, rounded down, is cut off or added at the front.
  auto centered = [](int64_t v) {
    const int64_t first = v < 4 ? (4 - v) / 2 : -((v - 4) / 2);
    Numbers row;
    for (int64_t i = first; i < first + v; ++i) row.push_back(i >= 0 && i < 4 ? static_cast<double>(i + 1) : 0);
    return row;
  };
  return {
      {"ai.onnx", "Tile", 1,
       [](int64_t v) {
         return BoundsCase{{counting({2, 2}), ints({1, v})}};
       },
       0, 3, Beyond::too_large,
       [](int64_t v) {
         Numbers all;
         for (int64_t row = 0; row < 2; ++row)
           for (int64_t i = 0; i < v; ++i)
             for (int64_t k = 1; k <= 2; ++k) all.push_back(static_cast<double>(2 * row + k));
         return all;
       }},
      {"ai.onnx", "Expand", 1,
       [](int64_t v) {
         return BoundsCase{{counting({2, 1}), ints({2, v})}};
       },
       0, 3, Beyond::too_large,
       [](int64_t v) {
         Numbers all(static_cast<size_t>(v), 1);
         all.resize(static_cast<size_t>(2 * v), 2);
         return all;
       }},
      {"ai.onnx", "CenterCropPad", 1, cut, 0, 9, Beyond::too_large, centered, {1, 2, 3, 4, 5}},
      {"ai.onnx", "Split", 1,
       [](int64_t v) {
         BoundsCase c{{counting({5}), ints({v, v < 0 || v > 5 ? 0 : 5 - v})}};
         c.num_outputs = 2;
         return c;
       },
       0, 5, Beyond::refused, [](int64_t) { return range(1, 5); }},
  };
}

std::vector<BoundsRow> resize_rows() {
  auto nearest = [](int64_t v) { return BoundsCase{{counting({1, 1, 1, 2}), Datum(), Datum(), ints({1, 1, 1, v})}}; };
  auto picked = [](int64_t v) {
    Numbers row;  // with half_pixel and round_prefer_floor
    for (int64_t i = 0; i < v; ++i) {
      const double x = (static_cast<double>(i) + 0.5) * 2 / static_cast<double>(v) - 0.5;
      row.push_back(x > 0.5 ? 2 : 1);
    }
    return row;
  };
  auto linear = [](int64_t v) {
    return BoundsCase{{filled({1, 1, 2, 2}, 3), Datum(), Datum(), ints({1, 1, 2, v})}, {{"mode", std::string("linear")}}};
  };
  auto affine = [](int64_t v) { return BoundsCase{{filled({1, 2, 3}, 0), ints({1, 1, 2, v})}}; };
  auto zeros = [](int64_t per_element) { return [per_element](int64_t v) { return Numbers(static_cast<size_t>(per_element * v), 0); }; };
  return {
      {"ai.onnx", "Resize", 3, nearest, 0, 7, Beyond::too_large, picked, {1, 2, 3, 4}},
      {"ai.onnx", "Resize", 3, linear, 0, 7, Beyond::too_large, [](int64_t v) { return Numbers(static_cast<size_t>(2 * v), 3); }},
      {"ai.onnx", "AffineGrid", 1, affine, 0, 4, Beyond::too_large, zeros(4)},
  };
}

}  // namespace

std::vector<BoundsRow> movement_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {slice_rows, pad_rows, repeat_rows, resize_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
