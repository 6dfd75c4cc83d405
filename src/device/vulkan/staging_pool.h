// Staging memory, through which bytes are copied between host and device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "device/vulkan/timeline.h"

namespace treadle::vulkan {

inline constexpr size_t kStagingBytes = size_t{1} << 20;  // size of a staging buffer, which several small copies share

/// A pool of staging buffers: memory that both host and device can access, for copies between them. Thread-safe.
class StagingPool {
 public:
  struct Staging {
    std::unique_ptr<Buffer> buffer;
    Buffer::For use = Buffer::For::upload;
    size_t used = 0;

    bool fits(size_t size_bytes, Buffer::For wanted) const { return buffer && use == wanted && used + size_bytes <= buffer->size_bytes(); }
  };

  explicit StagingPool(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

  Staging take(size_t size_bytes, Buffer::For use) {
    std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Buffer>>& free = free_[use == Buffer::For::upload];
    Staging taken{nullptr, use, 0};
    if (size_bytes <= kStagingBytes && !free.empty()) {
      taken.buffer = std::move(free.back());
      free.pop_back();
    } else {
      taken.buffer = std::make_unique<Buffer>(parts_->connection, std::max(size_bytes, kStagingBytes), use);
    }
    in_use_bytes_ += taken.buffer->size_bytes();
    return taken;
  }
  void give_back(Staging staging) {
    std::lock_guard lock(mutex_);
    in_use_bytes_ -= staging.buffer->size_bytes();
    if (staging.buffer->size_bytes() == kStagingBytes) free_[staging.use == Buffer::For::upload].push_back(std::move(staging.buffer));
  }
  size_t in_use_bytes() const {
    std::lock_guard lock(mutex_);
    return in_use_bytes_;
  }

 private:
  const std::shared_ptr<Parts> parts_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_[2];
  size_t in_use_bytes_ = 0;
};

}  // namespace treadle::vulkan
