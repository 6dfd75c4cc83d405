// Memory whose contents move between the device's memory and the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/vulkan/heap.h"

namespace treadle::vulkan {

/// Gives out addresses that no memory has, and remembers in which memory the contents of each part lie. A part is what reserve() and
/// reach() name: its contents move as a whole. Thread-safe.
///
/// Shaders need the addresses of buffers. Sparse buffers would let contents keep such an address when they move, but few drivers can bind
/// them to the host's memory. So the executor asks for the present address before each step (Bus::reach).
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

  /// Makes memory on the device for the part. @return false if there is too little
  bool reserve(uint64_t address, size_t size_bytes);
  void unreserve(uint64_t address, size_t size_bytes) noexcept;
  /// Counts bytes that have no address. @return false if the device does not have so many
  bool reserve(size_t size_bytes);
  void unreserve(size_t size_bytes) noexcept;
  /// Frees the host's memory of the part, or (forget) all of it. Does nothing if the part is not known.
  void discard(uint64_t address, size_t size_bytes) noexcept;
  void forget(uint64_t address, size_t size_bytes) noexcept;
  /// See Bus::keep_on_host.
  void keep_on_host(uint64_t address, size_t size_bytes);

  /// Returns where the contents are: on the device if the part has memory there, otherwise in the host's memory, which is made if need be.
  /// Other addresses are returned as they are. @throws OutOfMemory
  uint64_t reach(uint64_t address, size_t size_bytes);
  /// The same for any bytes of a part that has memory. @throws Error(internal) if it has none
  uint64_t find(uint64_t address, size_t size_bytes);

  /// What has to be copied for a move. Addresses are 0 if nothing has.
  struct Copy {
    uint64_t to = 0, from = 0;
    size_t size_bytes = 0;
    uint64_t free_on_host = 0;  ///< to be freed when the copy is done
  };
  /// @pre reserve() has been called for the part
  Copy move_to_device(uint64_t address, size_t size_bytes);
  /// The part keeps its memory on the device until unreserve(). @param unchanged  a copy that the host has kept is valid
  /// @throws OutOfMemory
  Copy move_to_host(uint64_t address, size_t size_bytes, bool unchanged);

 private:
  struct Part {
    size_t size_bytes = 0;
    uint64_t device = 0, host = 0;  // addresses of its memory; 0: none
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
  Parts parts_;  // by address
  uint64_t next_ = kFirst;
  size_t counted_bytes_ = 0;  // without an address
};

}  // namespace treadle::vulkan
