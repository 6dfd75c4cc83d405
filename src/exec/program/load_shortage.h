// Describes the memory in use when memory runs out while a program is being made. The text becomes the details of the error.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

/// A node whose kernel packs its weights when the program is made.
struct PackedWeights {
  const Node* node = nullptr;
  size_t weight_bytes = 0, float_bytes = 0;  ///< `float_bytes`: the part of the weights that is packed as float32
  size_t packed_bytes = 0;                   ///< size of the packed copy; 0: not packed yet
};

/// Returns the operator and name of the node. If passes made the node from nodes of the model, the names of those nodes follow.
std::string short_name(const Node& node);
/// Returns two lines: the model nodes that the node was made from, and the innermost layer that contains the node.
std::string describe_origin(const Node& node);
/// Returns the layer that contains the node's module: "layer1.0" for "layer1.0.conv1". Empty if the model names no layers.
std::string layer_of(const Node& node);

/// Lists what is in memory while weights are packed, and suggests what would need less memory.
/// @param graph   the graph whose constants are listed; null: none
/// @param failed  the node whose weights were being packed when memory ran out; null: none
std::string describe_packing(const Graph* graph, std::span<const PackedWeights> nodes, const MemoryAccount* account, const Node* failed);
/// Lists what is in memory when an allocation fails outside of packing, before the arena exists.
std::string describe_making(const OutOfMemory& error, const MemoryAccount* account);
/// Rethrows the current exception; call it in a catch clause. Adds a list of the graph's constants to an out-of-memory error.
/// @param where  what was being done; used if the error does not say it
[[noreturn]] void rethrow_with_graph(const Graph& graph, std::string_view where = "while the graph was optimised");

}  // namespace treadle::exec
