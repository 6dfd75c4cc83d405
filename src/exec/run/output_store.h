// Chooses the memory of a run's outputs, and hands them over. It may be memory that the caller has bound, memory of a feed that the output
// extends, memory of an earlier run, the arena, or new memory.
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

/// Returns the headroom, in bytes, for a state that grows by a row per run: half its size, so that reallocations become rare. A small
/// state that has grown before gets more, as fresh uncached pages cost a run more than copying the state.
size_t room_to_grow(size_t needed_bytes, bool has_grown);
/// True if the elements of `part` are the first of `whole`, in the order in which they lie in memory.
bool is_prefix(const Shape& part, const Shape& whole);

class OutputStore {
 public:
  /// @param state  the run's; must outlive the store
  explicit OutputStore(RunState& state) : state_(state) {}

  /// Called at the start of a run.
  /// @param bound        by output: memory that the caller has bound it to; undefined: none
  /// @param memory       by output: the caller's wishes for its memory
  /// @param keeps_feeds  feeds may be read until the run's end, so that no output may overwrite them
  void begin(std::span<const Datum> bound, std::span<const OutputMemory> memory, bool keeps_feeds);
  /// Gives memory to all outputs whose extents are known before the run.
  /// @param by_readiness  the run wants to go by readiness: then no output is placed beside a feed, because that requires the program's
  /// order
  /// @throws Error(invalid_argument) if an output is bound to memory of another dtype or shape
  void place(const RunControl& control, bool by_readiness);
  /// Returns the bytes that place() will allocate.
  size_t bytes_to_allocate() const;
  /// Returns true if an output overwrites a feed that only the program's order guarantees to be read before. The run then cannot go by
  /// readiness.
  bool needs_order() const { return needs_order_; }
  /// Returns true if the caller has bound memory for an output with this root.
  bool is_bound(SlotId root) const;
  /// Returns true if every output that is bound to bytes of a feed is bound to the whole feed.
  bool is_bound_to_whole_feeds() const;
  /// Returns true if outputs are bound to feeds' bytes only as next versions (program/next_versions.h), each to the whole of its own feed.
  bool binds_next_versions() const;

  /// Returns an output during the run, in memory as the caller wants it (OutputMemory).
  Datum output(size_t k) const { return where_wanted(k, value(k)); }
  /// Hands over all outputs at the run's end. @throws Error(invalid_argument) if a bound output has another dtype or shape than its memory
  void hand_over(std::span<Datum> outputs);
  /// Called after an error: moves rows of feeds back that instructions before `end` have moved within the feeds' memory.
  void restore_feeds(InstructionId end);
  void clear() noexcept;

 private:
  static constexpr InstructionId kBehindAll{INT32_MAX};
  // The instructions that access the bytes of a root.
  struct Touched {
    InstructionId made_at = kBehindAll;         // the first that writes them
    InstructionId read_until = kNoInstruction;  // the last that reads them; kBehindAll: an instruction may keep the value after its end
    std::vector<InstructionId> readers;         // for a feed: all instructions that read it, ascending
  };

  bool is_of(size_t output, SlotId root) const;
  bool is_handed_over(SlotId root) const;  // an output consists of these bytes, so that they must not be overwritten
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
  std::vector<Datum> bound_;          // memory that the caller has bound, by output
  std::vector<OutputMemory> memory_;  // the caller's wishes, by output
  struct FedBytes {
    const std::byte *begin, *end, *furthest;  // `furthest`: maximum of `end` over this feed and all feeds before it
    SlotId input;
  };
  std::vector<FedBytes> fed_;                       // sorted by address; empty if no output is bound
  IdVector<SlotId, Touched> touched_;               // by root; filled in when an output is first bound
  mutable IdVector<SlotId, SlotId> next_versions_;  // by slot; filled in when an output is first bound to a feed
  bool keeps_feeds_ = false, needs_order_ = false;
  std::list<Slide> slides_;                                   // one Slide per feed and output that may share memory
  std::vector<std::pair<const Slide*, std::byte*>> sliding_;  // the Slides used in this run, with the addresses of their feeds
};

}  // namespace treadle::exec
