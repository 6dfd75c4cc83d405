// Computes the expected outputs of a case, and how much rounding may change them.
#pragma once

#include <string>
#include <vector>

#include "tests/graphs/case.h"

namespace treadle::graphs {

/// An expected output. For each of its arrays (the elements of a sequence) it has the allowed error of every element, which is infinite if
/// rounding alone decides the result, such as next to a step.
struct Expected {
  Value value;
  std::vector<std::vector<double>> slack;
  bool decided = true;  ///< false if rounding changes the shape
};

/// The expected outputs: first indexed by the set of feeds, then by the output.
using Judgement = std::vector<std::vector<Expected>>;

constexpr int kNoisyRuns = 4;
/// Number of noisy runs before a difference counts as a failure. A few runs may miss the errors that decide a step, a comparison, or a
/// difference of nearly equal numbers.
constexpr int kThoroughRuns = 100;
/// Interprets the case, once exactly and `runs` times with rounding errors. @throws Invalid if the case is not valid.
Judgement judge(const Case& c, int runs = kNoisyRuns);

/// Returns an empty text if the output is as expected, otherwise the difference.
std::string compare(const Datum& actual, const Expected& expected);

}  // namespace treadle::graphs
