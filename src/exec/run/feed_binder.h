// Checks what a run is fed against what its program declares, and finds the symbols' values in it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/run/run_state.h"
#include "treadle/error.h"

namespace treadle::exec {

/// @throws Error(invalid_argument) naming the input, what was given and what was expected.
/// @param words  to begin with
[[noreturn]] void refuse_feed(const Program& program, SlotId slot, const Datum& datum, const std::string& what,
                              const std::string& words = {});

/// A run is not fed what it reads.
class MissingInput : public Error {
 public:
  MissingInput(const std::string& name, const std::string& more);
};

/// Whether a node itself reads an input, or the graph hands it out, that is no optional: others may be left undefined. A body that reads
/// one asks for it when it runs.
bool needs_feed(const Program& program, SlotId input);

/// The slots that a Yield's values come back into. @throws Error(invalid_argument) for another count, kind or dtype than they take.
std::span<const SlotId> slots_handed_to(const Program& program, const Instruction& yield, std::span<const Datum> values);

class FeedBinder {
 public:
  explicit FeedBinder(const Program& program) : symbol_values_(program.extents().num_expressions) {}

  /// A run begins: puts the feeds into the state, and the binding for their extents.
  /// @param parent_values  of a body: the symbols' values of the run around it.
  /// @param control        `takes_feeds_later`: feeds may be undefined, where the extents of the others and the declarations tell theirs;
  ///                       `takes_device_feeds`.
  /// @throws Error(invalid_argument), MissingInput for a missing feed, another kind, dtype, rank or extent, and symbols that two feeds
  /// contradict; as Binding::bind
  void bind(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state);
  /// One that bind() left out. @throws Error(invalid_argument) as bind(), and if it was fed.
  void bind_later(SlotId slot, const Datum& feed, RunState& state);

  /// One that has been fed lies elsewhere. @throws Error(invalid_argument) for another dtype or shape, or elements that are not contiguous.
  static void move(SlotId slot, const Datum& feed, RunState& state);

  /// Whether one of the slots lies in an input that the run has not been fed yet.
  static bool lacks_feed(const RunState& state, std::span<const SlotId> slots);
  /// A run is told to go on where it reads what was to be fed later. @throws Error(invalid_argument) naming the input
  [[noreturn]] static void refuse_missing(const RunState& state);

  /// At the end of a run that took feeds later. @throws Error(invalid_argument) naming an input that was never fed
  static void check_complete(const RunState& state);

  /// Once the state has its binding: kernels find the feeds. @throws Error(invalid_argument) for extents other than the binding's.
  static void point_at_feeds(RunState& state);

 private:
  void take(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state);
  static void point_at_feed(SlotId slot, RunState& state);
  Datum checked(const Program& program, SlotId slot, const Datum& feed);
  void check_may_be_later(const Program& program, SlotId slot) const;
  void leave_out(const Program& program, SlotId slot);

  std::vector<int64_t> symbol_values_;  // per expression of the symbol table; -1: no feed tells
  bool takes_device_feeds_ = false;
};

}  // namespace treadle::exec
