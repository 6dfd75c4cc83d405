#include <algorithm>
#include <chrono>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/devices/device_registry.h"
#include "kernels/peaks/peaks.h"
#include "treadle/error.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Measures the rate, in units per second, that all threads reach together; work(thread) returns the units it processed. Returns the best of
// several rounds, as other processes may use the machine at the same time.
template <typename Work>
double best_rate(int threads, double seconds, const Work& work) {
  constexpr int kRounds = 3;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> rates(static_cast<size_t>(threads), 0);
    std::latch ready(threads);
    std::vector<std::thread> others;
    auto run = [&](int thread) {
      work(thread);
      ready.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      double done = 0, elapsed = 0;
      do {
        done += work(thread);
        elapsed = seconds_since(start);
      } while (elapsed < seconds);
      rates[static_cast<size_t>(thread)] = done / elapsed;
    };
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
    double sum = 0;
    for (double rate : rates) sum += rate;
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace

MachinePeaks measure_machine_peaks(int num_threads) {
  MachinePeaks peaks;
  peaks.threads = num_threads > 0 ? num_threads : cpu_info().usable_cpus;
  std::vector<float> sinks(static_cast<size_t>(peaks.threads) * 16);
  peaks.flops_per_second = best_rate(peaks.threads, 0.01, [&](int thread) {
    constexpr int64_t kIterations = 20'000;
    return kernels::multiply_add_loop(kIterations, &sinks[static_cast<size_t>(thread) * 16]);
  });
  if (kernels::tile_product_loop(1) > 0) {
    const double by_tiles = best_rate(peaks.threads, 0.01, [](int) { return kernels::tile_product_loop(1000); });
    peaks.flops_per_second = std::max(peaks.flops_per_second, by_tiles);
  }
  // Half of the bytes are read and half written; each thread has its own part.
  for (const size_t total_bytes : {size_t{1} << 17, size_t{1} << 19, size_t{1} << 21, size_t{1} << 23, size_t{1} << 25, size_t{1} << 27}) {
    const size_t floats = total_bytes / 2 / sizeof(float) / static_cast<size_t>(peaks.threads);
    std::vector<std::vector<float>> src(static_cast<size_t>(peaks.threads)), dst(static_cast<size_t>(peaks.threads));
    const double rate = best_rate(peaks.threads, 0.005, [&](int thread) {
      auto& from = src[static_cast<size_t>(thread)];
      auto& to = dst[static_cast<size_t>(thread)];
      if (from.empty()) from.resize(floats, 1.0f), to.resize(floats);  // each thread touches its pages first, so they are near its core
      kernels::copy_loop(from.data(), to.data(), static_cast<int64_t>(floats));
      return 2.0 * static_cast<double>(floats) * sizeof(float);
    });
    peaks.bytes_per_second.emplace_back(static_cast<double>(total_bytes), rate);
  }
  return peaks;
}

namespace {

// Limits the number of threads, which is read from a recording that may be damaged.
constexpr int kMostThreads = 1024;

// Returns no rates if the device cannot be measured, or does not exist any more.
MachinePeaks measure_device(const std::string& name) {
  const std::optional<DeviceType> type = find_device_type(name.substr(0, name.find(':')));
  if (!type || !type->measure_peaks) return {};
  try {
    static const std::map<std::string, std::string> kNoEntries;
    const std::shared_ptr<Device> device = type->make({.name = name, .config = kNoEntries, .beside = {}});
    DevicePeaks peaks = type->measure_peaks(*device);
    return {.threads = 0, .flops_per_second = peaks.flops_per_second, .bytes_per_second = std::move(peaks.bytes_per_second)};
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

void measure_peaks_for(const Profile& profile, ProfileContext& context) {
  if (profile.num_threads <= 0 || profile.cpu != cpu_info().model_name) return;
  context.peaks = measure_machine_peaks(std::min(profile.num_threads, kMostThreads));
  context.peaks_hold = profile.float32;
  std::set<std::string> devices;
  for (const ProfiledNode& node : profile.nodes)
    if (!node.device.empty()) devices.insert(node.device);
  for (const std::string& device : devices)
    if (MachinePeaks peaks = measure_device(device); peaks.flops_per_second > 0) context.device_peaks[device] = std::move(peaks);
}

}  // namespace treadle
