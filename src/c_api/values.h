// What models, values and options of runs are behind their handles.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/status.h"
#include "treadle/datum.h"
#include "treadle/model.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

struct treadle_model {
  treadle::Model model;
};

struct treadle_session {
  treadle::Session session;
  std::vector<treadle::ValueInfo> inputs, outputs;
  std::string profile_path;
};

struct treadle_run_options {
  treadle::RunOptions options;
};

struct treadle_value {
  treadle::Datum datum;
};

namespace treadle::c_api {

inline std::map<std::string, Datum> to_feeds(const char* const* names, const treadle_value* const* values, size_t count) {
  std::map<std::string, Datum> feeds;
  if (count) require(names, "input_names"), require(values, "inputs");
  for (size_t i = 0; i < count; ++i) feeds[&require(names[i], "an input's name")] = require(values[i], "an input").datum;
  return feeds;
}

inline void hand_out(std::vector<Datum> results, treadle_value** outputs) {
  std::vector<std::unique_ptr<treadle_value>> made;
  for (Datum& result : results) made.push_back(std::make_unique<treadle_value>(treadle_value{std::move(result)}));
  for (size_t i = 0; i < made.size(); ++i) outputs[i] = made[i].release();
}

}  // namespace treadle::c_api
