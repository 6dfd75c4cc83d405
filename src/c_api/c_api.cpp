// The C ABI on top of the C++ API: converts handles, and turns every exception into a status.
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/allocator.h"
#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/job.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "session/options.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

namespace {

using namespace treadle::c_api;

constexpr size_t kFirstSessionOptions = offsetof(treadle_session_options, backends);

Argument fields_of(const treadle_session_options& given) {
  return first_fault({handle_or_null(given.job, "options.job"), handle_or_null(given.custom_allocator, "options.custom_allocator"),
                      each_entry(given.config_entries, given.num_config_entries, "options.config_entries")});
}

treadle::SessionOptions session_options(const treadle_session_options& given) {
  treadle::SessionOptions options;
  if (given.job) options.job = given.job->job;
  if (given.backends) options.config["treadle.backends"] = given.backends;
  if (given.allocator) options.allocator = treadle::make_allocator(given.allocator);
  if (given.custom_allocator) options.allocator = given.custom_allocator->allocator;
  options.share_weights = given.own_weights == 0;
  options.memory_limit_bytes = static_cast<size_t>(given.memory_limit_bytes);
  if (given.spill_folder) options.spill_folder = given.spill_folder;
  options.intra_op_num_threads = given.intra_op_num_threads;
  if (given.disable_optimization) options.graph_optimization_level = treadle::GraphOptimizationLevel::disable_all;
  options.enable_profiling = given.enable_profiling != 0;
  if (given.profile_file_prefix) options.profile_file_prefix = given.profile_file_prefix;
  for (size_t i = 0; i < given.num_config_entries; ++i)
    add_config_entry(options, given.config_entries[i].key, given.config_entries[i].value);
  return options;
}

const char* name_at(const std::vector<treadle::ValueInfo>& values, size_t index) {
  return index < values.size() ? values[index].name.c_str() : nullptr;
}
const char* type_at(const std::vector<treadle::ValueInfo>& values, size_t index) {
  return index < values.size() ? values[index].type.c_str() : nullptr;
}

}  // namespace

extern "C" {

const char* treadle_version(void) { return TREADLE_VERSION; }
uint32_t treadle_abi_version(void) { return TREADLE_ABI_VERSION; }

treadle_code treadle_status_code(const treadle_status* status) {
  if (!status) return TREADLE_OK;
  return asked<treadle_code>(status, TREADLE_INTERNAL, [](const treadle_status& s) { return s.code; });
}
const char* treadle_status_message(const treadle_status* status) {
  return asked<const char*>(status, "", [](const treadle_status& s) { return s.message.c_str(); });
}
int treadle_status_is_out_of_memory(const treadle_status* status) {
  return asked<int>(status, 0, [](const treadle_status& s) { return s.out_of_memory ? 1 : 0; });
}
void treadle_status_release(treadle_status* status) {
  if (status != &last_resort) dispose(status);
}

treadle_status* treadle_status_create(treadle_code code, const char* message) {
  return status_of(is_error(code) ? code : TREADLE_INTERNAL, message ? message : "");
}

treadle_status* treadle_status_create_out_of_memory(const char* message) {
  return status_of(TREADLE_RESOURCE_EXHAUSTED, message ? message : "out of memory", /*out_of_memory=*/true);
}

treadle_status* treadle_model_load(const char* path, treadle_model** out) {
  return call(__func__, {needed(path, "path"), needed(out, "out")},
              [&] { *out = make<treadle_model>(treadle::Model::load(path)).release(); });
}

treadle_status* treadle_model_from_bytes(const void* bytes, size_t size_bytes, const char* model_dir, treadle_model** out) {
  return call(__func__, {list(static_cast<const std::byte*>(bytes), size_bytes, "bytes"), needed(out, "out")}, [&] {
    const std::span data(static_cast<const std::byte*>(bytes), size_bytes);
    *out = make<treadle_model>(treadle::Model::from_bytes(data, model_dir ? model_dir : "")).release();
  });
}

treadle_status* treadle_model_save(const treadle_model* model, const char* path, int optimized, int opset) {
  return call(__func__, {handle(model, "model"), needed(path, "path")}, [&] {
    model->model.save(path, optimized != 0 ? treadle::GraphState::optimized : treadle::GraphState::as_read, opset);
    ;
  });
}

void treadle_model_release(treadle_model* model) { dispose(model); }

treadle_status* treadle_session_create(const treadle_model* model, const treadle_session_options* options, treadle_session** out) {
  const treadle_session_options given = whole(options, kFirstSessionOptions);
  return call(__func__, {handle(model, "model"), sized(options, kFirstSessionOptions, "options"), fields_of(given), needed(out, "out")},
              [&] {
                treadle::Session session(model->model, session_options(given));
                auto inputs = session.inputs(), outputs = session.outputs();
                *out = make<treadle_session>(std::move(session), std::move(inputs), std::move(outputs)).release();
              });
}

void treadle_session_release(treadle_session* session) { dispose(session); }
size_t treadle_session_num_inputs(const treadle_session* session) {
  return asked<size_t>(session, 0, [](const treadle_session& s) { return s.inputs.size(); });
}
size_t treadle_session_num_outputs(const treadle_session* session) {
  return asked<size_t>(session, 0, [](const treadle_session& s) { return s.outputs.size(); });
}
const char* treadle_session_input_name(const treadle_session* session, size_t index) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return name_at(s.inputs, index); });
}
const char* treadle_session_output_name(const treadle_session* session, size_t index) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return name_at(s.outputs, index); });
}
const char* treadle_session_input_type(const treadle_session* session, size_t index) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return type_at(s.inputs, index); });
}
const char* treadle_session_output_type(const treadle_session* session, size_t index) {
  return asked<const char*>(session, nullptr, [&](const treadle_session& s) { return type_at(s.outputs, index); });
}

treadle_status* treadle_session_end_profiling(treadle_session* session, const char** out_path) {
  return call(__func__, {handle(session, "session"), needed(out_path, "out_path")}, [&] {
    session->profile_path = session->session.end_profiling();
    *out_path = session->profile_path.c_str();
  });
}

treadle_status* treadle_session_memory(const treadle_session* session, int32_t memory_class, uint64_t* bytes, uint64_t* peak_bytes) {
  return call(__func__, {handle(session, "session"), known_memory_class(memory_class)}, [&] {
    const treadle::MemoryStatistics statistics = session->session.memory_statistics();
    const treadle::MemoryUsage& usage = usage_of(statistics, memory_class);
    if (bytes) *bytes = usage.bytes;
    if (peak_bytes) *peak_bytes = usage.peak_bytes;
  });
}

treadle_status* treadle_session_set_memory_limit(const treadle_session* session, uint64_t limit_bytes) {
  return call(__func__, {handle(session, "session")}, [&] { session->session.set_memory_limit(static_cast<size_t>(limit_bytes)); });
}

treadle_status* treadle_session_close(treadle_session* session, int64_t timeout_ms, size_t* num_unfinished) {
  return call(__func__, {handle(session, "session")}, [&] {
    const size_t unfinished = session->session.close(timeout_ms).size();
    if (num_unfinished) *num_unfinished = unfinished;
  });
}

size_t treadle_session_runs_in_flight(const treadle_session* session) {
  return asked<size_t>(session, 0, [](const treadle_session& s) { return s.session.runs_in_flight(); });
}

treadle_status* treadle_session_run(const treadle_session* session, const treadle_run_options* options, const char* const* input_names,
                                    const treadle_value* const* inputs, size_t num_inputs, const char* const* output_names,
                                    size_t num_outputs, treadle_value** outputs) {
  clear(outputs, num_outputs);
  return call(__func__,
              {handle(session, "session"), handle_or_null(options, "options"), feeds(input_names, inputs, num_inputs),
               output_names ? each_text(output_names, num_outputs, "output_names") : Argument(), list(outputs, num_outputs, "outputs")},
              [&] {
                const std::vector<std::string> names = to_strings(output_names, output_names ? num_outputs : 0);
                hand_out(session->session.run(to_feeds(input_names, inputs, num_inputs), names, options_of(options)), num_outputs, outputs);
              });
}

}  // extern "C"
