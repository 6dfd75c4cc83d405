// Runs models in other runtimes for comparison, by a Python installation that the user names.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::cli {

struct PeerTimes {
  double load_ms = 0, median_ms = 0, p90_ms = 0, p99_ms = 0, runs_per_second = 0;
  std::string version = {};
  std::string error = {};  ///< why there are no times; empty: there are
};

struct PeerLoad {
  int threads = 0;  ///< 0: the runtime's default
  int clients = 1;
  int64_t warmup = 0;  ///< runs of each client that are not counted
  int64_t runs = 1;
  double most_seconds = 0;  ///< ends the measurement earlier, but not before five runs
};

std::vector<std::string> peer_names();

/// Times another runtime with these inputs. @throws Error if `python` cannot import the runtime, or the runtime fails.
PeerTimes time_peer(const std::string& peer, const std::string& python, const std::string& model, const std::map<std::string, Datum>& feeds,
                    const PeerLoad& load);

/// Returns the values with these names (empty: the model's outputs), as ONNX Runtime computes them without optimizations.
std::map<std::string, Tensor> run_onnxruntime(const std::string& python, const std::string& model,
                                              const std::map<std::string, Datum>& feeds, const std::vector<std::string>& values);

}  // namespace treadle::cli
