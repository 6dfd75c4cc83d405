// Policies decide what opportunistic jobs may do beside guaranteed ones. A coordinator asks its policy several times per second.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharing/job_table.h"

namespace treadle::sharing {

/// A job, and its activity since the previous decision.
struct JobView {
  uint64_t id = 0;
  JobClass job_class = JobClass::guaranteed;
  uint32_t share = kFullShare;  ///< as set
  int threads = 0;
  bool running = false;
  uint64_t new_runs = 0;       ///< runs that have ended since
  double busy_ns = 0;          ///< duration of these runs without idling and yielding
  double average_step_ns = 0;  ///< over recent runs; 0: none yet
};

/// A policy's decision. `granted` is in the order of the jobs.
struct Decision {
  Beside beside = Beside::none;
  uint64_t max_beside_ns = 0;       ///< longer nodes never run beside a guaranteed job; 0: no limit
  bool guaranteed_publish = false;  ///< guaranteed jobs publish the bounds of their nodes
  std::vector<uint32_t> granted;    ///< in units of 0.01 %
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual Decision decide(std::span<const JobView> jobs, double elapsed_ns, int num_cpus) = 0;
};

/// Makes the policy give-way, antman, feedback or operators. @throws Error(invalid_argument) naming these
std::unique_ptr<Policy> make_policy(std::string_view name);
/// Names with a line of description each.
std::span<const std::pair<std::string_view, std::string_view>> policy_table();

}  // namespace treadle::sharing
