// Hugging Face's safetensors: the length of a header, the header as JSON, and tensors one after the other.
#pragma once

#include <memory>
#include <string>

#include "treadle/train.h"

namespace treadle::train {

struct Safetensors {
  Metadata metadata;
  NamedTensors tensors;
  size_t data_offset = 0;  ///< where the tensors begin in the file
};

/// Views of the bytes; copies where they stand at an odd address.
/// @param where  the file's name, for errors.
/// @throws Error(invalid_model) for anything that the format does not allow: overlaps, gaps, sizes that do not fit, names twice;
///         Error(not_implemented) for a dtype that ONNX lacks.
Safetensors parse_safetensors(const std::shared_ptr<Storage>& bytes, const std::string& where);

/// What stands before the tensors, which follow in the order of tensors_in_file_order(); a multiple of 64 bytes.
/// @param metadata  in this order, before all tensors.
std::string safetensors_header(const Metadata& metadata, const NamedTensors& tensors);
/// The widest elements first, so that each tensor is aligned.
std::vector<const NamedTensors::value_type*> tensors_in_file_order(const NamedTensors& tensors);

}  // namespace treadle::train
