// Uses many mutated files of a kind, each in a separate process with limits on time and memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/fuzz/file_kinds.h"

namespace treadle::fuzz {

struct CampaignOptions {
  uint64_t seed = 1, count = 1000;
  double seconds_per_case = 10;
  uint64_t memory_bytes = uint64_t{4} << 30;  // address space; 0: unlimited
  double seconds = 0;                         // for all cases; 0: unlimited
  size_t failures = 100;                      // stops after this many failures
  std::filesystem::path out;                  // keeps failing files here; empty: nowhere
};

struct Failure {
  uint64_t seed;
  std::string what;
};
struct CampaignResult {
  uint64_t cases = 0, used = 0;  // used: loaded and run to the end
  std::vector<Failure> failures;
};

/// Runs a campaign. Apart from times it is deterministic: a seed gives the same file everywhere.
CampaignResult run_campaign(const FileKind& kind, const CampaignOptions& options);

}  // namespace treadle::fuzz
