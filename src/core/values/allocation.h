// Selects the allocator and account that Storage::allocate() uses: those of the thread's innermost AllocationScope.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "core/trace/memory_events.h"
#include "treadle/allocator.h"
#include "treadle/tensor.h"

namespace treadle {

/// Frees memory for a node's allocation that would exceed a limit.
class MemoryRoom {
 public:
  /// Makes memory available, and charges the account. @return true if the account has been charged; false if no memory could be freed.
  /// @throws the run's error, if the run ends in the meantime
  virtual bool charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) = 0;

 protected:
  ~MemoryRoom() = default;
};

/// The allocator and account that a session, a job or a run uses.
struct AllocationContext {
  std::shared_ptr<Allocator> allocator;    ///< null means the system's allocator
  std::shared_ptr<MemoryAccount> account;  ///< null: no account is charged
  MemoryRoom* room = nullptr;              ///< frees memory when a limit is reached; null: exceeding a limit is an error at once

  /// Charges the account, if there is one. @throws Error(resource_exhausted) as MemoryAccount::charge()
  void charge(MemoryClass memory_class, size_t size_bytes) const;
};

/// While an object lives, Storage::allocate() on this thread takes memory from `context` and charges it under `memory_class`. Scopes nest.
/// Blocks keep the allocator and account alive, and may be freed from any thread.
class AllocationScope {
 public:
  /// @param context  must outlive the scope; null: memory is allocated as if there were no scope
  AllocationScope(const AllocationContext* context, MemoryClass memory_class) noexcept;
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;

  /// Returns the thread's innermost context; null outside of scopes.
  static const AllocationContext* current() noexcept;
  static MemoryClass current_class() noexcept;
  /// Returns the bytes that this thread has allocated in scopes so far.
  static size_t allocated_bytes() noexcept;
  static void count_allocation(size_t size_bytes) noexcept;

 private:
  const AllocationContext* context_before_;
  MemoryClass class_before_;
};

/// Called when memory leaves the library: the account is no longer charged for the block, though it lives on. Does nothing if no account is
/// charged for it.
void hand_over(const std::shared_ptr<Storage>& storage) noexcept;
/// Charges the account of a string tensor for the present texts, instead of those at the previous call. Does nothing for other tensors, or
/// if no account is charged for the elements. @throws Error(resource_exhausted) as MemoryAccount::charge()
void charge_texts(const Tensor& tensor);
/// Returns the allocator that a block came from; null if no scope provided one.
const Allocator* allocator_of(const std::shared_ptr<Storage>& storage) noexcept;
/// Returns the account that is charged for a block; null if none is.
const MemoryAccount* account_of(const std::shared_ptr<Storage>& storage) noexcept;

/// Throws the error that tells the user to raise a limit: "the memory limit of 1000 bytes of the session is too low: this run needs at
/// least 2000, of which …". Records the refusal.
/// @param asker    the account to be charged; the limit belongs to it or to a parent
/// @param whose    name of the account with the limit.
/// @param details  text that follows the bytes: ", of which …"
[[noreturn]] void throw_limit_too_low(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t least_bytes,
                                      std::string_view details);
/// Throws the error for a limit that is reached because much memory is in use: "the memory limit of 1000 bytes of the session leaves no 200
/// bytes for io: 900 are in use; …".
[[noreturn]] void throw_limit_reached(const MemoryAccount* asker, size_t limit_bytes, std::string_view whose, size_t size_bytes,
                                      std::string_view what, size_t used_bytes, std::string_view details);

/// While an object lives, it charges an account for memory that Storage::allocate() did not make.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  /// @throws Error(resource_exhausted) as MemoryAccount::charge()
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
