// Implements tensors, sequences and other values of the C ABI.
#include "c_api/values.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/status.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

namespace {

using namespace treadle::c_api;
using treadle::Error;
using treadle::ErrorCode;
using treadle::Tensor;

treadle::Shape to_shape(const int64_t* extents, size_t rank) { return treadle::Shape(std::span<const int64_t>(extents, rank)); }

/// Returns body(tensor), or `otherwise` if the value is not a tensor.
template <typename Result, typename Body>
Result of_tensor(const treadle_value* value, std::type_identity_t<Result> otherwise, const Body& body) noexcept {
  return asked<Result>(value, otherwise,
                       [&](const treadle_value& v) { return v.datum.is_tensor() ? body(v.datum.tensor()) : Result(otherwise); });
}

}  // namespace

extern "C" {

treadle_status* treadle_tensor_create(treadle_dtype dtype, const int64_t* shape, size_t rank, treadle_value** out) {
  return call(__func__, {known_dtype(dtype, "dtype"), list(shape, rank, "shape"), needed(out, "out")},
              [&] { *out = make<treadle_value>(Tensor(static_cast<treadle::DType>(dtype), to_shape(shape, rank))).release(); });
}

treadle_status* treadle_tensor_borrow(treadle_dtype dtype, const int64_t* shape, size_t rank, void* data, size_t size_bytes,
                                      void (*release)(void*), void* context, treadle_value** out) {
  return call(__func__,
              {known_dtype(dtype, "dtype"), list(shape, rank, "shape"), list(static_cast<std::byte*>(data), size_bytes, "data"),
               needed(out, "out")},
              [&] {
                if (dtype == TREADLE_STRING) throw Error(ErrorCode::invalid_argument, "strings cannot be borrowed");
                auto kept = std::make_shared<CallbackContext>();
                kept->context = context;
                auto storage = treadle::Storage::borrow(data, size_bytes, [kept] {});
                auto made = make<treadle_value>(Tensor(static_cast<treadle::DType>(dtype), to_shape(shape, rank), std::move(storage)));
                kept->release = release;
                *out = made.release();
              });
}

treadle_status* treadle_tensor_from_strings(const int64_t* shape, size_t rank, const char* const* strings, size_t num_strings,
                                            treadle_value** out) {
  return call(__func__, {list(shape, rank, "shape"), each_text(strings, num_strings, "strings"), needed(out, "out")},
              [&] { *out = make<treadle_value>(Tensor::strings(to_shape(shape, rank), to_strings(strings, num_strings))).release(); });
}

treadle_value_kind treadle_value_get_kind(const treadle_value* value) {
  return asked<treadle_value_kind>(value, TREADLE_NONE,
                                   [](const treadle_value& v) { return static_cast<treadle_value_kind>(v.datum.kind()); });
}
void treadle_value_release(treadle_value* value) { dispose(value); }

treadle_dtype treadle_tensor_dtype(const treadle_value* value) {
  return of_tensor<treadle_dtype>(value, TREADLE_UNDEFINED, [](const Tensor& t) { return static_cast<treadle_dtype>(t.dtype()); });
}
size_t treadle_tensor_rank(const treadle_value* value) {
  return of_tensor<size_t>(value, 0, [](const Tensor& t) { return static_cast<size_t>(t.shape().rank()); });
}
const int64_t* treadle_tensor_shape(const treadle_value* value) {
  return of_tensor<const int64_t*>(value, nullptr, [](const Tensor& t) { return t.shape().begin(); });
}
size_t treadle_tensor_num_elements(const treadle_value* value) {
  return of_tensor<size_t>(value, 0, [](const Tensor& t) { return static_cast<size_t>(t.num_elements()); });
}
size_t treadle_tensor_size_bytes(const treadle_value* value) {
  return of_tensor<size_t>(value, 0, [](const Tensor& t) { return t.size_bytes(); });
}

void* treadle_tensor_data(const treadle_value* value) {
  return of_tensor<void*>(value, nullptr, [](const Tensor& t) {
    const bool is_reached = t.storage() && t.dtype() != treadle::DType::string && !t.storage()->device();
    return is_reached ? static_cast<void*>(t.raw()) : nullptr;
  });
}

const char* treadle_tensor_device(const treadle_value* value) {
  return of_tensor<const char*>(value, nullptr, [](const Tensor& t) { return treadle::device_of(t).data(); });
}
treadle_status* treadle_tensor_to_device(const treadle_value* value, const char* device, treadle_value** out) {
  return call(__func__, {handle(value, "value"), needed(device, "device"), needed(out, "out")}, [&] {
    *out = nullptr;
    if (!value->datum.is_tensor()) throw Error(ErrorCode::invalid_argument, "the value is no tensor");
    *out = make<treadle_value>(treadle::to_device(value->datum.tensor(), device)).release();
  });
}

const char* treadle_tensor_string(const treadle_value* value, size_t index) {
  return of_tensor<const char*>(value, nullptr, [&](const Tensor& t) -> const char* {
    if (t.dtype() != treadle::DType::string || index >= static_cast<size_t>(t.num_elements())) return nullptr;
    return t.data<std::string>()[index].c_str();
  });
}

size_t treadle_sequence_length(const treadle_value* value) {
  return asked<size_t>(value, 0, [](const treadle_value& v) {
    return v.datum.kind() == treadle::Datum::Kind::sequence ? v.datum.sequence().elements.size() : 0;
  });
}

treadle_status* treadle_sequence_get(const treadle_value* value, size_t index, treadle_value** out) {
  return call(__func__, {handle(value, "value"), needed(out, "out")}, [&] {
    const auto& elements = value->datum.sequence().elements;
    if (index >= elements.size())
      throw Error(ErrorCode::invalid_argument, "the sequence has " + std::to_string(elements.size()) + " elements");
    *out = make<treadle_value>(elements[index]).release();
  });
}

}  // extern "C"
