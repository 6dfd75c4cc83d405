// Finds options that make a model faster or save memory on this machine, by trying them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/inputs.h"
#include "treadle/profile.h"

namespace treadle::cli {

struct RemedyTrials {
  const std::string& model;
  const SessionOptions& options;
  const InputOptions& inputs;
  const std::map<std::string, Datum>& feeds;
  double seconds = 0.6;                                    ///< time for each trial
  std::function<void(std::string_view what)> trying = {};  ///< called before each trial
};

/// Compares the original session with sessions that differ from it in one option. A faster option counts if the 99 % confidence intervals
/// of the medians do not overlap and it saves 3 % or more. Sorted by kind (time, memory, loading time), then by effect.
std::vector<ProfileRemedy> try_remedies(const RemedyTrials& trials);

}  // namespace treadle::cli
