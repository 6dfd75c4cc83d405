// Random numbers that are the same bits on every machine: the standard fixes its generators, but not its distributions.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace treadle::train {

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : generator_(seed) {}
  /// From -1 to 1, and less.
  double uniform() { return static_cast<double>(generator_() >> 11U) * 0x1p-52 - 1; }
  /// Of standard deviation 1, by Box and Muller.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(0.5 * (1 - uniform()))), angle = std::numbers::pi * uniform();
    return radius * std::cos(angle);
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace treadle::train
