// Static types of values: kind, dtype and shape as known before a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/dim.h"
#include "treadle/datum.h"

namespace treadle {

/// The shape of a value before a run: its extents may be symbolic.
using SymbolicShape = std::vector<Dim>;

/// The type of a value. Kind `unknown`: inference could not determine it. No shape: the rank is unknown.
struct Type {
  enum class Kind : uint8_t { unknown, tensor, sparse_tensor, sequence, optional, map };

  Kind kind = Kind::unknown;
  DType dtype = DType::undefined;       // dtype of a tensor's elements, or of a map's values
  DType key_dtype = DType::undefined;   // dtype of a map's keys
  std::optional<SymbolicShape> shape;   // of a tensor or sparse tensor
  std::shared_ptr<const Type> element;  // type of the elements of a sequence, or of the contents of an optional

  static Type tensor(DType dtype) { return {Kind::tensor, dtype, DType::undefined, std::nullopt, nullptr}; }
  static Type tensor(DType dtype, SymbolicShape shape) { return {Kind::tensor, dtype, DType::undefined, std::move(shape), nullptr}; }
  static Type tensor(DType dtype, const Shape& shape) { return tensor(dtype, SymbolicShape(shape.begin(), shape.end())); }
  static Type sequence(Type element) {
    return {Kind::sequence, DType::undefined, DType::undefined, std::nullopt, std::make_shared<const Type>(std::move(element))};
  }
  static Type optional(Type element) {
    return {Kind::optional, DType::undefined, DType::undefined, std::nullopt, std::make_shared<const Type>(std::move(element))};
  }
  static Type map(DType key, DType value) { return {Kind::map, value, key, std::nullopt, nullptr}; }
  /// Returns the type of an existing value.
  static Type of(const Datum& datum);

  bool is_tensor() const noexcept { return kind == Kind::tensor; }
  bool has_rank() const noexcept { return shape.has_value(); }
  int rank() const noexcept { return static_cast<int>(shape->size()); }
  /// Returns true if every extent is an integer.
  bool is_static() const noexcept;
  /// Returns the shape as integers. @pre is_static()
  Shape static_shape() const;

  bool operator==(const Type& other) const;
};

/// Formats a type: "f32[N,3,224,224]", "f32[?]" for an unknown rank, "seq(f32[...])".
std::string to_string(const Type& type);
std::string to_string(const SymbolicShape& shape);

/// Broadcasts two shapes by NumPy's rules (ONNX, docs/Broadcasting.md). @throws Error(invalid_argument) naming both shapes
SymbolicShape broadcast(const SymbolicShape& a, const SymbolicShape& b);
Shape broadcast(const Shape& a, const Shape& b);
/// Returns the product of the extents [first, last).
Dim product(const SymbolicShape& shape, size_t first, size_t last);
inline Dim product(const SymbolicShape& shape) { return product(shape, 0, shape.size()); }

}  // namespace treadle
