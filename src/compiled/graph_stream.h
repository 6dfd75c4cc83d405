// A graph as bytes and back: everything that lowering and a run ask of it, and what kernels have packed for its nodes.
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

/// Where the elements of tensors go while a graph is written: they are numbered, and equal memory is kept once.
class TensorList {
 public:
  /// @throws Error(not_implemented) for one of strings.
  uint64_t add(const Tensor& tensor);
  /// Contiguous.
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
  std::unordered_map<const void*, uint64_t> by_address_;
};

/// Writes the graph of a program, and the states that its kernels have packed.
/// @throws Error(not_implemented) naming what cannot be kept: custom operators, subgraphs of backends, constants that are no tensors.
void write_graph(Writer& out, const exec::Program& program, TensorList& tensors);

struct LoadedGraph {
  std::unique_ptr<Graph> graph;
  StoredStates states;
  /// Constants whose elements are in packed states only. They have a type, a shape and wrong elements until lowering lets them go.
  std::vector<std::pair<const Graph*, ValueId>> stand_ins;
};

/// Reads it back and infers every node again, so that no type of the file is believed more than those of an ONNX file are.
/// @param blocks  memory of the tensors, in the order of TensorList.
/// @throws Error(invalid_model) for anything that write_graph does not write; Errors of inference.
LoadedGraph read_graph(Reader& in, std::span<const Tensor> blocks);

}  // namespace treadle::compiled
