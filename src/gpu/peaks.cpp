#include "gpu/peaks.h"

#include <algorithm>
#include <functional>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

constexpr int kTries = 3;  // number of measurements; the best one counts, as other processes may disturb the others
constexpr double kLeastSeconds = 0.005;

// Returns the number of seconds that the device needs for the work that `enqueue` gives to the stream.
double seconds_of(Stream& stream, const std::function<void()>& enqueue) {
  double seconds = 0;
  stream.begin_timed();
  enqueue();
  stream.end_timed([&](int64_t begin_ns, int64_t end_ns) { seconds = static_cast<double>(end_ns - begin_ns) / 1e9; });
  stream.synchronize();
  return seconds;
}

double best_of(Stream& stream, const std::function<void()>& enqueue) {
  double best = seconds_of(stream, enqueue);
  for (int i = 1; i < kTries; ++i) best = std::min(best, seconds_of(stream, enqueue));
  return best;
}

double flops_per_second(Device& device, Stream& stream) {
  const vulkan::Shader* const shader = find_shader("peak", DType::float32);
  if (!shader) return 0;
  constexpr uint32_t kGroups = 4096, kInvocations = 256, kChains = 8, kLanes = 4, kFlopsOfFma = 2;
  constexpr uint32_t kMostRounds = 1U << 16;
  const std::shared_ptr<Storage> sink = device.allocate(sizeof(float));
  for (uint32_t rounds = 16, groups = kGroups / 64;; rounds *= 2, groups = std::min(kGroups, groups * 2)) {
    const auto dispatch = [&] {
      Push push;
      push.pointer(sink->data()).word(rounds).word(0.5F).word(1.0F);
      gpu::stream().dispatch(*shader, push.bytes(), {groups, 1, 1});
    };
    const double seconds = best_of(stream, [&] { stream.enqueue(dispatch, "measuring the device's peak"); });
    if (seconds <= 0) return 0;
    if (seconds >= kLeastSeconds || rounds >= kMostRounds)
      return static_cast<double>(groups) * kInvocations * kChains * kLanes * kFlopsOfFma * rounds / seconds;
  }
}

std::vector<std::pair<double, double>> bytes_per_second(Device& device, Stream& stream) {
  std::vector<std::pair<double, double>> rates;
  constexpr size_t kLeast = size_t{1} << 19, kMost = size_t{1} << 29;
  for (size_t touched = kLeast; touched <= kMost; touched *= 4) {
    const size_t bytes = touched / 2;
    std::shared_ptr<Storage> from, to;
    try {
      from = device.allocate(bytes);
      to = device.allocate(bytes);
    } catch (const Error&) {
      break;  // the device lacks memory for larger copies
    }
    const auto copy = [&](int times) {
      return best_of(stream, [&] {
        for (int i = 0; i < times; ++i) stream.copy(to->data(), from->data(), bytes, CopyKind::device_to_device);
      });
    };
    double seconds = copy(1);
    if (seconds <= 0) break;
    const int times = static_cast<int>(std::clamp(kLeastSeconds / seconds, 1.0, 100.0));
    if (times > 1) seconds = copy(times) / times;
    rates.emplace_back(static_cast<double>(touched), static_cast<double>(touched) / seconds);
    if (seconds * kTries > 0.1) break;  // a slow device: larger copies would give the same rate
  }
  return rates;
}

}  // namespace

DevicePeaks measure_peaks(Device& device) {
  if (!device.tells_times()) return {};
  const std::unique_ptr<Stream> stream = device.create_stream("peaks");
  DevicePeaks peaks;
  peaks.flops_per_second = flops_per_second(device, *stream);
  peaks.bytes_per_second = bytes_per_second(device, *stream);
  return peaks;
}

}  // namespace treadle::gpu
