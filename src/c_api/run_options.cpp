// Implements the options of runs in the C ABI.
#include "c_api/allocator.h"
#include "c_api/arguments.h"
#include "c_api/status.h"
#include "c_api/values.h"
#include "session/options.h"
#include "treadle/treadle.h"

using namespace treadle::c_api;

extern "C" {

treadle_status* treadle_run_options_create(treadle_run_options** out) {
  return call(__func__, {needed(out, "out")}, [&] { *out = make<treadle_run_options>().release(); });
}
void treadle_run_options_release(treadle_run_options* options) { dispose(options); }

void treadle_run_options_set_terminate(treadle_run_options* options, int terminate) {
  asked<bool>(options, false, [&](treadle_run_options& o) { return o.options.terminate = terminate != 0; });
}
void treadle_run_options_set_deadline_ms(treadle_run_options* options, int64_t deadline_ms) {
  asked<int64_t>(options, 0, [&](treadle_run_options& o) { return o.options.deadline_ms = deadline_ms; });
}

treadle_status* treadle_run_options_set_tag(treadle_run_options* options, const char* tag) {
  return call(__func__, {handle(options, "options"), needed(tag, "tag")}, [&] { options->options.tag = tag; });
}
treadle_status* treadle_run_options_set_output_allocator(treadle_run_options* options, const char* output_name,
                                                         treadle_allocator* allocator) {
  return call(__func__, {handle(options, "options"), needed(output_name, "output_name"), handle(allocator, "allocator")},
              [&] { options->options.output_allocators[output_name] = allocator->allocator; });
}
treadle_status* treadle_run_options_set_output_device(treadle_run_options* options, const char* output_name, const char* device) {
  return call(__func__, {handle(options, "options"), needed(output_name, "output_name"), needed(device, "device")},
              [&] { options->options.output_devices[output_name] = device; });
}
treadle_status* treadle_run_options_add_config_entry(treadle_run_options* options, const char* key, const char* value) {
  return call(__func__, {handle(options, "options"), needed(key, "key"), needed(value, "value")},
              [&] { add_config_entry(options->options, key, value); });
}
treadle_status* treadle_run_options_add_target(treadle_run_options* options, const char* name) {
  return call(__func__, {handle(options, "options"), needed(name, "name")}, [&] { options->options.targets.emplace_back(name); });
}

}  // extern "C"
