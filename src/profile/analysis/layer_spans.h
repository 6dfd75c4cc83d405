// Layers of the model as ranges around their nodes. They are not recorded: nodes know their layers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// By node: numbers of its layers in the recording's names, to which they are added. Empty if no node has any.
std::vector<std::vector<uint32_t>> name_layers(const std::vector<ProfiledNode>& nodes, Recording& recording);

/// Adds a range to a row wherever nodes of one layer follow each other: within a run, on a thread, and within what is around them there.
/// @param spans  by start, outer ones first; likewise afterwards
/// @return the records of the added ranges
std::shared_ptr<const std::vector<Record>> add_layer_spans(const TraceView& view, std::vector<TraceSpan>& spans);

}  // namespace treadle::profile
