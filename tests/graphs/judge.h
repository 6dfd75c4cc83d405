// What the outputs of a case must be, and by how much rounding may change them.
#pragma once

#include <string>
#include <vector>

#include "tests/graphs/case.h"

namespace treadle::graphs {

/// An output, and for each of its arrays (elements of a sequence) how far every element may be off: infinite where rounding alone
/// decides, as next to a step.
struct Expected {
  Value value;
  std::vector<std::vector<double>> slack;
  bool decided = true;  ///< false: rounding changes the shape
};

/// Per set of feeds, per output.
using Judgement = std::vector<std::vector<Expected>>;

constexpr int kNoisyRuns = 4;
/// Before a difference counts as a failure: errors that four runs do not meet decide over a step, a comparison, or a difference of
/// numbers that are nearly equal.
constexpr int kThoroughRuns = 100;
/// Interprets the case, once exactly and `runs` times with rounding errors. @throws Invalid if the case is not valid.
Judgement judge(const Case& c, int runs = kNoisyRuns);

/// Empty if the output is as expected, else how it differs.
std::string compare(const Datum& actual, const Expected& expected);

}  // namespace treadle::graphs
