// Imports the structs of a model file as a Graph (scopes, captures, local functions, constants), and upgrades it to the newest opset.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "onnx/model_def.h"
#include "treadle/error.h"

namespace treadle::onnx {

/// Metadata key of models that trainers write (docs/training.md). Only these models may use operators reserved for the optimizer and the
/// trainer, which are checked against their schemas like all others.
inline constexpr const char* kArtifactsKey = "treadle.artifacts";

struct ImportOptions {
  /// Limits the number of nodes, because nested functions could turn a small file into a huge graph.
  int64_t max_nodes = 1'000'000;
  /// Limits for dense copies of sparse tensors: their total size in bytes, and the ratio of this size to the size of the sparse tensors.
  int64_t max_dense_bytes = int64_t{8} << 20, max_dense_ratio = 64;
  int max_function_depth = 64;
  /// Symbol table of the graph, for a graph that becomes part of another one; null: a new table. The names of the graph's symbols get the
  /// prefix `symbol_prefix`.
  std::shared_ptr<SymbolTable> symbols = nullptr;
  std::string symbol_prefix = {};
};

/// Returns the model as it is written, with its own opsets and operators. Local functions are inlined, sparse initializers become dense,
/// and values that bodies capture become operands of their node. Nodes of unknown operators have a null `op`. @throws Error(invalid_model)
/// for undefined, duplicate or cyclic names, and for invalid bodies
std::unique_ptr<Graph> import_graph(const ModelDef& model, const ImportOptions& options = {});

/// Converts every node to the newest version of its operator, replaces operators that can be expressed exactly by others, and infers types.
/// @throws Error naming the node
void upgrade(Graph& graph, const InferOptions& options = {});

/// Like upgrade(), but continues after a node that fails, and leaves this node as it is, so that all errors of a graph are found. @return
/// one error per node that fails, including nodes in bodies and unknown operators
std::vector<Error> upgrade_noting_errors(Graph& graph);

/// Returns one line for each operator or attribute in the graph and its bodies that this build cannot run; empty if it can run all.
std::vector<std::string> list_unsupported(const Graph& graph);

}  // namespace treadle::onnx
