// Returns the shapes of a session's inputs and outputs in the C ABI.
#include "c_api/arguments.h"
#include "c_api/values.h"

namespace {

using namespace treadle::c_api;

const treadle::ValueInfo* value_at(const std::vector<treadle::ValueInfo>& values, size_t index) {
  return index < values.size() ? &values[index] : nullptr;
}

int64_t rank_of(const treadle::ValueInfo* info) { return info && info->has_rank ? static_cast<int64_t>(info->shape.size()) : -1; }

int64_t extent_of(const treadle::ValueInfo* info, size_t axis) {
  if (!info || axis >= info->shape.size()) return -1;
  const auto* extent = std::get_if<int64_t>(&info->shape[axis]);
  return extent ? *extent : -1;
}

const char* symbol_of(const treadle::ValueInfo* info, size_t axis) {
  if (!info || axis >= info->shape.size()) return nullptr;
  const auto* symbol = std::get_if<std::string>(&info->shape[axis]);
  return symbol && !symbol->empty() ? symbol->c_str() : nullptr;
}

}  // namespace

extern "C" {

int64_t treadle_session_input_rank(const treadle_session* session, size_t index) {
  return asked<int64_t>(session, -1, [&](const treadle_session& s) { return rank_of(value_at(s.inputs, index)); });
}
int64_t treadle_session_input_extent(const treadle_session* session, size_t index, size_t axis) {
  return asked<int64_t>(session, -1, [&](const treadle_session& s) { return extent_of(value_at(s.inputs, index), axis); });
}
const char* treadle_session_input_symbol(const treadle_session* session, size_t index, size_t axis) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return symbol_of(value_at(s.inputs, index), axis); });
}
int64_t treadle_session_output_rank(const treadle_session* session, size_t index) {
  return asked<int64_t>(session, -1, [&](const treadle_session& s) { return rank_of(value_at(s.outputs, index)); });
}
int64_t treadle_session_output_extent(const treadle_session* session, size_t index, size_t axis) {
  return asked<int64_t>(session, -1, [&](const treadle_session& s) { return extent_of(value_at(s.outputs, index), axis); });
}
const char* treadle_session_output_symbol(const treadle_session* session, size_t index, size_t axis) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return symbol_of(value_at(s.outputs, index), axis); });
}

}  // extern "C"
