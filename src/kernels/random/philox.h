// Counter-based random numbers: element i of a stream depends only on (key, stream, i), not on threads or order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace treadle::kernels {

/// Returns the four numbers for one counter by Philox 4x32 with ten rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
/// easy as 1, 2, 3", 2011).
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;  // increments: digits of the golden ratio, and of sqrt(3) - 1
    key[1] += 0xBB67AE85;
  }
  return counter;
}

struct RandomStream {
  uint64_t key = 0;     ///< derived from the seed and the node
  uint64_t stream = 0;  ///< number of the run of the model

  std::array<uint32_t, 4> block(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)},
                  {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  }

  /// Returns elements 2 * index and 2 * index + 1, uniform in [0, 1), with 53 random bits each.
  std::array<double, 2> uniform_pair(uint64_t index) const {
    auto bits = block(index);
    auto number = [](uint32_t high, uint32_t low) { return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53; };
    return {number(bits[0], bits[1]), number(bits[2], bits[3])};
  }
  double uniform(uint64_t element) const { return uniform_pair(element / 2)[element % 2]; }

  /// Returns elements 2 index and 2 index + 1 of a standard normal distribution, by the Box-Muller transform.
  std::array<double, 2> normal_pair(uint64_t index) const {
    auto [u, v] = uniform_pair(index);
    double radius = std::sqrt(-2 * std::log(1 - u)), angle = 6.283185307179586477 * v;
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }

  /// Sets values[i] to element first + i of the stream; `first` must be even.
  void fill_uniform(int64_t first, double* values, int64_t n) const { fill(first, values, n, &RandomStream::uniform_pair); }
  void fill_normal(int64_t first, double* values, int64_t n) const { fill(first, values, n, &RandomStream::normal_pair); }

 private:
  void fill(int64_t first, double* values, int64_t n, std::array<double, 2> (RandomStream::*pair)(uint64_t) const) const {
    for (int64_t i = 0; i < n; i += 2) {
      auto both = (this->*pair)(static_cast<uint64_t>(first + i) / 2);
      values[i] = both[0];
      if (i + 1 < n) values[i + 1] = both[1];
    }
  }
};

}  // namespace treadle::kernels
