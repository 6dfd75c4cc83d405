// Reference-counted tensors that end directly before an inaccessible page.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "treadle/error.h"
#include "treadle/out_of_memory.h"
#include "treadle/tensor.h"

namespace treadle::fuzz {

/// Makes a tensor of uninitialised elements that end directly before an inaccessible page, so an access beyond them ends the process.
/// Strings are in ordinary memory.
inline Tensor fenced(DType dtype, const Shape& shape) {
  if (dtype == DType::string) return {dtype, shape};
  const size_t bytes = size_bytes(dtype, shape.num_elements());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t inside = (bytes + page - 1) / page * page, mapped_bytes = inside + page;
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw OutOfMemory("no memory for a fenced tensor");
  mprotect(static_cast<std::byte*>(mapped) + inside, page, PROT_NONE);
  auto release = [mapped, mapped_bytes] { munmap(mapped, mapped_bytes); };
  return {dtype, shape, Storage::borrow(static_cast<std::byte*>(mapped) + inside - bytes, bytes, release)};
}

inline Tensor fenced(const Tensor& tensor) {
  if (tensor.dtype() == DType::string || tensor.num_elements() == 0) return tensor;
  Tensor copy = fenced(tensor.dtype(), tensor.shape());
  std::memcpy(copy.raw(), tensor.raw(), tensor.size_bytes());
  return copy;
}

}  // namespace treadle::fuzz
