// Sequences, optionals, maps and sparse tensors of the C ABI.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/datum.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

namespace {

using namespace treadle::c_api;
using treadle::Datum;
using treadle::DType;
using treadle::Error;
using treadle::ErrorCode;
using treadle::Map;
using treadle::Shape;
using treadle::Tensor;

Tensor integers(const int64_t* numbers, size_t count) {
  Tensor tensor(DType::int64, Shape{static_cast<int64_t>(count)});
  std::copy_n(numbers, count, tensor.data<int64_t>());
  return tensor;
}

Tensor keys_of(const Map& map) {
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&map.keys)) return integers(numbers->data(), numbers->size());
  const auto& texts = std::get<std::vector<std::string>>(map.keys);
  return Tensor::strings(Shape{static_cast<int64_t>(texts.size())}, texts);
}

// Implements a function that returns a part of a value.
template <typename Part>
treadle_status* part_of(const char* function, const treadle_value* value, treadle_value** out, const Part& part) {
  return call(function, {handle(value, "value"), needed(out, "out")}, [&] {
    *out = nullptr;
    *out = make<treadle_value>(part(value->datum)).release();
  });
}

}  // namespace

extern "C" {

treadle_status* treadle_sequence_create(treadle_dtype dtype, const treadle_value* const* values, size_t num_values, treadle_value** out) {
  return call(__func__, {known_dtype(dtype, "dtype"), each_value(values, num_values, "values"), needed(out, "out")}, [&] {
    treadle::Sequence sequence{static_cast<DType>(as_number(dtype)), {}};
    for (size_t i = 0; i < num_values; ++i) {
      const Tensor tensor = to_tensor(values[i], "an element of a sequence");
      if (tensor.dtype() != sequence.element_dtype)
        throw Error(ErrorCode::invalid_argument,
                    "values[" + std::to_string(i) + "] is " + describe(tensor) + ", not " + std::string(name_of(sequence.element_dtype)));
      sequence.elements.emplace_back(tensor);
    }
    *out = make<treadle_value>(std::move(sequence)).release();
  });
}

treadle_status* treadle_optional_create(const treadle_value* content, treadle_value** out) {
  return call(__func__, {handle_or_null(content, "content"), needed(out, "out")}, [&] {
    *out = make<treadle_value>(treadle::Optional{content ? std::make_shared<Datum>(content->datum) : nullptr}).release();
  });
}
int treadle_optional_has_value(const treadle_value* value) {
  return asked<int>(value, 0,
                    [](const treadle_value& v) { return v.datum.kind() == Datum::Kind::optional && v.datum.optional().value ? 1 : 0; });
}
treadle_status* treadle_optional_get(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) {
    const std::shared_ptr<Datum> content = datum.optional().value;
    if (!content) throw Error(ErrorCode::not_found, "the optional contains nothing");
    return *content;
  });
}

size_t treadle_map_size(const treadle_value* value) {
  return asked<size_t>(value, 0, [](const treadle_value& v) {
    return v.datum.kind() != Datum::Kind::map ? 0 : std::visit([](const auto& keys) { return keys.size(); }, v.datum.map().keys);
  });
}
treadle_status* treadle_map_keys(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) { return Datum(keys_of(datum.map())); });
}
treadle_status* treadle_map_values(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) { return Datum(datum.map().values); });
}

treadle_status* treadle_sparse_tensor_shape(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) {
    const Shape& shape = datum.sparse_tensor().dense_shape;
    return Datum(integers(shape.begin(), static_cast<size_t>(shape.rank())));
  });
}
treadle_status* treadle_sparse_tensor_values(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) { return Datum(datum.sparse_tensor().values); });
}
treadle_status* treadle_sparse_tensor_indices(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) { return Datum(datum.sparse_tensor().indices); });
}
treadle_status* treadle_sparse_tensor_row_offsets(const treadle_value* value, treadle_value** out) {
  return part_of(__func__, value, out, [](const Datum& datum) {
    if (datum.sparse_tensor().format != treadle::SparseTensor::Format::csr)
      throw Error(ErrorCode::not_found, "the sparse tensor's format is COO, which has no row offsets");
    return Datum(datum.sparse_tensor().row_offsets);
  });
}

}  // extern "C"
