// Which allocator and account Storage::allocate() uses: those of the innermost scope of the thread.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "core/memory_events.h"
#include "treadle/allocator.h"
#include "treadle/tensor.h"

namespace treadle {

/// Finds room for what a node of a run allocates where a limit has none.
class MemoryRoom {
 public:
  /// @return whether the account has been charged; false: there is no room. @throws what ends the run meanwhile
  virtual bool charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) = 0;

 protected:
  ~MemoryRoom() = default;
};

/// What a session, a job, or a run allocates from.
struct AllocationContext {
  std::shared_ptr<Allocator> allocator;    ///< null: the system's
  std::shared_ptr<MemoryAccount> account;  ///< null: nobody is charged
  MemoryRoom* room = nullptr;              ///< null: where a limit has no room, that is an error at once

  /// Charges the account, if there is one. @throws Error(resource_exhausted) as MemoryAccount::charge().
  void charge(MemoryClass memory_class, size_t size_bytes) const;
};

/// While it lives, Storage::allocate() on this thread takes memory from `context` and charges it under `memory_class`. Scopes nest.
/// The blocks keep allocator and account alive, and free themselves there from any thread.
class AllocationScope {
 public:
  /// @param context  must outlive the scope; null: as without a scope.
  AllocationScope(const AllocationContext* context, MemoryClass memory_class) noexcept;
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

  /// Of this thread; null without a scope.
  static const AllocationContext* current() noexcept;
  static MemoryClass current_class() noexcept;
  /// Bytes that this thread has allocated in scopes so far.
  static size_t allocated_bytes() noexcept;
  static void count_allocation(size_t size_bytes) noexcept;

 private:
  const AllocationContext* context_before_;
  MemoryClass class_before_;
};

/// Memory that leaves the library: its account is not charged with it any more, though the block lives on. Does nothing for memory that
/// nobody is charged for.
void hand_over(const std::shared_ptr<Storage>& storage) noexcept;
/// Charges the account of a tensor of strings with their texts, as they are now; it is no longer charged with those of before. Does nothing
/// for other tensors, and where nobody is charged for the strings themselves. @throws Error(resource_exhausted) as MemoryAccount::charge().
void charge_texts(const Tensor& tensor);
/// The allocator that a block came from; null where no scope gave one.
const Allocator* allocator_of(const std::shared_ptr<Storage>& storage) noexcept;
/// The account that is charged for a block; null if there is none.
const MemoryAccount* account_of(const std::shared_ptr<Storage>& storage) noexcept;

/// What every limit of memory says where only a larger one helps: "the memory limit of 1000 bytes of the session is too low: this run needs
/// at least 2000, of which …". Leaves a record of the refusal.
/// @param asker    the account that was to be charged; the limit is its own, or of one above it
/// @param whose    as the name of an account. @param details  behind the bytes: ", of which …"
[[noreturn]] void throw_limit_too_low(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t least_bytes,
                                      std::string_view details);
/// And where others have what is wanted: "the memory limit of 1000 bytes of the session leaves no 200 bytes for io: 900 are in use; …".
[[noreturn]] void throw_limit_reached(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t size_bytes,
                                      std::string_view what, size_t used_bytes, std::string_view details);

/// Bytes that an account is charged with while this lives: for memory that Storage::allocate() did not make.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  /// @throws Error(resource_exhausted) as MemoryAccount::charge().
  MemoryCharge(std::shared_ptr<MemoryAccount> account, MemoryClass memory_class, size_t size_bytes);
  ~MemoryCharge() { reset(); }
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(class_, other.class_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(record_, other.record_);
    return *this;
  }
  size_t size_bytes() const noexcept { return size_bytes_; }
  void reset() noexcept;

 private:
  std::shared_ptr<MemoryAccount> account_;
  MemoryClass class_ = MemoryClass::other;
  size_t size_bytes_ = 0;
  BlockRecord record_;
};

}  // namespace treadle
