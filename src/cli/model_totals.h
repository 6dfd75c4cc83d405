// What a graph is made of: operators, weights in whatever form a file stores them, and cost.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "graph/graph.h"

namespace treadle::cli {

struct ModelTotals {
  std::map<std::string, int64_t> operators;
  /// Learned numbers: floats, and integers of at most 8 bits, which quantised models have in their place. Indices and shapes are none.
  int64_t num_parameters = 0;
  std::map<std::string, size_t> weight_bytes;  ///< by dtype; of "attribute" lists, as tree ensembles keep theirs, under that name
  double flops = 0, bytes_moved = 0;
  int64_t nodes_without_cost = 0;  ///< their shapes depend on symbols or data

  size_t total_weight_bytes() const;
  int64_t num_nodes() const;
};

/// Bodies included.
ModelTotals totals_of(const Graph& graph);

}  // namespace treadle::cli
