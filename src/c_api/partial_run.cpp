// Partial runs: they stop at Yields and between nodes, take feeds later and give outputs before the end.
#include <string>
#include <utility>
#include <vector>

#include "c_api/status.h"
#include "c_api/values.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

struct treadle_partial_run {
  treadle::PartialRun run;
  std::vector<std::pair<std::string, treadle::Datum>> yielded;  // of the Yield that it stands at
};

namespace {

using treadle::Error;
using treadle::ErrorCode;
using treadle::c_api::guarded;
using treadle::c_api::hand_out;
using treadle::c_api::require;
using treadle::c_api::to_feeds;

// Where the run stands now.
int note_stop(treadle_partial_run& run) {
  run.yielded.clear();
  if (run.run.at_yield()) run.yielded = run.run.yielded();
  return run.run.finished();
}

}  // namespace

extern "C" {

treadle_status* treadle_partial_run_create(const treadle_session* session, const char* const* input_names,
                                           const treadle_value* const* inputs, size_t num_inputs, treadle_partial_run** out) {
  return treadle_partial_run_create_with_options(session, nullptr, input_names, inputs, num_inputs, out);
}

treadle_status* treadle_partial_run_create_with_options(const treadle_session* session, const treadle_run_options* options,
                                                        const char* const* input_names, const treadle_value* const* inputs,
                                                        size_t num_inputs, treadle_partial_run** out) {
  return guarded([&] {
    require(out, "out") = new treadle_partial_run{
        require(session, "session")
            .session.partial_run(to_feeds(input_names, inputs, num_inputs), nullptr, options ? &options->options : nullptr),
        {}};
  });
}

treadle_status* treadle_partial_run_feed(treadle_partial_run* run, const char* input_name, const treadle_value* value) {
  return guarded([&] { require(run, "run").run.feed(&require(input_name, "input_name"), require(value, "value").datum); });
}

treadle_status* treadle_partial_run_fetch(const treadle_partial_run* run, const char* const* output_names, size_t num_outputs,
                                          treadle_value** outputs) {
  for (size_t i = 0; outputs && i < num_outputs; ++i) outputs[i] = nullptr;
  return guarded([&] {
    if (num_outputs) require(output_names, "output_names"), require(outputs, "outputs");
    std::vector<std::string> names;
    for (size_t i = 0; i < num_outputs; ++i) names.emplace_back(&require(output_names[i], "an output's name"));
    hand_out(require(run, "run").run.fetch(names), outputs);
  });
}

treadle_status* treadle_partial_run_advance(treadle_partial_run* run, int* finished) {
  return guarded([&] {
    require(finished, "finished");
    require(run, "run").run.advance();
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_advance_until(treadle_partial_run* run, const char* node, int* finished) {
  return guarded([&] {
    require(finished, "finished");
    require(run, "run").run.advance_until(&require(node, "node"));
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_advance_steps(treadle_partial_run* run, size_t count, size_t* steps_left) {
  return guarded([&] {
    const size_t left = require(run, "run").run.advance_steps(count);
    note_stop(*run);
    if (steps_left) *steps_left = left;
  });
}

treadle_status* treadle_partial_run_num_yielded(const treadle_partial_run* run, size_t* out) {
  return guarded([&] { require(out, "out") = require(run, "run").yielded.size(); });
}

treadle_status* treadle_partial_run_yielded(const treadle_partial_run* run, size_t index, treadle_value** out) {
  return guarded([&] {
    if (index >= require(run, "run").yielded.size())
      throw Error(ErrorCode::invalid_argument, "there are " + std::to_string(run->yielded.size()) + " yielded values");
    require(out, "out") = new treadle_value{run->yielded[index].second};
  });
}

treadle_status* treadle_partial_run_resume(treadle_partial_run* run, const treadle_value* const* values, size_t num_values, int* finished) {
  return guarded([&] {
    std::vector<treadle::Datum> handed_in;
    for (size_t i = 0; i < num_values; ++i) handed_in.push_back(require(values[i], "a value").datum);
    require(finished, "finished");
    require(run, "run").run.resume(handed_in);
    *finished = note_stop(*run);
  });
}

treadle_status* treadle_partial_run_outputs(treadle_partial_run* run, size_t num_outputs, treadle_value** outputs) {
  return guarded([&] {
    std::vector<treadle::Datum> results = require(run, "run").run.outputs();
    if (results.size() != num_outputs)
      throw Error(ErrorCode::invalid_argument,
                  "room for " + std::to_string(num_outputs) + " outputs, there are " + std::to_string(results.size()));
    hand_out(std::move(results), outputs);
  });
}

void treadle_partial_run_release(treadle_partial_run* run) { delete run; }

}  // extern "C"
