// A graph lowered to a flat array of instructions: made once, shared by every run. What depends on sizes is in a Binding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/kernel_phases.h"
#include "exec/program/extents.h"
#include "exec/program/ids.h"
#include "exec/program/parameters.h"
#include "exec/program/program_weights.h"
#include "exec/program/storage.h"
#include "graph/graph.h"
#include "graph/kernel_table.h"
#include "treadle/allocator.h"

namespace treadle {
struct AllocationContext;
}  // namespace treadle

namespace treadle::exec {

class Program;
struct ParallelPlan;

/// Where a value's bytes live while a run is in flight.
enum class LocationKind : uint8_t {
  constant,  ///< in the graph's constant, or in a parameter's memory as of the binding's version
  feed,      ///< in the caller's tensor
  known,     ///< small integers that the feeds' shapes determine: computed when binding, no instruction runs
  arena,     ///< at a planned offset
  held,      ///< reference-counted, in the frame: outputs, yielded values, data-dependent shapes, strings, sequences
};

/// One value of the graph, as the executor sees it.
struct Slot {
  ValueId value = kNoValue;
  DType dtype = DType::undefined;
  LocationKind location = LocationKind::arena;
  bool static_shape = false;    ///< a plain tensor whose extents the feeds' shapes determine
  bool constant_shape = false;  ///< all extents are integers
  bool in_pieces = false;       ///< a root: some values are pieces of it, so that it is written before the node that makes it runs
  bool is_output = false;       ///< outlives the run: a fetched or yielded value
  bool is_gradient = false;     ///< of a training step: the backward part makes it
  bool rewritten = false;       ///< held, and bytes of its root are written after it is made: whoever keeps the value keeps a copy
  /// For a view, an output written over its input, or a piece of a Concat or Split (see Program::pieces): the slot whose bytes it shares,
  /// or some of them; itself otherwise.
  SlotId root = kNoSlot;
  BufferId buffer = kNoBuffer;  ///< arena: the planned buffer
  int64_t row_step =
      0;  ///< elements from row to row (runs along the last axis) of a piece of another value's rows; 0: rows follow each other
};

/// Of a training step, which part of it an instruction is.
enum class StepPhase : uint8_t { none, forward, backward, communication, optimizer };
std::string_view name_of(StepPhase phase);

struct Instruction {
  void (*run)(const void* state, RunContext&) = nullptr;
  const Node* node = nullptr;
  const KernelDef* kernel = nullptr;
  uint32_t first_operand = 0;  ///< into Program::operands: inputs (captures included), then outputs
  uint16_t num_inputs = 0, num_outputs = 0;
  uint32_t state_offset = 0;  ///< of the bound state in the binding
  BufferId scratch_buffer = kNoBuffer;
  bool dynamic = false;  ///< bound in the run, over Datums
  bool is_yield = false;
  bool moves = false;                            ///< it computes nothing: elements go to other places
  StepPhase phase = StepPhase::none;             ///< none: the program is no training step
  bool on_device = false;                        ///< the kernel is a device's own: it reads and writes that device's memory only
  uint32_t record_name = 0;                      ///< of its profile records
  uint32_t first_release = 0, num_releases = 0;  ///< into Program::releases: held slots that nobody reads after it
  std::shared_ptr<PackedState> packed;           ///< null where it depends on parameters
  int32_t versioned = -1;         ///< place among the states that each version of the parameters has; -1: `packed` is the state
  bool packed_is_shared = false;  ///< with other programs of the process: allocations in it are charged to nobody, its size to each
  std::vector<std::unique_ptr<Program>> bodies;  ///< of If, Loop, Scan, in the order of Node::bodies

  /// For PhaseNode.
  KernelPhase whole_phase() const { return moves ? KernelPhase::move : KernelPhase::none; }
};

/// What a kernel of this name made for a node, in the blocks of PackedState::parts().
struct StoredState {
  std::string kernel;
  std::vector<PackedPart> parts;
};

struct ProgramOptions {
  bool reuse_memory = true;      ///< false: every value has bytes of its own (to debug)
  ThreadPool* pool = nullptr;    ///< packs weights; null: the caller does
  bool parallel = false;         ///< independent instructions may run at once: memory is planned for every order that the data allows
  bool always_parallel = false;  ///< with `parallel`: even where nothing is to be gained (to test and measure)
  bool shared = false;           ///< runs belong to a job: bindings estimate what nodes cost
  bool observable = false;       ///< every node is an instruction, views too, so that an Observer sees them all
  const AllocationContext* memory = nullptr;  ///< of packed weights, while the program is made
  bool pieces_in_place = false;   ///< Concats have their inputs in their output, and Splits their outputs in their input, where they can
  bool verify_plans = false;      ///< runs prove the plans that they follow (exec/verify/verify_plan.h); true where all do
  double arena_share = 1;         ///< of what a run's arena takes by the plan, how much it may have where other plans can do with it
  double recompute_fraction = 0;  ///< of the time that a run takes, how much of it may be spent on values that are computed twice
  bool recompute_pays = false;    ///< of that, what frees several times as large a share of the arena
  bool share_weights = false;     ///< constants and packed weights that other programs of the process have as well are held once
  /// The program's graph: constants that all of their readers have packed are taken out of it as soon as they are, one after the other, so
  /// that weights which a pass made are in memory once. Their values keep name and type. Null: all stay.
  Graph* release_packed = nullptr;
  /// With release_packed: constants stay that a file of the compiled program would need, as some reader's state cannot be restored.
  bool keep_for_file = false;
  /// Kernels of devices: asked for each node whose operands' extents the feeds' shapes determine. Empty: all are the host's.
  std::function<DeviceKernel(const Graph&, const Node&)> device_kernel;
  /// Of a training step: outputs that the forward part computes; what they need is its forward part, unless a Yield ends it. None: the
  /// program is no training step.
  std::optional<std::vector<std::string>> forward_outputs;
  /// With forward_outputs: updates that read what the backward part makes come as soon as nobody reads any more what they write over. From
  /// the first of them on a run is not cancelled, and one that fails leaves the rest as it was.
  bool early_updates = false;
  /// Memory of the graph's values of kind parameter that have elements (Value::constant): kernels pack these once for each version. Null:
  /// they stay what they are.
  std::shared_ptr<Variables> variables;
  /// Blocks from a compiled model's file, by node, bodies included: its state is restored from them instead of created.
  /// @throws Error(invalid_model) out of the program's constructor if a node's do not fit it.
  const std::unordered_map<const Node*, StoredState>* restored = nullptr;
};

/// How runs of a program are planned and watched, of ProgramOptions.
struct PlanningRules {
  bool always_parallel = false;   ///< instructions run at once even where nothing is to be gained
  bool verify = false;            ///< runs prove the plans that they follow (verify/verify_plan.h)
  bool shared = false;            ///< runs belong to a job: bindings estimate what nodes cost
  double arena_share = 1;         ///< how much of its planned arena a run may have where other plans can do with it
  double recompute_fraction = 0;  ///< how much of a run's time may go into values that are computed twice
  bool recompute_pays = false;    ///< only for what frees several times as large a share of the arena
};

class Program {
 public:
  /// @param graph  inferred and upgraded; must not change any more.
  /// @throws Error(not_implemented) naming every node without a kernel.
  /// @param outer_symbols  of a body: indices of the symbols whose values the run around it knows.
  explicit Program(std::shared_ptr<const Graph> graph, const ProgramOptions& options = {}, std::span<const int32_t> outer_symbols = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const Graph& graph() const { return *graph_; }
  IdSpan<InstructionId, const Instruction> instructions() const { return instructions_; }
  InstructionId id_of(const Instruction& instruction) const { return instructions().id_of(instruction); }
  std::span<const SlotId> operands() const { return operands_; }  // kNoSlot: an absent operand
  std::span<const SlotId> operands(const Instruction& instruction) const {
    return std::span(operands_).subspan(instruction.first_operand, static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs);
  }
  IdSpan<SlotId, const Slot> slots() const { return slots_; }
  const Type& type(SlotId slot) const { return graph_->type(slots_[slot].value); }
  /// A constant as a run reads it (of a root slot: views have its elements), but for parameters: see Binding::constant.
  const Datum& constant(SlotId slot) const { return weights_.constant(slot); }
  const std::string& name(SlotId slot) const { return graph_->value(slots_[slot].value).name; }
  std::span<const SlotId> input_slots() const { return input_slots_; }
  std::span<const SlotId> output_slots() const { return output_slots_; }
  std::span<const SlotId> releases() const { return storage_.releases; }
  /// Operand positions that point into a feed or a held slot's bytes (views of it included), so that a run patches just these.
  std::span<const uint32_t> patches(SlotId slot) const { return storage_.patches(slot); }
  std::span<const SlotId> held_slots() const { return storage_.held_slots; }
  /// Held slots that statically bound instructions write: a run gives them memory before it starts.
  std::span<const SlotId> preallocated() const { return storage_.preallocated; }
  /// The schedule by readiness. Null unless instructions may run at once; very large programs run in order.
  const ParallelPlan* parallel() const { return parallel_.get(); }
  /// From this instruction on there are only updates of state: a run that has begun them ends them.
  InstructionId commit_from() const { return commit_from_; }
  const PlanningRules& planning() const { return planning_; }
  /// One of preallocated(): a gradient that is handed out; kNoSlot: there is none.
  SlotId first_gradient() const { return first_gradient_; }
  /// A body of If, Loop or Scan: its outputs stay with the run around it.
  bool is_body() const { return is_body_; }
  const ProgramWeights& weights() const { return weights_; }
  /// Null unless there are values of kind parameter that kernels may pack.
  const ProgramParameters* parameters() const { return parameters_.get(); }
  size_t num_buffers() const { return storage_.buffers.size(); }
  size_t state_bytes() const { return state_bytes_; }

  IdSpan<BufferId, const BufferInfo> buffers() const { return storage_.buffers; }
  /// What a buffer is for: of a training step, by the part that writes it first.
  MemoryClass class_of_buffer(BufferId buffer) const;
  /// Its value's; of scratch, the node's.
  const std::string& name_of_buffer(BufferId buffer) const;
  /// Bases come before what lies in them.
  std::span<const Piece> pieces() const { return storage_.pieces; }
  const ProgramExtents& extents() const { return extents_; }

 private:
  friend class Lowering;
  /// @param viewed  the slot that each is a view of, where no instruction makes it.
  void plan_parallel(const IdVector<SlotId, SlotId>& viewed);
  std::shared_ptr<const Graph> graph_;
  IdVector<InstructionId, Instruction> instructions_;
  std::vector<SlotId> operands_;
  IdVector<SlotId, Slot> slots_;
  ProgramWeights weights_;
  std::unique_ptr<ProgramParameters> parameters_;
  std::vector<SlotId> input_slots_, output_slots_;
  ProgramStorage storage_;
  ProgramExtents extents_;
  PlanningRules planning_;
  size_t state_bytes_ = 0;
  std::unique_ptr<ParallelPlan> parallel_;
  InstructionId commit_from_{};
  bool is_body_ = false;
  SlotId first_gradient_ = kNoSlot;
};

}  // namespace treadle::exec
