// NumPy's .npy files (format 1 to 3).
#pragma once

#include <memory>
#include <string>

#include "treadle/tensor.h"

namespace treadle {

/// The array of the .npy file that the bytes [offset, offset + size) of `file` are: a view of them where they are aligned.
/// @param where  the file's name, for errors.
/// @throws Error(invalid_argument) for a broken file or a dtype that ONNX lacks. Unicode strings become UTF-8.
Tensor parse_npy(const std::shared_ptr<Storage>& file, size_t offset, size_t size, const std::string& where);

/// Strings cannot be written. The file is complete or absent.
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace treadle
