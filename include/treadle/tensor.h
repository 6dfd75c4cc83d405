// Tensors: a dtype, a shape, and a view of reference-counted memory.
#pragma once

#include <complex>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "treadle/dtype.h"
#include "treadle/export.h"
#include "treadle/shape.h"

namespace treadle {

class Device;

/// A block of memory and its owner. Allocated blocks are aligned to kAlignment bytes; foreign memory may have any alignment.
class TREADLE_API Storage {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line, and the widest vector register

  /// Allocates uninitialized memory. @throws Error(resource_exhausted)
  static std::shared_ptr<Storage> allocate(size_t size_bytes);
  /// Allocates `count` strings, which are destroyed with the block.
  static std::shared_ptr<Storage> allocate_strings(size_t count);
  /// Makes storage from foreign memory. `release`, which may be empty, is called when the last tensor that uses the memory is destroyed.
  static std::shared_ptr<Storage> borrow(void* data, size_t size_bytes, std::function<void()> release);
  /// Like borrow(), for memory that must not be written.
  static std::shared_ptr<Storage> borrow_read_only(const void* data, size_t size_bytes, std::function<void()> release);

  /// Makes storage from device memory (see to_device() in session.h). Host code must not read it, unless the device allows it.
  static std::shared_ptr<Storage> of_device(std::shared_ptr<Device> device, void* data, size_t size_bytes, std::function<void()> release);

  /// Makes storage from memory that its owner may reclaim soon: code that keeps the elements must copy them.
  static std::shared_ptr<Storage> lend(void* data, size_t size_bytes);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const noexcept { return data_; }
  size_t size_bytes() const noexcept { return size_bytes_; }
  bool writable() const noexcept { return writable_; }
  bool lent() const noexcept { return lent_; }
  /// Returns the device that the memory belongs to; null: the host.
  const std::shared_ptr<Device>& device() const noexcept { return device_; }

 private:
  Storage() = default;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  size_t num_strings_ = 0;
  bool owned_ = false, writable_ = true, lent_ = false;
  std::shared_ptr<Device> device_;
  std::function<void()> release_;
};

/// A dense tensor. Copying it copies the view, not the elements.
class TREADLE_API Tensor {
 public:
  Tensor() = default;
  /// Makes a contiguous tensor; elements are uninitialized (strings are empty).
  Tensor(DType dtype, const Shape& shape);
  /// Makes a contiguous view of `storage` that begins at `offset_bytes`. @throws Error(invalid_argument) if the storage is too small
  Tensor(DType dtype, const Shape& shape, std::shared_ptr<Storage> storage, size_t offset_bytes = 0);
  /// Makes a strided view; `strides` are in elements. @throws Error(invalid_argument) for sub-byte types, or if the view exceeds the
  /// storage
  Tensor(DType dtype, const Shape& shape, std::span<const int64_t> strides, std::shared_ptr<Storage> storage, size_t offset_bytes);

  template <typename T>
  static Tensor scalar(T value);
  template <typename T>
  static Tensor of(const Shape& shape, std::span<const T> values);
  template <typename T>
  static Tensor vector(std::span<const T> values) {
    return of<T>(Shape{static_cast<int64_t>(values.size())}, values);
  }
  static Tensor strings(const Shape& shape, std::span<const std::string> values);

  bool defined() const noexcept { return dtype_ != DType::undefined; }
  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  int64_t num_elements() const noexcept { return num_elements_; }
  size_t size_bytes() const;
  bool is_contiguous() const noexcept { return contiguous_; }
  /// Returns the strides in elements.
  std::span<const int64_t> strides() const noexcept { return strides_.dims(); }
  const std::shared_ptr<Storage>& storage() const noexcept { return storage_; }

  std::byte* raw() const noexcept { return data_; }
  /// Returns the elements. @throws Error(invalid_argument) if T is not the C++ type of the dtype
  template <typename T>
  T* data() const;
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<size_t>(num_elements_)};
  }

  /// Returns this tensor if it is contiguous, otherwise a contiguous copy.
  Tensor contiguous() const;
  /// Returns a contiguous copy in host memory, even if this tensor is on a device.
  Tensor clone() const;
  /// Returns the same elements with another shape. @throws Error(invalid_argument) if the element counts differ or the tensor is strided
  Tensor reshaped(const Shape& shape) const;
  /// Copies the elements of `other`. Either tensor may be on a device.
  void copy_from(const Tensor& other);

 private:
  DType dtype_ = DType::undefined;
  bool contiguous_ = true;
  Shape shape_, strides_;
  int64_t num_elements_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<Storage> storage_;
};

/// Describes dtype and shape: "f32[1,3,224,224]"
TREADLE_API std::string describe(const Tensor& tensor);

/// The dtype of a C++ element type, if there is exactly one.
template <typename T>
inline constexpr DType dtype_of = DType::undefined;
template <>
inline constexpr DType dtype_of<float> = DType::float32;
template <>
inline constexpr DType dtype_of<double> = DType::float64;
template <>
inline constexpr DType dtype_of<int8_t> = DType::int8;
template <>
inline constexpr DType dtype_of<int16_t> = DType::int16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::int32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::int64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::uint8;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::uint16;
template <>
inline constexpr DType dtype_of<uint32_t> = DType::uint32;
template <>
inline constexpr DType dtype_of<uint64_t> = DType::uint64;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;
template <>
inline constexpr DType dtype_of<std::string> = DType::string;
template <>
inline constexpr DType dtype_of<std::complex<float>> = DType::complex64;
template <>
inline constexpr DType dtype_of<std::complex<double>> = DType::complex128;

namespace detail {
[[noreturn]] TREADLE_API void throw_wrong_dtype(DType have, DType want);
}

template <typename T>
T* Tensor::data() const {
  if (dtype_of<T> != dtype_) detail::throw_wrong_dtype(dtype_, dtype_of<T>);
  return reinterpret_cast<T*>(data_);
}

template <typename T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
  Tensor result(dtype_of<T>, shape);
  if (result.num_elements() != static_cast<int64_t>(values.size())) detail::throw_wrong_dtype(dtype_of<T>, dtype_of<T>);
  for (size_t i = 0; i < values.size(); ++i) result.data<T>()[i] = values[i];
  return result;
}

template <typename T>
Tensor Tensor::scalar(T value) {
  return of<T>(Shape{}, std::span<const T>(&value, 1));
}

}  // namespace treadle
