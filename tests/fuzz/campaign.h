// Many changed files of a kind, each used in a process apart, with limits on time and memory.
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
  uint64_t memory_bytes = uint64_t{4} << 30;  // of addresses; 0: any
  double seconds = 0;                         // of all cases; 0: any
  size_t failures = 100;                      // that end it
  std::filesystem::path out;                  // files that fail are kept here; empty: nowhere
};

struct Failure {
  uint64_t seed;
  std::string what;
};
struct CampaignResult {
  uint64_t cases = 0, used = 0;  // used: loaded and run to the end
  std::vector<Failure> failures;
};

/// Deterministic in everything but time: a seed has the same file everywhere.
CampaignResult run_campaign(const FileKind& kind, const CampaignOptions& options);

}  // namespace treadle::fuzz
