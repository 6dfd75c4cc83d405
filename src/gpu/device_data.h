// Constant arrays of a kernel, kept in a device's memory.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/devices/device.h"

namespace treadle::gpu {

/// Arrays that a kernel reads besides its operands. The first run copies them to the device, where they stay until this object is
/// destroyed.
class DeviceData {
 public:
  /// Appends an array. @return its offset in bytes
  template <typename T>
  size_t add(std::span<const T> values) {
    return add(values.data(), values.size_bytes());
  }
  template <typename T>
  size_t add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }
  size_t size_bytes() const { return host_.size(); }

  /// Returns the data's address on the device of the current stream; copies the data there first if necessary. @pre add() is not called
  /// later
  const std::byte* here() const;

 private:
  size_t add(const void* values, size_t size_bytes);

  struct Copy {
    std::shared_ptr<Storage> storage;
    std::shared_ptr<Event> copied;
    std::byte* data = nullptr;  // address for shaders
  };
  std::vector<std::byte> host_;
  mutable std::mutex mutex_;
  mutable std::map<const Device*, Copy> copies_;
};

}  // namespace treadle::gpu
