// Subgraph backends: registers them, chooses the nodes for each backend, and replaces these nodes by compiled subgraphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "treadle/plugin.h"

namespace treadle::plugin {

/// Registers a backend. Copies the description with its strings; the callbacks and `user` must stay valid.
/// @throws Error(invalid_argument) naming the invalid field.
void register_backend(const treadle_backend& backend);
/// Returns the names of the backends in order of registration. The pointers stay valid.
std::vector<const char*> list_backends();
/// Loads a shared library and calls its `treadle_plugin_main`.
/// @throws Error(not_found, invalid_argument) naming the file.
void load_plugin(const std::string& path);

struct PartitionOptions {
  /// The backends to use, separated by commas, in order of preference. "onednn" means those properties of the backend that are on by
  /// default, "onednn.convolutions" means this property even if it is off by default, and "NONE" means no backend.
  std::string backends;
  bool training = false;
  /// Returns the device on which a node is placed, such as "sim:0". Null: all nodes are on "cpu".
  std::function<std::string_view(const Node&)> device_of;
  /// Called for every subgraph that a backend has compiled or refused, with the backend's name and a description.
  std::function<void(std::string_view backend, const std::string& what)> log;
};

/// A compiled subgraph. It keeps the backend's compiled object alive.
class Compiled;

/// Replaces the subgraphs that backends take by nodes of the type `Subgraph`. The graph must be inferred. A subgraph that its backend
/// refuses is left as it is. Every subgraph is convex: no path leaves it and enters it again.
/// @param limit  maximum number of subgraphs
/// @return the compiled subgraphs; they must live until a Program is made from the graph; the Program then keeps them alive.
/// @throws Error(not_found) naming an unknown backend or property.
std::vector<std::shared_ptr<const Compiled>> partition(Graph& graph, const PartitionOptions& options, int64_t limit = INT64_MAX);

}  // namespace treadle::plugin
