// Concrete shapes: up to kMaxRank extents, stored inline so that runs do not allocate for them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "treadle/export.h"

namespace treadle {

/// The maximum rank. ONNX sets no limit, but exported models stay at or below 8. Higher ranks are an error that names this limit.
inline constexpr int kMaxRank = 12;

class TREADLE_API Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  /// Makes a shape of these extents. @throws Error(invalid_argument) if there are more than kMaxRank extents
  explicit Shape(std::span<const int64_t> dims);

  int rank() const noexcept { return rank_; }
  int64_t operator[](int axis) const noexcept { return dims_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) noexcept { return dims_[static_cast<size_t>(axis)]; }
  int64_t back() const noexcept { return dims_[static_cast<size_t>(rank_ - 1)]; }
  const int64_t* begin() const noexcept { return dims_.data(); }
  const int64_t* end() const noexcept { return dims_.data() + rank_; }
  std::span<const int64_t> dims() const noexcept { return {dims_.data(), static_cast<size_t>(rank_)}; }
  void push_back(int64_t extent);
  void insert(int axis, int64_t extent);
  void erase(int axis);
  void resize(int rank, int64_t fill = 1);

  /// Returns the product of the extents (1 for a scalar). @throws Error(invalid_argument) if an extent is negative;
  /// Error(resource_exhausted) if the product of the extents other than 0 overflows
  int64_t num_elements() const;
  /// Returns the product of the extents in [first, last). @pre the shape is valid
  int64_t product(int first, int last) const noexcept;

  bool operator==(const Shape& other) const noexcept;

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

/// Formats a shape: "[1,3,224,224]"; "[]" for a scalar.
TREADLE_API std::string to_string(const Shape& shape);

}  // namespace treadle
