// Counts a graph's operators, its weights in all forms that files use, and its cost.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/graph.h"

namespace treadle::cli {

struct ModelTotals {
  std::map<std::string, int64_t> operators;
  /// Number of learned values: floats, and integers of up to 8 bits, which quantised models use. Indices and shapes do not count.
  int64_t num_parameters = 0;
  std::map<std::string, size_t> weight_bytes;  ///< by dtype; the key "attribute" stands for lists in attributes, which tree ensembles use
  double flops = 0, bytes_moved = 0;
  int64_t nodes_without_cost = 0;  ///< nodes whose shapes depend on symbols or data

  size_t total_weight_bytes() const;
  int64_t num_nodes() const;
};

/// Counts all nodes, including those of bodies.
ModelTotals totals_of(const Graph& graph);

}  // namespace treadle::cli
