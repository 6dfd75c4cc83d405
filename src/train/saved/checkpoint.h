// The parts of a checkpoint, for callers that copy it now and write it later.
#pragma once

#include <string>

#include "treadle/train.h"

namespace treadle::train {

/// Returns true for a trainer that runs alone, and for rank 0 of several.
bool writes_files(const Trainer& trainer);
/// Returns views of all tensors that belong in a checkpoint, by their names there.
NamedTensors checkpoint_tensors(const Trainer& trainer);
/// Returns the file's header, with a placeholder for the checksum.
std::string checkpoint_header(const Trainer& trainer, const NamedTensors& tensors, const Metadata& metadata);
/// Fills in the checksum and writes the file. Returns when the file is on disk.
void write_checkpoint(const std::string& path, std::string header, const NamedTensors& tensors);

}  // namespace treadle::train
