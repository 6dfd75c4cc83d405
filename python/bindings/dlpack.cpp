#include "dlpack.h"

#include "treadle/dlpack.h"
#include "treadle/error.h"

namespace treadle::python {
namespace {

constexpr const char* kOldName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

template <typename Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;  // a consumer has taken the tensor, and renamed the capsule
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (managed && managed->deleter) managed->deleter(managed);
}

template <typename Managed>
Tensor take_capsule(nb::handle capsule, const char* name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (!managed) throw nb::python_error();
  Tensor tensor = from_dlpack(managed);
  PyCapsule_SetName(capsule.ptr(), used_name);
  return tensor;
}

}  // namespace

Tensor tensor_from_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName))
    return take_capsule<DLManagedTensorVersioned>(capsule, kVersionedName, "used_dltensor_versioned");
  if (PyCapsule_IsValid(capsule.ptr(), kOldName)) return take_capsule<DLManagedTensor>(capsule, kOldName, "used_dltensor");
  throw Error(ErrorCode::invalid_argument, "not a DLPack capsule, or one that was taken over before");
}

nb::object capsule_from_tensor(const Tensor& tensor, bool versioned) {
  PyObject* capsule = versioned
                          ? PyCapsule_New(to_dlpack_versioned(tensor), kVersionedName,
                                          [](PyObject* c) { drop_capsule<DLManagedTensorVersioned>(c, kVersionedName); })
                          : PyCapsule_New(to_dlpack(tensor), kOldName, [](PyObject* c) { drop_capsule<DLManagedTensor>(c, kOldName); });
  return nb::steal(capsule);
}

}  // namespace treadle::python
