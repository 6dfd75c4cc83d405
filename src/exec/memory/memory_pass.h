// The interface through which a run asks for memory if its session or job has a limit.
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

/// The bytes of memory that a run needs to begin. Errors about a limit that is too low quote them.
struct MemoryNeed {
  size_t arena_bytes = 0;
  size_t output_bytes = 0;    ///< outputs that the run allocates when it begins
  size_t certain_bytes = 0;   ///< minimum of bytes that nodes allocate besides arena and outputs
  size_t possible_bytes = 0;  ///< maximum of bytes that nodes allocate besides arena and outputs
  std::string unbounded;      ///< describes a node whose results have no upper bound in size; empty: none
};

/// A run's access to limited memory. Each run has its own.
class MemoryPass {
 public:
  virtual ~MemoryPass() = default;
  /// Returns true if the run may reorder its nodes, because no caller stops it between two of them.
  virtual bool may_reorder() const = 0;
  /// Returns the size in bytes that the limits leave for the arena, after weights and outputs of the given size. SIZE_MAX: no limit.
  virtual size_t arena_capacity(size_t output_bytes) const = 0;
  /// Waits until this many more bytes are free. While the caller holds the returned lock, no other run can take them.
  /// @param later_bytes   bytes that the run's nodes will allocate; runs admitted later leave them free.
  /// @param interruption  ends this wait, and later waits of the run's nodes; its context must live as long as the run.
  /// @param let_go        frees the memory that the run holds, so that other runs need not wait for it. Called before waiting; returns
  ///   how many more bytes the run then needs.
  /// @throws Error(resource_exhausted) if no other run will free memory, or the error of `interruption`
  virtual std::unique_lock<std::mutex> admit(size_t bytes, size_t later_bytes, const sharing::Interruption& interruption,
                                             const std::function<size_t()>& let_go) = 0;
  /// Like admit(), without waiting. Returns nothing if the bytes are not free now.
  virtual std::optional<std::unique_lock<std::mutex>> admit_now(size_t bytes) = 0;
  /// Throws the error for a limit that is too low.
  /// @throws Error(resource_exhausted) naming the smallest limit with which the run could proceed
  [[noreturn]] virtual void refuse(const MemoryNeed& need) const = 0;
  /// Returns the context from which nodes allocate during the run. Null: the run's own context.
  virtual const AllocationContext* in_nodes() const { return nullptr; }
  /// Returns a number that changes whenever a limit changes.
  virtual uint64_t generation() const = 0;
  /// Returns the folder for files of spilled values.
  virtual std::string spill_folder() const = 0;
  /// Counts bytes that the run wrote to a file, read back, or moved within memory, and the time this took in ns.
  virtual void moved(size_t size_bytes, uint64_t took_ns) { (void)size_bytes, (void)took_ns; }
};

/// Returns the context that a run's nodes allocate from, for an AllocationScope around a node. @param pass  null: the run has no limit
inline const AllocationContext* context_in_nodes(const MemoryPass* pass) {
  const AllocationContext* own = pass ? pass->in_nodes() : nullptr;
  return own ? own : AllocationScope::current();
}

}  // namespace treadle::exec
