// Memory of a Vulkan device, by addresses.
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

/// Memory with one VkBuffer over all of it.
class Buffer {
 public:
  enum class For : uint8_t { device, upload, download, shared, host };
  /// @param use  device: memory of the device; the others: mapped memory of the host, for uploads, downloads, or shaders as well (shared:
  ///   read by the host; host: large, apart from the device's memory if it has its own)
  /// @throws OutOfMemory
  Buffer(const Connection& connection, size_t size_bytes, For use);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  VkBuffer handle() const { return handle_; }
  uint64_t id() const { return id_; }  ///< no other buffer of the process has ever had it
  size_t size_bytes() const { return size_bytes_; }
  uint64_t address() const { return address_; }  ///< on the device; for device, shared and host memory only
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

/// Blocks of memory that shaders reach. Small blocks share a buffer, because drivers support only some thousand allocations. A buffer is
/// freed with its last block. Thread-safe.
class Heap {
 public:
  static constexpr size_t kAlignment = 64;

  /// @param use  Buffer::For::device or Buffer::For::host
  Heap(const Connection& connection, Buffer::For use);
  ~Heap();

  /// @return the address of a block, at a multiple of kAlignment. @throws OutOfMemory
  uint64_t allocate(size_t size_bytes);
  void free(uint64_t address, size_t size_bytes) noexcept;

  /// The buffer that contains an address, and the address's offset in it.
  struct Place {
    VkBuffer buffer;
    VkDeviceSize offset;
    uint64_t buffer_id;
  };
  /// Returns nothing unless all `size_bytes` from the address on lie in one block's buffer.
  std::optional<Place> find(uint64_t address, size_t size_bytes) const;
  /// Returns how many bytes the device has free for this process, as far as is known. Large blocks may find less.
  size_t room_bytes() const;
  /// True if the address still lies in this buffer (Place::buffer_id).
  bool is_in(uint64_t address, uint64_t buffer_id) const;

 private:
  struct Slab {
    std::unique_ptr<Buffer> buffer;
    std::map<size_t, size_t> free;  ///< offset → bytes of free ranges; neighbours are merged
  };
  static uint64_t take(Slab& slab, size_t size_bytes);
  std::string held() const;  ///< describes the memory in use, for errors
  size_t buffer_bytes() const;
  size_t unused_bytes() const;

  const Connection& connection_;
  const Buffer::For use_;
  const size_t slab_bytes_;  // size of a buffer for small blocks
  mutable std::mutex mutex_;
  std::map<uint64_t, Slab> slabs_;  ///< by address of the first byte
};

}  // namespace treadle::vulkan
