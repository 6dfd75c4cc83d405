#include "cli/bench_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace treadle::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLeastRuns = 5;

Clock::duration of_seconds(double seconds) { return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)); }
double ms_between(Clock::time_point begin, Clock::time_point end) { return std::chrono::duration<double, std::milli>(end - begin).count(); }

// Hands out requests: at once, or at the times at which they arrive.
class Requests {
 public:
  Requests(const LoadOptions& options, Clock::time_point begin)
      : options_(options), begin_(begin), end_(begin + of_seconds(options.seconds)), random_(options.seed), next_(begin) {}

  // Waits for the next request. @return false if there are no more; otherwise `arrival` is its time
  bool next(Clock::time_point& arrival) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_ || is_over()) return false;
      ++handed_out_;
      if (options_.rate <= 0) {
        arrival = Clock::now();
        return true;
      }
      arrival = next_;
      next_ += gap();
    }
    wait_until(arrival);
    return true;
  }

  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  // Returns the number of requests that arrived within the measurement, but were not handed out.
  int64_t unserved() {
    std::lock_guard lock(mutex_);
    int64_t count = 0;
    if (options_.rate > 0 && options_.runs == 0)
      for (; next_ < end_; next_ += gap()) ++count;
    return count;
  }

 private:
  bool is_over() const {
    if (options_.runs > 0) return handed_out_ >= options_.runs;
    if (options_.rate > 0) return handed_out_ > 0 && (next_ >= end_ || Clock::now() >= end_ + (end_ - begin_));
    return handed_out_ >= kLeastRuns && Clock::now() >= end_;
  }

  Clock::duration gap() {
    if (options_.regular) return of_seconds(1 / options_.rate);
    return of_seconds(std::exponential_distribution<double>(options_.rate)(random_));
  }

  // Sleeping ends some 0.1 ms late, so the rest is waited for by looking at the clock.
  static void wait_until(Clock::time_point when) {
    constexpr auto kLate = std::chrono::microseconds(100);
    if (when - Clock::now() > kLate) std::this_thread::sleep_until(when - kLate);
    while (Clock::now() < when) std::this_thread::yield();
  }

  const LoadOptions& options_;
  const Clock::time_point begin_, end_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  Clock::time_point next_;
  int64_t handed_out_ = 0;
  bool stopped_ = false;
};

struct ClientTimes {
  std::vector<double> latencies_ms, waits_ms;
  Clock::time_point end;
};

// The clients' threads. They warm up, wait for each other, and then work until there are no more requests.
class Clients {
 public:
  Clients(const std::vector<Session>& sessions, const std::map<std::string, Datum>& feeds, const LoadOptions& options)
      : sessions_(sessions), feeds_(feeds), options_(options), times_(static_cast<size_t>(options.clients)) {}

  LoadResult run(const std::function<void(int64_t, double)>& progress) {
    LoadResult result;
    std::vector<std::thread> threads;
    const auto start = Clock::now();
    for (size_t i = 0; i < times_.size(); ++i) threads.emplace_back([this, i] { work(i); });
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return num_ready_ == times_.size(); });
      result.warmup_runs = options_.warmup * options_.clients;
      result.warmup_ms = ms_between(start, Clock::now());
      begin_ = Clock::now();
      requests_ = std::make_unique<Requests>(options_, begin_);
      if (error_) requests_->stop();
      changed_.notify_all();
      constexpr auto kBetweenReports = std::chrono::milliseconds(100);
      while (!changed_.wait_for(lock, kBetweenReports, [this] { return num_done_ == times_.size(); }))
        progress(num_runs_, ms_between(begin_, Clock::now()) / 1e3);
    }
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    Clock::time_point end = begin_;
    for (const ClientTimes& client : times_) {
      result.latencies_ms.insert(result.latencies_ms.end(), client.latencies_ms.begin(), client.latencies_ms.end());
      result.waits_ms.insert(result.waits_ms.end(), client.waits_ms.begin(), client.waits_ms.end());
      end = std::max(end, client.end);
    }
    std::sort(result.latencies_ms.begin(), result.latencies_ms.end());
    std::sort(result.waits_ms.begin(), result.waits_ms.end());
    result.wall_ms = ms_between(begin_, end);
    result.unserved = requests_->unserved();
    return result;
  }

 private:
  void work(size_t index) noexcept {
    std::exception_ptr error;
    bool is_ready = false;
    auto ready = [&] {
      std::unique_lock lock(mutex_);
      is_ready = true;
      ++num_ready_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return requests_ != nullptr; });
    };
    try {
      const Session& session = sessions_[index % sessions_.size()];
      IoBinding binding(session);
      for (const auto& [name, value] : feeds_) binding.bind_input(name, value);
      for (const ValueInfo& info : session.outputs()) binding.bind_output(info.name);
      for (int64_t i = 0; i < options_.warmup; ++i) session.run(binding);
      ready();
      ClientTimes& times = times_[index];
      for (Clock::time_point arrival; requests_->next(arrival);) {
        const auto begin = options_.rate > 0 ? Clock::now() : arrival;
        session.run(binding);
        times.end = Clock::now();
        times.latencies_ms.push_back(ms_between(arrival, times.end));
        if (options_.rate > 0) times.waits_ms.push_back(ms_between(arrival, begin));
        ++num_runs_;
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (error) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = error;
      if (requests_) requests_->stop();
    }
    if (!is_ready) ready();
    std::lock_guard lock(mutex_);
    ++num_done_;
    changed_.notify_all();
  }

  const std::vector<Session>& sessions_;
  const std::map<std::string, Datum>& feeds_;
  const LoadOptions& options_;
  std::vector<ClientTimes> times_;
  std::atomic<int64_t> num_runs_{0};
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  size_t num_ready_ = 0, num_done_ = 0;
  Clock::time_point begin_;
  std::unique_ptr<Requests> requests_;  // null until all clients are ready
  std::exception_ptr error_;
};

}  // namespace

double percentile(const std::vector<double>& ascending, double p) {
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(ascending.size())));
  return ascending[std::clamp<size_t>(rank, 1, ascending.size()) - 1];
}

LoadResult run_load(const std::vector<Session>& sessions, const std::map<std::string, Datum>& feeds, const LoadOptions& options,
                    const std::function<void(int64_t runs, double seconds)>& progress) {
  return Clients(sessions, feeds, options).run(progress);
}

}  // namespace treadle::cli
