// ONNX cases whose expected outputs come from NumPy's generator. No other generator gives the same numbers, so distributions are compared.
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
  /// @param name  the case's kind and name, "kind/case"
  RandomCase(std::string_view name, std::span<const Datum> feeds);

  /// Adds the outputs of a run; kRuns runs are added in all. Returns an empty text if types and values are possible, otherwise what is
  /// wrong.
  std::string add(std::span<const Datum> outputs, std::span<const std::optional<Datum>> expected);
  /// Returns an empty text if each element's frequency matches its probability within six standard deviations, otherwise the element.
  std::string verdict() const;

 private:
  std::vector<double> kept_values_, probabilities_;
  std::vector<int> counts_;
  int runs_ = 0;
};

}  // namespace treadle::testing
