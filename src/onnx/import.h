// From the structs of a file to a Graph: scopes, captures, local functions, constants. And the upgrade to the newest opset.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "onnx/model_def.h"
#include "treadle/error.h"

namespace treadle::onnx {

/// A key of the metadata of trainers' artifacts (docs/training.md). Models that have it may name the optimiser's and the trainer's own
/// operators, which are held against their contracts like all others.
inline constexpr const char* kArtifactsKey = "treadle.artifacts";

struct ImportOptions {
  /// A small file must not become a huge graph through nested functions.
  int64_t max_nodes = 1'000'000;
  /// Sparse tensors are made dense: altogether into at most this, and this many times their own bytes.
  int64_t max_dense_bytes = int64_t{8} << 20, max_dense_ratio = 64;
  int max_function_depth = 64;
  /// The table that the graph's symbols go to, under names that begin so; null: one of its own. For a graph that becomes part of another.
  std::shared_ptr<SymbolTable> symbols = nullptr;
  std::string symbol_prefix = {};
};

/// The model as written: original opsets, no operator changed. Local functions are inlined, sparse initializers made dense, and values
/// that bodies capture are operands of their node. Operators this build lacks have a null `op`.
/// @throws Error(invalid_model) for undefined, duplicate or cyclic names and for broken bodies.
std::unique_ptr<Graph> import_graph(const ModelDef& model, const ImportOptions& options = {});

/// Brings every node to the newest meaning of its operator, decomposes what has an exact body in other operators, and infers types on the
/// way.
/// @throws Error naming the node.
void upgrade(Graph& graph, const InferOptions& options = {});

/// As upgrade, but a node that fails stays as it is, and the rest goes on: everything that is wrong with a graph, at once.
/// @return one error per node that fails, bodies included. Operators this build lacks are among them.
std::vector<Error> upgrade_noting_errors(Graph& graph);

/// One line per operator or attribute of the graph (bodies included) that this build cannot run; empty if it can.
std::vector<std::string> list_unsupported(const Graph& graph);

}  // namespace treadle::onnx
