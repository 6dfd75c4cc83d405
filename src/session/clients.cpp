#include "session/clients.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>

#include "core/base/logging.h"
#include "core/devices/device.h"
#include "core/trace/recorder.h"
#include "session/runtime.h"
#include "treadle/error.h"

#if defined(__unix__)
#include <unistd.h>
#endif

namespace treadle {
namespace {

constexpr size_t kMostPastModels = 256;  // so that a server that loads ever new models does not grow

// Returns "session" for "the session".
std::string kind_of(const Runtime& client) { return client.name.substr(client.name.rfind(' ') + 1); }

// Counts never decrease, so all calls have to use the same rate.
double seconds_per_tick() {
  static const double rate = Recorder::of_process().ns_per_tick() * 1e-9;
  return rate;
}

// Returns the reporter that the process's environment asks for; null: it asks for none, or the file cannot be written.
std::unique_ptr<MetricsReporter> environment_reporter() {
  const char* const given = std::getenv("TREADLE_METRICS");
  if (given == nullptr || *given == '\0') return nullptr;
  const char* const interval = std::getenv("TREADLE_METRICS_SECONDS");
  try {
    std::string path = given;
#if defined(__unix__)
    if (const size_t at = path.find("%p"); at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
#endif
    return std::make_unique<MetricsReporter>(path, interval != nullptr ? std::atof(interval) : 15);
  } catch (const std::exception& error) {
    TREADLE_LOG(warning, "TREADLE_METRICS={}: {}", given, error.what());
    return nullptr;
  }
}

void add(CacheStatistics& sum, const CacheStatistics& more) {
  sum.hits += more.hits, sum.misses += more.misses, sum.evictions += more.evictions, sum.size += more.size;
  sum.binding_hits += more.binding_hits, sum.binding_misses += more.binding_misses, sum.memory_plans += more.memory_plans;
}

void add(ClientMetrics& sum, const RunCounts& more) {
  const double seconds = seconds_per_tick();
  sum.run_seconds += static_cast<double>(more.times.total) * seconds;
  for (size_t b = 0; b < TickBuckets::kCount; ++b) {
    if (more.times.counts[b] == 0) continue;
    const double middle = static_cast<double>(TickBuckets::low(b) + TickBuckets::low(b + 1)) * 0.5 * seconds;
    const auto bound = std::lower_bound(kRunSecondsBounds.begin(), kRunSecondsBounds.end(), middle);
    sum.runs_by_duration[static_cast<size_t>(bound - kRunSecondsBounds.begin())] += static_cast<int64_t>(more.times.counts[b]);
    sum.runs += static_cast<int64_t>(more.times.counts[b]);
  }
  sum.input_bytes += static_cast<int64_t>(more.input_bytes), sum.output_bytes += static_cast<int64_t>(more.output_bytes);
  for (size_t code = 0; code < more.errors.size(); ++code) {
    if (more.errors[code] == 0) continue;
    const bool foreign = code == RunCounts::kForeign;
    sum.errors[foreign ? "foreign" : std::string(error_code_name(static_cast<ErrorCode>(code)))] += more.errors[code];
  }
}

}  // namespace

Clients& Clients::of_process() {
  static auto* made = new Clients();
  return *made;
}

void Clients::add(const Runtime& client, std::string model) {
  static const std::unique_ptr<MetricsReporter> reporter = environment_reporter();
  std::string kind = kind_of(client);
  std::lock_guard lock(list_mutex_);
  clients_.push_back({&client, {std::move(kind), std::move(model)}});
}

Clients::Counts Clients::counts_of(const Runtime& client) { return {client.in_flight->counts(), client.cache_statistics()}; }

void Clients::remove(const Runtime& client) noexcept {
  std::lock_guard lock(mutex_);
  std::list<Client> removed;
  {
    std::lock_guard list_lock(list_mutex_);
    const auto found = std::find_if(clients_.begin(), clients_.end(), [&](const Client& each) { return each.runtime == &client; });
    if (found == clients_.end()) return;
    removed.splice(removed.begin(), clients_, found);
  }
  try {
    Counts counts = counts_of(client);
    counts.caches.size = 0;
    std::lock_guard list_lock(list_mutex_);
    Labels& labels = removed.front().labels;
    if (past_.size() >= kMostPastModels && !past_.contains(labels)) labels.second = "(others)";
    Counts& past = past_[labels];
    past.runs.add(counts.runs);
    treadle::add(past.caches, counts.caches);
  } catch (const std::bad_alloc&) {  // the counts are lost
  }
}

Metrics Clients::read() {
  std::map<Labels, ClientMetrics> sums;
  std::set<const Device*> devices;
  Metrics metrics{.counting = RunsInFlight::counts_runs()};
  std::lock_guard lock(mutex_);
  std::list<Client> clients;
  {
    std::lock_guard list_lock(list_mutex_);
    clients = clients_;
    for (const auto& [labels, counts] : past_) treadle::add(sums[labels], counts.runs), treadle::add(sums[labels].caches, counts.caches);
  }
  for (const auto& [client, labels] : clients) {
    ClientMetrics& sum = sums[labels];
    ++sum.clients;
    sum.runs_in_flight += static_cast<int64_t>(client->in_flight->count());
    const Counts counts = counts_of(*client);
    treadle::add(sum, counts.runs);
    treadle::add(sum.caches, counts.caches);
    const MemoryStatistics memory = client->memory.account->statistics();
    for (size_t c = 0; c < kNumMemoryClasses; ++c) sum.memory_bytes[c] += memory.classes[c].bytes;
    for (const auto& device : client->devices.all())
      if (const auto bytes = device->bytes_in_use(); bytes && devices.insert(device.get()).second)
        metrics.device_bytes[device->name()] += *bytes;
  }
  for (auto& [labels, sum] : sums) {
    sum.client = labels.first, sum.model = labels.second;
    metrics.clients.push_back(std::move(sum));
  }
  return metrics;
}

}  // namespace treadle
