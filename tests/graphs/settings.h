// Settings: the ways in which a case can be run.
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
  std::vector<std::string> skip;  ///< names of passes that do not run
  int64_t max_patches = INT64_MAX;
  bool reuse_memory = true;
  int threads = 1;
  /// Says what runs the case. "": a session. "readiness": the parallel executor, even if parallelism gains nothing. "sim", "several":
  /// streams of one or three simulated devices, which check every access. "nodes": node by node, as a session runs it under a device memory
  /// limit.
  std::string where;
  // Options of a session, used if `where` is empty.
  bool parallel = false;
  bool device = false;  ///< the session runs on a simulated device
  bool job = false;
  double share = 0;        ///< SessionOptions::memory_fraction
  double recomputed = -1;  ///< SessionOptions::recompute_fraction
  double budget = 0;       ///< memory limit, as a share of the peak without a limit; 0: no limit
  /// Random seed for the places at which a partial run stops; some runs are abandoned there. With an odd seed, some inputs are fed only
  /// when the run requests them. 0: runs are not partial.
  uint32_t partial = 0;
  uint32_t cancelled = 0;  ///< random seed of the moment at which an earlier run is cancelled; 0: no run is cancelled
  uint32_t fetches = 0;    ///< random seed that selects the inner values that are fetched and fed; 0: none
  bool clients = false;    ///< several threads run all sets of feeds in one session at the same time
  bool bound = false;      ///< runs use an IoBinding
  uint32_t states = 0;     ///< random seed that selects the outputs that are fed back as inputs (StatefulRun); 0: none
  File file = File::none;
};

std::string to_string(const Setting& setting);

/// Returns the settings for "all", in each of which every case runs.
std::vector<Setting> standard_settings();
Setting random_setting(std::mt19937& random);
/// Returns the settings that shrinking tries: each has one more option at its default.
std::vector<Setting> simpler(const Setting& setting);

/// Runs every set of feeds, and the first one again at the end. Returns an empty text, or the differences that remain after a thorough
/// judgement.
std::string run_case(const Case& c, const Judgement& judgement, const Setting& setting);

}  // namespace treadle::graphs
