// NumPy's .npy files, formats 1 to 3.
#pragma once

#include <memory>
#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// Parses the .npy file in the bytes [offset, offset + size) of `file`. The tensor views these bytes if they are aligned.
/// @param where  the file's name, for errors
/// @throws Error(invalid_argument) if the file is broken or ONNX lacks the dtype. Unicode strings become UTF-8.
Tensor parse_npy(const std::shared_ptr<Storage>& file, size_t offset, size_t size, const std::string& where);

/// Writes the file atomically. Strings become NumPy's, which end at the first zero character.
/// @throws Error(not_implemented) for a dtype that NumPy lacks
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace treadle
