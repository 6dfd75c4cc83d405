// The structs behind the handles of models, values and run options.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "treadle/datum.h"
#include "treadle/model.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

struct treadle_model : treadle::c_api::Handle<treadle_model> {
  treadle::Model model;
};

struct treadle_session : treadle::c_api::Handle<treadle_session> {
  treadle::Session session;
  std::vector<treadle::ValueInfo> inputs, outputs;
  std::string profile_path = {};
};

struct treadle_run_options : treadle::c_api::Handle<treadle_run_options> {
  treadle::RunOptions options = {};
};

struct treadle_value : treadle::c_api::Handle<treadle_value> {
  treadle::Datum datum;
};

namespace treadle::c_api {

/// Converts the options; NULL means the defaults.
inline const RunOptions* options_of(const treadle_run_options* options) { return options ? &options->options : nullptr; }

/// Checks the feeds of a function.
inline Argument feeds(const char* const* names, const treadle_value* const* values, size_t count) noexcept {
  return first_fault({each_text(names, count, "input_names"), each_value(values, count, "inputs")});
}

/// Adds a value to a map by name. @throws Error(invalid_argument) for a repeated name, since one of the two values would be ignored
template <typename Values, typename Value>
void add_once(Values& values, const char* name, Value&& value) {
  if (!values.emplace(name, std::forward<Value>(value)).second)
    throw Error(ErrorCode::invalid_argument, "\"" + std::string(name) + "\" is given twice");
}

inline std::map<std::string, Datum> to_feeds(const char* const* names, const treadle_value* const* values, size_t count) {
  std::map<std::string, Datum> feeds;
  for (size_t i = 0; i < count; ++i) add_once(feeds, names[i], values[i]->datum);
  return feeds;
}

inline std::vector<std::string> to_strings(const char* const* texts, size_t count) { return {texts, texts + count}; }

/// Returns the tensor of a value; NULL: returns an undefined tensor. @throws Error(invalid_argument) if the value is not a tensor
inline Tensor to_tensor(const treadle_value* value, const char* what) {
  if (!value) return {};
  if (!value->datum.is_tensor()) throw Error(ErrorCode::invalid_argument, std::string(what) + " is no tensor");
  return value->datum.tensor();
}
inline std::vector<Tensor> to_tensors(const treadle_value* const* values, size_t count, const char* what) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) tensors.push_back(to_tensor(values[i], what));
  return tensors;
}

/// Stores results in the caller's array. @throws Error(invalid_argument) if the array's size, `room`, is not the number of results
inline void hand_out(std::vector<Datum> results, size_t room, treadle_value** outputs) {
  if (results.size() != room)
    throw Error(ErrorCode::invalid_argument, "room for " + std::to_string(room) + " outputs, there are " + std::to_string(results.size()));
  std::vector<std::unique_ptr<treadle_value>> made;
  for (Datum& result : results) made.push_back(make<treadle_value>(std::move(result)));
  for (size_t i = 0; i < made.size(); ++i) outputs[i] = made[i].release();
}

}  // namespace treadle::c_api
