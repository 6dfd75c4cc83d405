#include "onnx/random_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/values/dispatch.h"

namespace treadle::testing {
namespace {

constexpr std::string_view kNames[] = {
    "node/test_bernoulli",
    "node/test_bernoulli_double",
    "node/test_bernoulli_double_expanded",
    "node/test_bernoulli_expanded",
    "node/test_bernoulli_seed",
    "node/test_bernoulli_seed_expanded",
    "node/test_training_dropout",
    "node/test_training_dropout_default",
    "node/test_training_dropout_default_mask",
    "node/test_training_dropout_mask",
};

std::vector<double> numbers(const Datum& datum) {
  const Tensor tensor = datum.tensor().contiguous();
  return visit_dtype<TypeList<float, double, bool>>(
      tensor.dtype(), [&]<typename T>() { return std::vector<double>(tensor.data<T>(), tensor.data<T>() + tensor.num_elements()); });
}

}  // namespace

bool RandomCase::is_random(std::string_view name) { return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames); }

// Computes for each element the probability that it is not zero, and the value that it then has (`kept_values_`).
RandomCase::RandomCase(std::string_view name, std::span<const Datum> feeds) {
  const std::vector<double> x = numbers(feeds[0]);
  if (name.find("dropout") != std::string_view::npos) {
    const double ratio = numbers(feeds[1])[0];
    for (double value : x) kept_values_.push_back(value / (1 - ratio)), probabilities_.push_back(1 - ratio);
  } else {
    // The expanded form computes `random > x`, which is 1 with the probability that Bernoulli gives 0.
    const bool reversed = name.ends_with("_expanded");
    for (double value : x) kept_values_.push_back(1), probabilities_.push_back(reversed ? 1 - value : value);
  }
  counts_.resize(x.size());
}

std::string RandomCase::add(std::span<const Datum> outputs, std::span<const std::optional<Datum>> expected) {
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!expected[k]) return fmt::format("output {} has no file", k);
    const Tensor &actual = outputs[k].tensor(), &wanted = expected[k]->tensor();
    if (actual.dtype() != wanted.dtype() || actual.shape() != wanted.shape())
      return fmt::format("output {} is {}, expected {}", k, describe(actual), describe(wanted));
  }
  const std::vector<double> y = numbers(outputs[0]);
  const std::vector<double> mask = outputs.size() > 1 ? numbers(outputs[1]) : std::vector<double>();
  for (size_t i = 0; i < y.size(); ++i) {
    const bool kept = y[i] != 0;
    if (kept && std::fabs(y[i] - kept_values_[i]) > 1e-5)
      return fmt::format("element {} is {}, neither 0 nor {}", i, y[i], kept_values_[i]);
    if (!mask.empty() && (mask[i] != 0) != kept) return fmt::format("element {} is {} and its mask {}", i, y[i], mask[i]);
    counts_[i] += kept ? 1 : 0;
  }
  ++runs_;
  return {};
}

std::string RandomCase::verdict() const {
  for (size_t i = 0; i < counts_.size(); ++i) {
    const double p = probabilities_[i], mean = runs_ * p, deviation = std::sqrt(runs_ * p * (1 - p));
    if (std::fabs(counts_[i] - mean) > 6 * deviation + 1e-6)
      return fmt::format("element {} was drawn {} times in {} runs; its probability is {}", i, counts_[i], runs_, p);
  }
  return {};
}

}  // namespace treadle::testing
