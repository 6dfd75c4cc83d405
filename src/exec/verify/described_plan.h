// A schedule as plain data, for the verifier: where every operand's bytes are, as the executors find them, and what happens in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/plan/binding.h"
#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"
#include "graph/op_def.h"

namespace treadle::exec {

struct StreamPlan;

/// Steps, arenas and streams of a described plan are plain numbers. @pre i >= 0
inline size_t index(int32_t i) { return static_cast<size_t>(i); }

/// DescribedPlan::places
enum class PlaceId : int32_t {};
inline constexpr PlaceId kNoPlace{-1};

/// Rows of equal length, equally far apart; one row where they follow each other. In bytes.
struct Stretch {
  size_t begin = 0, row_bytes = 0, step_bytes = 0, rows = 1;
  bool empty() const { return rows == 0 || row_bytes == 0; }
  size_t end() const { return empty() ? begin : begin + (rows - 1) * step_bytes + row_bytes; }
  bool operator==(const Stretch& other) const {
    return begin == other.begin && row_bytes == other.row_bytes && rows == other.rows && (rows <= 1 || step_bytes == other.step_bytes);
  }
};
bool overlap(const Stretch& a, const Stretch& b);

/// Nothing in it refers to the planners' own reasons: lifetimes, conflicts and the order are found anew from what the steps touch.
struct DescribedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Home : uint8_t { planned, held, feed, constant, known };

  struct Value {
    std::string_view name;
    SlotId root = kNoSlot;    ///< the value whose bytes it has, or some of them; itself
    SlotId viewed = kNoSlot;  ///< no step makes it: it is this one's bytes under another shape
    Stretch bytes;            ///< within the root's
    bool sized = false;       ///< its extents are known ahead
    bool given = false;       ///< it is there when the run starts
    bool kept = false;        ///< it is handed out, at the end or by a Yield
    uint64_t version = 0;     ///< of a parameter's elements, or of what follows from parameters
  };

  /// Where a root's bytes are; of a run on devices there may be several for one.
  struct Place {
    SlotId root = kNoSlot;  ///< kNoSlot: scratch
    Home home = Home::planned;
    int32_t memory = 0;  ///< planned: the arena that it lies in; places in other homes have memory of their own
    size_t offset = 0;   ///< planned: in the arena
    size_t size_bytes = 0;
    bool ready = false;   ///< has memory when the run starts
    bool filled = false;  ///< has the root's elements when the run starts
    bool lodged = false;  ///< planned: an output, which takes the arena with it
    int32_t uses = -1;    ///< held: let go of after so many steps have touched it; -1: by the steps' releases
  };

  struct Operand {
    SlotId value = kNoSlot;
    PlaceId place = kNoPlace;
    size_t at = kNowhere;         ///< what the step is pointed at, in the place's memory
    size_t told_step_bytes = 0;   ///< what the kernel is told of how far rows are apart; 0: nothing
    bool takes_steps = false;     ///< the kernel asks
    bool by_reference = false;    ///< the step may keep the value, in a sequence for example, without a copy
    bool unread = false;          ///< the kernel has a copy of its own
    uint64_t packed_version = 0;  ///< of the elements in that copy
  };

  enum class Act : uint8_t { compute, join, split, copy, spill, load, replay };
  struct Step {
    Act act = Act::compute;
    const Node* node = nullptr;
    uint32_t first_operand = 0;
    uint16_t num_inputs = 0, num_outputs = 0;
    bool dynamic = false;     ///< makes the memory of its outputs
    bool on_loan = false;     ///< it does not hold the memory that it is given
    size_t blocks = 0;        ///< of a join or split: rows before its axis
    bool along_rows = false;  ///< of a join or split: the axis is the last one
    PlaceId scratch = kNoPlace;
    size_t scratch_at = 0;
    PlaceId place = kNoPlace, target = kNoPlace;  ///< copies, and moves of a budget: what they move, and where to
    size_t offset = 0;                            ///< of moves, in the arena
    uint32_t first_release = 0, num_releases = 0;
  };

  std::string schedule;            ///< for messages
  IdVector<SlotId, Value> values;  ///< of the program's slots
  IdVector<PlaceId, Place> places;
  std::vector<Operand> operands;
  std::vector<Step> steps;
  std::vector<PlaceId> releases;
  std::vector<Operand> outputs;            ///< values, and the places that they are taken from
  std::vector<size_t> memories;            ///< bytes of each arena
  IdVector<PlaceId, size_t> file_offsets;  ///< of runs that spill
  bool moving = false;                     ///< places come to lie elsewhere between steps
  bool several_places = false;             ///< roots may have more than one
  bool preallocates = true;                ///< held memory that static steps write must be ready

  /// How steps wait for each other, where they do not run one after the other.
  struct Readiness {
    struct Touch {
      PlaceId place;
      int32_t counter;
    };
    std::vector<int32_t> counters;
    std::vector<InstructionId> successors;
    std::vector<uint32_t> first_successor, first_touch;
    std::vector<Touch> touches;
  };
  struct Issue {
    int32_t stream = 0;
    bool leads = true;     ///< the first step of what is issued at once
    bool records = false;  ///< an event, which the host or another stream waits for
    bool host_waits = false, all_wait = false;
    std::vector<int32_t> waits;  ///< steps
  };
  Readiness readiness;
  std::vector<Issue> issues;  ///< per step
  int num_streams = 0;
  enum class Order : uint8_t { one_by_one, by_readiness, streams };
  Order order = Order::one_by_one;
};

/// In the order of the program.
DescribedPlan describe_plan(const Binding& binding);
/// By readiness. @pre the program has a plan for that
DescribedPlan describe_parallel_plan(const Binding& binding);
/// With the moves of a budget.
DescribedPlan describe_plan(const Binding& binding, const BudgetedPlan& budget);
/// On streams. @param offsets  of locations in the arenas of their devices. @param arena_bytes  per device.
DescribedPlan describe_plan(const Binding& binding, const StreamPlan& plan, IdSpan<LocationId, const size_t> offsets,
                            std::span<const size_t> arena_bytes);

/// An output is made in the memory of a feed, which begins so many bytes behind the output (or before it, if it is negative).
void lay_over(DescribedPlan& plan, SlotId feed, SlotId output, int64_t distance);

/// An output is made in the arena.
void lodge(DescribedPlan& plan, SlotId output, size_t offset);

}  // namespace treadle::exec
