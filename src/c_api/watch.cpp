// Monitors, hooks and the log of the C ABI.
#include <memory>
#include <string>
#include <string_view>

#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/status.h"
#include "c_api/trainer.h"
#include "c_api/values.h"
#include "treadle/hooks.h"
#include "treadle/session.h"
#include "treadle/treadle.h"

namespace {

using namespace treadle::c_api;

std::shared_ptr<CallbackContext> held_context(void* context) {
  auto held = std::make_shared<CallbackContext>();
  held->context = context;
  return held;
}

using Watch = treadle_status*(void* context, const treadle_monitor_event* event);

treadle::Monitor monitor_of(Watch* watch, const std::shared_ptr<CallbackContext>& held, const char* pattern, int inputs) {
  treadle::Monitor monitor;
  if (pattern) monitor.pattern = pattern;
  monitor.inputs = inputs != 0;
  if (!watch) return monitor;
  monitor.callback = [watch, held](const treadle::MonitorEvent& event) {
    const std::string name(event.value), node(event.node), op_type(event.op_type);
    const treadle_value value{{}, event.datum};
    const treadle_monitor_event told{sizeof told, event.run_id, name.c_str(), node.c_str(), op_type.c_str(), event.is_input, &value};
    check(watch(held->context, &told));
  };
  return monitor;
}

}  // namespace

extern "C" {

treadle_status* treadle_session_set_monitor(treadle_session* session, Watch* watch, void* context, void (*release)(void* context),
                                            const char* pattern, int inputs) {
  return call(__func__, {handle(session, "session")}, [&] {
    const auto held = held_context(context);
    session->session.set_monitor(monitor_of(watch, held, pattern, inputs));
    held->release = release;
  });
}

treadle_status* treadle_trainer_set_monitor(treadle_trainer* trainer, Watch* watch, void* context, void (*release)(void* context),
                                            const char* pattern, int inputs) {
  return call(__func__, {handle(trainer, "trainer")}, [&] {
    const auto held = held_context(context);
    trainer->trainer.set_monitor(monitor_of(watch, held, pattern, inputs));
    held->release = release;
  });
}

treadle_status* treadle_register_hook(int32_t point, int32_t group, treadle_status* (*hook)(void* context, const treadle_hooked_run* run),
                                      void* context, void (*release)(void* context), uint64_t* id) {
  return call(__func__,
              {within(point, TREADLE_PRE_RUN, TREADLE_POST_RUN, "point", "0 or 1"), needed(hook != nullptr, "hook"), needed(id, "id")},
              [&] {
                const auto held = held_context(context);
                *id = treadle::register_hook(static_cast<treadle::HookPoint>(point), group, [hook, held](const treadle::HookedRun& run) {
                  const std::string tag(run.tag), error(run.error);
                  const treadle_hooked_run told{sizeof told, run.run_id, run.graph_id, tag.c_str(), run.duration_ns, error.c_str()};
                  check(hook(held->context, &told));
                });
                held->release = release;
              });
}
int treadle_unregister_hook(uint64_t id) { return treadle::unregister_hook(id) ? 1 : 0; }

treadle_status* treadle_set_log_callback(void (*on_message)(void* context, int32_t severity, const char* message), void* context,
                                         void (*release)(void* context), int32_t lowest) {
  return call(__func__, {within(lowest, TREADLE_LOG_VERBOSE, TREADLE_LOG_FATAL, "lowest", "a treadle_log_severity")}, [&] {
    const auto severity = static_cast<treadle::LogSeverity>(lowest);
    if (!on_message) {
      treadle::set_log_callback({}, severity);
      if (release) release(context);
      return;
    }
    const auto held = held_context(context);
    treadle::set_log_callback(
        [on_message, held](treadle::LogSeverity given, std::string_view message) {
          on_message(held->context, static_cast<int32_t>(given), std::string(message).c_str());
        },
        severity);
    held->release = release;
  });
}

}  // extern "C"
