// Checks a run's feeds against the declared inputs of its program, and reads the values of symbols from the feeds' shapes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "exec/run/run_state.h"
#include "treadle/error.h"

namespace treadle::exec {

/// Throws an error about a feed.
/// @param words  text that begins the message
/// @throws Error(invalid_argument) always, naming the input, what was given and what was expected
[[noreturn]] void refuse_feed(const Program& program, SlotId slot, const Datum& datum, const std::string& what,
                              const std::string& words = {});

/// Thrown if a run lacks a feed that it reads.
class MissingInput : public Error {
 public:
  MissingInput(const std::string& name, const std::string& more);
};

/// Returns true if the input must be fed: it is not an optional, and a node reads it directly or it is also an output. An input that only
/// bodies read may be left out; a body reports an error if it runs without it.
bool needs_feed(const Program& program, SlotId input);

/// Returns the slots for the values that the caller hands back at a Yield.
/// @throws Error(invalid_argument) if the number, kinds or dtypes of the values do not match the slots
std::span<const SlotId> slots_handed_to(const Program& program, const Instruction& yield, std::span<const Datum> values);

class FeedBinder {
 public:
  explicit FeedBinder(const Program& program) : symbol_values_(program.extents().num_expressions) {}

  /// Called at the start of a run: checks the feeds, and puts them and a binding for their extents into the state.
  /// @param parent_values  for a body: values of the symbols in the surrounding run
  /// @param control        with FeedRules::later, feeds may be undefined if other feeds or the declaration give their extents; with
  /// FeedRules::on_devices, feeds may stay on their devices
  /// @throws MissingInput for a missing feed, Error(invalid_argument) for a wrong kind, dtype, rank or extent, or if two feeds give
  /// different values to a symbol; errors of Binding::bind()
  void bind(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state);
  /// Supplies a feed that was undefined when bind() was called. @throws Error(invalid_argument) as bind(), and if it has been fed already
  void bind_later(SlotId slot, const Datum& feed, RunState& state);

  /// Replaces the memory of a feed. @throws Error(invalid_argument) if the dtype or shape differs, or elements are not contiguous
  static void move(SlotId slot, const Datum& feed, RunState& state);

  /// Returns true if one of the slots needs an input that has not been fed yet.
  static bool lacks_feed(const RunState& state, std::span<const SlotId> slots);
  /// Reports that a run cannot advance because a step's input has not been fed.
  /// @throws Error(invalid_argument) always, naming the input
  [[noreturn]] static void refuse_missing(const RunState& state);

  /// Called at the end of a run with FeedRules::later. @throws MissingInput naming an input that was never fed
  static void check_complete(const RunState& state);

  /// Sets the kernels' pointers to the feeds. @pre the state has its binding
  /// @throws Error(invalid_argument) if a feed's extents differ from those of the binding
  static void point_at_feeds(RunState& state);

 private:
  void take(std::span<const Datum> feeds, std::span<const int64_t> parent_values, const RunControl& control, RunState& state);
  static void point_at_feed(SlotId slot, RunState& state);
  Datum checked(const Program& program, SlotId slot, const Datum& feed);
  void check_may_be_later(const Program& program, SlotId slot) const;
  void leave_out(const Program& program, SlotId slot);

  std::vector<int64_t> symbol_values_;  // value of each expression of the symbol table; -1: no feed gives a value
  bool takes_device_feeds_ = false;
};

}  // namespace treadle::exec
