// Lowers a graph to a program: chooses the nodes that become instructions, where values are, which share bytes, and when they are freed.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "core/base/checked.h"
#include "core/trace/recorder.h"
#include "exec/program/byte_sharing.h"
#include "exec/program/determined_extents.h"
#include "exec/program/host_settings.h"
#include "exec/program/node_order.h"
#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"
#include "exec/program/step_phases.h"
#include "exec/program/verify_switch.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "ops/treadle/on_devices.h"
#include "treadle/error.h"

namespace treadle::exec {

class Lowering {
 public:
  Lowering(Program& program, const ProgramOptions& options, std::span<const int32_t> outer_symbols)
      : p_(program), graph_(program.graph()), options_(options), determined_(graph_, outer_symbols) {
    if (options_.device_kernel) settings_ = nodes_of_settings(graph_);
  }

  void run() {
    find_parameters();
    make_slots();
    std::string missing;
    std::unordered_set<const Node*> forward;
    if (options_.early_updates) forward = forward_part(graph_, *options_.forward_outputs);
    for (NodeId id : choose_order(graph_, options_.reuse_memory, options_.early_updates ? &forward : nullptr)) {
      if (p_.parameters_ && p_.parameters_->computes(id)) continue;
      try {
        lower(graph_.node(id));
      } catch (Error& error) {
        note_missing(error, graph_, graph_.node(id), missing);
      }
    }
    if (!missing.empty()) throw Error(ErrorCode::not_implemented, missing);
    share_bytes();
    collect_expressions();
    if (p_.parameters_) p_.parameters_->take_instructions(p_, std::span(p_.instructions_));
    p_.weights_.place(p_, std::span(p_.instructions_), options_);
    p_.commit_from_ = first_of_updates(forward);
    name_phases();
    const auto handed_out = std::find_if(p_.storage_.preallocated.begin(), p_.storage_.preallocated.end(),
                                         [&](SlotId index) { return slot(index).is_gradient && slot(index).is_output; });
    if (handed_out != p_.storage_.preallocated.end()) p_.first_gradient_ = *handed_out;
    if (options_.parallel && p_.instructions_.size() <= kMaxParallelInstructions) p_.plan_parallel(viewed_);
    p_.planning_ = {.always_parallel = options_.always_parallel,
                    .verify = options_.verify_plans || verifies_plans(),
                    .shared = options_.shared,
                    .arena_share = options_.arena_share,
                    .recompute_fraction = options_.recompute_fraction,
                    .recompute_pays = options_.recompute_pays};
  }

 private:
  // Returns the first of the state updates at the end of the order; with early updates, the first update that reads a gradient.
  InstructionId first_of_updates(const std::unordered_set<const Node*>& forward) const {
    InstructionId first = p_.instructions_.next_id();
    for (InstructionId i : p_.instructions_.ids().reversed()) {
      if (!is_update(*p_.instructions_[i].node)) break;
      first = i;
    }
    if (options_.early_updates)
      for (InstructionId i : IdRange(InstructionId{}, first).reversed())
        if (is_update(*p_.instructions_[i].node) && is_behind(graph_, *p_.instructions_[i].node, forward)) first = i;
    return first;
  }

  void name_phases() {
    if (!options_.forward_outputs) return;
    const IdVector<InstructionId, StepPhase> phases = step_phases(graph_, p_.instructions_, p_.commit_from_, *options_.forward_outputs);
    for (InstructionId i : phases.ids()) {
      Instruction& instruction = p_.instructions_[i];
      instruction.phase = phases[i];
      if (phases[i] != StepPhase::backward) continue;
      for (SlotId output : p_.operands(instruction).subspan(instruction.num_inputs))
        if (output != kNoSlot) slot(output).is_gradient = true;
    }
  }

  Slot& slot(SlotId index) { return p_.slots_[index]; }
  SlotId slot_of(ValueId id) const { return id == kNoValue ? kNoSlot : slot_of_value_[index_of(id)]; }

  void find_parameters() {
    auto parameters = std::make_unique<ProgramParameters>(graph_, options_);
    if (!parameters->empty()) p_.parameters_ = std::move(parameters);
  }

  bool follows_parameters(ValueId id) const { return p_.parameters_ && p_.parameters_->has(id); }

  void make_slots() {
    slot_of_value_.assign(graph_.num_values(), kNoSlot);
    auto add = [&](ValueId id) {
      if (id == kNoValue || slot_of_value_[index_of(id)] != kNoSlot) return slot_of(id);
      const Value& value = graph_.value(id);
      Slot made;
      made.value = id;
      made.dtype = value.type.dtype;
      made.static_shape = determined_.has_extents(value.type);
      made.constant_shape = value.type.is_static();
      made.root = p_.slots_.next_id();
      if (value.kind == Value::Kind::constant || value.kind == Value::Kind::parameter || follows_parameters(id))
        made.location = LocationKind::constant;
      else if (determined_.has_elements(value))
        made.location = LocationKind::known;  // this also applies to shapes that a body captures
      else if (value.kind == Value::Kind::input)
        made.location = LocationKind::feed;
      else if (!made.static_shape || made.dtype == DType::string)
        made.location = LocationKind::held;
      return slot_of_value_[index_of(id)] = p_.slots_.add(made);
    };
    for (ValueId input : graph_.inputs) p_.input_slots_.push_back(add(input));
    for (NodeId id = graph_.first(); id != kNoNode; id = graph_.next(id)) {
      for (ValueId input : graph_.node(id).inputs) add(input);
      for (ValueId output : graph_.node(id).outputs) add(output);
    }
    for (ValueId output : graph_.outputs) {
      SlotId index = add(output);
      p_.output_slots_.push_back(index);
      mark_output(index);
    }
  }

  // An output of the run in the arena becomes a held value, because the caller keeps it after the run. Feeds, constants and known values
  // are handed to the caller as they are.
  void mark_output(SlotId index) {
    slot(index).is_output = true;
    if (slot(index).location == LocationKind::arena) slot(index).location = LocationKind::held;
  }

  // The binding writes known values. If a node has to run for its other outputs, its known output goes to a separate slot that nothing
  // reads.
  SlotId written_slot(SlotId index) {
    if (slot(index).location != LocationKind::known) return index;
    Slot made = slot(index);
    made.location = LocationKind::arena;
    made.is_output = false;
    made.root = p_.slots_.next_id();
    return p_.slots_.add(made);
  }

  void lower(const Node& node) {
    // If the binding writes all outputs, the node needs no instruction.
    bool all_known = !node.outputs.empty();
    for (ValueId output : node.outputs) all_known &= output == kNoValue || slot(slot_of(output)).location == LocationKind::known;
    if (all_known && node.bodies.empty()) return;

    Instruction made;
    made.node = &node;
    made.is_yield = node.op && node.op->barrier;
    made.moves = node.op && node.op->moves != Moves::no;
    add_operands(node, made);
    if (node.op->control_flow != ControlFlow::none || made.is_yield) {
      made.dynamic = true;
      for (const Body& body : node.bodies) made.bodies.push_back(lower_body(body));
    } else {
      choose_kernel(node, made);
    }
    if (made.dynamic) {
      for (SlotId output : p_.operands(made).subspan(made.num_inputs))
        if (output != kNoSlot) slot(output).location = LocationKind::held;
    }
    if (made.is_yield) {
      for (ValueId input : node.inputs)
        if (input != kNoValue) mark_output(slot_of(input));
    }
    p_.instructions_.push_back(std::move(made));
  }

  void add_operands(const Node& node, Instruction& made) {
    made.first_operand = static_cast<uint32_t>(p_.operands_.size());
    if (std::max(node.inputs.size(), node.outputs.size()) > UINT16_MAX)
      throw Error(ErrorCode::not_implemented, fmt::format("{} inputs and {} outputs; a node may have at most {} of each",
                                                          node.inputs.size(), node.outputs.size(), UINT16_MAX));
    made.num_inputs = static_cast<uint16_t>(node.inputs.size());
    made.num_outputs = static_cast<uint16_t>(node.outputs.size());
    auto add = [&](SlotId index) {
      p_.operands_.push_back(index);
      if (index != kNoSlot) made.dynamic |= !slot(index).static_shape || slot(index).dtype == DType::string;
    };
    for (ValueId input : node.inputs) add(slot_of(input));
    for (ValueId output : node.outputs) add(output == kNoValue ? kNoSlot : written_slot(slot_of(output)));
  }

  std::unique_ptr<Program> lower_body(const Body& body) {
    ProgramOptions options = options_;
    if (options_.release_packed) options.release_packed = body.graph.get();
    options.variables = nullptr;  // bodies capture parameters as values of the surrounding program
    options.forward_outputs.reset(), options.early_updates = false;
    auto made = std::make_unique<Program>(std::shared_ptr<const Graph>(p_.graph_, body.graph.get()), options, determined_.symbols());
    made->is_body_ = true;
    p_.weights_.add_body(made->weights_);
    return made;
  }

  void choose_kernel(const Node& node, Instruction& made) {
    made.kernel = &select_kernel(graph_, node);
    made.run = made.kernel->run;
    made.dynamic |= made.kernel->allocates;
    for (int input : node.op->value_inputs) {
      if (!node.has_input(static_cast<size_t>(input))) continue;
      const LocationKind location = slot(slot_of(node.inputs[static_cast<size_t>(input)])).location;
      made.dynamic |= location != LocationKind::constant && location != LocationKind::known;
    }
    if (!made.dynamic) note_comparisons(node, made);
    // A value that the host reads is computed on the host, unless only the device can compute it.
    const bool stays = settings_.contains(&node) && made.kernel->name != ops::kOnDevicesOnly;
    if (options_.device_kernel && !stays) take_device_kernel(node, made);
    p_.state_bytes_ = align_up(p_.state_bytes_, alignof(std::max_align_t));
    made.state_offset = static_cast<uint32_t>(p_.state_bytes_);
    p_.state_bytes_ += made.kernel->state_bytes;
  }

  void take_device_kernel(const Node& node, Instruction& made) {
    const auto is_dense = [&](ValueId id) {
      const Type& type = graph_.type(id);
      return id == kNoValue || (type.is_tensor() && type.dtype != DType::undefined && type.dtype != DType::string);
    };
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), is_dense) || !std::all_of(node.outputs.begin(), node.outputs.end(), is_dense))
      return;
    DeviceKernel found = options_.device_kernel(graph_, node);
    if (!found.kernel || found.kernel->allocates != made.kernel->allocates) return;
    made.kernel = found.kernel;
    made.run = found.kernel->run;
    made.packed = std::move(found.state);
    made.on_device = true;
  }

  // Inference may assume that two extents are equal, and a declaration may give an extent that inference does not find. If the feeds'
  // shapes determine both extents, the binding compares them. Otherwise the kernel is bound in the run, which compares the output shapes.
  void note_comparisons(const Node& node, Instruction& made) {
    const Inferred inferred = infer_alone(graph_, node);
    for (const Assumption& assumed : inferred.assumptions)
      if (determined_.has(assumed.a) && determined_.has(assumed.b)) compare(node, assumed.a, assumed.b, assumed.what);
    for (size_t i = 0; i < node.outputs.size() && !made.dynamic; ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const SymbolicShape& declared = *graph_.type(node.outputs[i]).shape;
      const Type& told = inferred.outputs[i];
      made.dynamic = !told.shape || told.shape->size() != declared.size() || !determined_.has_extents(told);
      for (size_t axis = 0; axis < declared.size() && !made.dynamic; ++axis)
        if ((*told.shape)[axis] != declared[axis])
          compare(node, (*told.shape)[axis], declared[axis],
                  fmt::format("axis {} of \"{}\", inferred and declared", axis, graph_.value(node.outputs[i]).name));
    }
  }

  void compare(const Node& node, const Dim& a, const Dim& b, std::string what) {
    p_.extents_.comparisons.push_back({&node, extent_of(kNoSlot, 0, a), extent_of(kNoSlot, 0, b), std::move(what)});
  }

  void share_bytes() {
    Sharing sharing = choose_sharing(p_, options_);
    p_.slots_ = std::move(sharing.slots);
    viewed_ = std::move(sharing.viewed);
    IdVector<InstructionId, Instruction> kept;
    for (InstructionId i : p_.instructions_.ids())
      if (!sharing.elided[i]) kept.push_back(std::move(p_.instructions_[i]));
    p_.instructions_ = std::move(kept);
    p_.storage_ = make_storage(graph_, p_.slots_, p_.instructions_, p_.operands_, sharing.places);
  }

  static SymbolicExtent extent_of(SlotId slot, size_t position, const Dim& dim) {
    return {slot, static_cast<int32_t>(position), dim.is_const() ? -1 : dim.expr()->index, dim};
  }

  void collect_expressions() {
    std::set<int32_t> needed;
    auto need = [&](const Dim& dim) {
      if (!dim.is_const()) needed.insert(dim.expr()->index);
    };
    for (SlotId s : p_.slots_.ids()) {
      const Slot& candidate = p_.slots_[s];
      const Value& value = graph_.value(candidate.value);
      if (candidate.static_shape && !candidate.constant_shape) {
        for (size_t axis = 0; axis < value.type.shape->size(); ++axis) {
          need((*value.type.shape)[axis]);
          p_.extents_.of_shapes.push_back(extent_of(s, axis, (*value.type.shape)[axis]));
        }
      }
      if (candidate.location != LocationKind::known) continue;
      for (size_t i = 0; i < value.known->size(); ++i) {
        need((*value.known)[i]);
        p_.extents_.of_known.push_back(extent_of(s, i, (*value.known)[i]));
      }
    }
    for (const ExtentComparison& comparison : p_.extents_.comparisons) need(comparison.a.dim), need(comparison.b.dim);
    for (const Instruction& instruction : p_.instructions_)
      for (const auto& body : instruction.bodies)
        for (int32_t symbol : body->extents_.symbols)
          if (determined_.knows(symbol)) needed.insert(symbol);
    const SymbolTable& table = graph_.symbols();
    // Adds all operands of needed expressions. Operands have smaller indices, so one pass in descending order finds all of them.
    for (auto next = needed.rbegin(); next != needed.rend(); ++next)
      for_each_operand(table[static_cast<size_t>(*next)], [&](const Expr& operand) { needed.insert(operand.index); });
    const std::vector<int32_t> expressions(needed.begin(), needed.end());
    for (int32_t index : expressions) {
      if (table[static_cast<size_t>(index)].kind == Expr::Kind::symbol) p_.extents_.symbols.push_back(index);
    }
    // The array of values also covers all symbols in the feeds' shapes, because feeds are checked against each other with these values.
    for (SlotId input : p_.input_slots_) {
      const Type& type = p_.type(input);
      if (!type.is_tensor() || !type.shape) continue;
      for (const Dim& dim : *type.shape)
        p_.extents_.num_expressions =
            std::max(p_.extents_.num_expressions, dim.is_const() ? 0 : static_cast<size_t>(dim.expr()->index) + 1);
    }
    if (!expressions.empty())
      p_.extents_.num_expressions = std::max(p_.extents_.num_expressions, static_cast<size_t>(expressions.back()) + 1);
    p_.extents_.code.compile(table, expressions);
  }

  Program& p_;
  const Graph& graph_;
  const ProgramOptions& options_;
  std::vector<SlotId> slot_of_value_;
  IdVector<SlotId, SlotId> viewed_;  // for a view that no instruction makes: the slot that it is a view of
  DeterminedExtents determined_;
  std::set<const Node*> settings_;  // the result of nodes_of_settings()
};

Program::Program(std::shared_ptr<const Graph> graph, const ProgramOptions& options, std::span<const int32_t> outer_symbols)
    : graph_(std::move(graph)) {
  Lowering(*this, options, outer_symbols).run();
  uint32_t name = Recorder::reserve_names(instructions_.size());
  for (Instruction& instruction : instructions_) instruction.record_name = name++;
}

Program::~Program() = default;

}  // namespace treadle::exec
