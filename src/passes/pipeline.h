// The graph optimizer: its passes and their order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "passes/conv_choice.h"
#include "passes/precision.h"

namespace treadle::passes {

/// The optimization level, as in ONNX Runtime. Each level includes the levels before it.
enum class Level : uint8_t {
  basic = 1,     ///< folds constants, removes redundant nodes, merges constants into operators that read them
  extended = 2,  ///< fuses operators, also into operators of the treadle domain
  layout = 3,    ///< moves images to channels-last layout
};

/// Conditions under which a pass runs, besides its level.
struct PassConditions {
  bool frozen_weights = false;        ///< the pass computes with the weights, so it cannot run if they change
  bool packed_weights = false;        ///< the pass makes nodes that pack weights, so it does not run if every run would pack them
  bool not_before_autodiff = false;   ///< the pass makes nodes without a gradient, so it runs only after the backward pass, if there is one
  bool only_in_memory = false;        ///< the pass makes nodes for this library's kernels, so it does not run for files
  bool removes_quantization = false;  ///< the pass does not run if QuantizeLinear and DequantizeLinear are to stay
  bool only_float32 = false;          ///< the pass does not run if a precision below float32 is requested
  bool for_patterns = false;          ///< the pass makes patterns that other tools look for, so it runs only if patterns are to stay
  /// True if the pass rewrites patterns for which other tools look, such as the fusions of ONNX Runtime's transformers.
  bool hides_patterns = false;
  bool for_host = false;         ///< the pass makes forms that suit only the host's kernels: packed weights, layouts, wider floats
  bool only_on_devices = false;  ///< the pass runs only if a device's own kernels run the nodes
  std::string_view makes = "";   ///< operators of the treadle domain that the pass makes, separated by blanks

  bool inference_only() const { return frozen_weights || packed_weights || not_before_autodiff; }
};

/// Tells which operators the optimizer may make for a device that runs nodes with its own kernels.
struct DeviceForms {
  std::vector<std::string> operators;  ///< operators of the treadle domain that the device computes
  /// Returns true if the device can compute this node. The node need not be in the graph: a pass may ask about a node that would replace
  /// the node of the same id.
  std::function<bool(const Graph&, const Node&)> takes;

  /// The highest level of passes that run for the device.
  Level level() const { return operators.empty() ? Level::basic : Level::extended; }
  bool has(std::string_view op_type) const { return std::find(operators.begin(), operators.end(), op_type) != operators.end(); }
};

struct PipelineOptions {
  Level level = Level::layout;
  bool weights_change = false;           ///< weights change between runs: skip passes that compute with weights or pack them
  bool weights_packed = false;           ///< if weights change: they are packed again only after changes, so passes that pack may run
  bool before_autodiff = false;          ///< a backward part will be added: keep operators that have gradients
  std::vector<std::string> skip;         ///< names of passes and rules to skip
  int64_t max_patches = INT64_MAX;       ///< stop after this many changes (to bisect a fault)
  bool verify = false;                   ///< check the graph and the number of changes after every pass; always on if verifies_passes()
  size_t max_folded_bytes = 64U << 20U;  ///< largest constant that folding may make, in bytes
  /// Do not fold DequantizeLinear of constants. For files that other runtimes run with integer kernels.
  bool keep_quantization = false;
  /// The graph is written to a file, so passes for this library's kernels do not run. Images keep their layout: with standard operators,
  /// other layouts would need Transposes around each node, and other runtimes choose layouts themselves. 16-bit floats stay, because the
  /// file would otherwise double in size.
  bool for_file = false;
  /// The file is for tools and sessions that fuse operators themselves: simplify the graph, but keep the patterns for which these look.
  /// Limits optimization to the basic level.
  bool keep_patterns = false;
  /// Precisions lower than float32, which is faster, for some products and convolutions. Not for files.
  PrecisionRules precision;
  /// Rules for choosing among the methods of computing a convolution. Not for files.
  ConvChoiceRules conv_choice;
  /// The device that runs the nodes; passes make only operators that it has. Null: the host's kernels run the nodes.
  const DeviceForms* device = nullptr;
  /// The function of the pass "backends". Runs when the graph has been simplified but still has only ONNX's operators; nodes that it takes
  /// are not fused. It must stop after `limit` changes. @return the number of changes
  std::function<int64_t(Graph&, int64_t limit)> before_fusion;
  /// Called for each pass that changed something.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> log;
  std::function<void(const std::string&)> warn;
  int64_t* num_visits = nullptr;  ///< if not null: incremented for each node that a rule examines
};

/// Prepares a graph for lowering: copies captured constants into bodies. The results of the graph stay the same.
void canonicalize(Graph& graph);

/// Runs canonicalize(), then all passes. @pre `graph` has been upgraded to the newest opset and inferred
void optimize(Graph& graph, const PipelineOptions& options = {});

/// Returns true if all passes are checked as with PipelineOptions::verify. This is so in debug builds, and if TREADLE_VERIFY_PASSES=1 is in
/// the environment.
bool verifies_passes();
void set_verifies_passes(bool on);

struct PassInfo {
  std::string_view name;
  Level level;
  PassConditions conditions;
  std::string_view description;
};
/// Lists all passes and rules in order.
std::vector<PassInfo> list_passes();

}  // namespace treadle::passes
