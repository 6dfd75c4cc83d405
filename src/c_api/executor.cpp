// Executors of the C ABI.
#include "treadle/executor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "c_api/context.h"
#include "c_api/profiler.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

struct treadle_executor {
  treadle::train::Executor executor;
};
struct treadle_shared_buffer {
  treadle::train::NamedTensors memory;
};

namespace {

using treadle::Datum;
using treadle::DType;
using treadle::Error;
using treadle::ErrorCode;
using treadle::Shape;
using treadle::Tensor;
using treadle::c_api::guarded;
using treadle::c_api::require;
using treadle::train::BindOptions;
using treadle::train::Executor;
using treadle::train::ExecutorGraphs;
using treadle::train::GradientRequest;

std::vector<std::string> names_of(const char* const* names, size_t count, const char* what) {
  std::vector<std::string> made;
  if (count) (void)require(names, what);
  for (size_t i = 0; i < count; ++i) made.emplace_back(&require(names[i], what));
  return made;
}

std::map<std::string, Datum> values_of(const treadle_named_value* values, size_t count, const char* what) {
  std::map<std::string, Datum> made;
  if (count) (void)require(values, what);
  for (size_t i = 0; i < count; ++i) made[&require(values[i].name, what)] = require(values[i].value, what).datum;
  return made;
}

std::map<std::string, Shape> shapes_of(const treadle_named_shape* shapes, size_t count) {
  std::map<std::string, Shape> made;
  if (count) (void)require(shapes, "shapes");
  for (size_t i = 0; i < count; ++i) {
    if (shapes[i].rank) (void)require(shapes[i].extents, "a shape's extents");
    made.emplace(&require(shapes[i].name, "a shape's name"), Shape(std::span<const int64_t>(shapes[i].extents, shapes[i].rank)));
  }
  return made;
}

std::map<std::string, DType> dtypes_of(const treadle_bind_options& o) {
  std::map<std::string, DType> made;
  if (o.num_dtypes) (void)require(o.dtypes, "dtypes");
  for (size_t i = 0; i < o.num_dtypes; ++i) {
    const std::string name = &require(o.dtypes[i].value, "a dtype");
    const DType dtype = treadle::dtype_from_name(name);
    if (dtype == DType::undefined) throw Error(ErrorCode::invalid_argument, "there is no dtype \"" + name + "\"");
    made[&require(o.dtypes[i].key, "a dtype's input")] = dtype;
  }
  return made;
}

// The caller's struct may be of an older, shorter version.
treadle_bind_options own_copy(const treadle_bind_options* given) {
  treadle_bind_options options{};
  if (given) std::memcpy(&options, given, std::min(given->struct_size, sizeof options));
  return options;
}

ExecutorGraphs graphs_of(const treadle_model* model, const treadle_bind_options& o) {
  const treadle::Model& source = require(model, "model").model;
  std::vector<std::string> row_gradients = names_of(o.row_gradients, o.num_row_gradients, "row_gradients");
  std::optional<treadle::SessionOptions> session;
  if (o.num_session) (void)require(o.session, "session"), session.emplace();
  for (size_t i = 0; i < o.num_session; ++i)
    treadle::set_option(*session, &require(o.session[i].key, "an option's key"), &require(o.session[i].value, "an option's value"));
  if (!o.shared) return ExecutorGraphs(source, session, row_gradients);
  if (session || !row_gradients.empty())
    throw Error(ErrorCode::invalid_argument, "the shared executor has its own session options and row_gradients, which the new one shares");
  return o.shared->executor.graphs().for_model(source);
}

void fill(BindOptions& made, const treadle_bind_options& o) {
  if (o.request) made.request = treadle::train::gradient_request_named(o.request);
  if (o.num_requests) (void)require(o.requests, "requests");
  for (size_t i = 0; i < o.num_requests; ++i)
    made.requests[&require(o.requests[i].key, "a request's argument")] =
        treadle::train::gradient_request_named(&require(o.requests[i].value, "a request"));
  made.gradients = values_of(o.gradients, o.num_gradients, "gradients");
  for (const auto& [name, value] : values_of(o.states, o.num_states, "states")) made.states.emplace(name, value.tensor());
  made.shared = o.shared ? &o.shared->executor : nullptr;
  if (o.shared_names) made.shared_names = names_of(o.shared_names, o.num_shared_names, "shared_names");
}

template <typename Values>
const char* name_at(const Values& values, size_t index) {
  return index < values.size() ? std::next(values.begin(), static_cast<std::ptrdiff_t>(index))->first.c_str() : nullptr;
}

template <typename Values>
const auto& named(const Values& values, const char* name, const char* what) {
  const auto found = values.find(&require(name, "name"));
  if (found == values.end()) throw Error(ErrorCode::not_found, "there is no " + std::string(what) + " \"" + name + "\"");
  return found->second;
}

}  // namespace

extern "C" {

treadle_status* treadle_executor_bind(const treadle_model* model, const treadle_named_value* arguments, size_t num_arguments,
                                      const treadle_bind_options* options, treadle_executor** out) {
  return guarded([&] {
    (void)require(out, "out");
    const treadle_bind_options given = own_copy(options);
    BindOptions made;
    fill(made, given);
    if (given.shared_buffer || given.num_dtypes)
      throw Error(ErrorCode::invalid_argument, "shared_buffer and dtypes are for treadle_executor_simple_bind(), which makes the inputs");
    *out = new treadle_executor{Executor(graphs_of(model, given), values_of(arguments, num_arguments, "arguments"), made)};
  });
}

treadle_status* treadle_executor_simple_bind(const treadle_model* model, const treadle_named_shape* shapes, size_t num_shapes,
                                             const treadle_bind_options* options, treadle_executor** out) {
  return guarded([&] {
    (void)require(out, "out");
    const treadle_bind_options given = own_copy(options);
    treadle::train::SimpleBindOptions made;
    fill(made, given);
    made.shared_buffer = given.shared_buffer ? &given.shared_buffer->memory : nullptr;
    made.dtypes = dtypes_of(given);
    *out = new treadle_executor{Executor::simple_bind(graphs_of(model, given), shapes_of(shapes, num_shapes), made)};
  });
}

void treadle_executor_release(treadle_executor* executor) { delete executor; }

treadle_status* treadle_shared_buffer_create(treadle_shared_buffer** out) {
  return guarded([&] {
    (void)require(out, "out");
    *out = new treadle_shared_buffer{};
  });
}

void treadle_shared_buffer_release(treadle_shared_buffer* buffer) { delete buffer; }

size_t treadle_shared_buffer_size(const treadle_shared_buffer* buffer) {
  size_t bytes = 0;
  if (buffer)
    for (const auto& [name, tensor] : buffer->memory) bytes += tensor.size_bytes();
  return bytes;
}

treadle_status* treadle_executor_forward(treadle_executor* executor, int is_train, const treadle_run_options* run_options) {
  return guarded([&] { require(executor, "executor").executor.forward(is_train != 0, run_options ? &run_options->options : nullptr); });
}

treadle_status* treadle_executor_partial_forward(treadle_executor* executor, size_t step, int is_train,
                                                 const treadle_run_options* run_options, size_t* steps_left) {
  return guarded([&] {
    const size_t left =
        require(executor, "executor").executor.partial_forward(step, is_train != 0, run_options ? &run_options->options : nullptr);
    if (steps_left) *steps_left = left;
  });
}

treadle_status* treadle_executor_backward(treadle_executor* executor, const treadle_value* const* head_gradients,
                                          size_t num_head_gradients) {
  return guarded([&] {
    std::vector<Tensor> heads;
    if (num_head_gradients) (void)require(head_gradients, "head_gradients");
    for (size_t i = 0; i < num_head_gradients; ++i) heads.push_back(head_gradients[i] ? head_gradients[i]->datum.tensor() : Tensor());
    require(executor, "executor").executor.backward(heads);
  });
}

size_t treadle_executor_num_outputs(const treadle_executor* executor) { return executor ? executor->executor.output_names().size() : 0; }
const char* treadle_executor_output_name(const treadle_executor* executor, size_t index) {
  return executor && index < executor->executor.output_names().size() ? executor->executor.output_names()[index].c_str() : nullptr;
}
treadle_status* treadle_executor_output(const treadle_executor* executor, size_t index, treadle_value** out) {
  return guarded([&] {
    const std::vector<Datum>& outputs = require(executor, "executor").executor.outputs();
    if (index >= outputs.size())
      throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()));
    require(out, "out") = new treadle_value{outputs[index]};
  });
}

size_t treadle_executor_num_arguments(const treadle_executor* executor) { return executor ? executor->executor.arguments().size() : 0; }
const char* treadle_executor_argument_name(const treadle_executor* executor, size_t index) {
  return executor ? name_at(executor->executor.arguments(), index) : nullptr;
}
treadle_status* treadle_executor_argument(const treadle_executor* executor, const char* name, treadle_value** out) {
  return guarded(
      [&] { require(out, "out") = new treadle_value{named(require(executor, "executor").executor.arguments(), name, "argument")}; });
}
treadle_status* treadle_executor_set_argument(treadle_executor* executor, const char* name, const treadle_value* value) {
  return guarded([&] { require(executor, "executor").executor.set_argument(&require(name, "name"), require(value, "value").datum); });
}

size_t treadle_executor_num_states(const treadle_executor* executor) { return executor ? executor->executor.states().size() : 0; }
const char* treadle_executor_state_name(const treadle_executor* executor, size_t index) {
  return executor ? name_at(executor->executor.states(), index) : nullptr;
}
treadle_status* treadle_executor_state(const treadle_executor* executor, const char* name, treadle_value** out) {
  return guarded([&] { require(out, "out") = new treadle_value{named(require(executor, "executor").executor.states(), name, "state")}; });
}

const char* treadle_executor_request(const treadle_executor* executor, const char* argument) {
  if (!executor || !argument) return nullptr;
  const auto found = executor->executor.requests().find(argument);
  if (found == executor->executor.requests().end()) return nullptr;
  return found->second == GradientRequest::null ? "null" : found->second == GradientRequest::add ? "add" : "write";
}
treadle_status* treadle_executor_gradient(const treadle_executor* executor, const char* argument, treadle_value** out) {
  return guarded([&] {
    const Datum& gradient = named(require(executor, "executor").executor.gradients(), argument, "gradient of");
    (void)require(out, "out");
    *out = new treadle_value{gradient.is_tensor() ? gradient : Datum(gradient.sparse_tensor().values)};
  });
}
treadle_status* treadle_executor_gradient_rows(const treadle_executor* executor, const char* argument, treadle_value** out) {
  return guarded([&] {
    const Datum& gradient = named(require(executor, "executor").executor.gradients(), argument, "gradient of");
    if (gradient.is_tensor()) throw Error(ErrorCode::invalid_argument, "the gradient of \"" + std::string(argument) + "\" is not by rows");
    require(out, "out") = new treadle_value{gradient.sparse_tensor().indices};
  });
}

treadle_status* treadle_executor_reshape(const treadle_executor* executor, const treadle_named_shape* shapes, size_t num_shapes,
                                         int partial_shaping, int allow_up_sizing, treadle_executor** out) {
  return guarded([&] {
    (void)require(out, "out");
    *out = new treadle_executor{require(executor, "executor")
                                    .executor.reshape(shapes_of(shapes, num_shapes),
                                                      {.partial_shaping = partial_shaping != 0, .allow_up_sizing = allow_up_sizing != 0})};
  });
}

treadle_status* treadle_executor_start_profiler(treadle_executor* executor, int is_train, const treadle_profiler_options* options,
                                                treadle_profiler** out) {
  return guarded([&] {
    (void)require(out, "out");
    const treadle::train::Executor& its = require(executor, "executor").executor;
    const treadle::ProfilerOptions given = treadle::c_api::profiler_options_of(options);
    if (is_train != 0)
      *out = new treadle_profiler{its.graphs().training(its.requests()).profiler(given)};
    else if (treadle::train::JointModule* evaluation = its.graphs().evaluation())
      *out = new treadle_profiler{evaluation->profiler(given)};
    else
      *out = new treadle_profiler{its.graphs().session()->profiler(given)};
  });
}

treadle_status* treadle_executor_set_monitor(treadle_executor* executor,
                                             treadle_status* (*callback)(void* context, const char* name, const treadle_value* value),
                                             void* context, void (*release)(void* context), const char* pattern) {
  return guarded([&] {
    treadle::Monitor monitor;
    if (pattern) monitor.pattern = pattern;
    const auto held = std::make_shared<treadle::c_api::CallbackContext>();
    held->context = context;
    if (callback)
      monitor.callback = [callback, held](const treadle::MonitorEvent& event) {
        const std::string name(event.value);
        const treadle_value value{event.datum};
        treadle::c_api::check(callback(held->context, name.c_str(), &value));
      };
    require(executor, "executor").executor.graphs().set_monitor(monitor);
    held->release = release;
  });
}

}  // extern "C"
