#include "treadle/dlpack.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "core/base/checked.h"

namespace treadle {
namespace {

static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 && sizeof(DLManagedTensorVersioned) == 80,
              "the layout on 64-bit machines is fixed by the ABI");

constexpr DLPackVersion kVersion = {1, 1};

struct DTypeRow {
  DType dtype;
  DLDataTypeCode code;
  uint8_t bits;
};
constexpr DTypeRow kDTypes[] = {
    {DType::float32, kDLFloat, 32},
    {DType::float64, kDLFloat, 64},
    {DType::float16, kDLFloat, 16},
    {DType::bfloat16, kDLBfloat, 16},
    {DType::int8, kDLInt, 8},
    {DType::int16, kDLInt, 16},
    {DType::int32, kDLInt, 32},
    {DType::int64, kDLInt, 64},
    {DType::uint8, kDLUInt, 8},
    {DType::uint16, kDLUInt, 16},
    {DType::uint32, kDLUInt, 32},
    {DType::uint64, kDLUInt, 64},
    {DType::boolean, kDLBool, 8},
    {DType::complex64, kDLComplex, 64},
    {DType::complex128, kDLComplex, 128},
    {DType::float8e4m3fn, kDLFloat8_e4m3fn, 8},
    {DType::float8e4m3fnuz, kDLFloat8_e4m3fnuz, 8},
    {DType::float8e5m2, kDLFloat8_e5m2, 8},
    {DType::float8e5m2fnuz, kDLFloat8_e5m2fnuz, 8},
    {DType::float8e8m0, kDLFloat8_e8m0fnu, 8},
    {DType::float6e2m3, kDLFloat6_e2m3fn, 6},
    {DType::float6e3m2, kDLFloat6_e3m2fn, 6},
    {DType::float4e2m1, kDLFloat4_e2m1fn, 4},
    {DType::int4, kDLInt, 4},
    {DType::uint4, kDLUInt, 4},
    {DType::int2, kDLInt, 2},
    {DType::uint2, kDLUInt, 2},
};

[[noreturn]] void refuse(ErrorCode code, const std::string& message) { throw Error(code, "DLPack tensor: " + message); }

DType dtype_from(DLDataType type) {
  if (type.lanes != 1) refuse(ErrorCode::not_implemented, std::to_string(type.lanes) + " lanes an element; only 1 is supported");
  for (const DTypeRow& row : kDTypes)
    if (row.code == type.code && row.bits == type.bits) return row.dtype;
  refuse(ErrorCode::not_implemented, "dtype code " + std::to_string(type.code) + " with " + std::to_string(type.bits) + " bits");
}

DLDataType dtype_to(DType dtype) {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return {row.code, row.bits, 1};
  refuse(ErrorCode::not_implemented, "there is no dtype for " + std::string(name_of(dtype)));
}

bool host_readable(int32_t device_type) { return device_type == kDLCPU || device_type == kDLCUDAHost || device_type == kDLROCMHost; }

// The range of bytes that elements occupy, relative to the first element.
struct Extent {
  int64_t low = 0, high = 0;
};
Extent extent_bytes(const Shape& shape, const Shape& strides, int64_t element_bytes) {
  Extent extent;
  if (shape.num_elements() == 0) return extent;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    int64_t reach = checked_mul(checked_mul(shape[axis] - 1, strides[axis]), element_bytes);
    (reach < 0 ? extent.low : extent.high) = checked_add(reach < 0 ? extent.low : extent.high, reach);
  }
  extent.high = checked_add(extent.high, element_bytes);
  return extent;
}

// Makes a tensor that views the memory of `source`. @param release  calls the owner's deleter; not called if this function throws
Tensor view_of(const DLTensor& source, bool writable, std::function<void()> release) {
  if (!host_readable(source.device.device_type))
    refuse(ErrorCode::not_implemented,
           "its memory is on a device of type " + std::to_string(source.device.device_type) + ", not on the host");
  if (source.ndim < 0 || (source.ndim > 0 && !source.shape))
    refuse(ErrorCode::invalid_argument, std::to_string(source.ndim) + " axes without a shape");
  DType dtype = dtype_from(source.dtype);
  Shape shape(std::span<const int64_t>(source.shape, static_cast<size_t>(source.ndim)));
  int64_t num_elements = shape.num_elements();
  if (num_elements > 0 && !source.data) refuse(ErrorCode::invalid_argument, "no data for the shape " + to_string(shape));
  auto* first = static_cast<std::byte*>(source.data) + (source.data ? source.byte_offset : 0);
  size_t alignment = std::min<size_t>(8, std::max<size_t>(1, bits_of(dtype) / 8));
  if (num_elements > 0 && reinterpret_cast<uintptr_t>(first) % alignment != 0)
    refuse(ErrorCode::invalid_argument,
           "its data are not aligned to the " + std::to_string(alignment) + " bytes of " + std::string(name_of(dtype)));

  bool strided = source.strides && num_elements > 0;
  Shape strides = strided ? Shape(std::span<const int64_t>(source.strides, static_cast<size_t>(source.ndim))) : Shape();
  if (strided) {
    int64_t step = 1;
    bool contiguous = true;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      contiguous &= shape[axis] == 1 || strides[axis] == step;
      step *= shape[axis];
    }
    strided = !contiguous;
  }
  const auto borrow = [&](void* data, size_t bytes) {
    return writable ? Storage::borrow(data, bytes, std::move(release)) : Storage::borrow_read_only(data, bytes, std::move(release));
  };
  if (!strided) return Tensor(dtype, shape, borrow(first, size_bytes(dtype, num_elements)));
  if (is_sub_byte(dtype)) refuse(ErrorCode::not_implemented, "strides over packed elements of " + std::string(name_of(dtype)));
  Extent extent = extent_bytes(shape, strides, static_cast<int64_t>(bits_of(dtype) / 8));
  auto storage = borrow(first + extent.low, static_cast<size_t>(extent.high - extent.low));
  return Tensor(dtype, shape, strides.dims(), std::move(storage), static_cast<size_t>(-extent.low));
}

// Owns the memory that the exported struct points to.
template <typename Managed>
struct Export {
  Managed managed{};
  Tensor tensor;
  std::array<int64_t, kMaxRank> shape{}, strides{};
};

template <typename Managed>
Managed* make_export(const Tensor& tensor) {
  if (!tensor.defined()) refuse(ErrorCode::invalid_argument, "the tensor is undefined");
  DLDataType dtype = dtype_to(tensor.dtype());
  auto owner = std::make_unique<Export<Managed>>();
  owner->tensor = tensor;
  std::copy(tensor.shape().begin(), tensor.shape().end(), owner->shape.begin());
  std::copy(tensor.strides().begin(), tensor.strides().end(), owner->strides.begin());
  owner->managed.dl_tensor = {tensor.raw(), {kDLCPU, 0}, tensor.shape().rank(), dtype, owner->shape.data(), owner->strides.data(), 0};
  owner->managed.manager_ctx = owner.get();
  owner->managed.deleter = [](Managed* self) { delete static_cast<Export<Managed>*>(self->manager_ctx); };
  return &owner.release()->managed;
}

}  // namespace

Tensor from_dlpack(DLManagedTensor* managed) {
  if (!managed) refuse(ErrorCode::invalid_argument, "null");
  return view_of(managed->dl_tensor, true, [managed] {
    if (managed->deleter) managed->deleter(managed);
  });
}

Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  if (!managed) refuse(ErrorCode::invalid_argument, "null");
  if (managed->version.major != kVersion.major)
    refuse(ErrorCode::invalid_argument,
           "version " + std::to_string(managed->version.major) + "." + std::to_string(managed->version.minor) + "; 1.x is supported");
  if (managed->flags & kDLSubBytePadded && managed->dl_tensor.dtype.bits < 8)
    refuse(ErrorCode::not_implemented, "sub-byte elements padded to a byte each");
  return view_of(managed->dl_tensor, (managed->flags & kDLReadOnly) == 0, [managed] {
    if (managed->deleter) managed->deleter(managed);
  });
}

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (tensor.defined() && !tensor.storage()->writable())
    refuse(ErrorCode::invalid_argument, describe(tensor) + " is read-only, which only the versioned struct can say");
  if (is_sub_byte(tensor.dtype()))
    refuse(ErrorCode::invalid_argument, "the packing of " + describe(tensor) + " is defined for the versioned struct only");
  return make_export<DLManagedTensor>(tensor);
}

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor) {
  auto* managed = make_export<DLManagedTensorVersioned>(tensor);
  managed->version = kVersion;
  managed->flags = tensor.storage()->writable() ? 0 : kDLReadOnly;
  return managed;
}

}  // namespace treadle
