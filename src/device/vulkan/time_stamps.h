// Times at which a device reaches points of a command buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// The time stamps of one command buffer. One thread at a time uses it.
class TimeStamps {
 public:
  static constexpr uint32_t kMost = 256;

  struct Stamp {
    std::shared_ptr<const std::vector<uint64_t>> of;
    uint32_t index = 0;
    bool is_known() const { return index < of->size(); }  ///< after TimeStamps::read()
    uint64_t ticks() const { return (*of)[index]; }
  };

  /// @param connection  must outlive this object
  explicit TimeStamps(const Connection& connection);
  ~TimeStamps();
  TimeStamps(const TimeStamps&) = delete;
  TimeStamps& operator=(const TimeStamps&) = delete;

  /// Begins anew, for a buffer that is recorded. Stamps of the last submission can still be read.
  void reset(VkCommandBuffer commands);
  bool is_full() const { return used_ == kMost; }
  /// Stamps the time at which the device has done all commands so far. @pre !is_full()
  Stamp stamp(VkCommandBuffer commands);
  /// Reads the stamps. @pre the submission is done
  void read();

 private:
  const Connection& connection_;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  uint32_t used_ = 0;
  std::shared_ptr<std::vector<uint64_t>> ticks_;
};

}  // namespace treadle::vulkan
