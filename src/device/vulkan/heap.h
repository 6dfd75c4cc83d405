// Allocates memory for shaders of a Vulkan device, which access it by device addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// An allocation of Vulkan memory, with one VkBuffer that covers all of it.
class Buffer {
 public:
  enum class For : uint8_t { device, upload, download, shared, host };
  /// @param use  `device`: memory of the device. All others are memory that the host can access, too: `upload` and `download` for copies to
  ///   and from the device, `shared` for a few bytes that shaders write and the host reads, and `host` for values in host memory that
  ///   shaders access directly.
  /// @throws OutOfMemory
  Buffer(const Connection& connection, size_t size_bytes, For use);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  VkBuffer handle() const { return handle_; }
  uint64_t id() const { return id_; }  ///< a number that no other buffer of the process has ever had
  size_t size_bytes() const { return size_bytes_; }
  uint64_t address() const { return address_; }  ///< the address for shaders; 0 for upload and download
  std::byte* mapped() const { return mapped_; }  ///< null for device memory

 private:
  void release() noexcept;

  static uint64_t next_id();

  const Connection& connection_;
  const size_t size_bytes_;
  const uint64_t id_ = next_id();
  VkBuffer handle_ = VK_NULL_HANDLE;
  VkDeviceMemory memory_ = VK_NULL_HANDLE;
  uint64_t address_ = 0;
  std::byte* mapped_ = nullptr;
};

/// Allocates blocks of memory that shaders can access. Small blocks share buffers, because drivers support only a few thousand
/// allocations. A buffer is freed together with its last block. Thread-safe.
class Heap {
 public:
  static constexpr size_t kAlignment = 64;

  /// @param use  Buffer::For::device or Buffer::For::host
  Heap(const Connection& connection, Buffer::For use);
  ~Heap();

  /// Allocates a block. @return its device address, a multiple of kAlignment. @throws OutOfMemory
  uint64_t allocate(size_t size_bytes);
  void free(uint64_t address, size_t size_bytes) noexcept;

  /// The buffer that contains an address, and the offset of the address in this buffer.
  struct Place {
    VkBuffer buffer;
    VkDeviceSize offset;
    uint64_t buffer_id;
  };
  /// Returns the buffer that contains the `size_bytes` bytes at an address; nullopt if no buffer contains all of them.
  std::optional<Place> find(uint64_t address, size_t size_bytes) const;
  /// Returns how many bytes are free, including unused ranges of buffers. Considers what the driver reports and the size of the device's
  /// memory. Allocating a block of this size may still fail, because free ranges may be too small.
  size_t room_bytes() const;
  /// Returns how many bytes are in use by blocks.
  size_t used_bytes() const;
  /// Returns true if the address is in the buffer with this id (Place::buffer_id) and this buffer has not been freed.
  bool is_in(uint64_t address, uint64_t buffer_id) const;

 private:
  struct Slab {
    std::unique_ptr<Buffer> buffer;
    std::map<size_t, size_t> free;  ///< sizes of free ranges by offset, in bytes; adjacent ranges are merged
  };
  static uint64_t take(Slab& slab, size_t size_bytes);
  std::string held() const;  ///< describes the memory in use, for error messages
  size_t buffer_bytes() const;
  size_t unused_bytes() const;

  const Connection& connection_;
  const Buffer::For use_;
  const size_t slab_bytes_;  // size of a buffer that small blocks share
  mutable std::mutex mutex_;
  std::map<uint64_t, Slab> slabs_;  ///< by the address of the first byte
};

}  // namespace treadle::vulkan
