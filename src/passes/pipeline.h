// The order of the graph optimiser's passes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "passes/conv_choice.h"
#include "passes/precision.h"

namespace treadle::passes {

struct PipelineOptions {
  bool training = false;                 ///< the graph will get, or has, a backward part: inference-only passes stay away
  std::vector<std::string> skip;         ///< passes and rules by name
  int64_t max_patches = INT64_MAX;       ///< stop after that many (to bisect a fault)
  bool verify = false;                   ///< check the whole graph after every pass
  size_t max_folded_bytes = 64U << 20U;  ///< constants that folding may make, each
  /// Leave DequantizeLinear of constants alone: for a file that others run with integer kernels.
  bool keep_quantisation = false;
  /// Convolutions get their channels innermost. Not for a file: as functions of standard operators they are Transposes around each node,
  /// and other runtimes have layouts of their own.
  bool layout = true;
  /// 16-bit floats are computed in float32, from converted constants. Not for a file, which would be twice as large.
  bool widen = true;
  /// Faster arithmetic than float32 for some products and convolutions. Not for a file.
  PrecisionRules precision;
  /// Which ways convolutions may go. Not for a file.
  ConvChoiceRules conv_choice;
  /// Called once, when the graph is simplified but still of ONNX's operators: what it takes out is not fused any more.
  std::function<void(Graph&)> before_fusion;
  /// One line for every pass that changed something: name, what it did, microseconds.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> log;
  std::function<void(const std::string&)> warn;
  int64_t* num_visits = nullptr;  ///< grows by one for each node that a rule is asked about
};

/// What every graph needs before it is lowered: constants of bodies are their own. Changes no value.
void canonicalise(Graph& graph);

/// canonicalise, then simplification. `graph` must be upgraded and inferred.
void optimize(Graph& graph, const PipelineOptions& options = {});

struct PassInfo {
  std::string_view name, description;
  bool inference_only;
};
/// Every pass and rule, in order.
std::vector<PassInfo> list_passes();

}  // namespace treadle::passes
