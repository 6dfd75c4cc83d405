// Memory whose contents move between the device's memory and the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/vulkan/heap.h"

namespace treadle::vulkan {

/// Gives out addresses without memory, and stores for each part of them in which memory its contents are. A part is a range of addresses
/// that reserve(), reach() or keep_on_host() is called with; its contents move as a whole. Thread-safe.
///
/// Shaders need the addresses of buffers. Sparse buffers would let contents keep such an address when they move, but few drivers can bind
/// them to the host's memory. So the executor asks before each step where the contents are now (Bus::reach).
class MovableMemory {
 public:
  /// The first address. No device has memory from here to twice this number, as such addresses are not sign-extended from 48 or 57 bits.
  static constexpr uint64_t kFirst = uint64_t{1} << 60;

  MovableMemory(const Connection& connection, Heap& on_device, Heap& on_host)
      : connection_(connection), on_device_(on_device), on_host_(on_host) {}
  MovableMemory(const MovableMemory&) = delete;
  MovableMemory& operator=(const MovableMemory&) = delete;

  /// @throws OutOfMemory
  uint64_t allocate(size_t size_bytes);
  /// Frees the addresses and the memory of all contents.
  void free(uint64_t address, size_t size_bytes) noexcept;

  /// Allocates memory on the device for the part. @return false if there is too little
  bool reserve(uint64_t address, size_t size_bytes);
  void unreserve(uint64_t address, size_t size_bytes) noexcept;
  /// Reserves bytes on the device for memory that has no address here, such as packed weights. Only counts them. @return false if the
  /// device has too few free bytes
  bool reserve(size_t size_bytes);
  void unreserve(size_t size_bytes) noexcept;
  /// discard() frees the part's memory on the host, forget() its memory on the host and on the device. Both do nothing if there is no such
  /// part.
  void discard(uint64_t address, size_t size_bytes) noexcept;
  void forget(uint64_t address, size_t size_bytes) noexcept;
  /// See Bus::keep_on_host.
  void keep_on_host(uint64_t address, size_t size_bytes);

  /// Returns the address at which shaders find the contents: in the device's memory if the part has memory there, otherwise in the host's
  /// memory, which is allocated if the part has none. Returns addresses that allocate() has not given out unchanged. @throws OutOfMemory
  uint64_t reach(uint64_t address, size_t size_bytes);
  /// Returns the address at which shaders find these bytes, like reach(), but for any bytes within a part. Allocates nothing.
  /// @throws Error(internal) if the part has no memory
  uint64_t find(uint64_t address, size_t size_bytes);

  /// The copy that a move needs. If it needs none, all addresses are 0.
  struct Copy {
    uint64_t to = 0, from = 0;
    size_t size_bytes = 0;
    uint64_t free_on_host = 0;  ///< address of host memory to free when the copy is done; 0: none
  };
  /// @pre reserve() has been called for the part
  Copy move_to_device(uint64_t address, size_t size_bytes);
  /// The part keeps its memory on the device until unreserve(). @param unchanged  true if a copy that the host has kept is valid, so that
  /// nothing has to be copied
  /// @throws OutOfMemory
  Copy move_to_host(uint64_t address, size_t size_bytes, bool unchanged);

 private:
  struct Part {
    size_t size_bytes = 0;
    uint64_t device = 0, host = 0;  // addresses of the part's memory on the device and on the host; 0: none
    bool keeps_host = false;
  };
  using Parts = std::map<uint64_t, Part>;

  Parts::iterator containing(uint64_t address, size_t size_bytes);
  Part& part(uint64_t address, size_t size_bytes);
  uint64_t present(uint64_t address, size_t size_bytes);
  void release(Part& part, bool device, bool host) noexcept;

  const Connection& connection_;
  Heap &on_device_, &on_host_;
  std::mutex mutex_;
  Parts parts_;  // the parts by their first address
  uint64_t next_ = kFirst;
  size_t counted_bytes_ = 0;  // bytes that reserve() has counted without an address
};

}  // namespace treadle::vulkan
