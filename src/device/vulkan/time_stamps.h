// Records the times at which a device reaches certain points of a command buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// The time stamps of one command buffer. Only one thread at a time may use this object.
class TimeStamps {
 public:
  static constexpr uint32_t kMost = 256;

  struct Stamp {
    std::shared_ptr<const std::vector<uint64_t>> of;
    uint32_t index = 0;
    bool is_known() const { return index < of->size(); }  ///< true after TimeStamps::read()
    uint64_t ticks() const { return (*of)[index]; }
  };

  /// @param connection  must outlive this object
  explicit TimeStamps(const Connection& connection);
  ~TimeStamps();
  TimeStamps(const TimeStamps&) = delete;
  TimeStamps& operator=(const TimeStamps&) = delete;

  /// Must be called when the command buffer is recorded anew: the next stamp is the first one again. Stamps of the last submission stay
  /// readable.
  void reset(VkCommandBuffer commands);
  bool is_full() const { return used_ == kMost; }
  /// Records a command that writes a time stamp when the device has done all earlier commands. @pre !is_full()
  Stamp stamp(VkCommandBuffer commands);
  /// Reads all stamps from the device. @pre the submission is done
  void read();

 private:
  const Connection& connection_;
  VkQueryPool pool_ = VK_NULL_HANDLE;
  uint32_t used_ = 0;
  std::shared_ptr<std::vector<uint64_t>> ticks_;
};

}  // namespace treadle::vulkan
