// Describes a schedule to the verifier as plain data: where the executors find each operand's bytes, and in which order they do what.
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

/// Makes an index of a number that a described plan uses for a step, arena or stream. @pre i >= 0
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

/// A plan without the planner's reasons: the verifier itself derives lifetimes, conflicts and dependencies from the accesses of the steps.
struct DescribedPlan {
  static constexpr size_t kNowhere = SIZE_MAX;

  enum class Home : uint8_t { planned, held, feed, constant, known };

  struct Value {
    std::string_view name;
    SlotId root = kNoSlot;    ///< the value whose bytes it shares; itself if it shares none
    SlotId viewed = kNoSlot;  ///< if no step makes it: the value that it is a view of
    Stretch bytes;            ///< the bytes of this value within those of its root
    bool sized = false;       ///< the value's extents are known before the run
    bool given = false;       ///< the value exists when the run starts
    bool kept = false;        ///< the value is handed out at the end or by a Yield
    uint64_t version = 0;     ///< version of a parameter or of a value derived from parameters
  };

  /// Memory that holds a root's bytes. On devices a root may have several places.
  struct Place {
    SlotId root = kNoSlot;  ///< the root whose bytes it has; kNoSlot: it is scratch
    Home home = Home::planned;
    int32_t memory = 0;  ///< index of the arena, if the home is Home::planned; other homes are not in an arena
    size_t offset = 0;   ///< offset in the arena, if the home is Home::planned
    size_t size_bytes = 0;
    bool ready = false;   ///< the place has memory when the run starts
    bool filled = false;  ///< the place holds the root's elements when the run starts
    bool lodged = false;  ///< planned: an output in the arena that the caller keeps with the arena (plan/lodging.h)
    int32_t uses = -1;    ///< held: freed after this number of steps has accessed it; -1: freed by the steps' releases
  };

  struct Operand {
    SlotId value = kNoSlot;
    PlaceId place = kNoPlace;
    size_t at = kNowhere;         ///< offset of the step's pointer in the place's memory
    size_t told_step_bytes = 0;   ///< the row stride that the kernel is given, in bytes; 0: contiguous
    bool takes_steps = false;     ///< the kernel accepts a row stride
    bool by_reference = false;    ///< the step may keep a reference to the value, for example in a sequence
    bool unread = false;          ///< the kernel reads its packed copy instead
    uint64_t packed_version = 0;  ///< version of the elements in the packed copy
  };

  enum class Act : uint8_t { compute, join, split, copy, spill, load, replay };
  struct Step {
    Act act = Act::compute;
    const Node* node = nullptr;
    uint32_t first_operand = 0;
    uint16_t num_inputs = 0, num_outputs = 0;
    bool dynamic = false;     ///< the step allocates the memory of its outputs
    bool on_loan = false;     ///< the step keeps no references to its operands' memory after its end
    size_t blocks = 0;        ///< for a join or split: product of the extents before its axis
    bool along_rows = false;  ///< for a join or split: the axis is the last one
    PlaceId scratch = kNoPlace;
    size_t scratch_at = 0;
    PlaceId place = kNoPlace, target = kNoPlace;  ///< for copies and moves: the place copied, and for copies the destination
    size_t offset = 0;                            ///< for moves: the offset in the arena
    uint32_t first_release = 0, num_releases = 0;
  };

  std::string schedule;            ///< name of the schedule, for messages
  IdVector<SlotId, Value> values;  ///< one per slot of the program
  IdVector<PlaceId, Place> places;
  std::vector<Operand> operands;
  std::vector<Step> steps;
  std::vector<PlaceId> releases;
  std::vector<Operand> outputs;            ///< the outputs, and the places that the caller takes them from
  std::vector<size_t> memories;            ///< size of each arena, in bytes
  IdVector<PlaceId, size_t> file_offsets;  ///< offsets in the spill file
  bool moving = false;                     ///< values move between steps
  bool several_places = false;             ///< a root may have several places
  bool preallocates = true;                ///< held memory that a step with known sizes writes must be ready

  /// The dependencies of a schedule by readiness, as in ParallelPlan.
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
    bool leads = true;     ///< the step is the first one of its bulk
    bool records = false;  ///< the step records an event, for which the host or another stream waits
    bool host_waits = false, all_wait = false;
    std::vector<int32_t> waits;  ///< steps that it waits for
  };
  Readiness readiness;
  std::vector<Issue> issues;  ///< one issue per step
  int num_streams = 0;
  enum class Order : uint8_t { one_by_one, by_readiness, streams };
  Order order = Order::one_by_one;
};

/// Describes a run in the program's order.
DescribedPlan describe_plan(const Binding& binding);
/// Describes a run by readiness. @pre the program has a ParallelPlan
DescribedPlan describe_parallel_plan(const Binding& binding);
/// Describes a run that follows a budgeted plan, with its moves.
DescribedPlan describe_plan(const Binding& binding, const BudgetedPlan& budget);
/// Describes a run on streams.
/// @param offsets      of locations in the arenas of their devices
/// @param arena_bytes  size of each device's arena
DescribedPlan describe_plan(const Binding& binding, const StreamPlan& plan, IdSpan<LocationId, const size_t> offsets,
                            std::span<const size_t> arena_bytes);

/// Changes the description: the output is made in memory that overlaps a feed. @param distance  bytes from the first byte of the output to
/// that of the feed; may be negative
void lay_over(DescribedPlan& plan, SlotId feed, SlotId output, int64_t distance);

/// Changes the description: the output is made in the arena at this offset.
void lodge(DescribedPlan& plan, SlotId output, size_t offset);

}  // namespace treadle::exec
