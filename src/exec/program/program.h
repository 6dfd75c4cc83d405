// A graph lowered to a flat array of instructions. It is immutable and shared by all runs; everything that depends on extents is in a
// Binding.
// Terms of src/exec:
// - A slot is a value of the graph. Its root is the slot whose bytes it shares, or itself if it has bytes of its own.
// - A held value has reference-counted memory of its own; most others share the run's arena, where a buffer is the bytes of one root.
// - A feed is an input's tensor that the caller gives to a run. A known value is a small integer tensor that the feeds' shapes determine.
// - A dynamic instruction's kernel is bound during the run, when its operands' shapes are known. All others are bound before.
// - A body is the subgraph of an If, Loop or Scan: a program of its own, which the surrounding run executes.
// - A Yield is a node at which a run stops and hands values to its caller, for example between the forward and the backward part.
// - In a run by readiness, an instruction starts as soon as the instructions that it depends on have run; otherwise they run in order.
// - A frame is a run on the host. A budgeted plan spills or recomputes values to keep a run's arena small.
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

#include "core/trace/kernel_phases.h"
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

/// Says where a value's bytes are during a run.
enum class LocationKind : uint8_t {
  constant,  ///< in a constant of the graph or, for a parameter, in the version of the parameter that the binding uses
  feed,      ///< in a tensor that the caller passes to the run
  known,     ///< a small tensor of integers that the feeds' shapes determine; the binding computes it and no instruction runs
  arena,     ///< at a planned offset in the arena
  held,      ///< in reference-counted memory of its own: outputs, yielded values, values with data-dependent shapes, strings, sequences
};

/// A value of the graph as executors see it.
struct Slot {
  ValueId value = kNoValue;
  DType dtype = DType::undefined;
  LocationKind location = LocationKind::arena;
  bool static_shape = false;    ///< true for a tensor whose extents are determined by the feeds' shapes
  bool constant_shape = false;  ///< all extents are constants
  bool in_pieces = false;       ///< other slots lie within this slot's own bytes, so its parts may be written before its own node runs
  bool is_output = false;       ///< handed out of the run: an output or a yielded value
  bool is_gradient = false;     ///< true if the backward part of a training step makes the value
  bool rewritten = false;       ///< later instructions overwrite bytes that this held value shares; nodes that keep the value must copy it
  /// The slot whose bytes this slot shares, if it is a view, an output made in place of its input, or a piece of a Concat or Split
  /// (Program::pieces); otherwise the slot itself.
  SlotId root = kNoSlot;
  BufferId buffer = kNoBuffer;  ///< for values in the arena: the buffer that holds the value
  /// Row stride in elements, if rows of several pieces are interleaved; 0: contiguous. A row is a run of elements along the last axis.
  int64_t row_step = 0;
};

/// The part of a training step that an instruction belongs to.
enum class StepPhase : uint8_t { none, forward, backward, communication, optimizer };
std::string_view name_of(StepPhase phase);

struct Instruction {
  void (*run)(const void* state, RunContext&) = nullptr;
  const Node* node = nullptr;
  const KernelDef* kernel = nullptr;
  uint32_t first_operand = 0;  ///< index into Program::operands() of the inputs (captures included), followed by the outputs
  uint16_t num_inputs = 0, num_outputs = 0;
  uint32_t state_offset = 0;  ///< offset in bytes of the kernel's bound state within the binding's state
  BufferId scratch_buffer = kNoBuffer;
  bool dynamic = false;  ///< the kernel is bound during the run, because shapes depend on data or an operand is not a plain tensor
  bool is_yield = false;
  bool moves = false;                            ///< the instruction computes nothing, but copies or rearranges elements
  StepPhase phase = StepPhase::none;             ///< `none` if the program is not a training step
  bool on_device = false;                        ///< the kernel belongs to a device, and accesses only that device's memory
  uint32_t record_name = 0;                      ///< id of the name under which the recorder records the instruction
  uint32_t first_release = 0, num_releases = 0;  ///< range of Program::releases(): held slots that no later instruction reads
  std::shared_ptr<PackedState> packed;  ///< the weights that the kernel has packed; null if it has packed none, or if `versioned` is set
  int32_t versioned = -1;  ///< if the packed weights depend on parameters: index into ParameterVersion::packed; -1: use `packed`
  /// True if other programs of the process use the packed weights too. Then their allocation is charged to no account, and each program is
  /// charged their size instead.
  bool packed_is_shared = false;
  std::vector<std::unique_ptr<Program>> bodies;  ///< programs of the bodies of If, Loop and Scan, in the order of Node::bodies

  /// If the instruction only moves data, returns the kernel phase under which its whole run is recorded.
  KernelPhase whole_phase() const { return moves ? KernelPhase::move : KernelPhase::none; }
};

/// Packed weights read from a compiled model's file: the name of the kernel that packed them, and their blocks (PackedState::parts()).
struct StoredState {
  std::string kernel;
  std::vector<PackedPart> parts;
};

struct ProgramOptions {
  bool reuse_memory = true;    ///< false: no two values share bytes (for debugging)
  ThreadPool* pool = nullptr;  ///< threads that pack weights; null: the calling thread packs them
  /// Independent instructions may run at the same time. Memory is then planned for every order that data dependencies permit.
  bool parallel = false;
  /// With `parallel`: use parallel execution even if it is not expected to be faster (for tests and measurements).
  bool always_parallel = false;
  bool shared = false;                        ///< runs belong to a job, so bindings estimate the cost of nodes for the job's scheduler
  bool observable = false;                    ///< every node becomes an instruction, even a view, so that an Observer sees all nodes
  const AllocationContext* memory = nullptr;  ///< allocation context for packed weights while the program is made
  bool pieces_in_place = false;               ///< avoid the copies of Concat and Split where possible (program/pieces.h)
  /// Runs verify their plans before following them (exec/verify/verify_plan.h); verifies_plans() turns this on for all programs.
  bool verify_plans = false;
  double arena_share = 1;  ///< fraction of the planned arena that a run may use, if a plan with spilling or recomputing can keep to it
  double recompute_fraction = 0;  ///< fraction of a run's time that may be spent on recomputing values to save memory
  bool recompute_pays = false;    ///< recompute only if the saved share of the arena is several times the added share of time
  bool share_weights = false;     ///< store constants and packed weights only once if other programs of the process have them too
  /// The program's graph, if constants may be removed from it. Each constant is removed once all of its readers have packed it, so weights
  /// made by a pass are in memory only once. The values keep their names and types. Null: all constants stay.
  Graph* release_packed = nullptr;
  /// With release_packed: keep the constants that a compiled model's file needs because the packed weights of one of their readers cannot
  /// be restored.
  bool keep_for_file = false;
  /// Returns the device's kernel for a node, if there is one. Called only for nodes whose operands' extents are determined by the feeds'
  /// shapes. Empty: all kernels are the host's.
  std::function<DeviceKernel(const Graph&, const Node&)> device_kernel;
  /// For a training step: the outputs of its forward part. That part consists of all nodes that these outputs depend on, or of all nodes
  /// before a Yield. None: the program is not a training step.
  std::optional<std::vector<std::string>> forward_outputs;
  /// With forward_outputs: an update that reads a gradient runs as soon as no later node reads the parameter that it overwrites. From the
  /// first update on, a run cannot be cancelled; if it fails, some parameters are updated and others are not.
  bool early_updates = false;
  /// The memory of parameters that have elements (Value::constant). When a parameter's version has changed, kernels pack it again. Null:
  /// parameters never change.
  std::shared_ptr<Variables> variables;
  /// Packed weights from a compiled model's file, by node, including nodes of bodies. Kernels restore these weights instead of packing. If
  /// they do not fit their node, the program's constructor throws Error(invalid_model).
  const std::unordered_map<const Node*, StoredState>* restored = nullptr;
};

/// The ProgramOptions that are still needed for planning and running after the program is made.
struct PlanningRules {
  bool always_parallel = false;   ///< independent instructions run at the same time even if no gain is expected
  bool verify = false;            ///< runs verify their plans before they follow them (verify/verify_plan.h)
  bool shared = false;            ///< runs belong to a job, so bindings estimate the cost of nodes
  double arena_share = 1;         ///< fraction of the planned arena that a run may use, if a plan that spills or recomputes can keep to it
  double recompute_fraction = 0;  ///< fraction of a run's time that may be spent on recomputing values
  bool recompute_pays = false;    ///< recompute only if the saved share of the arena is several times the added share of time
};

class Program {
 public:
  /// @param graph  after inference and the upgrade to the newest opset; must not change afterwards
  /// @throws Error(not_implemented) naming every node without a kernel.
  /// @param outer_symbols  for a body: indices of the symbols whose values the surrounding run knows.
  explicit Program(std::shared_ptr<const Graph> graph, const ProgramOptions& options = {}, std::span<const int32_t> outer_symbols = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const Graph& graph() const { return *graph_; }
  IdSpan<InstructionId, const Instruction> instructions() const { return instructions_; }
  InstructionId id_of(const Instruction& instruction) const { return instructions().id_of(instruction); }
  std::span<const SlotId> operands() const { return operands_; }  // kNoSlot: the operand is absent
  std::span<const SlotId> operands(const Instruction& instruction) const {
    return std::span(operands_).subspan(instruction.first_operand, static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs);
  }
  IdSpan<SlotId, const Slot> slots() const { return slots_; }
  const Type& type(SlotId slot) const { return graph_->type(slots_[slot].value); }
  /// The constant of a root slot (one with bytes of its own), aligned if runs read it. Parameters are in the binding (Binding::constant).
  const Datum& constant(SlotId slot) const { return weights_.constant(slot); }
  const std::string& name(SlotId slot) const { return graph_->value(slots_[slot].value).name; }
  std::span<const SlotId> input_slots() const { return input_slots_; }
  std::span<const SlotId> output_slots() const { return output_slots_; }
  std::span<const SlotId> releases() const { return storage_.releases; }
  /// Positions in operands() whose pointers lead into the bytes of this feed or held slot, or of its views. A run sets only these pointers.
  std::span<const uint32_t> patches(SlotId slot) const { return storage_.patches(slot); }
  std::span<const SlotId> held_slots() const { return storage_.held_slots; }
  /// Held slots with known sizes. They get memory before the instruction that writes them runs.
  std::span<const SlotId> preallocated() const { return storage_.preallocated; }
  /// The dependencies for parallel runs. Null if instructions run in sequence, which very large programs always do.
  const ParallelPlan* parallel() const { return parallel_.get(); }
  /// The first instruction that updates state. Once it has begun, the run cannot be cancelled any more.
  InstructionId commit_from() const { return commit_from_; }
  const PlanningRules& planning() const { return planning_; }
  /// The first slot in preallocated() that is both a gradient and an output; kNoSlot: there is none.
  SlotId first_gradient() const { return first_gradient_; }
  /// Returns true if the program is a body of an If, Loop or Scan.
  bool is_body() const { return is_body_; }
  const ProgramWeights& weights() const { return weights_; }
  /// Returns null if the program reads no parameters that may change.
  const ProgramParameters* parameters() const { return parameters_.get(); }
  size_t num_buffers() const { return storage_.buffers.size(); }
  size_t state_bytes() const { return state_bytes_; }

  IdSpan<BufferId, const BufferInfo> buffers() const { return storage_.buffers; }
  /// Returns the class under which memory reports count the buffer. In a training step, it depends on the phase that writes it first.
  MemoryClass class_of_buffer(BufferId buffer) const;
  /// The name of the value in the buffer, or for a scratch buffer the name of the node.
  const std::string& name_of_buffer(BufferId buffer) const;
  /// The slots that have only a part of the bytes of their root, the slot whose bytes they share. Each comes after its base (Piece::base).
  std::span<const Piece> pieces() const { return storage_.pieces; }
  const ProgramExtents& extents() const { return extents_; }

 private:
  friend class Lowering;
  /// @param viewed  for each slot that no instruction makes: the slot that it is a view of
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
