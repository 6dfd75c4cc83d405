// Computes row-major indices for the expected values in tests.
#pragma once

#include <cstdint>
#include <vector>

namespace treadle::test {

using Dims = std::vector<int64_t>;

inline int64_t count(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

/// Returns the coordinates of element `i`.
inline Dims coordinates(const Dims& dims, int64_t i) {
  Dims at(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    at[d] = i % dims[d];
    i /= dims[d];
  }
  return at;
}

/// Returns the index of coordinates `at` in an array of `dims` that broadcasts: missing leading axes and extents of 1 are ignored.
inline int64_t place(const Dims& dims, const Dims& at) {
  int64_t offset = 0;
  for (size_t d = 0; d < dims.size(); ++d) offset = offset * dims[d] + (dims[d] == 1 ? 0 : at[at.size() - dims.size() + d]);
  return offset;
}

}  // namespace treadle::test
