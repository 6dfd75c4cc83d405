// Applies session options that a model's metadata contain, if an environment variable asks for this.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/json_depth.h"
#include "ort_api/api.h"

namespace treadle::ort {
namespace {

using Document = nlohmann::ordered_json;

[[noreturn]] void refuse_config(const std::string& what) {
  throw StatusError(ORT_FAIL, "Could not finalize session options while constructing the inference session. Error Message: " + what);
}

// Returns an integer field of the JSON document; nullopt if it has no such field.
std::optional<int64_t> number_in(const Document& options, const std::string& name) {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  if (!found->is_number_integer()) refuse_config(name + " option in the model file must be an integer");
  return found->get<int64_t>();
}

void take_over(const Document& given, SessionOptions& options) {
  if (const auto threads = number_in(given, "intra_op_num_threads"))
    options.intra_op_num_threads = static_cast<int>(std::max<int64_t>(*threads, 0));
  if (const auto threads = number_in(given, "inter_op_num_threads"))
    options.inter_op_num_threads = static_cast<int>(std::max<int64_t>(*threads, 0));
  if (const auto mode = number_in(given, "execution_mode")) {
    if (*mode != 0 && *mode != 1) refuse_config("Unsupported execution_mode value in ORT config: " + std::to_string(*mode));
    options.execution_mode = static_cast<treadle::ExecutionMode>(*mode);
  }
  if (const auto level = number_in(given, "graph_optimization_level")) {
    if (!is_level(*level)) refuse_config("Unsupported graph_optimization_level value in ORT config: " + std::to_string(*level));
    options.graph_optimization_level = static_cast<treadle::GraphOptimizationLevel>(*level);
  }
  if (const auto profiling = number_in(given, "enable_profiling")) {
    if (*profiling != 0 && *profiling != 1) refuse_config("Unsupported value for enable_profiling option: " + std::to_string(*profiling));
    options.enable_profiling = *profiling == 1;
  }
}

}  // namespace

bool is_level(int64_t level) { return (level >= 0 && level <= 3) || level == 99; }

void apply_model_config(const ModelMetadata& metadata, SessionOptions& options) {
  const char* asked = std::getenv("ORT_LOAD_CONFIG_FROM_MODEL");
  const auto found = metadata.custom.find("ort_config");
  if (asked == nullptr || std::string_view(asked) != "1" || found == metadata.custom.end()) return;
  Document document;
  try {
    if (!is_shallow_json(found->second)) throw Error(ErrorCode::invalid_argument, "it has lists in lists too deep");
    document = Document::parse(found->second);
  } catch (const std::exception& error) {
    refuse_config(std::string("Json stored in the `ort_config` key cannot be parsed. Error message: ") + error.what());
  }
  if (!document.is_object()) return;
  if (const auto session = document.find("session_options"); session != document.end() && session->is_object())
    take_over(*session, options);
}

}  // namespace treadle::ort
