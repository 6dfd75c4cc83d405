// Values that only the host's part of kernels reads: extents, axes, scales of a Resize.
#pragma once

#include <set>

#include "graph/graph.h"
#include "graph/op_def.h"

namespace treadle::exec {

/// True if a node reads the shapes of its inputs, and no elements: they may be anywhere.
bool reads_only_shapes(const OpDef& op);

/// Finds the nodes that make such values of shapes, constants and small feeds. They stay on the host beside a device with kernels of its
/// own, as their results would have to come back from there.
std::set<const Node*> nodes_of_settings(const Graph& graph);

}  // namespace treadle::exec
