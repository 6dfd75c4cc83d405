// Serialises a graph: everything that lowering and runs need, and the weights that kernels have packed for its nodes.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compiled/stream.h"
#include "exec/program/program.h"
#include "graph/graph.h"

namespace treadle::compiled {

using StoredStates = std::unordered_map<const Node*, exec::StoredState>;

/// Collects the tensors of a graph while it is written, and numbers them. Tensors with the same memory are stored once.
class TensorList {
 public:
  /// Returns the tensor's number.
  /// @throws Error(not_implemented) for a tensor of strings.
  uint64_t add(const Tensor& tensor);
  /// Returns all tensors that were added, as contiguous ones.
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<const void*, uint64_t> by_address_;
};

/// Writes the graph of a program, and the weights that its kernels have packed.
/// @throws Error(not_implemented) naming what cannot be stored: custom operators, subgraphs of backends, constants that are not tensors.
void write_graph(Writer& out, const exec::Program& program, TensorList& tensors);

struct LoadedGraph {
  std::unique_ptr<Graph> graph;
  StoredStates states;
  /// Constants of which the file has only packed copies. They have the right type and shape, but zeros as elements, until lowering removes
  /// them.
  std::vector<std::pair<const Graph*, ValueId>> stand_ins;
};

/// Reads a graph, and infers all types again: the types in the file are not trusted.
/// @param blocks  the tensors, in the order of TensorList.
/// @throws Error(invalid_model) for bytes that write_graph did not write; errors of inference.
LoadedGraph read_graph(Reader& in, std::span<const Tensor> blocks);

}  // namespace treadle::compiled
