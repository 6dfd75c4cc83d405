// Makes the parts of a checkpoint separately, for callers that copy the tensors now and write the file later.
#pragma once

#include <string>

#include "treadle/train.h"

namespace treadle::train {

/// Returns true if this process writes files for the trainer: it is the only rank, or rank 0 of several.
bool writes_files(const Trainer& trainer);
/// Returns views of all tensors that a checkpoint contains, by their names in the file.
NamedTensors checkpoint_tensors(const Trainer& trainer);
/// Returns the header of the checkpoint file, with a placeholder for the checksum.
std::string checkpoint_header(const Trainer& trainer, const NamedTensors& tensors, const Metadata& metadata);
/// Fills in the checksum and writes the checkpoint file. Returns when the file is on disk.
void write_checkpoint(const std::string& path, std::string header, const NamedTensors& tensors);

}  // namespace treadle::train
