// A pass of the graph optimizer: description and function. Each pass's file defines a function that makes it; list.h lists these functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>

#include "graph/patch.h"
#include "passes/pipeline.h"

namespace treadle::passes {

/// The budget of constant folding that is left for all rounds and bodies. It prevents that loading a small model takes minutes or all of
/// the memory. String elements count with the bytes of their texts.
struct FoldLimits {
  size_t max_bytes_each = 64U << 20U;  ///< limit for each constant, in bytes
  double bytes = 512e6;                ///< limit for all constants that folding makes together, in bytes
  double widened_bytes = 1e18;         ///< limit for all constants that are converted from 16 bits, in bytes
  double operations = 4e9;             ///< limit of operations and elements, by the costs that operators declare
  bool keep_quantization = false;      ///< true: do not fold DequantizeLinear

  /// For a large model, returns the limits above. For a model with few bytes of constants, returns lower limits.
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
  /// @return the number of changes. The function stops after `limit` changes.
  int64_t (*run)(Graph&, PassContext&, int64_t limit) = nullptr;
};

/// Runs a pass. @return the number of changes
int64_t apply(const Pass& pass, Graph& graph, PassContext& context, int64_t limit);

constexpr Level kBasic = Level::basic, kExtended = Level::extended, kLayout = Level::layout;
constexpr PassConditions kAlways{}, kHidesPatterns{.hides_patterns = true}, kForPatterns{.for_patterns = true},
    kNotBeforeAutodiff{.not_before_autodiff = true}, kInMemory{.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true},
    kPacked{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true, .for_host = true},
    kPackedFloat32{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true, .only_float32 = true, .for_host = true};

/// Makes a pass from the rule that `make` creates. The pass has the name of the rule.
Pass rule_pass(std::unique_ptr<Rule> (*make)(const PipelineOptions&), Level level, const PassConditions& conditions,
               std::string_view description);
/// Makes a pass from the rule R. R may have a constructor with the options.
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
