// How a run asks for memory where a session or a job has a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "core/values/allocation.h"
#include "sharing/turn.h"

namespace treadle::exec {

/// The memory that a run needs in order to begin, in bytes. An error quotes it where a limit is too low.
struct MemoryNeed {
  size_t arena_bytes = 0;
  size_t output_bytes = 0;    ///< outputs that the run allocates when it begins
  size_t certain_bytes = 0;   ///< beside arena and outputs, with every size at its smallest
  size_t possible_bytes = 0;  ///< beside arena and outputs, with every size at its largest
  std::string unbounded;      ///< describes a node whose values have no largest size; empty: there is none
};

/// A run's way into memory that has a limit. Every run has a pass of its own.
class MemoryPass {
 public:
  virtual ~MemoryPass() = default;
  /// True if the run may execute its nodes in another order than the program's, because nobody stops it between two of them.
  virtual bool may_reorder() const = 0;
  /// Returns how many bytes the limits leave for the arena, beside the weights and outputs of this size. SIZE_MAX: there is no limit.
  virtual size_t arena_capacity(size_t output_bytes) const = 0;
  /// Waits until so many bytes more are free. While the caller holds the lock, no other run can take them.
  /// @param later_bytes   that the run will allocate while its nodes run. Runs that are admitted after it leave them free.
  /// @param interruption  ends the wait, and later waits of the run's nodes; its context must live as long as the run.
  /// @param let_go        frees what the run holds, so that no waiting run holds memory that others wait for. It is called before the run
  ///                      waits, and returns how many bytes more the run needs then.
  /// @throws Error(resource_exhausted) if no other run will free memory, or what `interruption` throws
  virtual std::unique_lock<std::mutex> admit(size_t bytes, size_t later_bytes, const sharing::Interruption& interruption,
                                             const std::function<size_t()>& let_go) = 0;
  /// As admit(), for a run that can continue without the bytes: returns nothing if they are not free now.
  virtual std::optional<std::unique_lock<std::mutex>> admit_now(size_t bytes) = 0;
  /// @throws Error(resource_exhausted), which names the smallest limit that the run could keep to
  [[noreturn]] virtual void refuse(const MemoryNeed& need) const = 0;
  /// Nodes allocate from this context while the run is under way. Null: they allocate from the run's own.
  virtual const AllocationContext* in_nodes() const { return nullptr; }
  /// Returns a number that changes whenever a limit changes.
  virtual uint64_t generation() const = 0;
  /// The folder for the file of spilled values.
  virtual std::string spill_folder() const = 0;
  /// Counts bytes that the run wrote to a file, read back, or moved within memory, and the time that this took.
  virtual void moved(size_t size_bytes, uint64_t took_ns) { (void)size_bytes, (void)took_ns; }
};

/// The context for an AllocationScope around a node. @param pass  null: the run has no limit
inline const AllocationContext* context_in_nodes(const MemoryPass* pass) {
  const AllocationContext* own = pass ? pass->in_nodes() : nullptr;
  return own ? own : AllocationScope::current();
}

}  // namespace treadle::exec
