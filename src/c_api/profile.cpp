// Implements the profiles of the C ABI.
#include <cstddef>
#include <span>

#include "c_api/arguments.h"
#include "c_api/profiler.h"
#include "c_api/trainer.h"
#include "c_api/values.h"
#include "core/files/file.h"
#include "core/trace/recorder.h"
#include "profile/writers/trace.h"
#include "treadle/profile_report.h"
#include "treadle/treadle.h"

using namespace treadle::c_api;

treadle_status* treadle_session_start_profiling(treadle_session* session) {
  return call(__func__, {handle(session, "session")}, [&] { session->session.start_profiling(); });
}

namespace {

void write_text(const std::string& path, const std::string& text) {
  treadle::AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

template <typename Take>
treadle_status* save(const char* function, const Argument& source, const char* path, const Take& take) {
  return call(function, {source, needed(path, "path")}, [&] {
    const std::string name = path;
    treadle::check_profile_file(name);
    const treadle::Profile profile = take();
    treadle::ProfileReport report;
    if (!treadle::profile::trace_format_of(name)) {
      treadle::ProfileContext context;
      treadle::measure_peaks_for(profile, context);
      report = treadle::report_profile(profile, context);
    }
    write_text(name, treadle::profile_file(name, report, &profile));
  });
}

}  // namespace

namespace {
constexpr size_t kFirstVersion = offsetof(treadle_profiler_options, kernel_phases);
}

treadle::c_api::Argument treadle::c_api::profiler_options(const treadle_profiler_options* options) noexcept {
  return sized(options, kFirstVersion, "options");
}

treadle::ProfilerOptions treadle::c_api::profiler_options_of(const treadle_profiler_options* options) {
  ProfilerOptions made;
  const treadle_profiler_options given = whole(options, kFirstVersion);
  if (given.max_events > 0) made.max_events = given.max_events;
  made.keep_last = given.keep_last != 0;
  made.memory = given.memory != 0;
  made.kernel_phases = given.kernel_phases != 0;
  if (given.stream_to) made.stream_to = given.stream_to;
  made.passes = given.passes != 0;
  return made;
}

treadle_status* treadle_session_save_profile(treadle_session* session, const char* path) {
  return save(__func__, handle(session, "session"), path, [&] { return session->session.profile(); });
}

treadle_status* treadle_session_save_node_counters(const treadle_session* session, const char* path) {
  return call(__func__, {handle(session, "session"), needed(path, "path")},
              [&] { write_text(path, treadle::node_counters_to_json(session->session.node_counters())); });
}

treadle_status* treadle_session_reset_node_counters(const treadle_session* session) {
  return call(__func__, {handle(session, "session")}, [&] { session->session.reset_node_counters(); });
}

treadle_status* treadle_trainer_start_profiler(treadle_trainer* trainer, const treadle_profiler_options* options, treadle_profiler** out) {
  return call(__func__, {handle(trainer, "trainer"), profiler_options(options), needed(out, "out")},
              [&] { *out = make<treadle_profiler>(trainer->trainer.profiler(profiler_options_of(options))).release(); });
}

treadle_status* treadle_profiler_start(treadle_session* session, const treadle_profiler_options* options, treadle_profiler** out) {
  return call(__func__, {handle(session, "session"), profiler_options(options), needed(out, "out")},
              [&] { *out = make<treadle_profiler>(session->session.profiler(profiler_options_of(options))).release(); });
}

treadle_status* treadle_profiler_set_recording(treadle_profiler* profiler, int recording) {
  return call(__func__, {handle(profiler, "profiler")}, [&] { recording != 0 ? profiler->profiler.resume() : profiler->profiler.pause(); });
}

treadle_status* treadle_profiler_save(const treadle_profiler* profiler, const char* path) {
  return save(__func__, handle(profiler, "profiler"), path, [&] { return profiler->profiler.profile(); });
}

treadle_status* treadle_profiler_flush(treadle_profiler* profiler) {
  return call(__func__, {handle(profiler, "profiler")}, [&] { profiler->profiler.flush(); });
}

treadle_status* treadle_profile_convert(const char* recording, const char* path) {
  return save(__func__, needed(recording, "recording"), path, [&] { return treadle::read_profile_recording(recording); });
}

void treadle_profiler_release(treadle_profiler* profiler) { dispose(profiler); }

namespace {
constexpr const char* kUnnamed = "(unnamed)";
}

uint64_t treadle_profile_range_begin(void) {
  const uint64_t now = treadle::ProfileRange::begin();
  if (now == 0) return 0;
  try {
    // The name is known only at the end of the range. Profiles made before the end show the range as "(unnamed)".
    treadle::Recorder::of_process().begin(treadle::ProfileRange::name_id(kUnnamed), treadle::RecordKind::begin, now);
  } catch (const std::exception&) {
    // If there is no memory for the name, nothing is recorded.
  }
  return now;
}

uint64_t treadle_profile_range_begin_named(const char* name) {
  if (!treadle::ProfileRange::is_recorded()) return 0;
  try {
    return treadle::ProfileRange::begin(treadle::ProfileRange::name_id(name ? name : kUnnamed));
  } catch (const std::exception&) {
    return 0;  // there is no memory for the name
  }
}

void treadle_profile_mark(const char* name) {
  try {
    treadle::mark_profile(name ? name : kUnnamed);
  } catch (const std::exception&) {
    // If there is no memory for the name, nothing is recorded.
  }
}

void treadle_profile_range_end(const char* name, uint64_t begin) {
  if (begin == 0) return;
  try {
    treadle::ProfileRange::end(treadle::ProfileRange::name_id(name ? name : kUnnamed), begin);
  } catch (const std::exception&) {
    // If there is no memory for the name, nothing is recorded.
  }
}
