// NumPy's files: .npy (format 1 to 3) and .npz (a zip archive of them, stored or deflated).
#pragma once

#include <map>
#include <string>

#include "core/npy.h"
#include "treadle/tensor.h"

namespace treadle::cli {

/// @throws Error(io_error, invalid_argument) for a broken file or a dtype that ONNX lacks. Unicode strings become UTF-8.
Tensor read_npy(const std::string& path);
/// Of a mapped file: arrays that are stored, not deflated, are views of it.
std::map<std::string, Tensor> read_npz(const std::string& path);

}  // namespace treadle::cli
