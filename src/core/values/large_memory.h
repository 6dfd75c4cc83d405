// Memory for large, long-lived blocks: activations of a run, packed weights.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/trace/memory_events.h"
#include "treadle/allocator.h"
#include "treadle/tensor.h"

namespace treadle {

/// Like Storage::allocate(), uninitialized. Maps blocks of 2 MB and more directly, in huge pages if possible, because the first touch of a
/// 4 KB page takes 0.5 microseconds. Keeps up to 128 MB that runs release (activations, scratch) for later requests; the system may reclaim
/// it if memory is short. Uses the allocator of the thread's AllocationScope if it has one. Populates weights below 2 MB at once, as they
/// will be written completely.
/// @throws Error(resource_exhausted)
std::shared_ptr<Storage> allocate_large(size_t size_bytes);

/// Like Tensor::clone(), with memory from allocate_large(). @pre the elements are no strings
Tensor clone_large(const Tensor& tensor);

/// A large block that its only owner can resize without losing the contents.
class LargeBlock {
 public:
  /// Allocates a block. @throws Error(resource_exhausted)
  explicit LargeBlock(size_t size_bytes);
  ~LargeBlock();
  LargeBlock(const LargeBlock&) = delete;
  LargeBlock& operator=(const LargeBlock&) = delete;

  std::byte* data() const noexcept { return data_; }
  size_t size_bytes() const noexcept { return size_bytes_; }
  /// True for blocks of 64 KB and more, unless they came from an AllocationScope's allocator or were handed over.
  bool can_resize() const noexcept { return !storage_ && !is_handed_over_; }
  /// Resizes the block without copying: pages are remapped or returned to the system, so the address may change.
  /// @return false, without any change, if an account's limit or the system does not allow it, or the block cannot be resized
  bool resize(size_t size_bytes) noexcept;
  /// A range of bytes in the block.
  struct Range {
    size_t offset, size_bytes;
  };
  /// Ends the accounting of the block, when it gets a new owner: no account is charged for it any more, and it cannot be resized. Pages
  /// outside the ranges are returned to the system. @param ranges  get sorted
  void keep_only(std::span<Range> ranges) noexcept;

 private:
  size_t charged() const noexcept;

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool is_handed_over_ = false;
  std::shared_ptr<Storage> storage_;        // a block that cannot be resized; null: the block maps its own pages
  std::shared_ptr<MemoryAccount> account_;  // account charged for pages that the block maps itself; null: none
  MemoryClass class_ = MemoryClass::other;
  BlockRecord record_;
};

/// Gives the memory that allocate_large() keeps back to the system.
void give_back_kept_memory();
/// Gives free memory of the C library's heap back to the system, including holes between used blocks, if the library can. Freed weights
/// leave many holes after packing. Takes some tenths of a millisecond.
void give_back_free_memory();

}  // namespace treadle
