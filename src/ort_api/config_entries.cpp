// Session options that can also be set by config entries, since version 32 of the interface. Such an entry sets the option, and is not
// stored among the entries.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "ort_api/api.h"
#include "session/options.h"

namespace treadle::ort {
namespace {

[[noreturn]] void refuse_entry(const std::string& key, const std::string& expected, const std::string& value) {
  throw Error(ErrorCode::invalid_argument, "AddSessionConfigEntry: value for '" + key + "' must be " + expected + "; got '" + value + "'");
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool flag_of(const std::string& key, const std::string& value) {
  const std::string text = lower(value);
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  refuse_entry(key, "a boolean ('0'/'1' or 'true'/'false')", value);
}

int number_of_text(const std::string& key, const std::string& value) {
  size_t begin = value.find_first_not_of(" \t");
  if (begin != std::string::npos && value[begin] == '+') ++begin;
  int number = 0;
  const char *from = value.data() + std::min(begin, value.size()), *end = value.data() + value.size();
  const auto [stop, failure] = std::from_chars(from, end, number);
  if (failure != std::errc() || stop != end) refuse_entry(key, "a base-10 int32", value);
  return number;
}

// Returns the index of `value` in `names`, which are in lower case. Ignores the case of `value`.
int choice_of(const std::string& key, const std::string& value, std::initializer_list<std::string_view> names, const char* expected) {
  const auto* const found = std::find(names.begin(), names.end(), lower(value));
  if (found == names.end()) refuse_entry(key, expected, value);
  return static_cast<int>(found - names.begin());
}

}  // namespace

bool set_by_entry(OrtSessionOptions& options, const std::string& key, const std::string& value) {
  if (!key.starts_with("session.")) return false;
  const std::string name = key.substr(std::string_view("session.").size());
  SessionOptions& session = options.options;
  if (name == "enable_cpu_mem_arena")
    options.cpu_mem_arena = flag_of(key, value);
  else if (name == "enable_mem_pattern")
    options.mem_pattern = flag_of(key, value);
  else if (name == "use_deterministic_compute")
    (void)flag_of(key, value);  // only checks the value, since results are always deterministic
  else if (name == "log_id")
    options.logger.id = value;
  else if (name == "log_severity_level")
    options.log_severity_level = number_of_text(key, value);
  else if (name == "log_verbosity_level")
    options.log_verbosity_level = number_of_text(key, value);
  else if (name == "intra_op_num_threads" || name == "inter_op_num_threads")
    set_option(session, name, std::to_string(number_of_text(key, value)));
  else if (name == "optimized_model_filepath")
    session.optimized_model_filepath = value;
  else if (name == "execution_mode")
    session.execution_mode = static_cast<ExecutionMode>(
        choice_of(key, value, {"sequential", "parallel", "ort_sequential", "ort_parallel"}, "'sequential' or 'parallel'") % 2);
  else if (name == "graph_optimization_level") {
    constexpr const char* kLevels = "one of disable_all/enable_basic/enable_extended/enable_layout/enable_all";
    const int level = choice_of(key, value, {"disable_all", "enable_basic", "enable_extended", "enable_layout", "enable_all"}, kLevels);
    session.graph_optimization_level = level == 4 ? GraphOptimizationLevel::all : static_cast<GraphOptimizationLevel>(level);
  } else if (name == "enable_profiling") {  // the value is the file's prefix; empty: no profile
    session.enable_profiling = !value.empty();
    if (!value.empty()) session.profile_file_prefix = value;
  } else if (name == "use_per_session_threads") {
    if (flag_of(key, value) && !options.per_session_threads)
      throw Error(ErrorCode::invalid_argument,
                  "AddSessionConfigEntry: cannot set 'use_per_session_threads' back to true after it was disabled");
    options.per_session_threads = flag_of(key, value);
  } else {
    return false;
  }
  return true;
}

}  // namespace treadle::ort
