// Random numbers with the same bits on every machine. The C++ standard defines its generators exactly, but not its distributions.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace treadle::train {

class RandomNumbers {
 public:
  explicit RandomNumbers(uint64_t seed) : generator_(seed) {}
  /// Returns the next number, uniform in [-1, 1).
  double uniform() { return static_cast<double>(generator_() >> 11U) * 0x1p-52 - 1; }
  /// Returns the next number, normal with mean 0 and standard deviation 1, by the Box-Muller transform.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(0.5 * (1 - uniform()))), angle = std::numbers::pi * uniform();
    return radius * std::cos(angle);
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace treadle::train
