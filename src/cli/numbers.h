// Checks the numbers of options, with messages for people.
#pragma once

#include <CLI/CLI.hpp>

namespace treadle::cli {

/// Refuses numbers below `least`, and NaN.
CLI::Validator at_least(double least);
/// Refuses numbers that are not above `bound`.
CLI::Validator above(double bound);
/// Refuses numbers outside of [least, most].
CLI::Validator between(double least, double most);

}  // namespace treadle::cli
