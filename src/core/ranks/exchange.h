// Sums gradients over ranks during a run: a thread reduces buckets (blocks of numbers) one after the other.
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

/// The buckets (blocks of gradients) of one graph, which its nodes fill and read. All ranks reduce the same buckets in the same order, even
/// in a run that fails: a rank that cannot fill a bucket sends zeros and, after the elements, a failure mark. So all ranks know of the
/// failure before any has changed its state, and can continue together with the next run.
class Exchange {
 public:
  explicit Exchange(std::shared_ptr<Communicator> communicator);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Returns the number by which nodes find this object, since their attributes hold only numbers and text. find() throws
  /// Error(invalid_argument) if the object has been destroyed.
  int64_t id() const { return id_; }
  static Exchange& find(int64_t id);

  /// Declares a bucket. It may be declared again with the same size, for a graph that is built again.
  void set_bucket(size_t index, int64_t num_elements, DType dtype);
  /// Checks that a bucket of this size was declared. @throws Error(invalid_argument) if not
  void check_bucket(size_t index, int64_t num_elements) const;
  const Communicator& communicator() const { return *communicator_; }

  /// Must be called when a run begins.
  void begin_run();
  /// Returns the memory for a bucket's elements; null if the bucket was sent already in this run.
  void* open(size_t bucket);
  /// Sends a bucket to be reduced. @param weight  factor by which its elements have been multiplied
  void send(size_t bucket, float weight);
  /// Waits until all buckets are reduced. @throws an error of communication, or the error of a rank that failed in this run
  void wait();
  /// After wait(): return the sums over all ranks, and the sum of the weights of bucket 0.
  const void* sums(size_t bucket) const { return buckets_[bucket].memory.raw(); }
  float total_weight() const { return total_weight_; }
  /// Returns this rank's part of the total weight, 0 to 1.
  float own_share() const { return total_weight_ > 0 ? own_weight_ / total_weight_ : 0; }
  /// Must be called when the run has ended, with or without an error.
  /// @param last  true if this is the run's last exchange
  /// @return true if all ranks know that the run failed. Does not throw
  bool end_run(const Error* error, bool last) noexcept;
  /// Called instead of end_run() if all ranks know already, from another exchange, that the run failed.
  void leave_run() noexcept;

 private:
  struct Bucket {
    Tensor memory;  // elements, then the weight, then the number of ranks that failed
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
  // The members below are guarded by the mutex.
  bool stopping_ = false, running_ = false;
  size_t sent_ = 0, reduced_ = 0;
  bool ended_ = false;          // all buckets of the run are reduced, and the ranks' reports collected
  std::exception_ptr broken_;   // communication itself failed: no run is possible any more
  std::exception_ptr failure_;  // the error of the rank that failed in this run
  std::unique_ptr<Error> own_error_;
  float total_weight_ = 0, own_weight_ = 0;
};

/// Tracks the exchanges of a run, or of several consecutive runs, from begin to end.
class ExchangesOfRun {
 public:
  ExchangesOfRun() = default;
  ~ExchangesOfRun() { end(); }
  ExchangesOfRun(const ExchangesOfRun&) = delete;
  ExchangesOfRun& operator=(const ExchangesOfRun&) = delete;

  void add(Exchange& exchange);
  /// Calls work() and keeps an exception that it throws, so that end() reports it to the other ranks.
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
  /// Must be called when the run is over, which may be after its caller has returned.
  void end() noexcept;

 private:
  std::vector<Exchange*> exchanges_;
  std::unique_ptr<Error> error_;
};

}  // namespace treadle
