// A vector for a few elements that live briefly: the first ones are stored without allocation.
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
  alignas(std::max_align_t) std::array<std::byte, kBytes> room_;  // memory that is not initialized
  std::pmr::monotonic_buffer_resource memory_{room_.data(), room_.size()};
};

/// A vector that stores its first `kBytes` of elements inside the object, and more of them in allocated memory. It cannot be moved. Growing
/// allocates new memory and frees none, so pass the size to the constructor or reserve() if it is known.
template <typename T, size_t kBytes = 512>
class ShortVector : private ShortVectorRoom<kBytes>, public std::pmr::vector<T> {
 public:
  explicit ShortVector(size_t size = 0) : std::pmr::vector<T>(size, this->memory()) {}
};

}  // namespace treadle
