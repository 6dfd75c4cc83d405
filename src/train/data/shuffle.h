// Random orders of samples. They depend only on the seed and epoch, so they are the same on every machine and with every standard library.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace treadle::train {

/// Epoch number for the random order by which a data set is split into parts, which happens outside of any epoch.
inline constexpr int64_t kSplitEpoch = -1;

/// Returns the numbers [0, count) in random order, determined by seed and epoch. Source: the Fisher-Yates shuffle in Durstenfeld's form
/// (1964), with numbers from SplitMix64 (Steele, Lea and Flood 2014), reduced to the range by Lemire's multiplication (2019) without
/// rejection: the bias is below 2^-32 for less than 2^32 samples.
inline std::vector<int64_t> shuffled(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  auto mixed = [](uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
  };
  uint64_t state = mixed(seed + 0x9e3779b97f4a7c15ULL) ^ mixed(static_cast<uint64_t>(epoch) * 0xd1342543de82ef95ULL + 1);
  for (size_t i = order.size(); i > 1; --i) {
    const uint64_t drawn = mixed(state += 0x9e3779b97f4a7c15ULL);
    __extension__ using Product = unsigned __int128;
    std::swap(order[i - 1], order[static_cast<size_t>(static_cast<Product>(drawn) * i >> 64)]);
  }
  return order;
}

}  // namespace treadle::train
