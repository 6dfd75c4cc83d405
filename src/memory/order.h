// The order of steps that keeps the fewest bytes alive at once. Knows bytes and who reads what; neither tensors nor graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace treadle::memory {

/// One step: it reads values that earlier steps wrote (or that were there before), and writes new ones.
struct Step {
  std::vector<int32_t> reads, writes;  ///< indices of values; each is written by one step at most
  std::vector<int32_t> after;          ///< steps that must run before, for other reasons
  /// (written, read): the one may take the bytes of the other, if the step is its last reader. Both are of the same size.
  std::vector<std::pair<int32_t, int32_t>> reuses;
};

/// The most bytes alive in any step, a step's reads and writes included.
/// @param value_bytes  0 for values that live elsewhere.
/// @param order        a permutation of the steps in which values are written before they are read.
size_t peak_of_order(std::span<const Step> steps, std::span<const size_t> value_bytes, std::span<const int32_t> order);

/// An order whose peak is not above the given order's (0, 1, 2 …), which is returned if nothing lower was found: greedy from the front
/// and from the back, by the bytes that a step adds, and depth first from the results. Time grows with the steps times those that are
/// ready at once.
/// Sources: the general problem is NP-hard (Sethi 1975); on trees depth first by need is optimal for equal sizes (Sethi and Ullman 1970).
std::vector<int32_t> order_for_peak(std::span<const Step> steps, std::span<const size_t> value_bytes);

/// The given order, and those that order_for_peak() looks at, each once: for who has another measure than the peak.
std::vector<std::vector<int32_t>> orders_to_try(std::span<const Step> steps, std::span<const size_t> value_bytes);

}  // namespace treadle::memory
