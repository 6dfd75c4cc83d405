// A graph compiled to a program, for one set of fed and fetched values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "graph/graph.h"
#include "treadle/error.h"

namespace treadle {

/// Two axes of inputs that have the same symbol in the model, so that their extents must be equal.
struct SharedSymbol {
  size_t input, axis;              ///< index and axis of the input that is later in the list of inputs
  size_t first_input, first_axis;  ///< index and axis of the first input that has the symbol
};

struct Executable {
  std::shared_ptr<const Graph> graph;
  std::unique_ptr<exec::Program> program;
  std::vector<std::string> input_names, output_names;
  /// The number of outputs that were requested, which come first; the others are computed for targets and monitors only.
  size_t num_fetched = 0;
  uint64_t id = 0;                                           ///< unique in the process
  IdVector<exec::SlotId, std::vector<std::string>> watched;  ///< names under which a monitor sees each slot; empty without a monitor
  bool watches_any() const {
    return std::any_of(watched.begin(), watched.end(), [](const auto& names) { return !names.empty(); });
  }
  std::unique_ptr<exec::Executor> executor;  ///< declared after the program, which it uses, so that it is destroyed first
  std::vector<SharedSymbol> shared_symbols;
  std::vector<size_t> scalar_inputs;  ///< indices of the inputs that the model declares as scalars
  /// Returns the first shared symbol for which the feeds have different extents; null: none.
  /// @param feeds  in the order of the inputs; undefined feeds are ignored.
  const SharedSymbol* contradicted(std::span<const Datum> feeds) const;
  /// Returns the index of the first scalar input whose feed has more than one element; the number of inputs if there is none.
  size_t scalar_with_axes(std::span<const Datum> feeds) const;
  /// Throws a clearer error in place of an error that names no node. If this function is empty or returns, the original one is thrown.
  std::function<void(const Executable& executable, std::span<const Datum> feeds, const Error& error)> explain;
};

/// Returns the index of `name` in `names`; names.size() if it is not there.
inline size_t position_of(std::span<const std::string> names, std::string_view name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace treadle
