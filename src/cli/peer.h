// Runs models in other runtimes for comparison, by a Python installation that the user names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "treadle/datum.h"

namespace treadle::cli {

struct PeerTimes {
  double load_ms = 0, median_ms = 0;
  std::string version;
};

std::vector<std::string> peer_names();

/// Times another runtime with these inputs and threads (0: its default number). @throws Error if `python` cannot import the runtime.
PeerTimes time_peer(const std::string& peer, const std::string& python, const std::string& model, const std::map<std::string, Datum>& feeds,
                    int threads, int runs);

/// Returns the values with these names (empty: the model's outputs), as ONNX Runtime computes them without optimizations.
std::map<std::string, Tensor> run_onnxruntime(const std::string& python, const std::string& model,
                                              const std::map<std::string, Datum>& feeds, const std::vector<std::string>& values);

}  // namespace treadle::cli
