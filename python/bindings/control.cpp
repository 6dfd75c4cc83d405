// Binds what controls runs: cancel tokens, close(), hooks, monitors, stored values, thread pools and log messages.
#include <deque>
#include <mutex>

#include "datum.h"
#include "session.h"
#include "treadle/executor.h"
#include "treadle/hooks.h"
#include "treadle/train.h"

namespace treadle::python {
namespace {

struct PyHookedRun {
  uint64_t run_id, graph_id;
  std::string tag;
  int64_t duration_ns;
  std::string error;
};

struct PyMonitorEvent {
  uint64_t run_id;
  std::string value, node, op_type;
  bool is_input;
  Datum datum;
};

HookId add_hook(const std::string& point, int group, nb::object function) {
  HookPoint where;
  if (point == "pre_run")
    where = HookPoint::pre_run;
  else if (point == "post_run")
    where = HookPoint::post_run;
  else
    throw Error(ErrorCode::invalid_argument, "hooks stand at \"pre_run\" or \"post_run\", not at \"" + point + "\"");
  auto kept = keep(std::move(function));
  return register_hook(where, group, [kept](const HookedRun& run) {
    nb::gil_scoped_acquire gil;
    (*kept)(PyHookedRun{run.run_id, run.graph_id, std::string(run.tag), run.duration_ns, std::string(run.error)});
  });
}

bool remove_hook(HookId id) {
  nb::gil_scoped_release release;
  return unregister_hook(id);
}

/// @param kept  receives the Python function; stays null if `function` is None
Monitor make_monitor(nb::object function, const std::string& pattern, bool inputs, std::shared_ptr<nb::object>& kept) {
  Monitor monitor;
  monitor.pattern = pattern;
  monitor.inputs = inputs;
  if (function.is_none()) return monitor;
  kept = keep(std::move(function));
  monitor.callback = [kept](const MonitorEvent& event) {
    nb::gil_scoped_acquire gil;
    (*kept)(PyMonitorEvent{event.run_id, std::string(event.value), std::string(event.node), std::string(event.op_type), event.is_input,
                           detach(event.datum)});
  };
  return monitor;
}

template <typename Training>
void monitor_training(Training& self, nb::object function, const std::string& pattern, bool inputs) {
  std::shared_ptr<nb::object> kept;
  Monitor monitor = make_monitor(std::move(function), pattern, inputs, kept);
  nb::gil_scoped_release release;
  self.set_monitor(std::move(monitor));
}

void set_monitor(PySession& self, nb::object function, const std::string& pattern, bool inputs) {
  std::shared_ptr<nb::object> kept;
  Monitor monitor = make_monitor(std::move(function), pattern, inputs, kept);
  {
    nb::gil_scoped_release release;
    self.session.set_monitor(std::move(monitor));
  }
  self.monitor.swap(kept);
}

PyValueHandle store(const PySession& self, nb::handle value) {
  auto& session = const_cast<PySession&>(self).session;
  return {&self, session.store(datum_from_python(value, "", nullptr))};
}

// The log messages that the main thread is to pass to Python. A thread that logs must not wait for the GIL, because the thread may hold
// locks for which the owner of the GIL waits.
struct LogQueue {
  std::mutex mutex;
  std::deque<std::pair<int, std::string>> messages;
  std::shared_ptr<nb::object> callback;
};
LogQueue& log_queue() {
  static LogQueue& queue = *new LogQueue;
  return queue;
}

int deliver_log_messages(void*) {
  LogQueue& queue = log_queue();
  for (;;) {
    std::pair<int, std::string> message;
    std::shared_ptr<nb::object> callback;
    {
      std::lock_guard lock(queue.mutex);
      if (queue.messages.empty() || !queue.callback) return 0;
      message = std::move(queue.messages.front());
      queue.messages.pop_front();
      callback = queue.callback;
    }
    try {
      (*callback)(message.first, string_to_python(message.second));
    } catch (nb::python_error& error) {
      error.restore();
      return -1;
    }
  }
}

void set_python_log_callback(nb::object function, int lowest, std::string categories, bool json) {
  if (function.is_none()) {
    set_log_callback({});
    std::lock_guard lock(log_queue().mutex);
    log_queue().callback.reset();
    log_queue().messages.clear();
    return;
  }
  {
    auto kept = keep(std::move(function));
    std::lock_guard lock(log_queue().mutex);
    log_queue().callback = std::move(kept);
  }
  set_log_callback(
      [](LogSeverity severity, std::string_view message) {
        {
          std::lock_guard lock(log_queue().mutex);
          log_queue().messages.emplace_back(static_cast<int>(severity), std::string(message));
        }
        Py_AddPendingCall(&deliver_log_messages, nullptr);
      },
      LogFilter{.lowest = static_cast<LogSeverity>(lowest), .categories = std::move(categories), .json = json});
}

}  // namespace

std::shared_ptr<nb::object> keep(nb::object function) {
  return {new nb::object(std::move(function)), [](nb::object* kept) {
            if (!Py_IsInitialized()) return;  // the interpreter has ended, and so have its objects
            nb::gil_scoped_acquire gil;
            delete kept;
          }};
}

void register_control(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<CancelToken>(module, "CancelToken", "Ends runs from any thread: once, for all runs whose options have it.")
      .def(nb::init<>())
      .def("cancel", &CancelToken::cancel)
      .def_prop_ro("cancelled", &CancelToken::cancelled);

  nb::class_<PyThreadPool>(module, "ThreadPool", "Threads for sessions or runs to share.")
      .def(
          "__init__", [](PyThreadPool* self, int num_threads) { new (self) PyThreadPool{make_thread_pool(num_threads)}; },
          "num_threads"_a = 0, "The caller of a run included; 0: the CPUs that the process may use.");

  nb::class_<NodeMemory>(module, "NodeMemory", "Bytes of values in the memory of one device, by what they come from.")
      .def_ro("device", &NodeMemory::device)
      .def_ro("allocator", &NodeMemory::allocator, "Its name.")
      .def_ro("bytes", &NodeMemory::bytes);
  nb::class_<NodeStatistics>(module, "NodeStatistics", "What one node did in a run; times in nanoseconds since its begin.")
      .def_ro("name", &NodeStatistics::name)
      .def_ro("op_type", &NodeStatistics::op_type)
      .def_ro("scheduled_ns", &NodeStatistics::scheduled_ns)
      .def_ro("start_ns", &NodeStatistics::start_ns)
      .def_ro("end_ns", &NodeStatistics::end_ns)
      .def_ro("thread", &NodeStatistics::thread)
      .def_ro("output_bytes", &NodeStatistics::output_bytes)
      .def_ro("memory", &NodeStatistics::memory, "Where the output bytes are.");
  nb::class_<RunMetadata>(module, "RunMetadata")
      .def_ro("run_id", &RunMetadata::run_id)
      .def_ro("graph_id", &RunMetadata::graph_id)
      .def_ro("cached", &RunMetadata::cached, "False: the graph was compiled for this run.")
      .def_ro("duration_ns", &RunMetadata::duration_ns)
      .def_ro("nodes", &RunMetadata::nodes);
  nb::class_<PyHookedRun>(module, "HookedRun", "What a hook learns about its run.")
      .def_ro("run_id", &PyHookedRun::run_id)
      .def_ro("graph_id", &PyHookedRun::graph_id)
      .def_ro("tag", &PyHookedRun::tag)
      .def_ro("duration_ns", &PyHookedRun::duration_ns)
      .def_ro("error", &PyHookedRun::error, "Why the run failed; empty if it did not.");
  nb::class_<PyMonitorEvent>(module, "MonitorEvent", "A value as a node sees it.")
      .def_ro("run_id", &PyMonitorEvent::run_id)
      .def_ro("value", &PyMonitorEvent::value)
      .def_ro("node", &PyMonitorEvent::node, "Empty for feeds and constants.")
      .def_ro("op_type", &PyMonitorEvent::op_type)
      .def_ro("is_input", &PyMonitorEvent::is_input, "Read by the node, which has not run yet.")
      .def_prop_ro("array", [](const PyMonitorEvent& event) { return datum_to_python(event.datum); });
  nb::class_<UnfinishedRun>(module, "UnfinishedRun", "A run that close() waited for in vain.")
      .def_ro("run_id", &UnfinishedRun::run_id)
      .def_ro("tag", &UnfinishedRun::tag)
      .def_ro("elapsed_ms", &UnfinishedRun::elapsed_ms);
  nb::class_<CacheStatistics>(module, "CacheStatistics", "Of compiled graphs and their bindings to extents.")
      .def_ro("hits", &CacheStatistics::hits)
      .def_ro("misses", &CacheStatistics::misses)
      .def_ro("evictions", &CacheStatistics::evictions)
      .def_ro("size", &CacheStatistics::size)
      .def_ro("binding_hits", &CacheStatistics::binding_hits)
      .def_ro("binding_misses", &CacheStatistics::binding_misses)
      .def_ro("memory_plans", &CacheStatistics::memory_plans);
  nb::class_<PyValueHandle>(module, "ValueHandle", "A value that a session keeps; may be fed in place of an array.")
      .def(
          "value", [](const PyValueHandle& handle) { return OrtValue{handle.datum()}; }, "The value, not copied.")
      .def(
          "delete", [](const PyValueHandle& handle) { const_cast<PySession*>(handle.session)->session.erase(handle.id); },
          "The session forgets it.");

  module.def("register_hook", &add_hook, "point"_a, "group"_a, "function"_a);
  module.def("unregister_hook", &remove_hook, "id"_a);
  module.def(
      "set_log_callback", &set_python_log_callback, "function"_a.none(), "lowest"_a = 2, "categories"_a = "*", "json"_a = false,
      "Calls function(severity, message) for messages of at least the severity `lowest` (0 verbose to 4 fatal), in the main thread.\n"
      "categories: session, run, program, placement, fusion, memory, general, or patterns, separated by commas; of others only\n"
      "warnings are sent. json: each message is an object of JSON with its values. None restores the default: standard error.");
  module.def("set_monitor", &set_monitor, "session"_a, "function"_a.none(), "pattern"_a = "*", "inputs"_a = false);
  module.def("monitor_trainer", &monitor_training<train::Trainer>, "trainer"_a, "function"_a.none(), "pattern"_a = "*", "inputs"_a = false);
  module.def("monitor_module", &monitor_training<train::JointModule>, "module"_a, "function"_a.none(), "pattern"_a = "*",
             "inputs"_a = false);
  module.def("monitor_graphs", &monitor_training<train::ExecutorGraphs>, "graphs"_a, "function"_a.none(), "pattern"_a = "*",
             "inputs"_a = false);
  module.def("store", &store, "session"_a, "value"_a, nb::keep_alive<0, 1>());
  module.def(
      "close_session", [](PySession& self, int64_t timeout_ms) { return self.session.close(timeout_ms); }, "session"_a, "timeout_ms"_a = -1,
      nb::call_guard<nb::gil_scoped_release>());
  module.def("session_closed", [](const PySession& self) { return self.session.closed(); });
  module.def("runs_in_flight", [](const PySession& self) { return self.session.runs_in_flight(); });
  module.def("cache_statistics", [](const PySession& self) { return self.session.cache_statistics(); });
}

}  // namespace treadle::python
