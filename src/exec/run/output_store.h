// Chooses the memory of a run's outputs, and hands the outputs to the caller. The memory may be bound by the caller, belong to a feed that
// the output extends, come from an earlier run or from the arena, or be new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "exec/run/run_control.h"
#include "exec/run/run_state.h"
#include "exec/run/slide.h"

namespace treadle::exec {

/// Returns how many extra bytes to allocate for a state that grows by a row per run: half its size, so that it is rarely reallocated. A
/// small state that has grown before gets more, because new pages, not yet in the cache, cost more time than copying the state.
size_t room_to_grow(size_t needed_bytes, bool has_grown);
/// Returns true if the elements of `part` are the first elements of `whole` in memory.
bool is_prefix(const Shape& part, const Shape& whole);

class OutputStore {
 public:
  /// @param state  the state of the run; must outlive the store
  explicit OutputStore(RunState& state) : state_(state) {}

  /// Called at the start of a run.
  /// @param bound        for each output, the memory that the caller has bound to it; undefined: none
  /// @param memory       for each output, the kind of memory that the caller wants
  /// @param keeps_feeds  true if feeds may be read until the run's end; then no output may overwrite them
  void begin(std::span<const Datum> bound, std::span<const OutputMemory> memory, bool keeps_feeds);
  /// Gives memory to all outputs whose extents are known before the run.
  /// @param by_readiness  true for a parallel run: no output is placed next to the feed that it extends, which requires the program's
  ///   order
  /// @throws Error(invalid_argument) if an output is bound to memory of another dtype or shape
  void place(const RunControl& control, bool by_readiness);
  /// Returns the bytes that place() will allocate.
  size_t bytes_to_allocate() const;
  /// Returns true if an output overwrites a feed, and only the program's order ensures that the feed is read before. Then the run cannot
  /// use parallel execution.
  bool needs_order() const { return needs_order_; }
  /// Returns true if the caller has bound memory to an output that shares the bytes of this root, a slot with bytes of its own.
  bool is_bound(SlotId root) const;
  /// Returns true if every output that is bound to memory of a feed is bound to exactly the whole feed.
  bool is_bound_to_whole_feeds() const;
  /// Returns true if outputs are bound to memory of feeds only as their next versions (program/next_versions.h), each to the whole feed.
  bool binds_next_versions() const;

  /// Returns an output during the run, in the kind of memory that the caller wants (OutputMemory).
  Datum output(size_t k) const { return where_wanted(k, value(k)); }
  /// Hands all outputs to the caller at the run's end. @throws Error(invalid_argument) if an output does not fit its bound memory
  void hand_over(std::span<Datum> outputs);
  /// Called after an error. Instructions before `end` may have moved rows of feeds within the feeds' memory; moves these rows back.
  void restore_feeds(InstructionId end);
  void clear() noexcept;

 private:
  static constexpr InstructionId kBehindAll{INT32_MAX};
  // The instructions that access the bytes of a root slot (a slot with bytes of its own), also through its views.
  struct Touched {
    InstructionId made_at = kBehindAll;         // the first instruction that writes them
    InstructionId read_until = kNoInstruction;  // the last instruction that reads them; kBehindAll: an instruction may keep the value
    std::vector<InstructionId> readers;         // for a feed: all instructions that read it, ascending
  };

  bool is_of(size_t output, SlotId root) const;
  bool is_handed_over(SlotId root) const;  // true if an output consists of these bytes, which must then not be overwritten
  Tensor in_bound_memory(SlotId slot) const;
  void find_fed_bytes();
  IdVector<SlotId, Touched> find_touched() const;
  template <typename F>
  bool any_feed_in(const Tensor& memory, F f) const;
  bool may_be_made_in(SlotId slot, const Tensor& memory) const;
  bool may_take_over(SlotId slot, SlotId input) const;
  bool is_ordered_by_readiness(SlotId slot, const Tensor& memory) const;
  Datum apart_from_feeds(Datum value) const;
  Tensor beside_feed(SlotId slot, const RunControl& control);
  Tensor in_arena(size_t preallocated) const;
  Tensor in_own_memory(SlotId slot) const;
  Datum value(size_t k) const;
  Datum where_wanted(size_t k, Datum value) const;
  void verify_over_feeds() const;

  RunState& state_;
  std::vector<Datum> bound_;          // for each output, the memory that the caller has bound to it
  std::vector<OutputMemory> memory_;  // for each output, the kind of memory that the caller wants
  struct FedBytes {
    const std::byte *begin, *end, *furthest;  // `furthest`: maximum of `end` over this feed and all feeds before it
    SlotId input;
  };
  std::vector<FedBytes> fed_;                       // sorted by address; empty if no output is bound
  IdVector<SlotId, Touched> touched_;               // for each slot with its own bytes; filled in when an output is first bound
  mutable IdVector<SlotId, SlotId> next_versions_;  // for each slot; filled in when an output is first bound to a feed
  bool keeps_feeds_ = false, needs_order_ = false;
  std::list<Slide> slides_;                                   // one for each pair of feed and output that may share memory
  std::vector<std::pair<const Slide*, std::byte*>> sliding_;  // those used in this run, with the addresses of their feeds
};

}  // namespace treadle::exec
