// Sums over ranks that go on while a run computes: a thread reduces buckets of numbers in their order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "treadle/communicator.h"
#include "treadle/error.h"
#include "treadle/tensor.h"

namespace treadle {

/// The buckets of one graph, which nodes fill and read. All ranks reduce the same buckets in the same order, in a run that fails as well:
/// a rank that cannot fill a bucket sends zeros and says so behind the elements. All then know before they have changed anything, and are
/// in step for the next run.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Communicator> communicator);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// By which nodes, whose attributes are numbers and text, find it. @throws Error(invalid_argument) for one that is gone.
  int64_t id() const { return id_; }
  static Exchange& find(int64_t id);

  /// Declares a bucket; again with the same size for a graph that is made again.
  void set_bucket(size_t index, int64_t num_elements, DType dtype);
  /// @throws Error(invalid_argument) for one that was not declared so.
  void check_bucket(size_t index, int64_t num_elements) const;
  const Communicator& communicator() const { return *communicator_; }

  /// A run begins.
  void begin_run();
  /// Room for a bucket's elements. Null if it has been sent in this run.
  void* open(size_t bucket);
  /// @param weight  by which the elements have been multiplied.
  void send(size_t bucket, float weight);
  /// Until all buckets are reduced. @throws what communication threw, or the error of the rank that failed in this run.
  void wait();
  /// After wait(): the sum over ranks, and the sum of the weights of bucket 0.
  const void* sums(size_t bucket) const { return buckets_[bucket].memory.raw(); }
  float total_weight() const { return total_weight_; }
  /// This rank's own share of it.
  float own_share() const { return total_weight_ > 0 ? own_weight_ / total_weight_ : 0; }
  /// The run has ended, with an error or without. @param last  the ranks exchange nothing else for this run.
  /// @return whether all ranks know that it failed. Does not throw.
  bool end_run(const Error* error, bool last) noexcept;
  /// No rank goes on with it.
  void leave_run() noexcept;

 private:
  struct Bucket {
    Tensor memory;  // the elements, then the weight, then the number of ranks that failed
    int64_t num_elements = 0;
  };
  float trailer(const Bucket& bucket, int64_t index) const;
  void set_trailer(Bucket& bucket, int64_t index, float value);
  void work();
  void gather_failure();

  const std::shared_ptr<Communicator> communicator_;
  const int64_t id_;
  std::vector<Bucket> buckets_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by the mutex.
  bool stopping_ = false, running_ = false;
  size_t sent_ = 0, reduced_ = 0;
  bool ended_ = false;          // of the run's buckets: all reduced, and what ranks report gathered
  std::exception_ptr broken_;   // communication itself: there will be no other run
  std::exception_ptr failure_;  // of a rank in this run
  std::unique_ptr<Error> own_error_;
  float total_weight_ = 0, own_weight_ = 0;
};

/// The exchanges of one run, or of several that follow each other, from their beginning to their end.
class ExchangesOfRun {
 public:
  ExchangesOfRun() = default;
  ~ExchangesOfRun() { end(); }
  ExchangesOfRun(const ExchangesOfRun&) = delete;
  ExchangesOfRun& operator=(const ExchangesOfRun&) = delete;

  void add(Exchange& exchange);
  /// Keeps what work() throws for the other ranks.
  template <typename Work>
  void report_failure(Work&& work) {
    try {
      work();
    } catch (const Error& error) {
      error_ = std::make_unique<Error>(error);
      throw;
    } catch (const std::exception& error) {
      error_ = std::make_unique<Error>(ErrorCode::internal, error.what());
      throw;
    }
  }
  /// The run is over, which may be after its caller has left.
  void end() noexcept;

 private:
  std::vector<Exchange*> exchanges_;
  std::unique_ptr<Error> error_;
};

}  // namespace treadle
