// Shapes of a session's inputs and outputs in the C ABI.
#include "c_api/values.h"

namespace {

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
  return session ? rank_of(value_at(session->inputs, index)) : -1;
}
int64_t treadle_session_input_extent(const treadle_session* session, size_t index, size_t axis) {
  return session ? extent_of(value_at(session->inputs, index), axis) : -1;
}
const char* treadle_session_input_symbol(const treadle_session* session, size_t index, size_t axis) {
  return session ? symbol_of(value_at(session->inputs, index), axis) : nullptr;
}
int64_t treadle_session_output_rank(const treadle_session* session, size_t index) {
  return session ? rank_of(value_at(session->outputs, index)) : -1;
}
int64_t treadle_session_output_extent(const treadle_session* session, size_t index, size_t axis) {
  return session ? extent_of(value_at(session->outputs, index), axis) : -1;
}
const char* treadle_session_output_symbol(const treadle_session* session, size_t index, size_t axis) {
  return session ? symbol_of(value_at(session->outputs, index), axis) : nullptr;
}

}  // extern "C"
