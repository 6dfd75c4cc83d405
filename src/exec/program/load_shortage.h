// What there was when memory ran out while a program was made.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "graph/graph.h"
#include "treadle/allocator.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {

/// A node whose kernel packs weights when the program is made.
struct PackedWeights {
  const Node* node = nullptr;
  size_t weight_bytes = 0, float_bytes = 0;  ///< float_bytes: of float32 that is packed as such
  size_t packed_bytes = 0;                   ///< 0: not yet
};

/// Operator and name, and the nodes of the model that it stands for if it is none of them itself.
std::string short_name(const Node& node);
/// The nodes of the model that a node stands for, and the layers that it is in. One line each.
std::string describe_origin(const Node& node);
/// The layer that a node's own module is in: "layer1.0" of "layer1.0.conv1". Empty: the model names none.
std::string layer_of(const Node& node);

/// What there is while a program is made, and what would need less.
/// @param graph   its weights are listed; null: there is none yet
/// @param failed  whose weights were being packed; null: no node's
std::string describe_packing(const Graph* graph, std::span<const PackedWeights> nodes, const MemoryAccount* account, const Node* failed);
/// What there was when memory ran out while something was made that is let go of again.
std::string describe_making(const OutOfMemory& error, const MemoryAccount* account);
/// In a catch clause: the error under way goes on; if memory ran out, with the constants of the graph that was being made.
/// @param where  for an error that does not say where it came up
[[noreturn]] void rethrow_with_graph(const Graph& graph, std::string_view where = "while the graph was optimised");

}  // namespace treadle::exec
