// Implements the executors of the C ABI.
#include "treadle/executor.h"

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/profiler.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/treadle.h"

struct treadle_executor : treadle::c_api::Handle<treadle_executor> {
  treadle::train::Executor executor;
};
struct treadle_shared_buffer : treadle::c_api::Handle<treadle_shared_buffer> {
  treadle::train::NamedTensors memory = {};
};

namespace {

using namespace treadle::c_api;
using treadle::Datum;
using treadle::DType;
using treadle::Error;
using treadle::ErrorCode;
using treadle::Shape;
using treadle::train::BindOptions;
using treadle::train::Executor;
using treadle::train::ExecutorGraphs;
using treadle::train::GradientRequest;

constexpr size_t kFirstBindOptions = offsetof(treadle_bind_options, shared_buffer);

Argument each_named(const treadle_named_value* values, size_t count, const char* name) {
  return list_of(values, count, name, [](const treadle_named_value& one) {
    Argument found = one.name ? handle(one.value, "") : needed(one.name, "");
    found.field = one.name ? ".value" : ".name";
    return found;
  });
}

Argument each_shape(const treadle_named_shape* shapes, size_t count) {
  return list_of(shapes, count, "shapes", [](const treadle_named_shape& one) {
    Argument found = one.name ? list(one.extents, one.rank, "") : needed(one.name, "");
    found.field = one.name ? ".extents" : ".name";
    return found;
  });
}

Argument fields_of(const treadle_bind_options& o) {
  return first_fault({each_entry(o.requests, o.num_requests, "options.requests"),
                      each_named(o.gradients, o.num_gradients, "options.gradients"), each_named(o.states, o.num_states, "options.states"),
                      each_entry(o.session, o.num_session, "options.session"),
                      each_text(o.row_gradients, o.num_row_gradients, "options.row_gradients"), handle_or_null(o.shared, "options.shared"),
                      o.shared_names ? each_text(o.shared_names, o.num_shared_names, "options.shared_names") : Argument(),
                      handle_or_null(o.shared_buffer, "options.shared_buffer"), each_entry(o.dtypes, o.num_dtypes, "options.dtypes")});
}

std::map<std::string, Datum> values_of(const treadle_named_value* values, size_t count) {
  std::map<std::string, Datum> made;
  for (size_t i = 0; i < count; ++i) add_once(made, values[i].name, values[i].value->datum);
  return made;
}

std::map<std::string, Shape> shapes_of(const treadle_named_shape* shapes, size_t count) {
  std::map<std::string, Shape> made;
  for (size_t i = 0; i < count; ++i) add_once(made, shapes[i].name, Shape(std::span<const int64_t>(shapes[i].extents, shapes[i].rank)));
  return made;
}

std::map<std::string, DType> dtypes_of(const treadle_bind_options& o) {
  std::map<std::string, DType> made;
  for (size_t i = 0; i < o.num_dtypes; ++i) {
    const DType dtype = treadle::dtype_from_name(o.dtypes[i].value);
    if (dtype == DType::undefined) throw Error(ErrorCode::invalid_argument, "there is no dtype \"" + std::string(o.dtypes[i].value) + "\"");
    add_once(made, o.dtypes[i].key, dtype);
  }
  return made;
}

ExecutorGraphs graphs_of(const treadle_model& model, const treadle_bind_options& o) {
  const std::vector<std::string> row_gradients = to_strings(o.row_gradients, o.num_row_gradients);
  std::optional<treadle::SessionOptions> session;
  if (o.num_session) session.emplace();
  for (size_t i = 0; i < o.num_session; ++i) treadle::set_option(*session, o.session[i].key, o.session[i].value);
  if (!o.shared) return ExecutorGraphs(model.model, session, row_gradients);
  if (session || !row_gradients.empty())
    throw Error(ErrorCode::invalid_argument, "the shared executor has its own session options and row_gradients, which the new one shares");
  return o.shared->executor.graphs().for_model(model.model);
}

void fill(BindOptions& made, const treadle_bind_options& o) {
  if (o.request) made.request = treadle::train::gradient_request_named(o.request);
  for (size_t i = 0; i < o.num_requests; ++i)
    add_once(made.requests, o.requests[i].key, treadle::train::gradient_request_named(o.requests[i].value));
  made.gradients = values_of(o.gradients, o.num_gradients);
  for (const auto& [name, value] : values_of(o.states, o.num_states)) made.states.emplace(name, value.tensor());
  made.shared = o.shared ? &o.shared->executor : nullptr;
  if (o.shared_names) made.shared_names = to_strings(o.shared_names, o.num_shared_names);
}

treadle::train::ForwardMode mode_of(int is_train) {
  return is_train != 0 ? treadle::train::ForwardMode::train : treadle::train::ForwardMode::predict;
}

treadle::Profiler profiler_of(const Executor& executor, treadle::train::ForwardMode mode, const treadle::ProfilerOptions& options) {
  if (mode == treadle::train::ForwardMode::train) return executor.graphs().training(executor.requests()).profiler(options);
  if (treadle::train::JointModule* evaluation = executor.graphs().evaluation()) return evaluation->profiler(options);
  return executor.graphs().session()->profiler(options);
}

template <typename Values>
const char* name_at(const Values& values, size_t index) {
  return index < values.size() ? std::next(values.begin(), static_cast<std::ptrdiff_t>(index))->first.c_str() : nullptr;
}

template <typename Values>
const auto& named(const Values& values, const char* name, const char* what) {
  const auto found = values.find(name);
  if (found == values.end()) throw Error(ErrorCode::not_found, "there is no " + std::string(what) + " \"" + name + "\"");
  return found->second;
}

}  // namespace

extern "C" {

treadle_status* treadle_executor_bind(const treadle_model* model, const treadle_named_value* arguments, size_t num_arguments,
                                      const treadle_bind_options* options, treadle_executor** out) {
  const treadle_bind_options given = whole(options, kFirstBindOptions);
  return call(__func__,
              {handle(model, "model"), each_named(arguments, num_arguments, "arguments"), sized(options, kFirstBindOptions, "options"),
               fields_of(given), needed(out, "out")},
              [&] {
                BindOptions made;
                fill(made, given);
                if (given.shared_buffer || given.num_dtypes)
                  throw Error(ErrorCode::invalid_argument,
                              "shared_buffer and dtypes are for treadle_executor_simple_bind(), which makes the inputs");
                *out = make<treadle_executor>(Executor(graphs_of(*model, given), values_of(arguments, num_arguments), made)).release();
              });
}

treadle_status* treadle_executor_simple_bind(const treadle_model* model, const treadle_named_shape* shapes, size_t num_shapes,
                                             const treadle_bind_options* options, treadle_executor** out) {
  const treadle_bind_options given = whole(options, kFirstBindOptions);
  return call(__func__,
              {handle(model, "model"), each_shape(shapes, num_shapes), sized(options, kFirstBindOptions, "options"), fields_of(given),
               needed(out, "out")},
              [&] {
                treadle::train::SimpleBindOptions made;
                fill(made, given);
                made.shared_buffer = given.shared_buffer ? &given.shared_buffer->memory : nullptr;
                made.dtypes = dtypes_of(given);
                *out =
                    make<treadle_executor>(Executor::simple_bind(graphs_of(*model, given), shapes_of(shapes, num_shapes), made)).release();
              });
}

void treadle_executor_release(treadle_executor* executor) { dispose(executor); }

treadle_status* treadle_shared_buffer_create(treadle_shared_buffer** out) {
  return call(__func__, {needed(out, "out")}, [&] { *out = make<treadle_shared_buffer>().release(); });
}

void treadle_shared_buffer_release(treadle_shared_buffer* buffer) { dispose(buffer); }

size_t treadle_shared_buffer_size(const treadle_shared_buffer* buffer) {
  return asked<size_t>(buffer, 0, [](const treadle_shared_buffer& b) {
    size_t bytes = 0;
    for (const auto& [name, tensor] : b.memory) bytes += tensor.size_bytes();
    return bytes;
  });
}

treadle_status* treadle_executor_forward(treadle_executor* executor, int is_train, const treadle_run_options* run_options) {
  return call(__func__, {handle(executor, "executor"), handle_or_null(run_options, "run_options")},
              [&] { executor->executor.forward(mode_of(is_train), options_of(run_options)); });
}

treadle_status* treadle_executor_partial_forward(treadle_executor* executor, size_t step, int is_train,
                                                 const treadle_run_options* run_options, size_t* steps_left) {
  return call(__func__, {handle(executor, "executor"), handle_or_null(run_options, "run_options")}, [&] {
    const size_t left = executor->executor.partial_forward(step, mode_of(is_train), options_of(run_options));
    if (steps_left) *steps_left = left;
  });
}

treadle_status* treadle_executor_backward(treadle_executor* executor, const treadle_value* const* head_gradients,
                                          size_t num_head_gradients) {
  return call(__func__, {handle(executor, "executor"), each_value_or_null(head_gradients, num_head_gradients, "head_gradients")},
              [&] { executor->executor.backward(to_tensors(head_gradients, num_head_gradients, "the gradient of an output")); });
}

size_t treadle_executor_num_outputs(const treadle_executor* executor) {
  return asked<size_t>(executor, 0, [](const treadle_executor& e) { return e.executor.output_names().size(); });
}
const char* treadle_executor_output_name(const treadle_executor* executor, size_t index) {
  return asked<const char*>(executor, nullptr, [&](const treadle_executor& e) {
    return index < e.executor.output_names().size() ? e.executor.output_names()[index].c_str() : nullptr;
  });
}
treadle_status* treadle_executor_output(const treadle_executor* executor, size_t index, treadle_value** out) {
  return call(__func__, {handle(executor, "executor"), needed(out, "out")}, [&] {
    const std::vector<Datum>& outputs = executor->executor.outputs();
    if (index >= outputs.size())
      throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()));
    *out = make<treadle_value>(outputs[index]).release();
  });
}

size_t treadle_executor_num_arguments(const treadle_executor* executor) {
  return asked<size_t>(executor, 0, [](const treadle_executor& e) { return e.executor.arguments().size(); });
}
const char* treadle_executor_argument_name(const treadle_executor* executor, size_t index) {
  return asked<const char*>(executor, nullptr, [&](const treadle_executor& e) { return name_at(e.executor.arguments(), index); });
}
treadle_status* treadle_executor_argument(const treadle_executor* executor, const char* name, treadle_value** out) {
  return call(__func__, {handle(executor, "executor"), needed(name, "name"), needed(out, "out")},
              [&] { *out = make<treadle_value>(named(executor->executor.arguments(), name, "argument")).release(); });
}
treadle_status* treadle_executor_set_argument(treadle_executor* executor, const char* name, const treadle_value* value) {
  return call(__func__, {handle(executor, "executor"), needed(name, "name"), handle(value, "value")},
              [&] { executor->executor.set_argument(name, value->datum); });
}

size_t treadle_executor_num_states(const treadle_executor* executor) {
  return asked<size_t>(executor, 0, [](const treadle_executor& e) { return e.executor.states().size(); });
}
const char* treadle_executor_state_name(const treadle_executor* executor, size_t index) {
  return asked<const char*>(executor, nullptr, [&](const treadle_executor& e) { return name_at(e.executor.states(), index); });
}
treadle_status* treadle_executor_state(const treadle_executor* executor, const char* name, treadle_value** out) {
  return call(__func__, {handle(executor, "executor"), needed(name, "name"), needed(out, "out")},
              [&] { *out = make<treadle_value>(named(executor->executor.states(), name, "state")).release(); });
}

const char* treadle_executor_request(const treadle_executor* executor, const char* argument) {
  return asked<const char*>(executor, nullptr, [&](const treadle_executor& e) -> const char* {
    const auto found = argument ? e.executor.requests().find(argument) : e.executor.requests().end();
    if (found == e.executor.requests().end()) return nullptr;
    return found->second == GradientRequest::null ? "null" : found->second == GradientRequest::add ? "add" : "write";
  });
}
treadle_status* treadle_executor_gradient(const treadle_executor* executor, const char* argument, treadle_value** out) {
  return call(__func__, {handle(executor, "executor"), needed(argument, "argument"), needed(out, "out")}, [&] {
    const Datum& gradient = named(executor->executor.gradients(), argument, "gradient of");
    *out = make<treadle_value>(gradient.is_tensor() ? gradient : Datum(gradient.sparse_tensor().values)).release();
  });
}
treadle_status* treadle_executor_gradient_rows(const treadle_executor* executor, const char* argument, treadle_value** out) {
  return call(__func__, {handle(executor, "executor"), needed(argument, "argument"), needed(out, "out")}, [&] {
    const Datum& gradient = named(executor->executor.gradients(), argument, "gradient of");
    if (gradient.is_tensor()) throw Error(ErrorCode::invalid_argument, "the gradient of \"" + std::string(argument) + "\" is not by rows");
    *out = make<treadle_value>(gradient.sparse_tensor().indices).release();
  });
}

treadle_status* treadle_executor_reshape(const treadle_executor* executor, const treadle_named_shape* shapes, size_t num_shapes,
                                         int partial_shaping, int allow_up_sizing, treadle_executor** out) {
  return call(__func__, {handle(executor, "executor"), each_shape(shapes, num_shapes), needed(out, "out")}, [&] {
    *out = make<treadle_executor>(executor->executor.reshape(shapes_of(shapes, num_shapes), {.partial_shaping = partial_shaping != 0,
                                                                                             .allow_up_sizing = allow_up_sizing != 0}))
               .release();
  });
}

treadle_status* treadle_executor_start_profiler(treadle_executor* executor, int is_train, const treadle_profiler_options* options,
                                                treadle_profiler** out) {
  return call(__func__, {handle(executor, "executor"), profiler_options(options), needed(out, "out")}, [&] {
    *out = make<treadle_profiler>(profiler_of(executor->executor, mode_of(is_train), profiler_options_of(options))).release();
  });
}

treadle_status* treadle_executor_set_monitor(treadle_executor* executor,
                                             treadle_status* (*callback)(void* context, const char* name, const treadle_value* value),
                                             void* context, void (*release)(void* context), const char* pattern) {
  return call(__func__, {handle(executor, "executor")}, [&] {
    treadle::Monitor monitor;
    if (pattern) monitor.pattern = pattern;
    const auto held = std::make_shared<CallbackContext>();
    held->context = context;
    if (callback)
      monitor.callback = [callback, held](const treadle::MonitorEvent& event) {
        const std::string name(event.value);
        const treadle_value value{{}, event.datum};
        check(callback(held->context, name.c_str(), &value));
      };
    executor->executor.graphs().set_monitor(monitor);
    held->release = release;
  });
}

}  // extern "C"
