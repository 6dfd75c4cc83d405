// Measures a guaranteed job that shares a simulated device, which executes one piece of work at a time, with an opportunistic job:
//   bench_engine MODEL OTHER_MODEL [--slices 10] [--seconds 2] [--period-ms 20] [--pace 1] [--same-class]
//
// The guaranteed job sends a request every --period-ms. Slices of --seconds with the other job and without it alternate, so that other work
// on the machine affects both. The program prints p50 and p99 alone and together, their ratios with the 5th and 95th percentiles over
// resampled slices, and the other job's rate of runs relative to its rate alone. With --pace P, work on the device takes P times the time
// that the host needs for it, so that the device's times do not depend on the host's caches.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "device/sim/sim_device.h"
#include "treadle/treadle.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Slices = std::vector<std::vector<double>>;

double percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[std::min(values.size() - 1, static_cast<size_t>(p * static_cast<double>(values.size())))];
}

double pooled(const Slices& slices, const std::vector<size_t>& which, double p) {
  std::vector<double> all;
  for (const size_t i : which) all.insert(all.end(), slices[i].begin(), slices[i].end());
  return percentile(std::move(all), p);
}

void compare(const char* what, const Slices& together, const Slices& alone, double p) {
  std::vector<size_t> all(alone.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::mt19937 random(1);
  std::vector<double> ratios;
  for (int i = 0; i < 400; ++i) {
    std::vector<size_t> drawn;
    for (size_t k = 0; k < all.size(); ++k) drawn.push_back(random() % all.size());
    ratios.push_back(pooled(together, drawn, p) / pooled(alone, drawn, p));
  }
  std::vector<size_t> even, odd;
  for (size_t i = 0; i < all.size(); ++i) (i % 2 == 0 ? even : odd).push_back(i);
  fmt::print("{}: alone {:.3f} ms, together {:.3f} ms: {:.3f} ({:.3f} to {:.3f}); of every other slice alone over the rest {:.3f}\n", what,
             pooled(alone, all, p), pooled(together, all, p), pooled(together, all, p) / pooled(alone, all, p), percentile(ratios, 0.05),
             percentile(ratios, 0.95), pooled(alone, even, p) / pooled(alone, odd, p));
}

struct Client {
  Client(const std::string& path, treadle::JobClass job_class, double pace) {
    treadle::SessionOptions options;
    options.job = std::make_shared<treadle::Job>(
        treadle::JobOptions{.name = job_class == treadle::JobClass::guaranteed ? "guaranteed" : "other", .job_class = job_class});
    options.intra_op_num_threads = 1;
    options.config["treadle.device"] = "sim:shared";
    options.config["treadle.sim.shared_engine"] = "1";
    options.config["treadle.sim.engine_pace"] = std::to_string(static_cast<int>(pace));
    session = std::make_unique<treadle::Session>(path, options);
    for (const treadle::ValueInfo& info : session->inputs()) {
      std::vector<int64_t> extents;
      for (const auto& extent : info.shape) extents.push_back(std::holds_alternative<int64_t>(extent) ? std::get<int64_t>(extent) : 1);
      treadle::Tensor tensor(treadle::DType::float32, treadle::Shape(extents));
      for (int64_t i = 0; i < tensor.num_elements(); ++i) tensor.data<float>()[i] = static_cast<float>(i % 256) / 256.0F;
      feeds.emplace(info.name, tensor);
    }
    for (int i = 0; i < 5; ++i) session->run(feeds);
  }
  std::unique_ptr<treadle::Session> session;
  std::map<std::string, treadle::Datum> feeds;
};

std::vector<double> requests(const Client& client, double seconds, double period_ms, std::vector<double>& waits) {
  const auto device = treadle::SimDevice::shared("shared", {});

  std::vector<double> latencies;
  const auto period = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(period_ms));
  auto due = Clock::now();
  for (const auto end = due + std::chrono::duration<double>(seconds); due < end; due += period) {
    std::this_thread::sleep_until(due);
    const uint64_t before = device->engine_wait_ns();
    client.session->run(client.feeds);
    waits.push_back(static_cast<double>(device->engine_wait_ns() - before) / 1e6);
    latencies.push_back(std::chrono::duration<double, std::milli>(Clock::now() - due).count());
  }
  return latencies;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3)
    return fmt::print(stderr, "bench_engine MODEL OTHER_MODEL [--slices N] [--seconds S] [--period-ms MS] [--pace P] [--same-class]\n"), 2;
  double slices = 10, seconds = 2, period_ms = 20, pace = 1;
  bool same_class = false;
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--same-class") same_class = true;
    for (auto [name, value] : {std::pair{"--slices", &slices}, {"--seconds", &seconds}, {"--period-ms", &period_ms}, {"--pace", &pace}})
      if (option == name && i + 1 < argc) *value = std::atof(argv[++i]);
  }
  const Client guaranteed(argv[1], treadle::JobClass::guaranteed, pace);
  const Client other(argv[2], same_class ? treadle::JobClass::guaranteed : treadle::JobClass::opportunistic, pace);
  std::map<std::string, double> runs, taken;
  std::atomic<bool> stop{false};
  auto work = [&](const std::string& beside) {
    const auto start = Clock::now();
    for (; !stop; ++runs[beside]) other.session->run(other.feeds);
    taken[beside] += std::chrono::duration<double>(Clock::now() - start).count();
  };
  Slices alone, together;
  std::vector<double> waits_alone, waits_together;
  for (int slice = 0; slice < static_cast<int>(slices); ++slice) {
    alone.push_back(requests(guaranteed, seconds, period_ms, waits_alone));
    for (const char* beside : {"guaranteed", "nobody"}) {
      if (*beside == 'n' && slice % 4 != 0) continue;  // the other job's rate alone varies little, so only every fourth slice measures it
      stop = false;
      std::thread thread(work, beside);
      if (*beside == 'g')
        together.push_back(requests(guaranteed, seconds, period_ms, waits_together));
      else
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      stop = true;
      thread.join();
    }
  }
  compare("p50", together, alone, 0.5);
  compare("p99", together, alone, 0.99);
  fmt::print("of that, waiting for the engine: alone p50 {:.3f}, p99 {:.3f} ms; together p50 {:.3f}, p99 {:.3f}, most {:.3f} ms\n",
             percentile(waits_alone, 0.5), percentile(waits_alone, 0.99), percentile(waits_together, 0.5), percentile(waits_together, 0.99),
             percentile(waits_together, 1));
  double busy = 0, count = 0;
  for (const auto& slice : alone)
    for (const double latency : slice) busy += latency, ++count;
  const double share = runs["guaranteed"] / taken["guaranteed"] / (runs["nobody"] / taken["nobody"]);
  fmt::print("{} requests each; the other job has {:.2f} of its runs alone, {:.2f} of the idle time\n", static_cast<int>(count), share,
             share / (1 - busy / count / period_ms));
  return 0;
}
