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

/// How far the optimiser goes, as ONNX Runtime's levels say it. A level contains the ones before it.
enum class Level : uint8_t {
  basic = 1,     ///< constants are folded, what is redundant goes, and constants are merged into the operators that read them
  extended = 2,  ///< several operators become one, also of the treadle domain
  layout = 3,    ///< images have their channels innermost
};

/// What must hold for a pass to run, beside its level.
struct PassConditions {
  bool frozen_weights = false;        ///< it computes with the weights: not where they change
  bool packed_weights = false;        ///< what it makes packs the weights: not where that would be in every run
  bool not_before_autodiff = false;   ///< what it makes has no gradient: only behind the backward part, if there is one
  bool only_in_memory = false;        ///< what it makes is for this library's kernels: not for a file
  bool removes_quantisation = false;  ///< not where QuantizeLinear and DequantizeLinear are to stay
  bool only_float32 = false;          ///< not where a precision below float32 is asked for
  bool hides_patterns = false;        ///< it rewrites what other tools look for, such as the fusions of ONNX Runtime's transformers

  bool inference_only() const { return frozen_weights || packed_weights || not_before_autodiff; }
};

struct PipelineOptions {
  Level level = Level::layout;
  bool weights_change = false;      ///< from run to run: what computes with them, or packs them, stays away
  bool weights_packed = false;      ///< where they change, values of kind parameter are packed when they have: what packs them may stay
  bool before_autodiff = false;     ///< the graph will get a backward part: its operators keep their gradients
  std::vector<std::string> skip;    ///< passes and rules by name
  int64_t max_patches = INT64_MAX;  ///< stop after that many (to bisect a fault)
  bool verify = false;              ///< check the graph after every pass, and the count of changes; true where verifies_passes()
  size_t max_folded_bytes = 64U << 20U;  ///< constants that folding may make, each
  /// Leave DequantizeLinear of constants alone: for a file that others run with integer kernels.
  bool keep_quantisation = false;
  /// The graph is written to a file: passes for this library's kernels stay away. Images keep their layout (as functions of standard
  /// operators the others are Transposes around each node, and other runtimes have layouts of their own), 16-bit floats stay (the file
  /// would be twice as large).
  bool for_file = false;
  /// The file is for tools and sessions that fuse what they find: it is simplified, and keeps the patterns that they look for. Nothing
  /// above the basic level is done.
  bool keep_patterns = false;
  /// Faster arithmetic than float32 for some products and convolutions. Not for a file.
  PrecisionRules precision;
  /// Which ways convolutions may go. Not for a file.
  ConvChoiceRules conv_choice;
  /// A pass of the caller's, "backends", when the graph is simplified but still of ONNX's operators: what it takes out is not fused any
  /// more. Stops after `limit` changes. @return their number
  std::function<int64_t(Graph&, int64_t limit)> before_fusion;
  /// One line for every pass that changed something: name, what it did, microseconds.
  std::function<void(std::string_view pass, const std::string& what, int64_t elapsed_us)> log;
  std::function<void(const std::string&)> warn;
  int64_t* num_visits = nullptr;  ///< grows by one for each node that a rule is asked about
};

/// What every graph needs before it is lowered: constants of bodies are their own. Changes no value.
void canonicalise(Graph& graph);

/// canonicalise, then simplification. `graph` must be upgraded and inferred.
void optimize(Graph& graph, const PipelineOptions& options = {});

/// All passes are checked as PipelineOptions::verify says. It is on in debug builds, and where the environment has TREADLE_VERIFY_PASSES=1.
bool verifies_passes();
void set_verifies_passes(bool on);

struct PassInfo {
  std::string_view name;
  Level level;
  PassConditions conditions;
  std::string_view description;
};
/// Every pass and rule, in order.
std::vector<PassInfo> list_passes();

}  // namespace treadle::passes
