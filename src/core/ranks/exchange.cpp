#include "core/ranks/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/id_registry.h"
#include "core/values/float_types.h"

namespace treadle {
namespace {

constexpr int64_t kWeight = 0, kFailed = 1, kTrailer = 2;

IdRegistry<Exchange>& exchanges() { return IdRegistry<Exchange>::instance(); }

// A message in which a rank tells all other ranks whether and why its run failed.
struct Report {
  int32_t failed = 0, code = 0;
  std::array<char, 1016> text{};
};

}  // namespace

Exchange::Exchange(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)), id_(exchanges().add(this)) {}

Exchange::~Exchange() {
  exchanges().remove(id_);
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Exchange& Exchange::find(int64_t id) { return exchanges().find(id, "exchange"); }

void Exchange::set_bucket(size_t index, int64_t num_elements, DType dtype) {
  if (index < buckets_.size()) {
    if (buckets_[index].num_elements != num_elements || buckets_[index].memory.dtype() != dtype)
      throw Error(ErrorCode::internal,
                  fmt::format("bucket {} has {} elements, then {}", index, buckets_[index].num_elements, num_elements));
    return;
  }
  if (index != buckets_.size()) throw Error(ErrorCode::internal, fmt::format("bucket {} before bucket {}", index, buckets_.size()));
  buckets_.push_back({Tensor(dtype, Shape{num_elements + kTrailer}), num_elements});
}

void Exchange::check_bucket(size_t index, int64_t num_elements) const {
  if (index >= buckets_.size() || buckets_[index].num_elements != num_elements)
    throw Error(ErrorCode::invalid_argument, fmt::format("the exchange has no bucket {} of {} elements", index, num_elements));
}

float Exchange::trailer(const Bucket& bucket, int64_t index) const {
  const int64_t at = bucket.num_elements + index;
  return bucket.memory.dtype() == DType::bfloat16 ? static_cast<float>(bucket.memory.data<BFloat16>()[at])
                                                  : bucket.memory.data<float>()[at];
}

void Exchange::set_trailer(Bucket& bucket, int64_t index, float value) {
  const int64_t at = bucket.num_elements + index;
  if (bucket.memory.dtype() == DType::bfloat16)
    bucket.memory.data<BFloat16>()[at] = BFloat16(value);
  else
    bucket.memory.data<float>()[at] = value;
}

void Exchange::begin_run() {
  std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  running_ = true, ended_ = false;
  sent_ = reduced_ = 0;
  failure_ = nullptr;
  own_error_.reset();
}

void* Exchange::open(size_t bucket) {
  std::lock_guard lock(mutex_);
  if (broken_) std::rethrow_exception(broken_);
  if (!running_) throw Error(ErrorCode::internal, "a bucket is filled while no run is under way");
  return bucket < sent_ ? nullptr : buckets_[bucket].memory.raw();
}

void Exchange::send(size_t bucket, float weight) {
  set_trailer(buckets_[bucket], kWeight, weight);
  set_trailer(buckets_[bucket], kFailed, 0);
  std::lock_guard lock(mutex_);
  if (bucket != sent_) throw Error(ErrorCode::internal, fmt::format("bucket {} is sent, {} is the next", bucket, sent_));
  if (bucket == 0) own_weight_ = weight;
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  ++sent_;
  changed_.notify_all();
}

void Exchange::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || broken_; });
  if (broken_) std::rethrow_exception(broken_);
  if (failure_) std::rethrow_exception(failure_);
}

void Exchange::work() {
  while (true) {
    size_t bucket = 0;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || (!broken_ && reduced_ < sent_); });
      if (stopping_) return;
      bucket = reduced_;
    }
    std::exception_ptr error;
    const bool last = bucket + 1 == buckets_.size();
    try {
      Tensor& memory = buckets_[bucket].memory;
      communicator_->all_reduce(memory.raw(), static_cast<size_t>(memory.num_elements()), memory.dtype());
      if (bucket == 0) total_weight_ = trailer(buckets_[0], kWeight);
      if (last && !(trailer(buckets_[bucket], kFailed) == 0)) gather_failure();
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    ++reduced_;
    if (error) broken_ = error;
    if (last) ended_ = true;
    changed_.notify_all();
  }
}

void Exchange::gather_failure() {
  const auto ranks = static_cast<size_t>(communicator_->size());
  std::vector<Report> reports(ranks);
  Report& own = reports[static_cast<size_t>(communicator_->rank())];
  {
    std::lock_guard lock(mutex_);
    if (own_error_) {
      own.failed = 1, own.code = static_cast<int32_t>(own_error_->code());
      const std::string text = own_error_->what();
      std::memcpy(own.text.data(), text.data(), std::min(text.size(), own.text.size() - 1));
    }
  }
  communicator_->all_gather(reports.data(), std::vector<size_t>(ranks, sizeof(Report)));
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!reports[rank].failed) continue;
    reports[rank].text.back() = 0;
    const Error error(static_cast<ErrorCode>(reports[rank].code),
                      fmt::format("rank {} failed, and no rank has taken this step: {}", rank, reports[rank].text.data()));
    std::lock_guard lock(mutex_);
    failure_ = std::make_exception_ptr(error);
    return;
  }
}

bool Exchange::end_run(const Error* error, bool last) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (!running_) return false;
    running_ = false;
    if (broken_) return true;
    if (sent_ == buckets_.size()) {
      changed_.wait(lock, [&] { return ended_ || broken_; });
      if (failure_ || broken_) return true;
      lock.unlock();
      // After the last bucket, all ranks have equal values, so an error that depends on values occurs on all of them. Errors with these
      // codes occur on one rank only.
      const bool own = error && (error->code() == ErrorCode::cancelled || error->code() == ErrorCode::timed_out ||
                                 error->code() == ErrorCode::resource_exhausted || error->code() == ErrorCode::io_error);
      if (own && last) communicator_->fail(error->what());
      return false;
    }
    own_error_ = std::make_unique<Error>(error ? *error : Error(ErrorCode::internal, "the run ended before its last bucket"));
    for (size_t bucket = sent_; bucket < buckets_.size(); ++bucket) {
      std::memset(buckets_[bucket].memory.raw(), 0, buckets_[bucket].memory.size_bytes());
      set_trailer(buckets_[bucket], kFailed, 1);
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    sent_ = buckets_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return ended_ || broken_; });
  } catch (...) {  // out of memory or threads: the other ranks notice at their deadline
    std::lock_guard lock(mutex_);
    if (!broken_) broken_ = std::current_exception();
  }
  return true;
}

void ExchangesOfRun::add(Exchange& exchange) {
  exchange.begin_run();
  exchanges_.push_back(&exchange);
}

void ExchangesOfRun::end() noexcept {
  bool known = false;
  for (size_t i = 0; i < exchanges_.size(); ++i)
    if (known)
      exchanges_[i]->leave_run();
    else
      known = exchanges_[i]->end_run(error_.get(), i + 1 == exchanges_.size());
  exchanges_.clear();
}

void Exchange::leave_run() noexcept {
  std::lock_guard lock(mutex_);
  running_ = false;
}

}  // namespace treadle
