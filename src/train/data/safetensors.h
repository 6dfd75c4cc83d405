// Reads and writes Hugging Face's safetensors format: the header's length, the header as JSON, and then the tensors' bytes.
#pragma once

#include <memory>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

struct Safetensors {
  Metadata metadata;
  NamedTensors tensors;
  size_t data_offset = 0;  ///< where the first tensor's bytes begin in the file
};

/// Parses a file. The tensors are views of `bytes`, except for those that are not aligned for their dtype, which are copied.
/// @param where  the file's name, for errors.
/// @throws Error(invalid_model) for a file that violates the format: overlaps, gaps, wrong sizes, duplicate names; Error(not_implemented)
/// for a dtype that ONNX does not have.
Safetensors parse_safetensors(const std::shared_ptr<Storage>& bytes, const std::string& where);

/// Returns the file's bytes before the tensors' bytes, which must follow in the order of tensors_in_file_order(). Their number is a
/// multiple of 64. @param metadata  written in this order.
std::string safetensors_header(const Metadata& metadata, const NamedTensors& tensors);
/// Returns the tensors with the widest elements first, so that each is aligned to its element size.
std::vector<const NamedTensors::value_type*> tensors_in_file_order(const NamedTensors& tensors);

}  // namespace treadle::train
