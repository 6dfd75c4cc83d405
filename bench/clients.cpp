// Measures clients, each of which starts its next run as soon as a run ends, on sessions of Treadle and of ONNX Runtime in turn. The script
// bench/clients.py writes the feeds, calls this program for every model, and prints the table.
//
//     bench_clients MODEL FEEDS LIBONNXRUNTIME CLIENTS SECONDS ROUNDS [SESSIONS]
//
// The program prints a line per engine and round: engine, runs per second, p50 and p99 of a run's time in ms, page faults per run. If there
// are several sessions, the program distributes the clients over them, and ONNX Runtime uses only its global thread pool.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

#include "onnxruntime_peer.h"
#include "treadle/treadle.hpp"

namespace treadle::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Feeds = std::map<std::string, Datum>;

template <typename T>
T read(std::istream& in) {
  T value{};
  in.read(reinterpret_cast<char*>(&value), sizeof value);
  if (!in) throw std::runtime_error("the file of feeds is too short");
  return value;
}

std::string read_text(std::istream& in) {
  std::string text(read<uint64_t>(in), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

// Reads a file of feeds. The file contains the number of feeds (uint64), and for each feed: its name, its dtype (int64), its rank (int64),
// its extents (int64), and its elements or texts. Names and texts are stored as a length (uint64) and the bytes.
Feeds read_feeds(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Feeds feeds;
  for (auto left = read<uint64_t>(in); left > 0; --left) {
    const std::string name = read_text(in);
    const auto dtype = static_cast<DType>(read<int64_t>(in));
    std::vector<int64_t> dims(static_cast<size_t>(read<int64_t>(in)));
    for (int64_t& dim : dims) dim = read<int64_t>(in);
    Tensor tensor(dtype, Shape(dims));
    if (dtype == DType::string)
      for (std::string& text : tensor.span<std::string>()) text = read_text(in);
    else
      in.read(reinterpret_cast<char*>(tensor.raw()), static_cast<std::streamsize>(tensor.size_bytes()));
    feeds[name] = tensor;
  }
  return feeds;
}

struct Engine {
  const char* name;
  std::vector<std::function<void()>> sessions;
};

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

void measure(const Engine& engine, int clients, double seconds) {
  std::vector<std::vector<float>> latencies(static_cast<size_t>(clients));
  std::atomic<bool> go{false};
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c)
    threads.emplace_back([&, c] {
      const auto& run = engine.sessions[static_cast<size_t>(c) % engine.sessions.size()];
      std::vector<float>& mine = latencies[static_cast<size_t>(c)];
      mine.reserve(1 << 16);
      ++ready;
      while (!go) std::this_thread::yield();
      const auto end = Clock::now() + std::chrono::duration<double>(seconds);
      for (auto start = Clock::now(); start < end;) {
        run();
        const auto now = Clock::now();
        mine.push_back(std::chrono::duration<float, std::milli>(now - start).count());
        start = now;
      }
    });
  while (ready < clients) std::this_thread::yield();
  const int64_t faults_before = page_faults();
  const auto start = Clock::now();
  go = true;
  for (std::thread& thread : threads) thread.join();
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  std::vector<float> all;
  for (const auto& mine : latencies) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  auto quantile = [&](double q) {
    return static_cast<double>(all[std::min(all.size() - 1, static_cast<size_t>(q * static_cast<double>(all.size())))]);
  };
  std::printf("%s\t%.3f\t%.4f\t%.4f\t%.1f\n", engine.name, static_cast<double>(all.size()) / elapsed, quantile(0.5), quantile(0.99),
              static_cast<double>(page_faults() - faults_before) / static_cast<double>(all.size()));
  std::fflush(stdout);
}

void run(const std::string& model, const Feeds& feeds, const OnnxRuntime& runtime, int clients, double seconds, int rounds, int sessions) {
  std::vector<std::unique_ptr<Session>> own;
  std::vector<std::unique_ptr<OnnxRuntime::Session>> peers;
  std::vector<Engine> engines{{"treadle", {}}};
  for (int s = 0; s < sessions; ++s) {
    own.push_back(std::make_unique<Session>(model));
    engines[0].sessions.emplace_back([&feeds, session = own.back().get()] { session->run(feeds); });
  }
  auto add_peer = [&](const char* name, const OnnxRuntime::Settings& settings) {
    engines.push_back({name, {}});
    for (int s = 0; s < sessions; ++s) {
      peers.push_back(std::make_unique<OnnxRuntime::Session>(runtime, model, settings, feeds));
      engines.back().sessions.emplace_back([peer = peers.back().get()] { peer->run(); });
    }
  };
  if (sessions > 1) {
    add_peer("global pool", {.global_pool = true});
  } else {
    add_peer("as it comes", {});
    add_peer("one thread", {.threads = 1});
    add_peer("no spinning", {.spinning = false});
  }
  for (const Engine& engine : engines)
    for (const auto& session : engine.sessions) session();
  for (int round = 0; round < rounds; ++round)
    for (const Engine& engine : engines) measure(engine, clients, seconds);
}

}  // namespace
}  // namespace treadle::bench

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr, "usage: bench_clients MODEL FEEDS LIBONNXRUNTIME CLIENTS SECONDS ROUNDS [SESSIONS]\n");
    return 2;
  }
  try {
    const treadle::bench::OnnxRuntime runtime(argv[3]);
    treadle::bench::run(argv[1], treadle::bench::read_feeds(argv[2]), runtime, std::atoi(argv[4]), std::atof(argv[5]), std::atoi(argv[6]),
                        argc > 7 ? std::atoi(argv[7]) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
