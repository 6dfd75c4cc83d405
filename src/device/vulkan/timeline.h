// Tracks how much of a stream's work is done. Also defines the objects that the streams of a device share.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "core/devices/device.h"
#include "device/vulkan/connection.h"
#include "device/vulkan/device_clock.h"
#include "device/vulkan/heap.h"
#include "device/vulkan/movable_memory.h"
#include "device/vulkan/shader.h"
#include "treadle/error.h"

namespace treadle::vulkan {

/// The objects that a device, its streams and its memory share.
struct Parts {
  explicit Parts(const PhysicalDevice& physical)
      : connection(physical),
        clock(connection),
        heap(connection, Buffer::For::device),
        host_heap(connection, Buffer::For::host),
        movable(connection, heap, host_heap),
        pipelines(connection) {}

  /// Returns the buffer that contains these bytes, and their offset in it. @throws Error(internal) if no buffer of the device contains them
  Heap::Place place(const void* data, size_t size_bytes) {
    const uint64_t address = movable.find(reinterpret_cast<uint64_t>(data), size_bytes);
    for (const Heap* in : {&heap, &host_heap})
      if (const auto found = in->find(address, size_bytes)) return *found;
    throw Error(ErrorCode::internal, fmt::format("{} bytes at {:#x} are not memory of {}", size_bytes, address, connection.name()));
  }

  Connection connection;
  DeviceClock clock;
  Heap heap, host_heap;
  MovableMemory movable;
  Pipelines pipelines;
};

/// The progress of a stream's work (a timeline semaphore), and host functions that must be called when certain work is done.
class Timeline {
 public:
  explicit Timeline(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {
    const VkSemaphoreTypeCreateInfo type{VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, nullptr, VK_SEMAPHORE_TYPE_TIMELINE, 0};
    const VkSemaphoreCreateInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
    connection().check(connection()->CreateSemaphore(connection().handle(), &info, nullptr, &semaphore_), "make a semaphore");
  }
  ~Timeline() {
    if (connection().is_of_this_process()) connection()->DestroySemaphore(connection().handle(), semaphore_, nullptr);
  }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  VkSemaphore semaphore() const { return semaphore_; }

  /// Stores a host function. It is called by the first look(), wait() or finish_all() after submission number `value` is done.
  void when_done(uint64_t value, Stream::Work work) {
    std::lock_guard lock(mutex_);
    waiting_.emplace_back(value, std::move(work));
  }
  /// Returns how many submissions are done, and calls the host functions that have waited for these.
  uint64_t look() {
    connection().check_process();
    uint64_t done = 0;
    connection().check(connection()->GetSemaphoreCounterValue(connection().handle(), semaphore_, &done), "say how far its work is");
    finish(done);
    return done;
  }
  /// Waits until submission number `value` and all before it are done. Calls the host functions that have waited for these.
  void wait(uint64_t value) {
    connection().check_process();
    const VkSemaphoreWaitInfo info{VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, nullptr, 0, 1, &semaphore_, &value};
    connection().check(connection()->WaitSemaphores(connection().handle(), &info, UINT64_MAX), "do its work");
    finish(value);
  }
  /// Calls all waiting host functions. @pre the work for which they wait is done
  void finish_all() { finish(UINT64_MAX); }
  /// Destroys the waiting host functions without calling them.
  void drop_all() {
    std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  const std::shared_ptr<Parts>& parts() const { return parts_; }

 private:
  const Connection& connection() const { return parts_->connection; }

  void finish(uint64_t done) {
    std::lock_guard lock(mutex_);
    while (!waiting_.empty() && waiting_.front().first <= done) {
      const Stream::Work work = std::move(waiting_.front().second);
      waiting_.pop_front();
      work();
    }
  }

  const std::shared_ptr<Parts> parts_;
  VkSemaphore semaphore_ = VK_NULL_HANDLE;
  std::recursive_mutex mutex_;
  std::deque<std::pair<uint64_t, Stream::Work>> waiting_;
};

}  // namespace treadle::vulkan
