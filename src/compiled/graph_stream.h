// Serializes a graph: everything that compiling and running it need, and the weights that kernels have packed for its nodes.
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

/// Collects and numbers the tensors of a graph that is being written. Tensors in the same memory are stored once.
class TensorList {
 public:
  /// Adds a tensor, unless it has been added before. @return its number
  /// @throws Error(not_implemented) for a tensor of strings.
  uint64_t add(const Tensor& tensor);
  /// Returns all tensors that were added, made contiguous.
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<const void*, uint64_t> by_address_;
};

/// Writes the graph of a program, and the weights that its kernels have packed.
/// @throws Error(not_implemented) that names what cannot be stored: custom operators, subgraphs for backends, or non-tensor constants.
void write_graph(Writer& out, const exec::Program& program, TensorList& tensors);

struct LoadedGraph {
  std::unique_ptr<Graph> graph;
  StoredStates states;
  /// Constants of which the file contains only packed copies. They have the right type and shape, but all elements are zero. Compiling the
  /// graph removes them.
  std::vector<std::pair<const Graph*, ValueId>> stand_ins;
};

/// Reads a graph. Infers all types again, because the types in the file are not trusted.
/// @param blocks  the tensors, in the order of TensorList.
/// @throws Error(invalid_model) for bytes that write_graph did not write; errors of type inference.
LoadedGraph read_graph(Reader& in, std::span<const Tensor> blocks);

}  // namespace treadle::compiled
