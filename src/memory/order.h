// Finds an order of steps in which few bytes are in use at once. This code knows sizes and dependencies, but no tensors or graphs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace treadle::memory {

/// A step. It reads values that existed before or that earlier steps wrote, and it writes new values.
struct Step {
  std::vector<int32_t> reads, writes;  ///< indices of values; each is written by at most one step
  std::vector<int32_t> after;          ///< steps that must run earlier, not because of values
  /// Pairs (written, read) of values of the same size: the written value may use the bytes of the read one if this step is its last reader.
  std::vector<std::pair<int32_t, int32_t>> reuses;
};

/// Returns the maximum number of bytes in use in any step, including the values that the step reads and writes.
/// @param value_bytes  0 for values stored elsewhere
/// @param order        a permutation of the steps in which values are written before they are read
size_t peak_of_order(std::span<const Step> steps, std::span<const size_t> value_bytes, std::span<const int32_t> order);

/// Returns an order with a lower peak than the given one (0, 1, 2 …), or the given one if none was found. It tries greedy orders, by the
/// bytes that a step adds, from the first step and from the last, and an order that goes depth first from the results. Time is proportional
/// to the steps times the number of ready steps. Sources: the general problem is NP-hard (Sethi 1975); on trees, depth first by need is
/// optimal for equal sizes (Sethi and Ullman 1970).
std::vector<int32_t> order_for_peak(std::span<const Step> steps, std::span<const size_t> value_bytes);

/// Returns the given order and the orders that order_for_peak() tries, without duplicates, for callers that measure quality differently.
std::vector<std::vector<int32_t>> orders_to_try(std::span<const Step> steps, std::span<const size_t> value_bytes);

}  // namespace treadle::memory
