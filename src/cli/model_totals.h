// Counts the operators, the weights and the cost of a graph.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/model.h"

namespace treadle::cli {

struct ModelTotals {
  std::map<std::string, int64_t> operators;
  /// Number of learned values: floats, and integers of up to 8 bits, which quantized models use. Indices and shapes do not count.
  int64_t num_parameters = 0;
  std::map<std::string, size_t> weight_bytes;  ///< by dtype; "attribute" stands for lists in attributes, as tree ensembles have
  double flops = 0, bytes_moved = 0;
  int64_t nodes_without_cost = 0;  ///< nodes of unknown cost, as their shapes depend on symbols or data

  size_t total_weight_bytes() const;
  int64_t num_nodes() const;
};

/// Counts all nodes, including those in subgraphs (bodies of If, Loop and Scan).
ModelTotals totals_of(const Graph& graph);

/// The key of a model's metadata under which `treadle train` keeps the names of classes, one a line.
inline constexpr const char* kClassNames = "classes";
/// Returns the names of the model's classes; empty if it tells none.
std::vector<std::string> class_names(const Model& model);

}  // namespace treadle::cli
