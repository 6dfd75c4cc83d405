// The ways in which a case is run.
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
  /// "": a session. Others are programs of their own: "readiness": parallel even where nothing is to be gained; "sim", "several": streams
  /// of one or three devices, which check every access; "nodes": node by node, as jobs on a device with a memory limit.
  std::string where;
  // Of a session:
  bool parallel = false;
  bool device = false;  ///< sim
  bool job = false;
  double share = 0;        ///< SessionOptions::memory_fraction
  double recomputed = -1;  ///< SessionOptions::recompute_fraction
  double budget = 0;       ///< the memory limit as a part of the peak without one; 0: none
  /// Seed of the places where a partial run stops, runs that are given up among them; odd: some inputs are fed when they are asked for.
  /// 0: whole runs.
  uint32_t partial = 0;
  uint32_t cancelled = 0;  ///< seed of when a run beforehand is cancelled; 0: none
  uint32_t fetches = 0;    ///< seed of which values of the main graph are fetched and fed in place of its outputs and inputs; 0: none
  bool clients = false;    ///< threads that run all sets of feeds at once in one session
  bool bound = false;      ///< through an IoBinding
  uint32_t states = 0;     ///< seed of which outputs are fed back as inputs, over a few runs (StatefulRun); 0: none
  File file = File::none;
};

std::string to_string(const Setting& setting);

/// Those that every case is run in when all are asked for.
std::vector<Setting> standard_settings();
Setting random_setting(std::mt19937& random);
/// The settings that differ from it in one thing that is as by default: what shrinking tries.
std::vector<Setting> simpler(const Setting& setting);

/// Runs every set of feeds, the first again at the end. Empty if all is as expected; else what went wrong, also by a thorough judgement.
std::string run_case(const Case& c, const Judgement& judgement, const Setting& setting);

}  // namespace treadle::graphs
