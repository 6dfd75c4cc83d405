// What makes a model faster or smaller on this machine, found by trying it.
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
  double seconds = 0.6;                                    ///< of each trial
  std::function<void(std::string_view what)> trying = {};  ///< called before each
};

/// Sessions with another option each, run in turn with one without it. A change counts if the medians' 99 % intervals lie apart and the
/// gain is 3 % or more. Those that save time come first, then memory, then loading time; the largest effect first.
std::vector<ProfileRemedy> try_remedies(const RemedyTrials& trials);

}  // namespace treadle::cli
