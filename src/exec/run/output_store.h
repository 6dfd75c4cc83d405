// Where the outputs of a run are made: in memory that the caller has bound, beside or behind a feed that they grow from, in what an
// earlier run left, or in new memory; and how they are handed over.
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

class OutputStore {
 public:
  /// @param state  of which the outputs are; outlives the store.
  explicit OutputStore(RunState& state) : state_(state) {}

  /// What the caller wants of the run that begins: memory that outputs are bound to (undefined: none), and where others may be made.
  /// @param keeps_feeds  feeds are read until the run's end: nothing is written over them.
  void begin(std::span<const Datum> bound, std::span<const OutputMemory> memory, bool keeps_feeds);
  /// Makes all outputs whose extents are known before the run.
  /// @param by_readiness  how instructions run if all outputs allow it: none is made where only the program's order would.
  /// @throws Error(invalid_argument) for an output that is bound to another dtype or shape than it has.
  void place(const RunControl& control, bool by_readiness);
  /// Of the outputs that place() allocates.
  size_t bytes_to_allocate() const;
  /// Whether the run writes over bytes of its feeds, and nothing but the program's order has their readers come before.
  bool needs_order() const { return needs_order_; }
  /// Whether the caller has memory for an output that is the root.
  bool is_bound(SlotId root) const;
  /// Whether every output that is bound to fed bytes is bound to the whole of a feed.
  bool is_bound_to_whole_feeds() const;
  /// Whether no output is bound to fed bytes but next versions of feeds, each to the whole of its own.
  bool binds_next_versions() const;

  /// One of them while the run goes on, where the caller wants it: from its allocator, on its device.
  Datum output(size_t k) const { return where_wanted(k, value(k)); }
  /// @throws Error(invalid_argument) for an output that is bound to another dtype or shape than came out.
  void hand_over(std::span<Datum> outputs);
  /// After an error before the instruction `end`: feeds whose rows have been moved within their memory are as they were.
  void restore_feeds(InstructionId end);
  void clear() noexcept;

 private:
  static constexpr InstructionId kBehindAll{INT32_MAX};
  // Which instructions touch a root's bytes.
  struct Touched {
    InstructionId made_at = kBehindAll;         // the first that writes them
    InstructionId read_until = kNoInstruction;  // the last that reads them; kBehindAll: somebody may keep the value
    std::vector<InstructionId> readers;         // of a feed, ascending
  };

  bool is_of(size_t output, SlotId root) const;
  bool is_handed_over(SlotId root) const;  // the caller keeps the bytes: they stay as they are
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
  std::vector<Datum> bound_;          // per output
  std::vector<OutputMemory> memory_;  // likewise
  struct FedBytes {
    const std::byte *begin, *end, *furthest;  // the end, and that of all before it
    SlotId input;
  };
  std::vector<FedBytes> fed_;                       // in the order of addresses; empty if no output is bound
  IdVector<SlotId, Touched> touched_;               // of roots; made when an output is bound
  mutable IdVector<SlotId, SlotId> next_versions_;  // likewise (find_next_versions)
  bool keeps_feeds_ = false, needs_order_ = false;
  std::list<Slide> slides_;                                   // of feeds that an output may grow from
  std::vector<std::pair<const Slide*, std::byte*>> sliding_;  // of this run, and where their feeds begin
};

}  // namespace treadle::exec
