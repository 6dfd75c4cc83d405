#include "treadle/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>

#include "core/values/float_types.h"
#include "treadle/error.h"

namespace treadle {

Communicator::~Communicator() = default;

void Communicator::all_gather(void* data, std::span<const size_t> sizes_bytes) {
  auto* part = static_cast<std::byte*>(data);
  for (int root = 0; root < size(); ++root) {
    const size_t bytes = sizes_bytes[static_cast<size_t>(root)];
    if (bytes > 0) broadcast(part, bytes, root);
    part += bytes;
  }
}

void Communicator::reduce_scatter(void* data, std::span<const size_t> counts, DType dtype) {
  all_reduce(data, std::accumulate(counts.begin(), counts.end(), size_t{0}), dtype);
}

void Communicator::barrier() {
  float arrived = 1;
  all_reduce(&arrived, 1, DType::float32);
}

void Communicator::fail(const std::string&) noexcept {}

namespace {

// The state that the ranks of one process share.
struct Meeting {
  Meeting(int size, double seconds) : addresses(static_cast<size_t>(size)), arrivals(static_cast<size_t>(size)), deadline_s(seconds) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<void*> addresses;    // address of each rank's data in the present call
  std::vector<uint64_t> arrivals;  // number of calls of meet() by each rank
  std::string failure;             // reason of a failure; empty: none
  const double deadline_s;

  /// Waits until all ranks have called this function as often as this one.
  void meet(size_t rank, void* address) {
    std::unique_lock lock(mutex);
    check();
    if (address) addresses[rank] = address;  // null keeps the previous meeting's address, which is still in use
    const uint64_t meeting = ++arrivals[rank];
    changed.notify_all();
    auto complete = [&] {
      return !failure.empty() || std::all_of(arrivals.begin(), arrivals.end(), [&](uint64_t count) { return count >= meeting; });
    };
    if (!changed.wait_for(lock, std::chrono::duration<double>(deadline_s), complete)) {
      std::vector<size_t> missing;
      for (size_t r = 0; r < arrivals.size(); ++r)
        if (arrivals[r] < meeting) missing.push_back(r);
      failure = fmt::format("rank {} has not come within {} s", fmt::join(missing, ", "), deadline_s);
      changed.notify_all();
    }
    if (std::any_of(arrivals.begin(), arrivals.end(), [&](uint64_t count) { return count < meeting; })) check();
  }
  void check() const {
    if (!failure.empty()) throw Error(ErrorCode::timed_out, failure);
  }
};

// Sums elements [begin, end) over all ranks, in the order of ranks, and writes the sums to all ranks.
template <typename T, typename Sum>
void sum_over_ranks(std::span<void* const> addresses, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    Sum sum = 0;
    for (void* address : addresses) sum += static_cast<Sum>(static_cast<T*>(address)[i]);
    for (void* address : addresses) static_cast<T*>(address)[i] = static_cast<T>(sum);
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_->addresses.size()); }

  void all_reduce(void* data, size_t count, DType dtype) override {
    meet(data);
    const size_t ranks = meeting_->addresses.size(), me = static_cast<size_t>(rank_);
    const size_t begin = count * me / ranks, end = count * (me + 1) / ranks;
    switch (dtype) {
      case DType::float32: sum_over_ranks<float, float>(meeting_->addresses, begin, end); break;
      case DType::float64: sum_over_ranks<double, double>(meeting_->addresses, begin, end); break;
      case DType::bfloat16: sum_over_ranks<BFloat16, float>(meeting_->addresses, begin, end); break;
      default: throw Error(ErrorCode::not_implemented, fmt::format("an all-reduce of {}", name_of(dtype)));
    }
    meet(nullptr);
  }
  void broadcast(void* data, size_t size_bytes, int root) override {
    meet(data);
    if (rank_ != root && size_bytes > 0) std::memcpy(data, meeting_->addresses[static_cast<size_t>(root)], size_bytes);
    meet(nullptr);
  }
  void barrier() override { meet(nullptr); }
  void fail(const std::string& reason) noexcept override {
    std::lock_guard lock(meeting_->mutex);
    if (meeting_->failure.empty()) meeting_->failure = fmt::format("rank {} failed: {}", rank_, reason);
    meeting_->changed.notify_all();
  }

 private:
  void meet(void* address) { meeting_->meet(static_cast<size_t>(rank_), address); }
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_communicators(int size, double deadline_s) {
  if (size < 1) throw Error(ErrorCode::invalid_argument, fmt::format("{} ranks; at least 1 is expected", size));
  if (!(deadline_s > 0))
    throw Error(ErrorCode::invalid_argument, fmt::format("the deadline of communication is {} s; it must be above 0", deadline_s));
  auto meeting = std::make_shared<Meeting>(size, deadline_s);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_shared<ThreadCommunicator>(meeting, rank));
  return ranks;
}

}  // namespace treadle
