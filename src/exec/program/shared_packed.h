// A process-wide cache of packed weights. Programs with the same weights share one packed copy.
#pragma once

#include <cstddef>
#include <memory>

#include "core/files/shared_storage.h"
#include "graph/kernel.h"

namespace treadle::exec {

/// Returns the packed weights of a node. If another program holds packed weights for the same kernel, attributes, types and constants (byte
/// for byte), returns those. Returns null if the kernel's packed weights cannot be shared or the constants are too small; the caller then
/// packs them itself. No account is charged. The packed weights grow when new input shapes need another packed layout.
std::shared_ptr<PackedState> shared_packed(const Graph& graph, const Node& node, const KernelDef& kernel);

SharedCounts shared_packed_counts();

}  // namespace treadle::exec
