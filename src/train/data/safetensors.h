// Hugging Face's safetensors format: the length of a header, the header as JSON, and then the tensors' bytes.
#pragma once

#include <memory>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

struct Safetensors {
  Metadata metadata;
  NamedTensors tensors;
  size_t data_offset = 0;  ///< offset in the file of the first tensor, in bytes
};

/// Parses a file. Tensors are views of `bytes`; those that are not aligned for their dtype are copied.
/// @param where  the file's name, for errors.
/// @throws Error(invalid_model) for a file that violates the format: overlaps, gaps, wrong sizes, duplicate names; Error(not_implemented)
/// for a dtype that ONNX does not have.
Safetensors parse_safetensors(const std::shared_ptr<Storage>& bytes, const std::string& where);

/// Returns the bytes before the tensors, which follow in the order of tensors_in_file_order(). The number of these bytes is a multiple of
/// 64. @param metadata  written in this order.
std::string safetensors_header(const Metadata& metadata, const NamedTensors& tensors);
/// Returns the tensors with the widest elements first, so that each is aligned to its element size.
std::vector<const NamedTensors::value_type*> tensors_in_file_order(const NamedTensors& tensors);

}  // namespace treadle::train
