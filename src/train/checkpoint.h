// A checkpoint in its parts, for who writes it at another time than it is taken.
#pragma once

#include <string>

#include "treadle/train.h"

namespace treadle::train {

/// Rank 0, or a trainer alone.
bool writes_files(const Trainer& trainer);
/// Views of all tensors that a checkpoint has, by their names there.
NamedTensors checkpoint_tensors(const Trainer& trainer);
/// What stands before them, but for the checksum.
std::string checkpoint_header(const Trainer& trainer, const NamedTensors& tensors, const Metadata& metadata);
/// Adds the checksum and writes the file, on disk before it returns.
void write_checkpoint(const std::string& path, std::string header, const NamedTensors& tensors);

}  // namespace treadle::train
