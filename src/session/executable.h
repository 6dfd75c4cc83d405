// A graph that has been compiled for one set of fed and fetched values.
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

/// Two extents of inputs to which the model gives one symbol.
struct SharedSymbol {
  size_t input, axis;              ///< of the one that comes later
  size_t first_input, first_axis;  ///< of the one that comes first
};

struct Executable {
  std::shared_ptr<const Graph> graph;
  std::unique_ptr<exec::Program> program;
  std::vector<std::string> input_names, output_names;
  size_t num_fetched = 0;                                    ///< the outputs after these are kept for targets and monitors
  uint64_t id = 0;                                           ///< differs over all of the process
  IdVector<exec::SlotId, std::vector<std::string>> watched;  ///< names that a monitor wants; empty without a monitor
  bool watches_any() const {
    return std::any_of(watched.begin(), watched.end(), [](const auto& names) { return !names.empty(); });
  }
  std::unique_ptr<exec::Executor> executor;  ///< goes before the program
  std::vector<SharedSymbol> shared_symbols;
  std::vector<size_t> scalar_inputs;  ///< which the model declares without axes
  /// The first of them that feeds, in the order of the inputs, contradict; null: none. Undefined feeds contradict nothing.
  const SharedSymbol* contradicted(std::span<const Datum> feeds) const;
  /// The first input without axes that is fed several elements, or none; the number of inputs if there is none.
  size_t scalar_with_axes(std::span<const Datum> feeds) const;
  /// What to throw in place of an error that names no node. Empty: the error itself.
  std::function<void(const Executable& executable, std::span<const Datum> feeds, const Error& error)> explain;
};

/// Which of the names it is; their number if it is none.
inline size_t position_of(std::span<const std::string> names, std::string_view name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace treadle
