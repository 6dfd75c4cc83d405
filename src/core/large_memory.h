// Memory for what is large and lives long: the activations of a run, packed weights.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/memory_events.h"
#include "treadle/allocator.h"
#include "treadle/tensor.h"

namespace treadle {

/// As Storage::allocate; the contents are not set. From 2 MB on the memory comes straight from the system, in huge pages where it has them
/// (a page of 4 KB costs half a microsecond when it is first touched, and a large model touches some ten thousand). What runs let
/// go (activations, scratch) is kept for the next that asks, up to 128 MB; the system may take it whenever it is short of memory. Where a
/// scope has an allocator of its own, that one is asked. Weights, and what is packed of them, will be written whole: below 2 MB they have
/// their pages from the start.
/// @throws Error(resource_exhausted)
std::shared_ptr<Storage> allocate_large(size_t size_bytes);

/// Tensor::clone() in such memory. @pre no strings
Tensor clone_large(const Tensor& tensor);

/// A block of the same kind for one owner, who may make it larger or smaller while it keeps what is in it.
class LargeBlock {
 public:
  /// @throws Error(resource_exhausted)
  explicit LargeBlock(size_t size_bytes);
  ~LargeBlock();
  LargeBlock(const LargeBlock&) = delete;
  LargeBlock& operator=(const LargeBlock&) = delete;

  std::byte* data() const noexcept { return data_; }
  size_t size_bytes() const noexcept { return size_bytes_; }
  /// From 64 KB on, unless the scope in which it was made has an allocator of its own.
  bool can_resize() const noexcept { return !storage_ && !is_handed_over_; }
  /// Nothing is copied: pages change their place, or go back to the system. Data lies elsewhere then.
  /// @return false, and nothing has changed, if an account's limit or the system leaves no room, or if it cannot be resized at all.
  bool resize(size_t size_bytes) noexcept;
  /// Bytes from an offset on.
  struct Range {
    size_t offset, size_bytes;
  };
  /// The block is handed over: nobody is charged for it any more, and it cannot be resized. Pages that none of the ranges has a byte of go
  /// back to the system. @param ranges  are sorted
  void keep_only(std::span<Range> ranges) noexcept;

 private:
  size_t charged() const noexcept;

  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  bool is_handed_over_ = false;
  std::shared_ptr<Storage> storage_;        // what cannot be resized; null: pages of its own, which
  std::shared_ptr<MemoryAccount> account_;  // is charged for, if there is one
  MemoryClass class_ = MemoryClass::other;
  BlockRecord record_;
};

/// Gives what allocate_large() keeps for the next who asks back to the system.
void give_back_kept_memory();
/// Gives what is free in the C library's heap back to the system, holes between what is in use too, where the library
/// can: many small weights that were let go after packing leave such. Takes some tenths of a millisecond.
void give_back_free_memory();

}  // namespace treadle
