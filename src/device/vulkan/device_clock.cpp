#include "device/vulkan/device_clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "device/vulkan/time_stamps.h"
#include "treadle/error.h"

namespace treadle::vulkan {
namespace {

constexpr int64_t kOldAfterNs = 500'000'000;
constexpr double kDrift = 2e-5;  // largest relative difference of the two clocks' rates
// Number of clock comparisons per measurement. The shortest one counts, because it was interrupted least and so is the most exact.
constexpr int kTries = 5;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A command buffer that only writes a time stamp, and a semaphore that is signaled when it is done.
class MarkedSubmission {
 public:
  explicit MarkedSubmission(const Connection& connection) : connection_(connection), stamps_(connection) {
    const VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr, VK_SEMAPHORE_TYPE_TIMELINE, 0};
    const VkSemaphoreCreateInfo semaphore{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
    const VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                       connection.queue_family()};
    try {
      connection.check(connection->CreateSemaphore(connection.handle(), &semaphore, nullptr, &done_), "make a semaphore");
      connection.check(connection->CreateCommandPool(connection.handle(), &pool, nullptr, &pool_), "make a command pool");
      const VkCommandBufferAllocateInfo buffer{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_,
                                               VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
      connection.check(connection->AllocateCommandBuffers(connection.handle(), &buffer, &commands_), "make a command buffer");
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~MarkedSubmission() {
    connection_.wait_idle();
    destroy();
  }
  MarkedSubmission(const MarkedSubmission&) = delete;
  MarkedSubmission& operator=(const MarkedSubmission&) = delete;

  /// Submits the command buffer, and waits until it is done. @return the time stamp
  uint64_t run() {
    const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr, VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
                                         nullptr};
    connection_.check(connection_->BeginCommandBuffer(commands_, &begin), "begin a command buffer");
    stamps_.reset(commands_);
    const TimeStamps::Stamp stamp = stamps_.stamp(commands_);
    connection_.check(connection_->EndCommandBuffer(commands_), "end a command buffer");
    const uint64_t signal = ++submitted_;
    VkTimelineSemaphoreSubmitInfo timeline{VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    timeline.signalSemaphoreValueCount = 1;
    timeline.pSignalSemaphoreValues = &signal;
    VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO, &timeline};
    submit.commandBufferCount = submit.signalSemaphoreCount = 1;
    submit.pCommandBuffers = &commands_;
    submit.pSignalSemaphores = &done_;
    connection_.submit(submit);
    const VkSemaphoreWaitInfo wait{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, nullptr, 0, 1, &done_, &signal};
    connection_.check(connection_->WaitSemaphores(connection_.handle(), &wait, UINT64_MAX), "stamp a time");
    stamps_.read();
    connection_.wait_idle();  // afterwards the buffer may be recorded again
    if (!stamp.is_known()) throw Error(ErrorCode::internal, connection_.name() + " stamps no times although it says that it does");
    return stamp.ticks();
  }

 private:
  void destroy() noexcept {
    connection_->DestroyCommandPool(connection_.handle(), pool_, nullptr);
    connection_->DestroySemaphore(connection_.handle(), done_, nullptr);
  }

  const Connection& connection_;
  TimeStamps stamps_;
  VkSemaphore done_ = VK_NULL_HANDLE;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = VK_NULL_HANDLE;
  uint64_t submitted_ = 0;
};

}  // namespace

DeviceClock::DeviceClock(const Connection& connection)
    : DeviceClock(connection, connection.time_stamps().get_calibrated ? Comparison::calibrated : Comparison::marked) {}

int64_t DeviceClock::steady_ns(uint64_t ticks) {
  std::lock_guard lock(mutex_);
  const int64_t age = now_ns() - last_.steady_ns;
  if (last_.error_ns == INT64_MAX || age > kOldAfterNs) {
    const Pair now = compare();
    // Keeps the old comparison if it is still more exact than the new one, which may be inexact if the device is busy.
    if (last_.error_ns == INT64_MAX ||
        static_cast<double>(now.error_ns) <= static_cast<double>(last_.error_ns) + kDrift * static_cast<double>(age))
      last_ = now;
  }
  const Connection::TimeStampUnit& unit = connection_.time_stamps();
  const uint32_t unused = 64 - unit.bits;  // stamps may have fewer bits, and wrap around
  const int64_t since = static_cast<int64_t>((ticks - last_.ticks) << unused) >> unused;
  return last_.steady_ns + std::llround(static_cast<double>(since) * unit.ns_per_tick);
}

int64_t DeviceClock::error_ns() const {
  std::lock_guard lock(mutex_);
  return last_.error_ns;
}

DeviceClock::Pair DeviceClock::compare() const { return by_ == Comparison::calibrated ? read_calibrated() : read_marked(); }

DeviceClock::Pair DeviceClock::read_calibrated() const {
  const VkCalibratedTimestampInfoEXT clocks[] = {
      {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_DEVICE_EXT},
      {VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, nullptr, VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT},  // that of steady_clock
  };
  Pair best;
  for (int i = 0; i < kTries; ++i) {
    uint64_t read[2] = {}, deviation = 0;
    connection_.check(connection_.time_stamps().get_calibrated(connection_.handle(), 2, clocks, read, &deviation), "tell the time");
    if (static_cast<int64_t>(deviation) < best.error_ns) best = {read[0], static_cast<int64_t>(read[1]), static_cast<int64_t>(deviation)};
  }
  return best;
}

DeviceClock::Pair DeviceClock::read_marked() const {
  MarkedSubmission submission(connection_);
  Pair best;
  for (int i = 0; i < kTries; ++i) {
    const int64_t before = now_ns();
    const uint64_t ticks = submission.run();
    const int64_t took = now_ns() - before;
    if (took / 2 < best.error_ns) best = {ticks, before + took / 2, took / 2};
  }
  return best;
}

}  // namespace treadle::vulkan
