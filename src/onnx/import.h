// Imports the structs of a file to a Graph (scopes, captures, local functions, constants), and upgrades it to the newest opset.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "onnx/model_def.h"
#include "treadle/error.h"

namespace treadle::onnx {

/// Metadata key of trainers' artifacts (docs/training.md). Models with it may use operators reserved for the optimiser and the trainer,
/// which are checked against their schemas like all others.
inline constexpr const char* kArtifactsKey = "treadle.artifacts";

struct ImportOptions {
  /// Limits the number of nodes, because nested functions could turn a small file into a huge graph.
  int64_t max_nodes = 1'000'000;
  /// Limits of dense copies of sparse tensors: total bytes, and the ratio of their bytes to those of the sparse tensors.
  int64_t max_dense_bytes = int64_t{8} << 20, max_dense_ratio = 64;
  int max_function_depth = 64;
  /// Symbol table for the graph, in which the names of its symbols get the prefix; null: a new table. For a graph that becomes part of
  /// another.
  std::shared_ptr<SymbolTable> symbols = nullptr;
  std::string symbol_prefix = {};
};

/// Returns the model as written, with its opsets and operators. Local functions are inlined, sparse initializers become dense, and values
/// that bodies capture become operands of their node. Unknown operators have a null `op`. @throws Error(invalid_model) for undefined,
/// duplicate or cyclic names, and for invalid bodies
std::unique_ptr<Graph> import_graph(const ModelDef& model, const ImportOptions& options = {});

/// Converts every node to the newest version of its operator, decomposes operators that have an exact body, and infers types.
/// @throws Error naming the node
void upgrade(Graph& graph, const InferOptions& options = {});

/// Like upgrade(), but a node that fails stays as it is, and the others continue, so that all errors of a graph are found. @return one
/// error per node that fails, including nodes in bodies and unknown operators
std::vector<Error> upgrade_noting_errors(Graph& graph);

/// Returns one line per operator or attribute of the graph (including bodies) that this build cannot run; empty if it can run all.
std::vector<std::string> list_unsupported(const Graph& graph);

}  // namespace treadle::onnx
