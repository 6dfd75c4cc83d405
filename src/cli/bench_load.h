// Sends runs to sessions as clients of a service do, and records how long each took.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "treadle/session.h"

namespace treadle::cli {

struct LoadOptions {
  int clients = 1;
  int64_t runs = 0;      ///< number of counted runs; 0: as many as `seconds` holds, and at least five
  double seconds = 2;    ///< duration of the measurement if `runs` is 0
  int64_t warmup = 3;    ///< runs of each client that are not counted
  double rate = 0;       ///< requests that arrive in a second; 0: each client sends the next one when it has the answer
  bool regular = false;  ///< true: arrivals have equal distances; false: they are independent (a Poisson process)
  uint64_t seed = 0;     ///< of the arrivals
};

struct LoadResult {
  std::vector<double> latencies_ms;  ///< ascending; from arrival to answer
  std::vector<double> waits_ms;      ///< ascending; from arrival to the beginning of the run; empty without a rate
  double wall_ms = 0;                ///< from the first request to the last answer
  int64_t warmup_runs = 0;
  double warmup_ms = 0;
  int64_t unserved = 0;  ///< requests that arrived, but that nobody served until twice the measurement's duration

  double runs_per_second() const { return 1e3 * static_cast<double>(latencies_ms.size()) / wall_ms; }
};

/// Returns the value below or at which the fraction `p` of the values lies (nearest rank). @param ascending  not empty
double percentile(const std::vector<double>& ascending, double p);

/// Runs the clients, which share the sessions in turn.
/// @param progress  called about ten times a second with the number of counted runs and the seconds since the first
/// @throws the first error of a run, after all clients have ended
LoadResult run_load(const std::vector<Session>& sessions, const std::map<std::string, Datum>& feeds, const LoadOptions& options,
                    const std::function<void(int64_t runs, double seconds)>& progress);

}  // namespace treadle::cli
