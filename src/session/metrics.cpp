// Implements treadle/metrics.h.
#include "treadle/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/fork_mutex.h"
#include "core/base/logging.h"
#include "core/base/utf8.h"
#include "core/files/file.h"
#include "session/clients.h"
#include "treadle/error.h"

#if defined(__unix__)
#include <unistd.h>
#endif

namespace treadle {
namespace {

// Writes a family of samples: "# HELP", "# TYPE", and a line for each sample.
class Family {
 public:
  Family(std::string& text, std::string_view name, std::string_view type, std::string_view help) : text_(text), name_(name) {
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename Value>
  void add(std::string_view labels, Value value, std::string_view suffix = {}) {
    fmt::format_to(std::back_inserter(text_), "{}{}{}{}{} {}\n", name_, suffix, labels.empty() ? "" : "{", labels,
                   labels.empty() ? "" : "}", value);
  }

 private:
  std::string& text_;
  std::string_view name_;
};

// Returns a label as the format has it: with escapes, and without bytes that are not UTF-8.
std::string label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  const bool valid = is_utf8(value);
  for (const char c : value) {
    if (c == '"' || c == '\\' || c == '\n') text += '\\';
    if (c == '\n')
      text += 'n';
    else
      text += valid || static_cast<unsigned char>(c) < 0x80 ? c : '?';
  }
  return text + '"';
}

std::string labels_of(const ClientMetrics& of) { return label("client", of.client) + "," + label("model", of.model); }

struct ClientFamily {
  const char *name, *type, *help;
  int64_t (*value)(const ClientMetrics&);
};
constexpr ClientFamily kOfClients[] = {
    {"treadle_clients", "gauge", "Sessions, trainers and modules that exist.", [](const auto& m) { return m.clients; }},
    {"treadle_runs_in_flight", "gauge", "Runs that have begun and not ended.", [](const auto& m) { return m.runs_in_flight; }},
    {"treadle_input_bytes_total", "counter", "Bytes of the tensors that runs were fed.", [](const auto& m) { return m.input_bytes; }},
    {"treadle_output_bytes_total", "counter", "Bytes of the tensors that runs returned.", [](const auto& m) { return m.output_bytes; }},
    {"treadle_programs", "gauge", "Compiled programs.", [](const auto& m) { return m.caches.size; }},
    {"treadle_program_hits_total", "counter", "Runs whose program existed.", [](const auto& m) { return m.caches.hits; }},
    {"treadle_program_misses_total", "counter", "Runs for which a program was compiled.", [](const auto& m) { return m.caches.misses; }},
    {"treadle_program_evictions_total", "counter", "Programs that were dropped for others.",
     [](const auto& m) { return m.caches.evictions; }},
    {"treadle_binding_hits_total", "counter", "Runs with extents that were known, other than those of the run before.",
     [](const auto& m) { return m.caches.binding_hits; }},
    {"treadle_binding_misses_total", "counter", "Runs with new extents.", [](const auto& m) { return m.caches.binding_misses; }},
    {"treadle_memory_plans_total", "counter", "Plans of memory that were made.", [](const auto& m) { return m.caches.memory_plans; }},
};

struct JobFamily {
  const char *name, *type, *help;
  double (*value)(const JobStatus&);
};
constexpr double kSeconds = 1e-9;  // in a nanosecond
constexpr JobFamily kOfJobs[] = {
    {"treadle_job_runs_total", "counter", "Ended runs of the job.", [](const auto& j) { return static_cast<double>(j.runs); }},
    {"treadle_job_run_seconds_total", "counter", "Duration of these runs.",
     [](const auto& j) { return static_cast<double>(j.run_ns) * kSeconds; }},
    {"treadle_job_idle_seconds_total", "counter", "Time that runs slept to keep to the job's share, or while it was suspended.",
     [](const auto& j) { return static_cast<double>(j.idle_ns) * kSeconds; }},
    {"treadle_job_gave_way_seconds_total", "counter", "Time that runs waited for guaranteed jobs.",
     [](const auto& j) { return static_cast<double>(j.gave_way_ns) * kSeconds; }},
    {"treadle_job_moving_seconds_total", "counter", "Time that runs waited for values to move between memories.",
     [](const auto& j) { return static_cast<double>(j.moving_ns) * kSeconds; }},
    {"treadle_job_moved_bytes_total", "counter", "Bytes moved between device, host and files.",
     [](const auto& j) { return static_cast<double>(j.moved_bytes); }},
    {"treadle_job_device_bytes", "gauge", "Memory of devices that the job holds.",
     [](const auto& j) { return static_cast<double>(j.device_bytes); }},
    {"treadle_job_host_bytes", "gauge", "Memory of the host that the job holds.",
     [](const auto& j) { return static_cast<double>(j.host_bytes); }},
    {"treadle_job_disk_bytes", "gauge", "Values of the job in files.", [](const auto& j) { return static_cast<double>(j.disk_bytes); }},
};

void write_durations(std::string& text, const Metrics& metrics) {
  Family family(text, "treadle_run_seconds", "histogram", "Duration of runs.");
  for (const ClientMetrics& client : metrics.clients) {
    const std::string labels = labels_of(client);
    int64_t up_to = 0;
    for (size_t k = 0; k < client.runs_by_duration.size(); ++k) {
      up_to += client.runs_by_duration[k];
      const std::string bound = k < kRunSecondsBounds.size() ? fmt::format("{}", kRunSecondsBounds[k]) : "+Inf";
      family.add(fmt::format("{},le=\"{}\"", labels, bound), up_to, "_bucket");
    }
    family.add(labels, client.run_seconds, "_sum");
    family.add(labels, up_to, "_count");
  }
}

void write_errors(std::string& text, const Metrics& metrics) {
  Family family(text, "treadle_run_errors_total", "counter", "Runs that failed or were refused.");
  for (const ClientMetrics& client : metrics.clients)
    for (const auto& [code, count] : client.errors) family.add(labels_of(client) + "," + label("code", code), count);
}

void write_memory(std::string& text, const Metrics& metrics) {
  {
    Family family(text, "treadle_memory_bytes", "gauge", "Memory of the host that clients hold.");
    for (const ClientMetrics& client : metrics.clients)
      for (size_t c = 0; c < kNumMemoryClasses; ++c)
        family.add(labels_of(client) + "," + label("class", memory_class_name(static_cast<MemoryClass>(c))), client.memory_bytes[c]);
  }
  {
    Family family(text, "treadle_device_memory_bytes", "gauge", "Memory of a device that this process uses.");
    for (const auto& [device, bytes] : metrics.device_bytes) family.add(label("device", device), bytes);
  }
  const SharedWeightsStatistics& shared = metrics.shared_weights;
  {
    Family family(text, "treadle_shared_weights_bytes", "gauge", "Constants and packed weights that sessions share.");
    family.add(label("kind", "constant"), shared.constant_bytes), family.add(label("kind", "packed"), shared.packed_bytes);
  }
  Family(text, "treadle_shared_weights_hits_total", "counter", "Weights that existed when they were needed.").add({}, shared.hits);
  Family(text, "treadle_shared_weights_misses_total", "counter", "Weights that were made.").add({}, shared.misses);
}

void write_file(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace

void count_metrics(bool on) { RunsInFlight::count_runs(on); }

Metrics read_metrics() {
  Metrics metrics = Clients::of_process().read();
  metrics.shared_weights = shared_weights_statistics();
#if defined(__unix__)
  for (JobStatus& job : list_jobs())
    if (job.pid == getpid()) metrics.jobs.push_back(std::move(job));
#endif
  return metrics;
}

std::string metrics_to_prometheus(const Metrics& metrics) {
  std::string text;
  write_durations(text, metrics);
  write_errors(text, metrics);
  for (const ClientFamily& row : kOfClients) {
    Family family(text, row.name, row.type, row.help);
    for (const ClientMetrics& client : metrics.clients) family.add(labels_of(client), row.value(client));
  }
  write_memory(text, metrics);
  for (const JobFamily& row : kOfJobs) {
    Family family(text, row.name, row.type, row.help);
    for (const JobStatus& job : metrics.jobs) family.add(label("job", job.name), row.value(job));
  }
  return text;
}

struct MetricsReporter::Impl {
  Impl(std::function<void(const std::string& text)> to, double seconds) : report(std::move(to)) {
    constexpr double kLeast = 0.01, kMost = 1e6;
    if (!(seconds >= kLeast && seconds <= kMost))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the interval of metrics is {} seconds; from {} to {} are possible", seconds, kLeast, kMost));
    if (!report) throw Error(ErrorCode::invalid_argument, "metrics are to be reported to an empty function");
    interval = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  }
  void start() {
    count_metrics();
    thread = std::thread([this] {
      for (std::unique_lock lock(mutex); !changed.wait_for(lock, interval, [this] { return ends; });) {
        lock.unlock();
        try_to_report();
        lock.lock();
      }
    });
  }
  void try_to_report() noexcept {
    try {
      report(metrics_to_prometheus(read_metrics()));
    } catch (const std::exception& error) {
      TREADLE_LOG(warning, "the metrics could not be reported: {}", error.what());
    } catch (...) {
      TREADLE_LOG(warning, "the metrics could not be reported");
    }
  }
  void end() noexcept {
    {
      std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    thread.join();
    try_to_report();
  }

  const std::function<void(const std::string& text)> report;
  std::chrono::nanoseconds interval{};
  std::mutex mutex;
  std::condition_variable changed;
  bool ends = false;
  std::thread thread;
  const uint32_t process = fork_generation();
};

MetricsReporter::MetricsReporter(std::string path, double seconds)
    : impl_(std::make_unique<Impl>([path](const std::string& text) { write_file(path, text); }, seconds)) {
  impl_->report(metrics_to_prometheus(read_metrics()));
  impl_->start();
}

MetricsReporter::MetricsReporter(std::function<void(const std::string& text)> report, double seconds)
    : impl_(std::make_unique<Impl>(std::move(report), seconds)) {
  impl_->start();
}

MetricsReporter::~MetricsReporter() {
  if (!impl_) return;
  // A forked child does not have the thread, and must not destroy the mutex for which a thread of the parent may wait.
  if (impl_->process == fork_generation())
    impl_->end();
  else
    static_cast<void>(impl_.release());
}

MetricsReporter::MetricsReporter(MetricsReporter&&) noexcept = default;
MetricsReporter& MetricsReporter::operator=(MetricsReporter&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

}  // namespace treadle
