// The metadata of models in the C ABI.
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "c_api/arguments.h"
#include "c_api/values.h"
#include "treadle/model.h"
#include "treadle/treadle.h"

namespace {

using namespace treadle::c_api;
using treadle::ModelMetadata;

constexpr std::pair<std::string_view, std::string ModelMetadata::*> kFields[] = {
    {"producer_name", &ModelMetadata::producer_name},
    {"producer_version", &ModelMetadata::producer_version},
    {"graph_name", &ModelMetadata::graph_name},
    {"graph_description", &ModelMetadata::graph_description},
    {"domain", &ModelMetadata::domain},
    {"description", &ModelMetadata::description},
};

// Returns look(entry `index` of `map`), or `otherwise` beyond the last.
template <typename Result, typename Entries, typename Look>
Result entry_at(const Entries& entries, size_t index, Result otherwise, const Look& look) {
  return index < entries.size() ? look(*std::next(entries.begin(), static_cast<std::ptrdiff_t>(index))) : otherwise;
}

}  // namespace

extern "C" {

const char* treadle_model_metadata(const treadle_model* model, const char* field) {
  return asked<const char*>(model, nullptr, [&](const treadle_model& m) -> const char* {
    for (const auto& [name, member] : kFields)
      if (field && name == field) return (m.model.metadata().*member).c_str();
    return nullptr;
  });
}
int64_t treadle_model_version(const treadle_model* model) {
  return asked<int64_t>(model, 0, [](const treadle_model& m) { return m.model.metadata().version; });
}
int64_t treadle_model_ir_version(const treadle_model* model) {
  return asked<int64_t>(model, 0, [](const treadle_model& m) { return m.model.metadata().ir_version; });
}
size_t treadle_model_num_opsets(const treadle_model* model) {
  return asked<size_t>(model, 0, [](const treadle_model& m) { return m.model.metadata().opsets.size(); });
}
const char* treadle_model_opset_domain(const treadle_model* model, size_t index) {
  return asked<const char*>(model, nullptr, [&](const treadle_model& m) {
    return entry_at<const char*>(m.model.metadata().opsets, index, nullptr, [](const auto& opset) { return opset.first.c_str(); });
  });
}
int64_t treadle_model_opset_version(const treadle_model* model, size_t index) {
  return asked<int64_t>(model, 0, [&](const treadle_model& m) {
    return entry_at<int64_t>(m.model.metadata().opsets, index, 0, [](const auto& opset) { return opset.second; });
  });
}
size_t treadle_model_num_properties(const treadle_model* model) {
  return asked<size_t>(model, 0, [](const treadle_model& m) { return m.model.metadata().custom.size(); });
}
const char* treadle_model_property_key(const treadle_model* model, size_t index) {
  return asked<const char*>(model, nullptr, [&](const treadle_model& m) {
    return entry_at<const char*>(m.model.metadata().custom, index, nullptr, [](const auto& entry) { return entry.first.c_str(); });
  });
}
const char* treadle_model_property_value(const treadle_model* model, size_t index) {
  return asked<const char*>(model, nullptr, [&](const treadle_model& m) {
    return entry_at<const char*>(m.model.metadata().custom, index, nullptr, [](const auto& entry) { return entry.second.c_str(); });
  });
}

}  // extern "C"
