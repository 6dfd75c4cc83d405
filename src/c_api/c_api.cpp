// The C ABI over the C++ API: converts handles and turns every exception into a status.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "c_api/allocator.h"
#include "c_api/job.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "session/options.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::guarded;
using treadle::c_api::hand_out;
using treadle::c_api::last_resort;
using treadle::c_api::require;
using treadle::c_api::to_feeds;

treadle::Shape to_shape(const int64_t* extents, size_t rank) { return treadle::Shape(std::span<const int64_t>(extents, rank)); }

const treadle::Tensor* tensor_of(const treadle_value* value) {
  return value && value->datum.is_tensor() ? &value->datum.tensor() : nullptr;
}

}  // namespace

extern "C" {

const char* treadle_version(void) { return TREADLE_VERSION; }
uint32_t treadle_abi_version(void) { return TREADLE_ABI_VERSION; }

treadle_code treadle_status_code(const treadle_status* status) { return status ? status->code : TREADLE_OK; }
const char* treadle_status_message(const treadle_status* status) { return status ? status->message.c_str() : ""; }
int treadle_status_is_out_of_memory(const treadle_status* status) { return status && status->out_of_memory ? 1 : 0; }
void treadle_status_release(treadle_status* status) {
  if (status != &last_resort) delete status;
}

treadle_status* treadle_status_create(treadle_code code, const char* message) {
  return treadle::c_api::status_of(code == TREADLE_OK ? TREADLE_INTERNAL : code, message ? message : "");
}

treadle_status* treadle_status_create_out_of_memory(const char* message) {
  return treadle::c_api::status_of(TREADLE_RESOURCE_EXHAUSTED, message ? message : "out of memory", /*out_of_memory=*/true);
}

treadle_status* treadle_model_load(const char* path, treadle_model** out) {
  return guarded([&] { require(out, "out") = new treadle_model{treadle::Model::load(&require(path, "path"))}; });
}

treadle_status* treadle_model_from_bytes(const void* bytes, size_t size_bytes, const char* model_dir, treadle_model** out) {
  return guarded([&] {
    if (size_bytes) require(static_cast<const char*>(bytes), "bytes");
    std::span data(static_cast<const std::byte*>(bytes), size_bytes);
    require(out, "out") = new treadle_model{treadle::Model::from_bytes(data, model_dir ? model_dir : "")};
  });
}

treadle_status* treadle_model_save(const treadle_model* model, const char* path, int optimised, int opset) {
  return guarded([&] { require(model, "model").model.save(&require(path, "path"), optimised != 0, opset); });
}

void treadle_model_release(treadle_model* model) { delete model; }

treadle_status* treadle_session_create(const treadle_model* model, const treadle_session_options* given_options, treadle_session** out) {
  return guarded([&] {
    treadle::SessionOptions options;
    if (given_options) {
      // A program that was built against an older header has a shorter struct: what it lacks is zero.
      constexpr size_t kFirstVersion = offsetof(treadle_session_options, backends);
      treadle_session_options all{}, *given = &all;
      if (given_options->struct_size < kFirstVersion) throw Error(ErrorCode::invalid_argument, "the options' struct_size is not set");
      std::memcpy(given, given_options, std::min(given_options->struct_size, sizeof all));
      if (given->job) options.job = given->job->job;
      if (given->backends) options.config["treadle.backends"] = given->backends;
      if (given->allocator) options.allocator = treadle::make_allocator(given->allocator);
      if (given->custom_allocator) options.allocator = given->custom_allocator->allocator;
      options.share_weights = given->own_weights == 0;
      options.memory_limit_bytes = static_cast<size_t>(given->memory_limit_bytes);
      if (given->spill_folder) options.spill_folder = given->spill_folder;
      options.intra_op_num_threads = given->intra_op_num_threads;
      if (given->disable_optimisation) options.graph_optimization_level = treadle::GraphOptimizationLevel::disable_all;
      options.enable_profiling = given->enable_profiling != 0;
      if (given->profile_file_prefix) options.profile_file_prefix = given->profile_file_prefix;
      if (given->num_config_entries > 0) (void)require(given->config_entries, "config_entries");
      for (size_t i = 0; i < given->num_config_entries; ++i)
        add_config_entry(options, &require(given->config_entries[i].key, "key"), &require(given->config_entries[i].value, "value"));
    }
    treadle::Session session(require(model, "model").model, options);
    auto inputs = session.inputs(), outputs = session.outputs();
    require(out, "out") = new treadle_session{std::move(session), std::move(inputs), std::move(outputs), {}};
  });
}

void treadle_session_release(treadle_session* session) { delete session; }
size_t treadle_session_num_inputs(const treadle_session* session) { return session ? session->inputs.size() : 0; }
size_t treadle_session_num_outputs(const treadle_session* session) { return session ? session->outputs.size() : 0; }
const char* treadle_session_input_name(const treadle_session* session, size_t index) {
  return session && index < session->inputs.size() ? session->inputs[index].name.c_str() : nullptr;
}
const char* treadle_session_output_name(const treadle_session* session, size_t index) {
  return session && index < session->outputs.size() ? session->outputs[index].name.c_str() : nullptr;
}
const char* treadle_session_input_type(const treadle_session* session, size_t index) {
  return session && index < session->inputs.size() ? session->inputs[index].type.c_str() : nullptr;
}
const char* treadle_session_output_type(const treadle_session* session, size_t index) {
  return session && index < session->outputs.size() ? session->outputs[index].type.c_str() : nullptr;
}

treadle_status* treadle_session_end_profiling(treadle_session* session, const char** out_path) {
  return guarded([&] {
    require(session, "session").profile_path = session->session.end_profiling();
    require(out_path, "out_path") = session->profile_path.c_str();
  });
}

treadle_status* treadle_session_memory(const treadle_session* session, int32_t memory_class, uint64_t* bytes, uint64_t* peak_bytes) {
  return guarded([&] {
    const treadle::MemoryStatistics statistics = require(session, "session").session.memory_statistics();
    const treadle::MemoryUsage& usage = treadle::c_api::usage_of(statistics, memory_class);
    if (bytes) *bytes = usage.bytes;
    if (peak_bytes) *peak_bytes = usage.peak_bytes;
  });
}

treadle_status* treadle_session_set_memory_limit(const treadle_session* session, uint64_t limit_bytes) {
  return guarded([&] { require(session, "session").session.set_memory_limit(static_cast<size_t>(limit_bytes)); });
}

treadle_status* treadle_session_close(treadle_session* session, int64_t timeout_ms, size_t* num_unfinished) {
  return guarded([&] {
    const size_t unfinished = require(session, "session").session.close(timeout_ms).size();
    if (num_unfinished) *num_unfinished = unfinished;
  });
}

size_t treadle_session_runs_in_flight(const treadle_session* session) { return session ? session->session.runs_in_flight() : 0; }

treadle_status* treadle_run_options_create(treadle_run_options** out) {
  return guarded([&] { require(out, "out") = new treadle_run_options; });
}
void treadle_run_options_release(treadle_run_options* options) { delete options; }
void treadle_run_options_set_terminate(treadle_run_options* options, int terminate) {
  if (options) options->options.terminate = terminate != 0;
}
void treadle_run_options_set_deadline_ms(treadle_run_options* options, int64_t deadline_ms) {
  if (options) options->options.deadline_ms = deadline_ms;
}

treadle_status* treadle_run_options_set_tag(treadle_run_options* options, const char* tag) {
  return guarded([&] { require(options, "options").options.tag = &require(tag, "tag"); });
}
treadle_status* treadle_run_options_set_output_allocator(treadle_run_options* options, const char* output_name,
                                                         treadle_allocator* allocator) {
  return guarded([&] {
    require(options, "options").options.output_allocators[&require(output_name, "output_name")] = require(allocator, "allocator").allocator;
  });
}
treadle_status* treadle_run_options_set_output_device(treadle_run_options* options, const char* output_name, const char* device) {
  return guarded(
      [&] { require(options, "options").options.output_devices[&require(output_name, "output_name")] = &require(device, "device"); });
}
treadle_status* treadle_run_options_add_config_entry(treadle_run_options* options, const char* key, const char* value) {
  return guarded([&] { add_config_entry(require(options, "options").options, &require(key, "key"), &require(value, "value")); });
}
treadle_status* treadle_run_options_add_target(treadle_run_options* options, const char* name) {
  return guarded([&] { require(options, "options").options.targets.emplace_back(&require(name, "name")); });
}

treadle_status* treadle_session_run(const treadle_session* session, const treadle_run_options* options, const char* const* input_names,
                                    const treadle_value* const* inputs, size_t num_inputs, const char* const* output_names,
                                    size_t num_outputs, treadle_value** outputs) {
  for (size_t i = 0; outputs && i < num_outputs; ++i) outputs[i] = nullptr;
  return guarded([&] {
    if (num_outputs) require(outputs, "outputs");
    std::vector<std::string> names;
    for (size_t i = 0; output_names && i < num_outputs; ++i) names.emplace_back(&require(output_names[i], "an output's name"));
    std::vector<treadle::Datum> results =
        require(session, "session").session.run(to_feeds(input_names, inputs, num_inputs), names, options ? &options->options : nullptr);
    if (results.size() != num_outputs)
      throw Error(ErrorCode::invalid_argument,
                  "room for " + std::to_string(num_outputs) + " outputs, there are " + std::to_string(results.size()));
    hand_out(std::move(results), outputs);
  });
}

treadle_status* treadle_tensor_create(treadle_dtype dtype, const int64_t* shape, size_t rank, treadle_value** out) {
  return guarded(
      [&] { require(out, "out") = new treadle_value{treadle::Tensor(static_cast<treadle::DType>(dtype), to_shape(shape, rank))}; });
}

treadle_status* treadle_tensor_borrow(treadle_dtype dtype, const int64_t* shape, size_t rank, void* data, size_t size_bytes,
                                      void (*release)(void*), void* context, treadle_value** out) {
  return guarded([&] {
    if (dtype == TREADLE_STRING) throw Error(ErrorCode::invalid_argument, "strings cannot be borrowed");
    auto storage = treadle::Storage::borrow(data, size_bytes, [release, context] {
      if (release) release(context);
    });
    require(out, "out") = new treadle_value{treadle::Tensor(static_cast<treadle::DType>(dtype), to_shape(shape, rank), std::move(storage))};
  });
}

treadle_status* treadle_tensor_from_strings(const int64_t* shape, size_t rank, const char* const* strings, size_t num_strings,
                                            treadle_value** out) {
  return guarded([&] {
    std::vector<std::string> copies;
    for (size_t i = 0; i < num_strings; ++i) copies.emplace_back(&require(strings[i], "a string"));
    require(out, "out") = new treadle_value{treadle::Tensor::strings(to_shape(shape, rank), copies)};
  });
}

treadle_value_kind treadle_value_get_kind(const treadle_value* value) {
  return value ? static_cast<treadle_value_kind>(value->datum.kind()) : TREADLE_NONE;
}
void treadle_value_release(treadle_value* value) { delete value; }

treadle_dtype treadle_tensor_dtype(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? static_cast<treadle_dtype>(tensor->dtype()) : TREADLE_UNDEFINED;
}

size_t treadle_tensor_rank(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? static_cast<size_t>(tensor->shape().rank()) : 0;
}

const int64_t* treadle_tensor_shape(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? tensor->shape().begin() : nullptr;
}

size_t treadle_tensor_num_elements(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? static_cast<size_t>(tensor->num_elements()) : 0;
}

size_t treadle_tensor_size_bytes(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? tensor->size_bytes() : 0;
}

void* treadle_tensor_data(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor && tensor->dtype() != treadle::DType::string && !tensor->storage()->device() ? tensor->raw() : nullptr;
}

const char* treadle_tensor_device(const treadle_value* value) {
  const treadle::Tensor* tensor = tensor_of(value);
  return tensor ? treadle::device_of(*tensor).data() : nullptr;
}
treadle_status* treadle_tensor_to_device(const treadle_value* value, const char* device, treadle_value** out) {
  return guarded([&] {
    treadle_value*& made = require(out, "out");
    made = nullptr;
    const treadle::Tensor* tensor = tensor_of(&require(value, "value"));
    if (!tensor) throw Error(ErrorCode::invalid_argument, "the value is no tensor");
    made = new treadle_value{treadle::to_device(*tensor, &require(device, "device"))};
  });
}

const char* treadle_tensor_string(const treadle_value* value, size_t index) {
  const treadle::Tensor* tensor = tensor_of(value);
  if (!tensor || tensor->dtype() != treadle::DType::string || index >= static_cast<size_t>(tensor->num_elements())) return nullptr;
  return tensor->data<std::string>()[index].c_str();
}

size_t treadle_sequence_length(const treadle_value* value) {
  return treadle_value_get_kind(value) == TREADLE_SEQUENCE ? value->datum.sequence().elements.size() : 0;
}

treadle_status* treadle_sequence_get(const treadle_value* value, size_t index, treadle_value** out) {
  return guarded([&] {
    const auto& elements = require(value, "value").datum.sequence().elements;
    if (index >= elements.size())
      throw Error(ErrorCode::invalid_argument, "the sequence has " + std::to_string(elements.size()) + " elements");
    require(out, "out") = new treadle_value{elements[index]};
  });
}

}  // extern "C"
