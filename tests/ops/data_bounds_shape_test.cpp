// Rows of the table (data_bounds.h) for operators whose output extents come from data: shapes, ranges, windows, transforms.
#include <cmath>
#include <numbers>

#include "tests/ops/data_bounds.h"

namespace treadle::testing {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min(), kMax = std::numeric_limits<int64_t>::max();
using Numbers = std::vector<double>;

Numbers counted(int64_t first, int64_t count) {
  Numbers x;
  for (int64_t i = 0; i < count; ++i) x.push_back(static_cast<double>(first + i));
  return x;
}

std::vector<BoundsRow> filling_rows() {
  std::vector<BoundsRow> rows = {
      {"ai.onnx", "ConstantOfShape", 0,
       [](int64_t v) {
         return BoundsCase{{ints({2, v})}};
       },
       0, 4, Beyond::too_large, [](int64_t v) { return Numbers(static_cast<size_t>(2 * v), 0); }},
      {"ai.onnx", "Reshape", 1,
       [](int64_t v) {
         return BoundsCase{{counting({2, 3}), ints({v, 3})}};
       },
       -1, 0, Beyond::too_large, [](int64_t) { return counted(1, 6); }},
      // The tensor is empty, because an overflow of the product to 0 would then look valid.
      {"ai.onnx", "Reshape", 1,
       [](int64_t v) {
         return BoundsCase{{counting({0, 4}), ints({v, 4})}, {{"allowzero", int64_t{1}}}};
       },
       -1, 0, Beyond::too_large, [](int64_t) { return Numbers{}; }},
  };
  auto downwards = [](int64_t v) { return BoundsCase{{scalar(v), scalar(-6), scalar(-1)}}; };
  auto from = [](int64_t v) {
    Numbers x;
    for (int64_t i = v; i > -6; --i) x.push_back(static_cast<double>(i));
    return x;
  };
  auto upwards = [](int64_t v) { return BoundsCase{{scalar(0), scalar(v), scalar(1)}}; };
  auto by = [](int64_t v) { return BoundsCase{{scalar(0), scalar(6), scalar(v)}}; };
  auto stepped = [](int64_t v) {
    Numbers x;
    for (int64_t i = 0; i < 6 && v > 0; i += std::min<int64_t>(v, 6)) x.push_back(static_cast<double>(i));
    return x;
  };
  for (const char* domain : {"ai.onnx", "com.microsoft"}) {
    rows.push_back({domain, "Range", 0, downwards, kMin, 2, Beyond::too_large, from});
    rows.push_back(
        {domain, "Range", 1, upwards, kMin, 9, Beyond::too_large, [](int64_t v) { return counted(0, std::max<int64_t>(v, 0)); }});
    rows.push_back({domain, "Range", 2, by, 2, 6, Beyond::defined, stepped, {-1, 5}});
  }
  return rows;
}

std::vector<BoundsRow> triangle_rows() {
  std::vector<BoundsRow> rows;
  for (const char* domain : {"ai.onnx", "com.microsoft"})
    for (const int64_t upper : {0, 1})
      rows.push_back({domain,
                      "Trilu",
                      1,
                      [upper](int64_t v) {
                        return BoundsCase{{counting({2, 3}), scalar(v)}, {{"upper", upper}}};
                      },
                      -2,
                      3,
                      Beyond::defined,
                      [upper](int64_t v) {
                        Numbers kept;
                        for (int64_t i = 0; i < 6; ++i) {
                          const int64_t column_less_row = i % 3 - i / 3;
                          kept.push_back((upper ? column_less_row >= v : column_less_row <= v) ? static_cast<double>(i + 1) : 0);
                        }
                        return kept;
                      },
                      {-1, 0, 1, 2}});
  return rows;
}

std::vector<BoundsRow> window_rows() {
  std::vector<BoundsRow> rows;
  const struct {
    const char* name;
    double a0, a1, a2;
  } kWindows[] = {{"HannWindow", .5, .5, 0}, {"HammingWindow", 25.0 / 46, 21.0 / 46, 0}, {"BlackmanWindow", .42, .5, .08}};
  for (const auto& w : kWindows)
    rows.push_back({"ai.onnx", w.name, 0, [](int64_t v) { return BoundsCase{{scalar(v)}}; }, 0, 5, Beyond::too_large,
                    [w](int64_t v) {
                      Numbers y;
                      for (int64_t n = 0; n < v; ++n) {
                        const double angle = 2 * std::numbers::pi * static_cast<double>(n) / static_cast<double>(v);
                        y.push_back(w.a0 - w.a1 * std::cos(angle) + w.a2 * std::cos(2 * angle));
                      }
                      return y;
                    }});
  // All bands are at 0 Hz, so each band has its peak in the first bin.
  auto mel = [](int64_t bands, int64_t length, int64_t rate) {
    return BoundsCase{{scalar(bands), scalar(length), scalar(rate), Tensor::scalar(0.0F), Tensor::scalar(0.0F)}};
  };
  auto peaks = [](int64_t bands, int64_t bins) {
    Numbers y(static_cast<size_t>(bands * bins), 0);
    std::fill_n(y.begin(), bands, 1);
    return y;
  };
  rows.push_back({"ai.onnx", "MelWeightMatrix", 0, [mel](int64_t v) { return mel(v, 4, 8000); }, 0, 4, Beyond::too_large,
                  [peaks](int64_t v) { return peaks(v, 3); }});
  rows.push_back({"ai.onnx", "MelWeightMatrix", 1, [mel](int64_t v) { return mel(2, v, 8000); }, 0, 5, Beyond::too_large,
                  [peaks](int64_t v) { return peaks(2, v / 2 + 1); }});
  rows.push_back({"ai.onnx", "MelWeightMatrix", 2, [mel](int64_t v) { return mel(2, 4, v); }, 1, kMax, Beyond::refused,
                  [peaks](int64_t) { return peaks(2, 3); }});
  return rows;
}

/// Returns the bins of the transform of x, padded with zeros, as real and imaginary parts.
Numbers transformed(const Numbers& x, int64_t length, int64_t bins) {
  Numbers y;
  for (int64_t k = 0; k < bins; ++k) {
    double real = 0, imaginary = 0;
    for (int64_t n = 0; n < std::min<int64_t>(length, std::ssize(x)); ++n) {
      const double angle = -2 * std::numbers::pi * static_cast<double>(k * n) / static_cast<double>(length);
      real += x[static_cast<size_t>(n)] * std::cos(angle), imaginary += x[static_cast<size_t>(n)] * std::sin(angle);
    }
    y.insert(y.end(), {real, imaginary});
  }
  return y;
}

std::vector<BoundsRow> transform_rows() {
  auto dft = [](int64_t v) { return BoundsCase{{counting({1, 4, 1}), scalar(v), scalar(1)}}; };
  auto axis = [](int64_t v) { return BoundsCase{{counting({1, 2, 1}), Datum(), scalar(v)}}; };
  auto along = [](int64_t v) { return v == 0 || v == -3 ? Numbers{1, 0, 2, 0} : Numbers{3, 0, -1, 0}; };
  auto step = [](int64_t v) { return BoundsCase{{counting({1, 6}), scalar(v), Datum(), scalar(2)}}; };
  auto frames = [](int64_t v) {
    Numbers y;
    for (int64_t first = 0; first <= 4; first += v) {
      for (const double x : transformed({static_cast<double>(first + 1), static_cast<double>(first + 2)}, 2, 2)) y.push_back(x);
      if (v > 4) break;
    }
    return y;
  };
  auto length = [](int64_t v) { return BoundsCase{{counting({1, 6}), scalar(6), Datum(), scalar(v)}}; };
  return {
      {"ai.onnx",
       "DFT",
       1,
       dft,
       1,
       6,
       Beyond::too_large,
       [](int64_t v) {
         return transformed({1, 2, 3, 4}, v, v);
       },
       {2, 3, 4, 5}},
      {"ai.onnx", "DFT", 2, axis, 0, 1, Beyond::refused, along},
      {"ai.onnx", "DFT", 2, axis, -3, -2, Beyond::refused, along},
      {"ai.onnx", "STFT", 1, step, 1, kMax, Beyond::refused, frames, {2, 3, 4, 5}},
      {"ai.onnx", "STFT", 3, length, 1, 6, Beyond::refused,
       [](int64_t v) {
         return transformed({1, 2, 3, 4, 5, 6}, v, v / 2 + 1);
       }},
  };
}

std::vector<BoundsRow> column_rows() {
  auto image = [](int64_t v) {
    const int64_t blocks = v >= 2 && v <= 6 ? v - 1 : 0;
    return BoundsCase{{counting({1, 2, blocks}), ints({v}), ints({2})}};
  };
  // Blocks overlap by half: an element is the first of one block and the second of the block before it.
  auto summed = [](int64_t v) {
    Numbers y(static_cast<size_t>(v), 0);
    const int64_t blocks = std::max<int64_t>(v - 1, 0);
    for (int64_t i = 0; i < blocks; ++i)
      y[static_cast<size_t>(i)] += static_cast<double>(i + 1), y[static_cast<size_t>(i + 1)] += static_cast<double>(blocks + i + 1);
    return y;
  };
  auto block = [](int64_t v) {
    const int64_t rows = v >= 1 && v <= 4 ? v : 2;
    return BoundsCase{{filled({1, rows, 5 - rows}, 1), ints({4}), ints({v})}};
  };
  auto covered = [](int64_t v) {
    Numbers y(4, 0);
    for (int64_t first = 0; first + v <= 4; ++first)
      for (int64_t i = first; i < first + v; ++i) y[static_cast<size_t>(i)] += 1;
    return y;
  };
  return {
      {"ai.onnx", "Col2Im", 1, image, 0, 6, Beyond::too_large, summed},
      {"ai.onnx", "Col2Im", 2, block, 1, 4, Beyond::refused, covered, {2, 3}},
  };
}

}  // namespace

std::vector<BoundsRow> shape_rows() {
  std::vector<BoundsRow> all;
  for (auto* rows : {filling_rows, triangle_rows, window_rows, transform_rows, column_rows})
    for (BoundsRow& row : rows()) all.push_back(std::move(row));
  return all;
}

}  // namespace treadle::testing
