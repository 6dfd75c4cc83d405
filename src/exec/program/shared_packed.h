// Packed weights that several programs of a process have in common, held once.
#pragma once

#include <cstddef>
#include <memory>

#include "core/shared_storage.h"
#include "graph/kernel.h"

namespace treadle::exec {

/// What `kernel.create` makes for a node, or what it made for another program whose node has the same operator, attributes, types and
/// constants, byte for byte. Null if the kernel's state is not to be shared, or too small to be worth it: then the caller creates it.
/// Nobody's account is charged; sizes grow when extents ask for another packed form.
std::shared_ptr<PackedState> shared_packed(const Graph& graph, const Node& node, const KernelDef& kernel);

SharedCounts shared_packed_counts();

}  // namespace treadle::exec
