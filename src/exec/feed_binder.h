// Checks what a run is fed against what its program declares, and finds the symbols' values in it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/run_state.h"

namespace treadle::exec {

/// @throws Error(invalid_argument) naming the input, what was given and what was expected.
[[noreturn]] void refuse_feed(const Program& program, int32_t slot, const Datum& datum, const std::string& what);

class FeedBinder {
 public:
  explicit FeedBinder(const Program& program) : symbol_values_(program.num_expressions()) {}

  /// Puts the feeds into the state.
  /// @param parent_values  of a body: the symbols' values of the run around it.
  /// @return the symbols' values, -1 for those that no feed tells.
  /// @throws Error(invalid_argument) for a missing feed, another kind, dtype, rank or extent, and symbols that two feeds contradict.
  std::span<const int64_t> bind(std::span<const Datum> feeds, std::span<const int64_t> parent_values, RunState& state);

  /// Once the state has its binding: kernels find the feeds. @throws Error(invalid_argument) for extents other than the binding's.
  static void point_at_feeds(RunState& state);

 private:
  Datum checked(const Program& program, int32_t slot, const Datum& feed);

  std::vector<int64_t> symbol_values_;  // per expression of the symbol table
};

}  // namespace treadle::exec
