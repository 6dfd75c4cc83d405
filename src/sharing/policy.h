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
  uint32_t share = kFullShare;  ///< the share that was set for the job
  int threads = 0;
  bool running = false;
  uint64_t new_runs = 0;       ///< number of runs that have ended since the previous decision
  double busy_ns = 0;          ///< duration of these runs without idling and yielding
  double average_step_ns = 0;  ///< average over recent runs; 0: none has ended yet
};

/// A policy's decision. `granted` has one entry per job, in the order of the jobs that decide() was given.
struct Decision {
  Beside beside = Beside::none;
  uint64_t max_beside_ns = 0;       ///< nodes that take longer never run beside a guaranteed job; 0: no limit
  bool guaranteed_publish = false;  ///< true: guaranteed jobs publish which resource limits their nodes
  std::vector<uint32_t> granted;    ///< granted shares, in units of 0.01 %
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual Decision decide(std::span<const JobView> jobs, double elapsed_ns, int num_cpus) = 0;
};

/// Makes the policy with this name: give-way, antman, feedback or operators. @throws Error(invalid_argument) for another name, listing
/// these
std::unique_ptr<Policy> make_policy(std::string_view name);
/// Lists the names of the policies, each with a line of description.
std::span<const std::pair<std::string_view, std::string_view>> policy_table();

}  // namespace treadle::sharing
