// A pass of the graph optimiser: its description and its function. Each pass's file defines a function that makes it; list.h names them.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>

#include "graph/patch.h"
#include "passes/pipeline.h"

namespace treadle::passes {

/// The remaining budget of constant folding, over all rounds and bodies, so that loading a small model takes neither minutes nor all
/// memory. String elements count with the bytes of their texts.
struct FoldLimits {
  size_t max_bytes_each = 64U << 20U;  ///< limit of the bytes of one constant
  double bytes = 512e6;                ///< bytes of all constants that folding makes
  double widened_bytes = 1e18;         ///< bytes of constants that are converted from 16 bits
  double operations = 4e9;             ///< floating-point operations and elements, by the operators' declared costs
  bool keep_quantization = false;      ///< do not fold DequantizeLinear

  /// Returns the limits above for a large model, and lower limits for a model with few bytes of constants.
  static FoldLimits of(const Graph& graph);
};

/// The arguments of passes besides the graph.
struct PassContext {
  const PipelineOptions& options;
  FoldLimits fold_limits;
};

/// A pass is either a rule, which examines a node and its neighbours, or a function that changes a whole graph and its bodies.
struct Pass {
  PassInfo info;
  std::unique_ptr<Rule> (*rule)(const PipelineOptions&) = nullptr;
  /// @return the number of changes; it stops after `limit` changes
  int64_t (*run)(Graph&, PassContext&, int64_t limit) = nullptr;
};

/// Runs a pass. @return the number of changes
int64_t apply(const Pass& pass, Graph& graph, PassContext& context, int64_t limit);

constexpr Level kBasic = Level::basic, kExtended = Level::extended, kLayout = Level::layout;
constexpr PassConditions kAlways{}, kHidesPatterns{.hides_patterns = true}, kForPatterns{.for_patterns = true},
    kNotBeforeAutodiff{.not_before_autodiff = true}, kInMemory{.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true},
    kPacked{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true, .for_host = true},
    kPackedFloat32{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true, .only_float32 = true, .for_host = true};

/// Makes a pass of the rule that `make` makes, with the rule's name.
Pass rule_pass(std::unique_ptr<Rule> (*make)(const PipelineOptions&), Level level, const PassConditions& conditions,
               std::string_view description);
/// Makes a pass of rule R, which may be constructed from the options.
template <typename R>
Pass rule_pass(Level level, const PassConditions& conditions, std::string_view description) {
  constexpr auto make = [](const PipelineOptions& options) -> std::unique_ptr<Rule> {
    if constexpr (std::constructible_from<R, const PipelineOptions&>)
      return std::make_unique<R>(options);
    else
      return std::make_unique<R>();
  };
  return rule_pass(make, level, conditions, description);
}

inline Pass graph_pass(std::string_view name, Level level, const PassConditions& conditions, std::string_view description,
                       int64_t (*run)(Graph&, PassContext&, int64_t limit)) {
  return {{name, level, conditions, description}, nullptr, run};
}

}  // namespace treadle::passes
