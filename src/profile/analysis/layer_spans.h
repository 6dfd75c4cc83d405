// Adds the model's layers to a timeline, as ranges around their nodes. They are not recorded, but derived from the nodes' names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/analysis/trace_rows.h"

namespace treadle::profile {

/// Adds the names of layers to the recording. @return for each node the numbers of its layers' names; empty if no node has a layer.
std::vector<std::vector<uint32_t>> name_layers(const std::vector<ProfiledNode>& nodes, Recording& recording);

/// Adds a range around consecutive nodes of one layer within a run, a thread, and a surrounding range.
/// @param spans  sorted by start, outer ones first; sorted likewise on return
/// @return the records of the added ranges
std::shared_ptr<const std::vector<Record>> add_layer_spans(const TraceView& view, std::vector<TraceSpan>& spans);

}  // namespace treadle::profile
