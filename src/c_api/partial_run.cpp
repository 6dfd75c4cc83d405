// Partial runs of the C ABI. Such a run stops at Yield nodes and between nodes, accepts feeds later, and returns outputs before its end.
#include <string>
#include <utility>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

struct treadle_partial_run : treadle::c_api::Handle<treadle_partial_run> {
  treadle::PartialRun run;
  std::vector<std::pair<std::string, treadle::Datum>> yielded = {};  // values of the Yield node at which the run has stopped
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using namespace treadle::c_api;

// Stores the values of the Yield at which the run has stopped, if any. Returns 1 if the run has finished.
int note_stop(treadle_partial_run& run) {
  run.yielded.clear();
  if (run.run.at_yield()) run.yielded = run.run.yielded();
  return run.run.finished();
}

treadle_status* create(const char* function, const treadle_session* session, const treadle_run_options* options,
                       const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs, treadle_partial_run** out) {
  return call(function,
              {handle(session, "session"), handle_or_null(options, "options"), feeds(input_names, inputs, num_inputs), needed(out, "out")},
              [&] {
                const auto given = to_feeds(input_names, inputs, num_inputs);
                *out = make<treadle_partial_run>(session->session.partial_run(given, nullptr, options_of(options))).release();
              });
}

}  // namespace

extern "C" {

treadle_status* treadle_partial_run_create(const treadle_session* session, const char* const* input_names,
                                           const treadle_value* const* inputs, size_t num_inputs, treadle_partial_run** out) {
  return create(__func__, session, nullptr, input_names, inputs, num_inputs, out);
}

treadle_status* treadle_partial_run_create_with_options(const treadle_session* session, const treadle_run_options* options,
                                                        const char* const* input_names, const treadle_value* const* inputs,
                                                        size_t num_inputs, treadle_partial_run** out) {
  return create(__func__, session, options, input_names, inputs, num_inputs, out);
}

treadle_status* treadle_partial_run_feed(treadle_partial_run* run, const char* input_name, const treadle_value* value) {
  return call(__func__, {handle(run, "run"), needed(input_name, "input_name"), handle(value, "value")},
              [&] { run->run.feed(input_name, value->datum); });
}

treadle_status* treadle_partial_run_fetch(const treadle_partial_run* run, const char* const* output_names, size_t num_outputs,
                                          treadle_value** outputs) {
  clear(outputs, num_outputs);
  return call(__func__, {handle(run, "run"), each_text(output_names, num_outputs, "output_names"), list(outputs, num_outputs, "outputs")},
              [&] { hand_out(run->run.fetch(to_strings(output_names, num_outputs)), num_outputs, outputs); });
}

treadle_status* treadle_partial_run_advance(treadle_partial_run* run, int* finished) {
  return call(__func__, {handle(run, "run"), needed(finished, "finished")}, [&] {
    run->run.advance();
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_advance_until(treadle_partial_run* run, const char* node, int* finished) {
  return call(__func__, {handle(run, "run"), needed(node, "node"), needed(finished, "finished")}, [&] {
    run->run.advance_until(node);
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_advance_steps(treadle_partial_run* run, size_t count, size_t* steps_left) {
  return call(__func__, {handle(run, "run")}, [&] {
    const size_t left = run->run.advance_steps(count);
    note_stop(*run);
    if (steps_left) *steps_left = left;
  });
}

treadle_status* treadle_partial_run_num_yielded(const treadle_partial_run* run, size_t* out) {
  return call(__func__, {handle(run, "run"), needed(out, "out")}, [&] { *out = run->yielded.size(); });
}

treadle_status* treadle_partial_run_yielded(const treadle_partial_run* run, size_t index, treadle_value** out) {
  return call(__func__, {handle(run, "run"), needed(out, "out")}, [&] {
    if (index >= run->yielded.size())
      throw Error(ErrorCode::invalid_argument, "there are " + std::to_string(run->yielded.size()) + " yielded values");
    *out = make<treadle_value>(run->yielded[index].second).release();
  });
}

treadle_status* treadle_partial_run_resume(treadle_partial_run* run, const treadle_value* const* values, size_t num_values, int* finished) {
  return call(__func__, {handle(run, "run"), each_value(values, num_values, "values"), needed(finished, "finished")}, [&] {
    std::vector<treadle::Datum> handed_in;
    for (size_t i = 0; i < num_values; ++i) handed_in.push_back(values[i]->datum);
    run->run.resume(handed_in);
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_outputs(treadle_partial_run* run, size_t num_outputs, treadle_value** outputs) {
  return call(__func__, {handle(run, "run"), list(outputs, num_outputs, "outputs")},
              [&] { hand_out(run->run.outputs(), num_outputs, outputs); });
}

void treadle_partial_run_release(treadle_partial_run* run) { dispose(run); }

}  // extern "C"
