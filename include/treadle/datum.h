// Values at run time: a tensor, a sparse tensor, a sequence, an optional, or a map.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "treadle/tensor.h"

namespace treadle {

class Datum;

/// COO: `indices` is int64 [nnz] (linear) or [nnz, rank]. CSR: `indices` are columns, `row_offsets` is int64 [rows + 1].
struct SparseTensor {
  enum class Format { coo, csr };
  Format format = Format::coo;
  Shape dense_shape;
  Tensor values;
  Tensor indices;
  Tensor row_offsets;  // only used by the format CSR
};

/// A list of elements of one type. `element_dtype` is also set if the list is empty.
struct Sequence {
  DType element_dtype = DType::undefined;
  std::vector<Datum> elements;
};

/// ONNX's optional: a value or nothing.
struct Optional {
  std::shared_ptr<Datum> value;  // null if the optional contains nothing
};

/// ONNX's map: keys are integers or strings; values are scalars of one dtype, stored as a 1-D tensor in the order of the keys.
struct Map {
  std::variant<std::vector<int64_t>, std::vector<std::string>> keys;
  Tensor values;
};

/// A value of any ONNX type. Cheap to copy: copies share the contents.
class TREADLE_API Datum {
 public:
  enum class Kind : uint8_t { none, tensor, sparse_tensor, sequence, optional, map };

  Datum() = default;
  Datum(Tensor tensor) : content_(std::move(tensor)) {}  // NOLINT(google-explicit-constructor): a tensor is a datum
  Datum(SparseTensor sparse) : content_(std::make_shared<const SparseTensor>(std::move(sparse))) {}  // NOLINT
  Datum(Sequence sequence) : content_(std::make_shared<const Sequence>(std::move(sequence))) {}      // NOLINT
  Datum(Optional optional) : content_(std::make_shared<const Optional>(std::move(optional))) {}      // NOLINT
  Datum(Map map) : content_(std::make_shared<const Map>(std::move(map))) {}                          // NOLINT

  Kind kind() const noexcept { return static_cast<Kind>(content_.index()); }
  bool defined() const noexcept { return kind() != Kind::none; }
  bool is_tensor() const noexcept { return kind() == Kind::tensor; }

  /// Returns the contents. Each of these functions throws Error(invalid_argument) if the value is of another kind.
  const Tensor& tensor() const;
  const SparseTensor& sparse_tensor() const;
  const Sequence& sequence() const;
  const Optional& optional() const;
  const Map& map() const;

 private:
  std::variant<std::monostate, Tensor, std::shared_ptr<const SparseTensor>, std::shared_ptr<const Sequence>,
               std::shared_ptr<const Optional>, std::shared_ptr<const Map>>
      content_;
};

/// Describes a value for messages: "f32[2,3]", "seq(f32, 4 elements)", "optional(none)" …
TREADLE_API std::string describe(const Datum& datum);

}  // namespace treadle
