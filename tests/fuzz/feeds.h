// Random feeds for any inputs that a model declares.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "treadle/error.h"
#include "treadle/model.h"
#include "treadle/session.h"

namespace treadle::fuzz {

/// Uses declared extents or small ones, and elements that are small, large or NaN.
class Feeds {
 public:
  explicit Feeds(uint32_t seed) : random_(seed) {}

  /// Returns false for an input that is not a tensor of an ordinary dtype, or is too large.
  bool add(const ValueInfo& input) {
    if (!input.type.starts_with("tensor(")) return false;
    Shape shape;
    int64_t count = 1;
    const int free_rank = static_cast<int>(below(4));
    for (int d = 0; d < (input.has_rank ? static_cast<int>(input.shape.size()) : free_rank); ++d) {
      int64_t extent = extent_below_5();
      if (input.has_rank) {
        const auto& declared = input.shape[static_cast<size_t>(d)];
        if (const auto* fixed = std::get_if<int64_t>(&declared))
          extent = *fixed;
        else if (const auto& name = std::get<std::string>(declared); !name.empty())
          extent = symbols_.try_emplace(name, extent).first->second;
      }
      if (extent < 0 || extent > kMaxElements || (count *= extent) > kMaxElements || d >= kMaxRank) return false;
      shape.push_back(extent);
    }
    Tensor tensor(input.dtype, shape);
    if (!fill(tensor)) return false;
    feeds_[input.name] = tensor;
    return true;
  }
  const std::map<std::string, Datum>& all() const { return feeds_; }

 private:
  static constexpr int64_t kMaxElements = 1 << 14;

  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  int64_t extent_below_5() { return below(8) == 0 ? 0 : 1 + below(4); }

  template <typename T, typename F>
  static bool each(Tensor& tensor, F f) {
    for (T& element : tensor.span<T>()) element = static_cast<T>(f());
    return true;
  }
  bool fill(Tensor& tensor) {
    auto integer = [&] { return below(16) == 0 ? static_cast<int64_t>(random_()) - (int64_t{1} << 30) : int64_t{below(7)} - 2; };
    auto real = [&] {
      static constexpr double kHard[] = {0, -0.0, 1e30, -1e30, 1e-40, INFINITY, -INFINITY, NAN};
      return below(16) == 0 ? kHard[below(8)] : (static_cast<double>(below(2001)) - 1000) / 250;
    };
    switch (tensor.dtype()) {
      case DType::float32: return each<float>(tensor, real);
      case DType::float64: return each<double>(tensor, real);
      case DType::int64: return each<int64_t>(tensor, integer);
      case DType::int32: return each<int32_t>(tensor, integer);
      case DType::int16:
      case DType::uint16:
      case DType::float16:
      case DType::bfloat16:
      case DType::int8:
      case DType::uint8:
      case DType::uint32:
      case DType::uint64: {
        auto* bytes = static_cast<std::byte*>(tensor.raw());
        for (size_t i = 0; i < tensor.size_bytes(); ++i) bytes[i] = static_cast<std::byte>(random_());
        return true;
      }
      case DType::boolean: return each<bool>(tensor, [&] { return below(2); });
      case DType::string: return each<std::string>(tensor, [&] { return std::string(below(12), static_cast<char>('0' + below(40))); });
      default: return false;
    }
  }

  std::minstd_rand random_;
  std::map<std::string, int64_t> symbols_;
  std::map<std::string, Datum> feeds_;
};

/// Runs the session with `times` sets of feeds, within limits. An Error thrown by a run is a valid result.
inline void run_with_random_feeds(const Session& session, uint32_t seed, uint32_t times, int64_t deadline_ms) {
  for (uint32_t turn = 0; turn < times; ++turn) {
    Feeds feeds(seed + turn);
    for (const ValueInfo& input : session.inputs())
      if (!feeds.add(input)) return;
    RunOptions options;
    options.deadline_ms = deadline_ms;
    try {
      session.run(feeds.all(), {}, &options);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::internal) throw;
    }
  }
}

}  // namespace treadle::fuzz
