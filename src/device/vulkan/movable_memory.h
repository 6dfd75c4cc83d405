// Memory whose contents can move between the device's memory and the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/vulkan/heap.h"

namespace treadle::vulkan {

/// Allocates ranges of virtual addresses, and maps each part of them to the memory that contains its contents. A part is a range that was
/// passed to reserve(), reach() or keep_on_host(); its contents move together. Thread-safe.
///
/// Shaders need addresses in buffers. With sparse buffers, such an address could stay the same when contents move, but few drivers can bind
/// sparse buffers to host memory. So the executor asks for the current address before each step of the program (Bus::reach).
class MovableMemory {
 public:
  /// The first virtual address. Addresses from here to twice this number cannot occur on devices, whose addresses have 48 or 57 bits and
  /// are sign-extended.
  static constexpr uint64_t kFirst = uint64_t{1} << 60;

  MovableMemory(const Connection& connection, Heap& on_device, Heap& on_host)
      : connection_(connection), on_device_(on_device), on_host_(on_host) {}
  MovableMemory(const MovableMemory&) = delete;
  MovableMemory& operator=(const MovableMemory&) = delete;

  /// @throws OutOfMemory
  uint64_t allocate(size_t size_bytes);
  /// Frees a range of virtual addresses, and the memory of all parts in it.
  void free(uint64_t address, size_t size_bytes) noexcept;

  /// Allocates device memory for a part. @return false if the device has too little memory
  bool reserve(uint64_t address, size_t size_bytes);
  void unreserve(uint64_t address, size_t size_bytes) noexcept;
  /// Reserves device memory that has no virtual address, such as that of packed weights. Only counts the bytes. @return false if the device
  /// has too little memory
  bool reserve(size_t size_bytes);
  void unreserve(size_t size_bytes) noexcept;
  /// discard() frees a part's memory on the host, forget() that on host and device. Both do nothing if there is no such part.
  void discard(uint64_t address, size_t size_bytes) noexcept;
  void forget(uint64_t address, size_t size_bytes) noexcept;
  /// See Bus::keep_on_host.
  void keep_on_host(uint64_t address, size_t size_bytes);

  /// Returns the address at which shaders find the contents: in the device's memory if the part has memory there and does not leave it,
  /// otherwise in the host's memory, which is allocated if the part has none. Returns addresses that allocate() has not given out
  /// unchanged. @throws OutOfMemory
  uint64_t reach(uint64_t address, size_t size_bytes);
  /// Like reach(), but for any range of bytes within a part, and without allocating memory.
  /// @throws Error(internal) if the part has no memory
  uint64_t find(uint64_t address, size_t size_bytes);

  /// Describes the copy that the caller must perform for a move. If none is needed, all addresses are 0.
  struct Copy {
    uint64_t to = 0, from = 0;
    size_t size_bytes = 0;
    uint64_t free_on_host = 0;  ///< address of host memory to free when the copy is done; 0: none
  };
  /// Moves a part to the device. @pre reserve() has been called for the part
  Copy move_to_device(uint64_t address, size_t size_bytes);
  /// The part keeps its memory on the device until unreserve(), which is called when the copy is done, but its contents are found on the
  /// host at once. @param unchanged  true if a copy that the host has kept is valid, so that
  /// nothing has to be copied
  /// @throws OutOfMemory
  Copy move_to_host(uint64_t address, size_t size_bytes, bool unchanged);

 private:
  struct Part {
    size_t size_bytes = 0;
    uint64_t device = 0, host = 0;  // addresses of the part's device and host memory; 0: it has none
    bool keeps_host = false;
    bool leaves_device = false;  // true from move_to_host() until unreserve()

    bool is_on_device() const { return device != 0 && !leaves_device; }
  };
  using Parts = std::map<uint64_t, Part>;

  Parts::iterator containing(uint64_t address, size_t size_bytes);
  Part& part(uint64_t address, size_t size_bytes);
  uint64_t present(uint64_t address, size_t size_bytes);
  void release(Part& part, bool device, bool host) noexcept;

  const Connection& connection_;
  Heap &on_device_, &on_host_;
  std::mutex mutex_;
  Parts parts_;  // by virtual address
  uint64_t next_ = kFirst;
  size_t counted_bytes_ = 0;  // bytes that are reserved without an address
};

}  // namespace treadle::vulkan
