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
  uint64_t memory_bytes = uint64_t{4} << 30;  // limit of the address space; 0: unlimited
  double seconds = 0;                         // time limit for all cases; 0: unlimited
  size_t failures = 100;                      // the campaign stops after this many failures
  std::filesystem::path out;                  // folder for files that fail; empty: they are not kept
};

struct Failure {
  uint64_t seed;
  std::string what;
};
struct CampaignResult {
  uint64_t cases = 0, used = 0;  // used: number of files that were loaded and run to the end
  std::vector<Failure> failures;
};

/// Runs a campaign. Apart from times it is deterministic: a seed gives the same file everywhere.
CampaignResult run_campaign(const FileKind& kind, const CampaignOptions& options);

}  // namespace treadle::fuzz
