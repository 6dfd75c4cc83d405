// Exchange of tensors with other frameworks by DLPack (dmlc.github.io/dlpack, ABI 1.x): without copies, with shared ownership.
// The structs match the ABI. They are declared in our namespace, so that a program may include DLPack's own header too.
#pragma once

#include <cstdint>

#include "treadle/export.h"
#include "treadle/tensor.h"

namespace treadle {

struct DLDevice {
  int32_t device_type;  // a number of DLPack's enum DLDeviceType
  int32_t device_id;
};
enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCMHost = 11 };

struct DLDataType {
  uint8_t code;  // a number of DLPack's enum DLDataTypeCode
  uint8_t bits;
  uint16_t lanes;
};
enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat6_e2m3fn = 15,
  kDLFloat6_e3m2fn = 16,
  kDLFloat4_e2m1fn = 17,
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // strides in elements; null: the tensor is contiguous
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  uint32_t major, minor;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};
inline constexpr uint64_t kDLReadOnly = 1, kDLIsCopied = 2, kDLSubBytePadded = 4;

/// Makes a tensor that views the memory of `managed`, including strides. The deleter runs when no tensor uses this memory any more.
/// If this function throws, the caller still owns `managed` and must call its deleter.
/// @throws Error(invalid_argument) for a null or inconsistent tensor, an unsupported version, or data not aligned to its elements;
///         Error(not_implemented) for memory that the host cannot read, vector lanes, padded sub-byte elements and unknown dtypes
TREADLE_API Tensor from_dlpack(DLManagedTensor* managed);
TREADLE_API Tensor from_dlpack(DLManagedTensorVersioned* managed);

/// Exports a tensor. The consumer calls the deleter once. Strides are always set.
/// @throws Error(not_implemented) for strings; Error(invalid_argument) for read-only memory and packed sub-byte types, which this older
///         struct cannot describe: use to_dlpack_versioned
TREADLE_API DLManagedTensor* to_dlpack(const Tensor& tensor);
TREADLE_API DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor);

}  // namespace treadle
