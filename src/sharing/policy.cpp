#include "sharing/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "treadle/error.h"

namespace treadle::sharing {
namespace {

bool is_guaranteed(const JobView& job) { return job.job_class == JobClass::guaranteed; }

// Measures by how much guaranteed jobs are slowed. The fastest step seen counts as the time without other jobs. This time slowly increases,
// in case steps never become as fast again (larger inputs).
class Slowdown {
 public:
  /// @return the slowdown of the job that is slowed most, for instance 0.03 for 3 %; 0 if no run has ended since the previous call
  double observe(std::span<const JobView> jobs) {
    constexpr double kForget = 1.0005;  // factor per decision: 0.5 % per second at ten decisions a second
    double worst = 0;
    std::unordered_map<uint64_t, double> kept;
    for (const JobView& job : jobs) {
      if (!is_guaranteed(job) || job.average_step_ns <= 0) continue;
      auto found = best_.find(job.id);
      double best = found == best_.end() ? job.average_step_ns : found->second;
      if (job.new_runs > 0) {
        best = std::min(best * kForget, job.average_step_ns);
        worst = std::max(worst, job.average_step_ns / best - 1);
      }
      kept[job.id] = best;
    }
    best_ = std::move(kept);
    return worst;
  }

 private:
  std::unordered_map<uint64_t, double> best_;
};

std::vector<uint32_t> full_grants(std::span<const JobView> jobs) { return std::vector<uint32_t>(jobs.size(), kFullShare); }

size_t num_opportunistic(std::span<const JobView> jobs) {
  return static_cast<size_t>(std::count_if(jobs.begin(), jobs.end(), [](const JobView& job) { return !is_guaranteed(job); }));
}

// The rule that applies without a coordinator: opportunistic jobs yield.
class GiveWay final : public Policy {
 public:
  std::string_view name() const override { return "give-way"; }
  Decision decide(std::span<const JobView> jobs, double, int) override { return {.granted = full_grants(jobs)}; }
};

// AntMan (OSDI 2020): opportunistic jobs run beside guaranteed ones in the time that these jobs left idle, and in less time when these
// become slower.
class AntMan final : public Policy {
 public:
  std::string_view name() const override { return "antman"; }

  Decision decide(std::span<const JobView> jobs, double elapsed_ns, int) override {
    constexpr double kLeast = 0.05, kSuffering = 0.10, kSmoothing = 0.3;
    double busy = 0;
    for (const JobView& job : jobs)
      if (is_guaranteed(job)) busy += job.busy_ns;
    const double utilization = elapsed_ns > 0 ? std::min(1.0, busy / elapsed_ns) : 0;
    used_ += kSmoothing * (utilization - used_);
    if (slowdown_.observe(jobs) > kSuffering)
      penalty_ = std::max(0.1, penalty_ / 2);
    else
      penalty_ = std::min(1.0, penalty_ * 1.1);
    const double left = std::max(kLeast, (1 - used_) * penalty_) / static_cast<double>(std::max<size_t>(1, num_opportunistic(jobs)));
    Decision decision{.beside = Beside::any, .granted = full_grants(jobs)};
    for (size_t i = 0; i < jobs.size(); ++i)
      if (!is_guaranteed(jobs[i])) decision.granted[i] = static_cast<uint32_t>(std::lround(left * kFullShare));
    return decision;
  }

 private:
  Slowdown slowdown_;
  double used_ = 0, penalty_ = 1;
};

// TGS (NSDI 2023): the rate of opportunistic jobs grows until the guaranteed one is slowed by more than 3 %. With each decision, it first
// grows by half of itself, later by 0.025 percentage points. Above 3 %, it shrinks by 8 % of itself.
class Feedback final : public Policy {
 public:
  std::string_view name() const override { return "feedback"; }

  Decision decide(std::span<const JobView> jobs, double, int) override {
    constexpr double kTolerance = 0.03, kStart = 0.05, kLeast = 0.01;
    const bool any_guaranteed = std::any_of(jobs.begin(), jobs.end(), [](const JobView& job) { return is_guaranteed(job) && job.running; });
    const double slower = slowdown_.observe(jobs);
    if (slower > kTolerance) {
      slow_start_ = false;
      rate_ = std::max(kLeast, rate_ * 0.92);
    } else if (any_guaranteed) {
      rate_ = std::min(1.0, slow_start_ ? rate_ * 1.5 : rate_ + 0.00025);
    }
    Decision decision{.beside = Beside::any, .granted = full_grants(jobs)};
    for (size_t i = 0; i < jobs.size(); ++i)
      if (!is_guaranteed(jobs[i])) decision.granted[i] = static_cast<uint32_t>(std::lround(std::max(rate_, kStart * 0.2) * kFullShare));
    return decision;
  }

 private:
  Slowdown slowdown_;
  double rate_ = 0.05;
  bool slow_start_ = true;
};

// Orion (EuroSys 2024): a short node runs beside a guaranteed job if a CPU is free, and if the two jobs' nodes are limited by different
// resources. If the job still becomes slower, only nodes that are not memory-bound run; then none do, for a while.
class Operators final : public Policy {
 public:
  std::string_view name() const override { return "operators"; }

  Decision decide(std::span<const JobView> jobs, double, int num_cpus) override {
    // kTolerance: the accepted slowdown; kLongest: the longest node, as a fraction of the guaranteed job's step.
    constexpr double kTolerance = 0.03, kLongest = 0.025;
    constexpr int kRetryLooks = 50;
    const double slower = slowdown_.observe(jobs);
    if (slower > kTolerance) {
      level_ = std::min(level_ + 1, 2);
      looks_until_retry_ = kRetryLooks;
    } else if (level_ > 0 && --looks_until_retry_ <= 0) {
      --level_;
      looks_until_retry_ = kRetryLooks;
    }
    Decision decision{.granted = full_grants(jobs)};
    int threads = 0;
    double shortest_step_ns = 0;
    for (const JobView& job : jobs) {
      threads += is_guaranteed(job) ? job.threads : 1;
      if (is_guaranteed(job) && job.average_step_ns > 0)
        shortest_step_ns = shortest_step_ns > 0 ? std::min(shortest_step_ns, job.average_step_ns) : job.average_step_ns;
    }
    if (threads > num_cpus || shortest_step_ns <= 0 || level_ == 2) return decision;
    decision.beside = level_ == 0 ? Beside::opposite : Beside::compute_bound;
    decision.max_beside_ns = static_cast<uint64_t>(std::max(1.0, kLongest * shortest_step_ns));
    decision.guaranteed_publish = level_ == 0;
    return decision;
  }

 private:
  Slowdown slowdown_;
  int level_ = 0, looks_until_retry_ = 0;
};

constexpr std::pair<std::string_view, std::string_view> kPolicies[] = {
    {"give-way", "opportunistic jobs wait while a guaranteed one has a run under way (the rule without a coordinator)"},
    {"antman", "they run beside it in the time that it was seen to leave (AntMan, OSDI 2020)"},
    {"feedback", "their share grows until its steps take 3 % longer, then falls (TGS, NSDI 2023)"},
    {"operators", "short nodes with another bound than its own run beside it (Orion, EuroSys 2024)"},
};

}  // namespace

std::span<const std::pair<std::string_view, std::string_view>> policy_table() { return kPolicies; }

std::unique_ptr<Policy> make_policy(std::string_view name) {
  if (name == "give-way") return std::make_unique<GiveWay>();
  if (name == "antman") return std::make_unique<AntMan>();
  if (name == "feedback") return std::make_unique<Feedback>();
  if (name == "operators") return std::make_unique<Operators>();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no policy \"{}\"; the policies are: give-way, antman, feedback, operators", name));
}

}  // namespace treadle::sharing
