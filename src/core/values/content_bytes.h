// Memory of tensors' contents, including the texts of strings.
#pragma once

#include <cstddef>
#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// Heap bytes of a string's text; 0 if it fits into the string object.
inline size_t text_bytes(const std::string& text) noexcept {
  static const size_t inner = std::string().capacity();
  return text.capacity() > inner ? text.capacity() + 1 : 0;
}
/// Heap bytes of all texts of a tensor; 0 if its elements are no strings.
inline size_t text_bytes(const Tensor& tensor) {
  if (!tensor.defined() || tensor.dtype() != DType::string) return 0;
  const Tensor dense = tensor.contiguous();
  size_t bytes = 0;
  for (int64_t i = 0; i < dense.num_elements(); ++i) bytes += text_bytes(dense.data<std::string>()[i]);
  return bytes;
}
/// Returns the bytes of the elements and of their texts.
inline size_t content_bytes(const Tensor& tensor) { return tensor.size_bytes() + text_bytes(tensor); }

}  // namespace treadle
