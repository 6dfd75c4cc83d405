// Policies: what opportunistic jobs may do beside guaranteed ones. A coordinator asks its policy several times a second.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharing/job_table.h"

namespace treadle::sharing {

/// A job, and what it did since the policy looked last.
struct JobView {
  uint64_t id = 0;
  JobClass job_class = JobClass::guaranteed;
  uint32_t share = kFullShare;  ///< as set
  int threads = 0;
  bool running = false;
  uint64_t new_runs = 0;       ///< that ended since
  double busy_ns = 0;          ///< of them: not idle and not giving way
  double average_step_ns = 0;  ///< over recent runs; 0: there was none yet
};

/// What the policy decides. Shares are granted in the order of the jobs.
struct Decision {
  Beside beside = Beside::none;
  uint64_t max_beside_ns = 0;       ///< longer nodes never run beside a guaranteed job; 0: any
  bool guaranteed_publish = false;  ///< guaranteed jobs say what bounds their nodes
  std::vector<uint32_t> granted;    ///< of 10,000
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  virtual Decision decide(std::span<const JobView> jobs, double elapsed_ns, int num_cpus) = 0;
};

/// give-way, antman, feedback or operators. @throws Error(invalid_argument) naming those that there are.
std::unique_ptr<Policy> make_policy(std::string_view name);
/// Name and one line of description.
std::span<const std::pair<std::string_view, std::string_view>> policy_table();

}  // namespace treadle::sharing
