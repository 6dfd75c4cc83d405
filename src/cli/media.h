// Reads images and audio files into tensors.
#pragma once

#include <string>

#include "treadle/tensor.h"

namespace treadle::cli {

/// Reads a PNG or JPEG file as an RGB image, uint8 [H, W, 3]. @throws Error if the file cannot be read or decoded
Tensor read_image(const std::string& path);
/// Reads a WAV file (8-, 16- or 32-bit PCM, or float) as float32 [samples] in [-1, 1]. Averages the channels.
Tensor read_wav(const std::string& path);

}  // namespace treadle::cli
