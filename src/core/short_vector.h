// A vector for what is mostly short and soon gone: its first elements cost no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <memory_resource>
#include <vector>

namespace treadle {

template <size_t kBytes>
class ShortVectorRoom {
 public:
  ShortVectorRoom() = default;
  ShortVectorRoom(const ShortVectorRoom&) = delete;
  ShortVectorRoom& operator=(const ShortVectorRoom&) = delete;

 protected:
  std::pmr::memory_resource* memory() { return &memory_; }

 private:
  alignas(std::max_align_t) std::array<std::byte, kBytes> room_;  // of which nothing is read before it is written
  std::pmr::monotonic_buffer_resource memory_{room_.data(), room_.size()};
};

/// A vector of as many elements as `kBytes` have room for, within the object, and of any number at the cost of allocations. It stays where
/// it is made. Each growth takes new room: who knows how many there will be, says so first (the constructor, reserve()).
template <typename T, size_t kBytes = 512>
class ShortVector : private ShortVectorRoom<kBytes>, public std::pmr::vector<T> {
 public:
  explicit ShortVector(size_t size = 0) : std::pmr::vector<T>(size, this->memory()) {}
};

}  // namespace treadle
