// ONNX's cases whose outputs NumPy's generator drew: no other generator gives the same, so that they are judged by distribution.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/datum.h"

namespace treadle::testing {

class RandomCase {
 public:
  static constexpr int kRuns = 400;

  /// True for the cases that are named in random_case.cpp.
  static bool is_random(std::string_view name);
  /// @param name  kind/case
  RandomCase(std::string_view name, std::span<const Datum> feeds);

  /// The outputs of one of kRuns runs. Empty if they are of the right types and values, else what is wrong.
  std::string add(std::span<const Datum> outputs, std::span<const std::optional<Datum>> expected);
  /// Empty if each element was drawn as often as its probability says, within six standard deviations; else which one was not.
  std::string verdict() const;

 private:
  std::vector<double> kept_values_, probabilities_;
  std::vector<int> counts_;
  int runs_ = 0;
};

}  // namespace treadle::testing
