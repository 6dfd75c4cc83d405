// A hash table from keys to their positions in a list, for all key types of ai.onnx.ml.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/values/dispatch.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle::ops {

/// The element types that keys and values may have.
using MlKeyTypes = TypeList<std::string, int64_t, int32_t, int16_t, float, double>;

/// Finds the position of a key in a list. All NaN count as the same key, and so do 0 and -0.
class Lookup {
 public:
  static constexpr int64_t kAbsent = -1;

  /// @param first  true: for a repeated key, find() returns its first position; false: the last one
  explicit Lookup(const Tensor& keys, bool first = false) : dtype_(keys.dtype()) {
    auto put = [first](auto& map, const auto& key, int64_t place) { first ? void(map.emplace(key, place)) : void(map[key] = place); };
    visit_dtype<MlKeyTypes>(dtype_, [&]<typename K>() {
      auto list = keys.contiguous();
      int64_t position = 0;
      for (const K& key : list.span<K>()) {
        if constexpr (std::is_same_v<K, std::string>)
          put(strings_, key, position++);
        else
          put(numbers_, bits(key), position++);
      }
    });
    make_direct();
  }

  DType dtype() const { return dtype_; }

  /// Returns the numeric keys, each converted to 64 bits by bits(), with their positions.
  const std::unordered_map<int64_t, int64_t>& numbers() const { return numbers_; }

  int64_t find(const std::string& key) const {
    auto found = strings_.find(key);
    return found == strings_.end() ? kAbsent : found->second;
  }
  template <typename K>
    requires std::is_arithmetic_v<K>
  int64_t find(K key) const {
    int64_t number = bits(key);
    if (!direct_.empty()) {
      auto offset = static_cast<uint64_t>(number) - static_cast<uint64_t>(smallest_);
      return offset < direct_.size() ? direct_[offset] : kAbsent;
    }
    auto found = numbers_.find(number);
    return found == numbers_.end() ? kAbsent : found->second;
  }

 private:
  template <typename K>
  static int64_t bits(K key) {
    if constexpr (std::is_integral_v<K>) {
      return static_cast<int64_t>(key);
    } else {
      auto value = static_cast<double>(key);
      if (std::isnan(value)) return INT64_MIN;  // the bits of -0, which no other key has since -0 becomes 0
      return std::bit_cast<int64_t>(value == 0 ? 0.0 : value);
    }
  }

  // Makes a table indexed by key, for small consecutive integers, as most labels are. It needs no hashing.
  void make_direct() {
    if (numbers_.empty() || dtype_ == DType::float32 || dtype_ == DType::float64) return;
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (const auto& [key, position] : numbers_) low = std::min(low, key), high = std::max(high, key);
    uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    if (range >= 4 * numbers_.size() + 1024) return;
    smallest_ = low;
    direct_.assign(range + 1, kAbsent);
    for (const auto& [key, position] : numbers_) direct_[static_cast<uint64_t>(key) - static_cast<uint64_t>(low)] = position;
  }

  DType dtype_;
  std::unordered_map<std::string, int64_t> strings_;
  std::unordered_map<int64_t, int64_t> numbers_;
  std::vector<int64_t> direct_;
  int64_t smallest_ = 0;
};

}  // namespace treadle::ops
