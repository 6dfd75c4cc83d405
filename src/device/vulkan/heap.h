// Memory of a Vulkan device, by addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/vulkan/connection.h"

namespace treadle::vulkan {

/// Memory with one VkBuffer over all of it.
class Buffer {
 public:
  enum class For : uint8_t { device, upload, download, shared };
  /// @param use  device: memory of the device; the others: mapped memory of the host, for uploads, downloads, or (shared) shaders as well
  /// @throws OutOfMemory
  Buffer(const Connection& connection, size_t size_bytes, For use);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  VkBuffer handle() const { return handle_; }
  uint64_t id() const { return id_; }  ///< no other buffer of the process has ever had it
  size_t size_bytes() const { return size_bytes_; }
  uint64_t address() const { return address_; }  ///< on the device; for device and shared memory only
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

/// Blocks of device memory. Small blocks share a buffer, because drivers support only some thousand allocations. Thread-safe.
class Heap {
 public:
  static constexpr size_t kAlignment = 64;

  explicit Heap(const Connection& connection) : connection_(connection) {}
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
  /// @throws Error(internal) unless all `size_bytes` from the address on lie in one block's buffer.
  Place find(uint64_t address, size_t size_bytes) const;
  /// True if the address still lies in this buffer (Place::buffer_id).
  bool is_in(uint64_t address, uint64_t buffer_id) const;

 private:
  struct Slab {
    std::unique_ptr<Buffer> buffer;
    std::map<size_t, size_t> free;  ///< offset → bytes of free ranges; neighbours are merged
  };
  static uint64_t take(Slab& slab, size_t size_bytes);
  std::string held() const;  ///< describes the memory in use, for errors

  const Connection& connection_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Slab> slabs_;  ///< by address of the first byte
};

}  // namespace treadle::vulkan
