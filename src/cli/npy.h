// NumPy's files: .npy (format 1 to 3) and .npz (a zip archive of them, stored or deflated).
#pragma once

#include <map>
#include <string>

#include "treadle/tensor.h"

namespace treadle::cli {

/// @throws Error(io_error, invalid_argument) for a broken file or a dtype that ONNX lacks. Unicode strings become UTF-8.
Tensor read_npy(const std::string& path);
std::map<std::string, Tensor> read_npz(const std::string& path);
/// Strings cannot be written. The file is complete or absent.
void write_npy(const std::string& path, const Tensor& tensor);

}  // namespace treadle::cli
