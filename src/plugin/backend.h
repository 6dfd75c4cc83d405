// Subgraph backends: who takes which nodes, and what became of the subgraphs that were made of them.
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

/// Copies the description, strings included; its callbacks and `user` must stay valid. @throws Error(invalid_argument) naming what is
/// wrong.
void register_backend(const treadle_backend& backend);
/// Names, in the order of registration; they stay valid.
std::vector<const char*> list_backends();
/// Loads a shared object and calls its `treadle_plugin_main`. @throws Error(not_found, invalid_argument) naming the file.
void load_plugin(const std::string& path);

struct PartitionOptions {
  /// Comma-separated, in this order: "onednn" (its properties that are on), "onednn.convolutions" (this one, also if it is off); "NONE":
  /// none.
  std::string backends;
  bool training = false;
  /// The device that a node is placed on, as sessions name it ("sim:0"). Empty: all are on "cpu".
  std::function<std::string_view(const Node&)> device_of;
  /// Called for every subgraph that was made or refused: backend, and what happened.
  std::function<void(std::string_view backend, const std::string& what)> log;
};

/// A compiled subgraph; keeps what the backend made.
class Compiled;

/// Replaces the subgraphs that backends take by nodes of their own (`treadle.Subgraph`); the graph must be inferred. What a backend refuses
/// stays as it is. Every subgraph is convex: no value leaves it and comes back.
/// @param limit  of subgraphs
/// @return what the new nodes run; must live until a Program was made of the graph, which then keeps it.
/// @throws Error(not_found) naming an unknown backend or property.
std::vector<std::shared_ptr<const Compiled>> partition(Graph& graph, const PartitionOptions& options, int64_t limit = INT64_MAX);

}  // namespace treadle::plugin
