// Bound, stateful and asynchronous runs of the C ABI.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

struct treadle_io_binding : treadle::c_api::Handle<treadle_io_binding> {
  const treadle_session* session;
  treadle::IoBinding binding;
};

struct treadle_stateful_run : treadle::c_api::Handle<treadle_stateful_run> {
  treadle::StatefulRun run;
};

struct treadle_async_run : treadle::c_api::Handle<treadle_async_run> {
  std::shared_future<std::vector<treadle::Datum>> results;  // the last future of std::async() waits for the run when it is destroyed
};

namespace {

using treadle::Datum;
using treadle::Error;
using treadle::ErrorCode;
using namespace treadle::c_api;

Argument each_pair(const treadle_state_pair* pairs, size_t count) {
  return list_of(pairs, count, "pairs", [](const treadle_state_pair& pair) {
    Argument found = needed(pair.input && pair.output, "");
    found.field = pair.input ? ".output" : ".input";
    return found;
  });
}

Argument names_or_null(const char* const* names, size_t count, const char* name) {
  return names ? each_text(names, count, name) : Argument();
}

}  // namespace

extern "C" {

treadle_status* treadle_io_binding_create(const treadle_session* session, treadle_io_binding** out) {
  return call(__func__, {handle(session, "session"), needed(out, "out")},
              [&] { *out = make<treadle_io_binding>(session, treadle::IoBinding(session->session)).release(); });
}
void treadle_io_binding_release(treadle_io_binding* binding) { dispose(binding); }

treadle_status* treadle_io_binding_bind_input(treadle_io_binding* binding, const char* name, const treadle_value* value) {
  return call(__func__, {handle(binding, "binding"), needed(name, "name"), handle(value, "value")},
              [&] { binding->binding.bind_input(name, value->datum); });
}
treadle_status* treadle_io_binding_bind_output(treadle_io_binding* binding, const char* name, const treadle_value* memory) {
  return call(__func__, {handle(binding, "binding"), needed(name, "name"), handle_or_null(memory, "memory")}, [&] {
    if (memory)
      binding->binding.bind_output(name, to_tensor(memory, "the memory of an output"));
    else
      binding->binding.bind_output(name);
  });
}
treadle_status* treadle_io_binding_bind_output_to_device(treadle_io_binding* binding, const char* name, const char* device) {
  return call(__func__, {handle(binding, "binding"), needed(name, "name"), needed(device, "device")},
              [&] { binding->binding.bind_output_to_device(name, device); });
}
void treadle_io_binding_clear_inputs(treadle_io_binding* binding) {
  asked<bool>(binding, false, [](treadle_io_binding& b) { return b.binding.clear_inputs(), true; });
}
void treadle_io_binding_clear_outputs(treadle_io_binding* binding) {
  asked<bool>(binding, false, [](treadle_io_binding& b) { return b.binding.clear_outputs(), true; });
}
treadle_status* treadle_io_binding_run(treadle_io_binding* binding, const treadle_run_options* options) {
  return call(__func__, {handle(binding, "binding"), handle_or_null(options, "options")},
              [&] { binding->session->session.run(binding->binding, options_of(options)); });
}
size_t treadle_io_binding_num_outputs(const treadle_io_binding* binding) {
  return asked<size_t>(binding, 0, [](const treadle_io_binding& b) { return b.binding.output_names().size(); });
}
treadle_status* treadle_io_binding_output(const treadle_io_binding* binding, size_t index, treadle_value** out) {
  return call(__func__, {handle(binding, "binding"), needed(out, "out")}, [&] {
    std::vector<Datum> outputs = binding->binding.outputs();
    if (index >= outputs.size())
      throw Error(ErrorCode::invalid_argument, "output " + std::to_string(index) + " of " + std::to_string(outputs.size()) + " bound ones");
    if (!outputs[index].defined()) throw Error(ErrorCode::invalid_argument, "no run has computed the output yet");
    *out = make<treadle_value>(std::move(outputs[index])).release();
  });
}

treadle_status* treadle_stateful_run_create(const treadle_session* session, const treadle_state_pair* pairs, size_t num_pairs,
                                            const char* const* initial_names, const treadle_value* const* initial, size_t num_initial,
                                            treadle_stateful_run** out) {
  return call(__func__,
              {handle(session, "session"), each_pair(pairs, num_pairs), each_text(initial_names, num_initial, "initial_names"),
               each_value(initial, num_initial, "initial"), needed(out, "out")},
              [&] {
                std::vector<treadle::StatePair> given;
                for (size_t i = 0; i < num_pairs; ++i) given.push_back({pairs[i].input, pairs[i].output});
                *out =
                    make<treadle_stateful_run>(treadle::StatefulRun(session->session, given, to_feeds(initial_names, initial, num_initial)))
                        .release();
              });
}
void treadle_stateful_run_release(treadle_stateful_run* run) { dispose(run); }

treadle_status* treadle_stateful_run_run(treadle_stateful_run* run, const treadle_run_options* options, const char* const* input_names,
                                         const treadle_value* const* inputs, size_t num_inputs, const char* const* output_names,
                                         size_t num_outputs, treadle_value** outputs) {
  clear(outputs, num_outputs);
  return call(__func__,
              {handle(run, "run"), handle_or_null(options, "options"), feeds(input_names, inputs, num_inputs),
               names_or_null(output_names, num_outputs, "output_names"), list(outputs, num_outputs, "outputs")},
              [&] {
                const std::vector<std::string> names = to_strings(output_names, output_names ? num_outputs : 0);
                hand_out(run->run.run(to_feeds(input_names, inputs, num_inputs), names, options_of(options)), num_outputs, outputs);
              });
}
treadle_status* treadle_stateful_run_state(const treadle_stateful_run* run, const char* input, treadle_value** out) {
  return call(__func__, {handle(run, "run"), needed(input, "input"), needed(out, "out")},
              [&] { *out = make<treadle_value>(run->run.state(input)).release(); });
}
treadle_status* treadle_stateful_run_set_state(treadle_stateful_run* run, const char* input, const treadle_value* value) {
  return call(__func__, {handle(run, "run"), needed(input, "input"), handle(value, "value")},
              [&] { run->run.set_state(input, value->datum); });
}

treadle_status* treadle_session_run_async(const treadle_session* session, const char* const* input_names,
                                          const treadle_value* const* inputs, size_t num_inputs, const char* const* output_names,
                                          size_t num_outputs, treadle_async_run** out) {
  return call(__func__,
              {handle(session, "session"), feeds(input_names, inputs, num_inputs), names_or_null(output_names, num_outputs, "output_names"),
               needed(out, "out")},
              [&] {
                std::shared_future<std::vector<Datum>> running =
                    session->session
                        .run_async(to_feeds(input_names, inputs, num_inputs), to_strings(output_names, output_names ? num_outputs : 0))
                        .share();
                *out = make<treadle_async_run>(std::move(running)).release();
              });
}
treadle_status* treadle_async_run_wait(const treadle_async_run* run, int64_t timeout_ms, int* finished) {
  return call(__func__, {handle(run, "run"), needed(finished, "finished")}, [&] {
    if (timeout_ms < 0)
      run->results.wait();
    else
      run->results.wait_for(std::chrono::milliseconds(std::min<int64_t>(timeout_ms, INT32_MAX)));  // the clock overflows beyond 292 years
    *finished = run->results.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
}
treadle_status* treadle_async_run_outputs(treadle_async_run* run, size_t num_outputs, treadle_value** outputs) {
  clear(outputs, num_outputs);
  return call(__func__, {handle(run, "run"), list(outputs, num_outputs, "outputs")},
              [&] { hand_out(run->results.get(), num_outputs, outputs); });
}
void treadle_async_run_release(treadle_async_run* run) { dispose(run); }

}  // extern "C"
