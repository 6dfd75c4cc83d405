// Metrics of a process for monitoring systems: what its sessions, trainers, joint modules and executors do, and what they hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/allocator.h"
#include "treadle/export.h"
#include "treadle/session.h"
#include "treadle/sharing.h"

namespace treadle {

/// Upper bounds, in seconds, of the classes in which runs are counted by their duration. One more class has the longer runs.
inline constexpr std::array<double, 22> kRunSecondsBounds{1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025,
                                                          0.05, 0.1,    0.25, 0.5,  1,      2.5,  5,    10,     25,   50,   100};

/// What the clients of one kind have done with one model. The counts include clients that no longer exist.
struct ClientMetrics {
  std::string client;          ///< kind of the clients: "session", "trainer", or "module" for joint modules and executors
  std::string model;           ///< name of the model's graph
  int64_t clients = 0;         ///< number of clients that exist now
  int64_t runs_in_flight = 0;  ///< number of runs that have begun and not ended
  /// Number of ended runs, failed ones included. Each part of a run that its caller stops and continues (PartialRun, JointModule) counts as
  /// one.
  int64_t runs = 0;
  double run_seconds = 0;  ///< duration of all ended runs together
  /// Number of ended runs by duration, for each of kRunSecondsBounds and for longer runs; right to 12 % of the duration.
  std::array<int64_t, kRunSecondsBounds.size() + 1> runs_by_duration{};
  int64_t input_bytes = 0, output_bytes = 0;  ///< bytes of the tensors that runs were fed and that they returned
  /// Number of failed runs, and of runs refused before they began, by the error's code (error_code_name()); "foreign": exceptions of the
  /// program's own functions.
  std::map<std::string, int64_t> errors;
  CacheStatistics caches;                                ///< counted even while metrics are off; `size` counts what exists now
  std::array<size_t, kNumMemoryClasses> memory_bytes{};  ///< host memory that the clients hold now, by MemoryClass
};

struct Metrics {
  bool counting = false;                       ///< whether runs are counted now
  std::vector<ClientMetrics> clients;          ///< sorted by kind and model
  std::map<std::string, size_t> device_bytes;  ///< memory of each device in use by this process; devices that cannot tell are left out
  SharedWeightsStatistics shared_weights;
  std::vector<JobStatus> jobs;  ///< the jobs of this process, with the times for which their runs waited
};

/// Begins or stops to count runs, for all clients of the process. Counting takes about 20 ns a run. Off at first, unless
/// TREADLE_METRICS names a file.
TREADLE_API void count_metrics(bool on = true);

/// Returns all metrics of the process. Counts never decrease, except that more than 256 different models are counted together, as
/// "(others)".
TREADLE_API Metrics read_metrics();

/// Returns the metrics in Prometheus' text format (version 0.0.4). All names begin with "treadle_".
TREADLE_API std::string metrics_to_prometheus(const Metrics& metrics);

/// Counts metrics and reports them at regular intervals from a thread of its own, and once more at the end.
class TREADLE_API MetricsReporter {
 public:
  /// Writes Prometheus' text to a file, which it replaces in one step: for the "textfile" collector of Prometheus' node exporter.
  /// @param seconds  interval, at least 0.01
  /// @throws Error(invalid_argument); Error(io_error) if the file cannot be written now. Later failures are logged as warnings
  MetricsReporter(std::string path, double seconds);
  /// Calls a function with Prometheus' text. What it throws is logged as a warning.
  /// @throws Error(invalid_argument)
  MetricsReporter(std::function<void(const std::string& text)> report, double seconds);
  ~MetricsReporter();  ///< Reports once more. Counting continues
  MetricsReporter(MetricsReporter&&) noexcept;
  MetricsReporter& operator=(MetricsReporter&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace treadle
