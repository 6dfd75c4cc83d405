#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "onnx/import.h"
#include "ops/precision.h"
#include "passes/pipeline.h"
#include "session/model.h"
#include "treadle/error.h"
#include "treadle/precision.h"

namespace treadle {
namespace {

using Feeds = std::map<std::string, Datum>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kWorthWhile = 1.03;  // smaller speedups count as noise

double at(const Tensor& tensor, int64_t i) {
  return tensor.dtype() == DType::float64 ? tensor.data<double>()[i] : double{tensor.data<float>()[i]};
}

double error_of(const Datum& result, const Datum& expected) {
  if (!expected.is_tensor()) return 0;  // only tensors are compared
  const Tensor a = result.tensor().contiguous(), e = expected.tensor().contiguous();
  if (a.shape() != e.shape()) return kInfinity;
  if (e.dtype() == DType::string) {
    const auto *x = a.data<std::string>(), *y = e.data<std::string>();
    return std::equal(x, x + a.num_elements(), y) ? 0 : kInfinity;
  }
  if (e.dtype() != DType::float32 && e.dtype() != DType::float64)
    return std::equal(a.raw(), a.raw() + a.size_bytes(), e.raw()) ? 0 : kInfinity;
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < e.num_elements(); ++i) {
    const double x = at(a, i), y = at(e, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return kInfinity;
    difference = std::max(difference, std::abs(x - y));
  }
  for (int64_t i = 0; i < e.num_elements(); ++i)
    if (std::isfinite(at(e, i))) largest = std::max(largest, std::abs(at(e, i)));
  return difference == 0 ? 0 : difference / largest;
}

/// Returns, in execution order, the names of the nodes to which the pass assign-precision would give bfloat16. Omits nodes to whose names
/// the option `precision` cannot refer.
std::vector<std::string> nodes_of(const Model& model) {
  std::unique_ptr<Graph> graph = model.impl().import();
  onnx::upgrade(*graph);
  passes::optimize(*graph, {.precision = passes::PrecisionRules::parse("bfloat16")});
  std::vector<std::string> names;
  for (NodeId id : graph->order()) {
    const Node& node = graph->node(id);
    if (ops::precision_of(node) != ops::name_of(ops::Precision::bfloat16)) continue;
    // The option refers to a node that a pass made by the name of the node that it replaces.
    const std::string& name = node.sources.empty() ? node.name : node.sources.front();
    if (!name.empty() && name.find(';') == std::string::npos) names.push_back(name);
  }
  return names;
}

class Trial {
 public:
  Trial(const Model& model, const CalibrationSource& samples, const ChoosePrecisionOptions& options) : model_(model), options_(options) {
    for (Feeds feeds; samples && samples(feeds); feeds.clear()) samples_.push_back(feeds);
    if (samples_.empty()) throw Error(ErrorCode::invalid_argument, "choosing a precision needs samples: at least one");
    const Session exact = session("float32");
    for (const Feeds& feeds : samples_) expected_.push_back(exact.run(feeds));
    tried_.push_back({"float32", 0, time(exact)});
  }

  double error(const Session& session) const {
    double worst = 0;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const std::vector<Datum> outputs = session.run(samples_[i]);
      for (size_t k = 0; k < outputs.size(); ++k) worst = std::max(worst, error_of(outputs[k], expected_[i][k]));
    }
    return worst;
  }
  double error(const std::string& precision) const { return error(session(precision)); }
  const TriedPrecision& measure(const std::string& precision) {
    const Session made = session(precision);
    const double deviation = error(made);
    return tried_.emplace_back(TriedPrecision{precision, deviation, time(made)});
  }

  /// Returns the fastest of the tried precisions whose error is within the bound; float32 if none is faster.
  PrecisionChoice choice() const {
    const TriedPrecision *best = tried_.data(), *exact = best;
    for (const TriedPrecision& tried : tried_)
      if (tried.error <= options_.bound && tried.milliseconds * kWorthWhile < best->milliseconds) best = &tried;
    return {best->precision, best->error, exact->milliseconds / best->milliseconds, tried_};
  }

 private:
  Session session(const std::string& precision) const {
    SessionOptions options = options_.session;
    options.precision = precision;
    return Session(model_, options);
  }
  double time(const Session& session) const {
    std::vector<double> times;
    for (int64_t i = 0; i < std::max<int64_t>(1, options_.timed_runs); ++i) {
      const auto start = std::chrono::steady_clock::now();
      session.run(samples_[0]);
      times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }

  const Model& model_;
  const ChoosePrecisionOptions& options_;
  std::vector<Feeds> samples_;
  std::vector<std::vector<Datum>> expected_;
  std::vector<TriedPrecision> tried_;
};

/// Returns a precision option that gives bfloat16 to as many groups of nodes as the bound on the error allows. Begins with groups whose
/// error, alone, is smallest. Returns an empty text if no group is within the bound.
std::string mixture(const Trial& trial, const std::vector<std::string>& nodes, const ChoosePrecisionOptions& options) {
  const auto count = static_cast<int64_t>(nodes.size()), groups = std::clamp<int64_t>(options.max_groups, 1, std::max<int64_t>(1, count));
  auto precision_of = [&](std::span<const int64_t> chosen) {
    std::string text = "float32";
    for (int64_t group : chosen)
      for (int64_t i = count * group / groups; i < count * (group + 1) / groups; ++i)
        text += fmt::format(";{}=bfloat16", nodes[static_cast<size_t>(i)]);
    return text;
  };
  std::vector<int64_t> order(static_cast<size_t>(groups));
  std::vector<double> alone;
  std::iota(order.begin(), order.end(), 0);
  for (int64_t group : order) alone.push_back(trial.error(precision_of({&group, 1})));
  // Removes groups that cause no error. They have no bfloat16 kernels and compute in float32, so they could seem faster only by noise.
  std::erase_if(order, [&](int64_t group) { return alone[static_cast<size_t>(group)] == 0; });
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return alone[static_cast<size_t>(a)] < alone[static_cast<size_t>(b)]; });
  // Finds the largest number of groups within the bound by bisection, since errors grow nearly monotonically. This number is at least
  // `fits` and less than `exceeds`.
  int64_t fits = 0, exceeds = std::ssize(order);
  while (fits + 1 < exceeds) {
    const int64_t middle = (fits + exceeds) / 2;
    (trial.error(precision_of({order.data(), static_cast<size_t>(middle)})) <= options.bound ? fits : exceeds) = middle;
  }
  return fits > 0 ? precision_of({order.data(), static_cast<size_t>(fits)}) : "";
}

}  // namespace

std::string PrecisionChoice::to_text() const {
  std::string text = fmt::format("{:>12} {:>12} {:>8}  precision\n", "error", "ms", "speed");
  for (const TriedPrecision& one : tried) {
    const auto entries = std::count(one.precision.begin(), one.precision.end(), ';');
    text += fmt::format("{:12.2e} {:12.3f} {:8.2f}  {}\n", one.error, one.milliseconds, tried.front().milliseconds / one.milliseconds,
                        entries > 0 ? fmt::format("bfloat16 for {} nodes", entries) : one.precision);
  }
  return text + fmt::format("chosen: {}\n", precision);
}

PrecisionChoice choose_precision(const Model& model, const CalibrationSource& samples, const ChoosePrecisionOptions& options) {
  if (!(options.bound > 0)) throw Error(ErrorCode::invalid_argument, fmt::format("bound = {}; it is more than 0", options.bound));
  model.impl().need_original();  // a compiled model has one precision
  Trial trial(model, samples, options);
  const bool leaves_bound = trial.measure("bfloat16").error > options.bound;
  trial.measure("bfloat16x3");
  if (leaves_bound) {
    const std::string mixed = mixture(trial, nodes_of(model), options);
    if (!mixed.empty()) trial.measure(mixed);
  }
  return trial.choice();
}

}  // namespace treadle
