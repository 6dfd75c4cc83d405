// Adds the model's layers to a timeline, as ranges around their nodes. The layers follow from the nodes' names and are not recorded.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Adds the names of layers to the recording. @return for each node, the numbers of these names, outer layers first; empty if no node has
/// a layer.
std::vector<std::vector<uint32_t>> name_layers(const std::vector<ProfiledNode>& nodes, Recording& recording);

/// Adds a range around each sequence of nodes of one layer that are in the same run, thread and surrounding range.
/// @param spans  the spans of a thread, sorted by start, outer ones first; stays sorted
/// @return the records of the added ranges
std::shared_ptr<const std::vector<Record>> add_layer_spans(const TraceView& view, std::vector<TraceSpan>& spans);

}  // namespace treadle::profile
