#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <latch>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/base/logging.h"
#include "core/devices/device_registry.h"
#include "core/files/file.h"
#include "kernels/peaks/peaks.h"
#include "treadle/error.h"
#include "treadle/profile.h"

#if defined(__unix__)
#include <unistd.h>

#include <ctime>
#endif

namespace treadle {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the time for which this thread has used a processor, in seconds; the present time where it is not known.
double cpu_seconds() {
#if defined(__unix__)
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0)
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Rate {
  double best = 0, worst = 0;  // of the rounds, in units per second
  bool busy = false;           // in the best round, a thread did not have its processor all the time
};

// Measures the rate that all threads reach together; work(thread) returns the units that it processed. There are several rounds, as other
// processes may use the machine at the same time.
template <typename Work>
Rate measure_rate(int threads, double seconds, const Work& work) {
  constexpr int kRounds = 3;
  constexpr double kUndisturbed = 0.97;  // least part of the time for which a thread at rest has its processor
  Rate rate;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> rates(static_cast<size_t>(threads), 0);
    std::atomic<bool> disturbed{false};
    std::latch ready(threads);
    std::vector<std::thread> others;
    auto run = [&](int thread) {
      work(thread);
      ready.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      const double cpu_start = cpu_seconds();
      double done = 0, elapsed = 0;
      do {
        done += work(thread);
        elapsed = seconds_since(start);
      } while (elapsed < seconds);
      if (cpu_seconds() - cpu_start < kUndisturbed * elapsed) disturbed = true;
      rates[static_cast<size_t>(thread)] = done / elapsed;
    };
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
    for (std::thread& other : others) other.join();
    const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
    rate.worst = round == 0 ? sum : std::min(rate.worst, sum);
    if (sum > rate.best) rate.best = sum, rate.busy = disturbed;
  }
  return rate;
}

MachinePeaks measure(int threads) {
  MachinePeaks peaks;
  peaks.threads = threads;
  std::vector<float> sinks(static_cast<size_t>(threads) * 16);
  Rate flops = measure_rate(threads, 0.01, [&](int thread) {
    constexpr int64_t kIterations = 20'000;
    return kernels::multiply_add_loop(kIterations, &sinks[static_cast<size_t>(thread) * 16]);
  });
  if (kernels::tile_product_loop(1) > 0) {
    const Rate by_tiles = measure_rate(threads, 0.01, [](int) { return kernels::tile_product_loop(1000); });
    if (by_tiles.best > flops.best) flops = by_tiles;
  }
  peaks.flops_per_second = flops.best;
  peaks.spread = flops.best > 0 ? 1 - flops.worst / flops.best : 0;
  peaks.busy = flops.busy;
  // Half of the bytes are read and half written; each thread has its own part.
  for (const size_t total_bytes : {size_t{1} << 17, size_t{1} << 19, size_t{1} << 21, size_t{1} << 23, size_t{1} << 25, size_t{1} << 27}) {
    const size_t floats = total_bytes / 2 / sizeof(float) / static_cast<size_t>(threads);
    std::vector<std::vector<float>> src(static_cast<size_t>(threads)), dst(static_cast<size_t>(threads));
    const Rate rate = measure_rate(threads, 0.005, [&](int thread) {
      auto& from = src[static_cast<size_t>(thread)];
      auto& to = dst[static_cast<size_t>(thread)];
      if (from.empty()) from.resize(floats, 1.0f), to.resize(floats);  // each thread touches its pages first, so they are near its core
      kernels::copy_loop(from.data(), to.data(), static_cast<int64_t>(floats));
      return 2.0 * static_cast<double>(floats) * sizeof(float);
    });
    peaks.bytes_per_second.emplace_back(static_cast<double>(total_bytes), rate.best);
    peaks.busy = peaks.busy || rate.busy;
  }
  return peaks;
}

// A file in the user's cache folder with the peaks of machines, by processor, instruction set and number of threads. It only saves time: a
// file that cannot be read or written is no error.
class KeptPeaks {
 public:
  KeptPeaks() {
    const char* const wish = std::getenv("TREADLE_PEAKS");
    if (wish != nullptr && std::string_view(wish) == "measure") return;
    const char* const cache = std::getenv("XDG_CACHE_HOME");
    const char* const home = std::getenv("HOME");
    if (cache != nullptr && *cache == '/')
      folder_ = std::filesystem::path(cache) / "treadle";
    else if (home != nullptr && *home == '/')
      folder_ = std::filesystem::path(home) / ".cache" / "treadle";
  }

  std::optional<MachinePeaks> find(int threads) const {
    try {
      const Json all = read();
      const auto found = all.find(key(threads));
      if (found == all.end()) return std::nullopt;
      MachinePeaks peaks{
          .threads = threads, .flops_per_second = found->at("flops_per_second"), .spread = found->at("spread"), .kept = true};
      for (const auto& [bytes, rate] : found->at("bytes_per_second").get<std::vector<std::pair<double, double>>>())
        if (bytes > 0 && rate > 0 && std::isfinite(rate)) peaks.bytes_per_second.emplace_back(bytes, rate);
      const bool ascends = std::is_sorted(peaks.bytes_per_second.begin(), peaks.bytes_per_second.end());
      if (!(peaks.flops_per_second > 0) || !std::isfinite(peaks.flops_per_second) || peaks.bytes_per_second.empty() || !ascends)
        return std::nullopt;
      return peaks;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  void keep(const MachinePeaks& peaks) const {
    if (folder_.empty()) return;
    try {
      std::filesystem::create_directories(folder_);
      Json all = read();
      all[key(peaks.threads)] = {
          {"flops_per_second", peaks.flops_per_second}, {"bytes_per_second", peaks.bytes_per_second}, {"spread", peaks.spread}};
      const std::string text = all.dump(1);
      AtomicFile file(path());
      file.write(std::as_bytes(std::span(text)));
      file.commit();
    } catch (const std::exception& error) {
      TREADLE_LOG(info, "the machine's peaks are not kept: {}", error.what());
    }
  }

 private:
  using Json = nlohmann::ordered_json;
  static constexpr uintmax_t kMostBytes = 1 << 20;

  std::string path() const { return (folder_ / "peaks.json").string(); }
  Json read() const {
    if (folder_.empty()) return Json::object();
    std::error_code error;
    if (const uintmax_t size = std::filesystem::file_size(path(), error); error || size > kMostBytes) return Json::object();
    std::ifstream file(path());
    Json all = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    return all.is_object() ? all : Json::object();
  }
  static std::string key(int threads) {
    const CpuInfo& cpu = cpu_info();
    const CpuFeatures& f = cpu.features;
    std::string isa;
    for (const auto& [has, name] : {std::pair(f.neon, "neon"), {f.avx2, "avx2"}, {f.avx512, "avx512"}, {f.amx_bf16, "amx"}})
      if (has) isa = name;
    std::string host;
#if defined(__unix__)
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) == 0) host = name.data();
#endif
    return fmt::format("{}, {}, {} of {} threads on {}", cpu.model_name, isa.empty() ? "baseline" : isa, threads, cpu.usable_cpus, host);
  }

  std::filesystem::path folder_;  // empty: nothing is kept
};

}  // namespace

MachinePeaks measure_machine_peaks(int num_threads) {
  const int threads = num_threads > 0 ? num_threads : cpu_info().usable_cpus;
  const KeptPeaks kept;
  if (std::optional<MachinePeaks> found = kept.find(threads)) return *found;
  MachinePeaks peaks = measure(threads);
  if (!peaks.busy) kept.keep(peaks);
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
