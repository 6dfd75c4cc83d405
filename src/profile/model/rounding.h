// Rounds numbers to the precision that they have in profiles.
#pragma once

#include <cmath>

namespace treadle::profile {

inline double rounded(double value, double digits = 1e6) { return std::round(value * digits) / digits; }
inline double milliseconds(double ns) { return rounded(ns / 1e6); }
inline double microseconds(double ns) { return rounded(ns / 1e3, 1000); }

}  // namespace treadle::profile
