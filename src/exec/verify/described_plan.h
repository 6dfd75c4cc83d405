// Describes a schedule to the verifier as plain data: the address of each operand's bytes, and the steps in order.
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

/// Converts the number of a step, arena or stream in a described plan to an index. @pre i >= 0
inline size_t index(int32_t i) { return static_cast<size_t>(i); }

/// Indexes DescribedPlan::places.
enum class PlaceId : int32_t {};
inline constexpr PlaceId kNoPlace{-1};

/// A set of bytes: rows of equal length at equal distances, or one contiguous row. All members are in bytes.
struct Stretch {
  size_t begin = 0, row_bytes = 0, step_bytes = 0, rows = 1;
  bool empty() const { return rows == 0 || row_bytes == 0; }
  size_t end() const { return empty() ? begin : begin + (rows - 1) * step_bytes + row_bytes; }
  bool operator==(const Stretch& other) const {
    return begin == other.begin && row_bytes == other.row_bytes && rows == other.rows && (rows <= 1 || step_bytes == other.step_bytes);
  }
};
bool overlap(const Stretch& a, const Stretch& b);

/// A plan without the planner's reasoning: the verifier derives lifetimes, conflicts and dependencies itself, from the steps' accesses.
struct DescribedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Home : uint8_t { planned, held, feed, constant, known };

  struct Value {
    std::string_view name;
    SlotId root = kNoSlot;    ///< the value whose bytes it shares; itself if it has its own bytes
    SlotId viewed = kNoSlot;  ///< if no step makes the value: the value that it is a view of
    Stretch bytes;            ///< the bytes of this value within those of its root
    bool sized = false;       ///< true if the value's extents are known before the run
    bool given = false;       ///< true if the value exists when the run starts
    bool kept = false;        ///< true if the run hands out the value, at its end or at a Yield
    uint64_t version = 0;     ///< for a parameter or a value derived from parameters: its version
  };

  /// Memory that holds the bytes of a root, a value with bytes of its own. In a run over several devices, a root may have several places.
  struct Place {
    SlotId root = kNoSlot;  ///< the root that is stored in this memory; kNoSlot: scratch memory
    Home home = Home::planned;
    int32_t memory = 0;  ///< index of the arena, if `home` is Home::planned; other homes are not in an arena
    size_t offset = 0;   ///< offset in the arena, if `home` is Home::planned
    size_t size_bytes = 0;
    bool ready = false;   ///< true if the memory exists when the run starts
    bool filled = false;  ///< true if the memory holds the value's elements when the run starts
    bool lodged = false;  ///< for planned memory: an output that the caller keeps, together with the arena (plan/lodging.h)
    int32_t uses = -1;    ///< for held memory: number of steps that access it before it is freed; -1: freed by the steps' releases
  };

  struct Operand {
    SlotId value = kNoSlot;
    PlaceId place = kNoPlace;
    size_t at = kNowhere;         ///< offset in the place's memory to which the step's pointer leads
    size_t told_step_bytes = 0;   ///< row stride that is passed to the kernel, in bytes; 0: contiguous
    bool takes_steps = false;     ///< true if the kernel accepts a row stride
    bool by_reference = false;    ///< true if the step may keep a reference to the value, for example in a sequence
    bool unread = false;          ///< true if the kernel reads its packed copy instead of this operand
    uint64_t packed_version = 0;  ///< version of the elements from which the packed copy was made
  };

  enum class Act : uint8_t { compute, join, split, copy, spill, load, replay };
  struct Step {
    Act act = Act::compute;
    const Node* node = nullptr;
    uint32_t first_operand = 0;
    uint16_t num_inputs = 0, num_outputs = 0;
    bool dynamic = false;     ///< true if the step allocates the memory of its outputs
    bool on_loan = false;     ///< true if the step holds no reference to its operands' memory after it has ended
    size_t blocks = 0;        ///< for a join or split: product of the extents before its axis
    bool along_rows = false;  ///< for a join or split: true if its axis is the last one
    PlaceId scratch = kNoPlace;
    size_t scratch_at = 0;
    PlaceId place = kNoPlace, target = kNoPlace;  ///< for copies and moves: source; for copies: destination
    size_t offset = 0;                            ///< for moves: offset in the arena
    uint32_t first_release = 0, num_releases = 0;
  };

  std::string schedule;            ///< name of the schedule, for messages
  IdVector<SlotId, Value> values;  ///< one per slot of the program
  IdVector<PlaceId, Place> places;
  std::vector<Operand> operands;
  std::vector<Step> steps;
  std::vector<PlaceId> releases;
  std::vector<Operand> outputs;            ///< the outputs, and the places from which the caller takes them
  std::vector<size_t> memories;            ///< size of each arena, in bytes
  IdVector<PlaceId, size_t> file_offsets;  ///< offsets in the spill file
  bool moving = false;                     ///< true if values move between steps
  bool several_places = false;             ///< true if a value may have several places, on different devices
  bool preallocates = true;                ///< true if held memory with a known size must exist before the step that writes it

  /// The dependencies of a parallel run, as in ParallelPlan.
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
    bool leads = true;     ///< true if the step is the first one of its bulk
    bool records = false;  ///< true if the step records an event because the host or another stream waits for it
    bool host_waits = false, all_wait = false;
    std::vector<int32_t> waits;  ///< steps that this step waits for
  };
  Readiness readiness;
  std::vector<Issue> issues;  ///< one per step: its stream and what it waits for
  int num_streams = 0;
  enum class Order : uint8_t { one_by_one, by_readiness, streams };
  Order order = Order::one_by_one;
};

/// Describes a run in the program's order.
DescribedPlan describe_plan(const Binding& binding);
/// Describes a parallel run. @pre the program has a ParallelPlan
DescribedPlan describe_parallel_plan(const Binding& binding);
/// Describes a run that follows a budgeted plan, with its moves.
DescribedPlan describe_plan(const Binding& binding, const BudgetedPlan& budget);
/// Describes a run on streams of devices.
/// @param offsets      offsets of the locations in the arenas of their devices
/// @param arena_bytes  size of each device's arena
DescribedPlan describe_plan(const Binding& binding, const StreamPlan& plan, IdSpan<LocationId, const size_t> offsets,
                            std::span<const size_t> arena_bytes);

/// Changes the description so that the output is made in memory that overlaps a feed. @param distance  offset of the feed's first byte from
/// the output's first byte, in bytes; may be negative
void lay_over(DescribedPlan& plan, SlotId feed, SlotId output, int64_t distance);

/// Changes the description so that the output is made in the arena, at this offset.
void lodge(DescribedPlan& plan, SlotId output, size_t offset);

}  // namespace treadle::exec
