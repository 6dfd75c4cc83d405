// The ways to run a case.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/graphs/judge.h"
#include "treadle/session.h"

namespace treadle::graphs {

enum class File : uint8_t { none, compiled, exported };

struct Setting {
  GraphOptimizationLevel level = GraphOptimizationLevel::all;
  std::vector<std::string> skip;  ///< passes by name
  int64_t max_patches = INT64_MAX;
  bool reuse_memory = true;
  int threads = 1;
  /// "": a session. Otherwise an executor of its own: "readiness": the parallel one, even if it gains nothing; "sim", "several": streams of
  /// one or three simulated devices, which check every access; "nodes": node by node, as a session does under a device memory limit.
  std::string where;
  // Options of a session:
  bool parallel = false;
  bool device = false;  ///< on a simulated device
  bool job = false;
  double share = 0;        ///< SessionOptions::memory_fraction
  double recomputed = -1;  ///< SessionOptions::recompute_fraction
  double budget = 0;       ///< memory limit as a share of the peak without a limit; 0: none
  /// Seeds where a partial run stops, including abandoned runs; with an odd seed, some inputs are fed only when requested. 0: whole runs.
  uint32_t partial = 0;
  uint32_t cancelled = 0;  ///< seeds when an earlier run is cancelled; 0: none
  uint32_t fetches = 0;    ///< seeds which inner values are fetched and fed; 0: none
  bool clients = false;    ///< several threads run all sets of feeds in one session at once
  bool bound = false;      ///< through an IoBinding
  uint32_t states = 0;     ///< seeds which outputs are fed back as inputs (StatefulRun); 0: none
  File file = File::none;
};

std::string to_string(const Setting& setting);

/// Returns the settings for "all": every case runs in each of them.
std::vector<Setting> standard_settings();
Setting random_setting(std::mt19937& random);
/// Returns settings with one more option at its default, for shrinking to try.
std::vector<Setting> simpler(const Setting& setting);

/// Runs every set of feeds, and the first one again at the end. Returns an empty text, or the differences that remain after a thorough
/// judgement.
std::string run_case(const Case& c, const Judgement& judgement, const Setting& setting);

}  // namespace treadle::graphs
