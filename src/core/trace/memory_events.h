// Records of memory blocks, for profiles that ask for them: who allocated a block, its size and purpose, and when it was freed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/trace/recorder.h"
#include "treadle/allocator.h"

namespace treadle {

/// While this object exists, blocks allocated by this thread are attributed to `name`: the id of a node's name, or of an interned text.
/// Scopes nest.
class MemoryHolder {
 public:
  explicit MemoryHolder(uint32_t name) noexcept : before_(name_) { name_ = name; }
  ~MemoryHolder() { name_ = before_; }
  MemoryHolder(const MemoryHolder&) = delete;
  MemoryHolder& operator=(const MemoryHolder&) = delete;

  static constexpr uint32_t kNobody = UINT32_MAX;
  static uint32_t name() noexcept { return name_; }

 private:
  static thread_local constinit uint32_t name_;
  uint32_t before_;
};

/// Records allocation and release of one block. Each block has a unique number, since addresses are used again; the number is 0 if nothing
/// was recorded when the block was allocated.
class BlockRecord {
 public:
  void taken(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) noexcept {
    if (RecordWindow::any_for_memory() && account) [[unlikely]]
      write_taken(account, memory_class, size_bytes);
  }
  void given_back(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) const noexcept {
    if (RecordWindow::any_for_memory() && account) [[unlikely]]
      write_given_back(account, memory_class, size_bytes);
  }
  static void refused(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) noexcept;

  /// Packs block number and class into a record's second argument.
  static int64_t pack(uint64_t number, MemoryClass memory_class) {
    return static_cast<int64_t>(number << 4U | static_cast<uint64_t>(memory_class));
  }
  static uint64_t number_of(int64_t packed) { return static_cast<uint64_t>(packed) >> 4U; }
  static MemoryClass class_of(int64_t packed) { return static_cast<MemoryClass>(packed & 15); }

 private:
  void write_taken(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) noexcept;
  void write_given_back(const MemoryAccount* account, MemoryClass memory_class, size_t size_bytes) const noexcept;

  uint64_t number_ = 0;
};

}  // namespace treadle
