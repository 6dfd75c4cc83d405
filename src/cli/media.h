// Reads images and sound into tensors.
#pragma once

#include <string>

#include "treadle/tensor.h"

namespace treadle::cli {

/// Reads PNG or JPEG as uint8 [H, W, 3], RGB. @throws Error
Tensor read_image(const std::string& path);
/// Reads WAV (8-, 16- or 32-bit PCM, or float) as float32 [samples] in [-1, 1]. Channels are averaged.
Tensor read_wav(const std::string& path);

}  // namespace treadle::cli
