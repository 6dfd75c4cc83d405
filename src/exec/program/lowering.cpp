// Graph → Program: which nodes become instructions, where values live, what shares bytes, what is released when.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "core/checked.h"
#include "core/recorder.h"
#include "exec/program/byte_sharing.h"
#include "exec/program/node_order.h"
#include "exec/program/parallel_plan.h"
#include "exec/program/program.h"
#include "exec/program/step_phases.h"
#include "exec/program/verify_switch.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {

class Lowering {
 public:
  Lowering(Program& program, const ProgramOptions& options, std::span<const int32_t> outer_symbols)
      : p_(program), graph_(program.graph()), options_(options), available_(outer_symbols.begin(), outer_symbols.end()) {
    for (ValueId input : graph_.inputs) {
      const Type& type = graph_.type(input);
      if (!type.is_tensor() || !type.shape) continue;
      for (const Dim& dim : *type.shape)
        if (!dim.is_const() && dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent()) available_.insert(dim.expr()->index);
    }
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
    make_buffers();
    make_releases();
    find_held();
    make_patches();
    collect_expressions();
    if (p_.parameters_) p_.parameters_->take_instructions(p_, std::span(p_.instructions_));
    p_.weights_.place(p_, std::span(p_.instructions_), options_);
    p_.commit_from_ = p_.instructions_.next_id();
    for (InstructionId i : p_.instructions_.ids().reversed()) {
      if (!is_update(*p_.instructions_[i].node)) break;
      p_.commit_from_ = i;
    }
    if (options_.early_updates)
      for (InstructionId i : IdRange(InstructionId{}, p_.commit_from_).reversed())
        if (is_update(*p_.instructions_[i].node) && is_behind(graph_, *p_.instructions_[i].node, forward)) p_.commit_from_ = i;
    name_phases();
    const auto handed_out = std::find_if(p_.preallocated_.begin(), p_.preallocated_.end(),
                                         [&](SlotId index) { return slot(index).is_gradient && slot(index).is_output; });
    if (handed_out != p_.preallocated_.end()) p_.first_gradient_ = *handed_out;
    if (options_.parallel && p_.instructions_.size() <= kMaxParallelInstructions) p_.plan_parallel(viewed_);
    p_.always_parallel_ = options_.always_parallel;
    p_.verifies_plans_ = options_.verify_plans || verifies_plans();
    p_.shared_ = options_.shared;
    p_.arena_share_ = options_.arena_share;
    p_.recompute_fraction_ = options_.recompute_fraction;
    p_.recompute_pays_ = options_.recompute_pays;
  }

 private:
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

  template <typename Fn>
  static void for_each_operand(const Expr& expr, Fn&& fn) {
    if (!expr.a.is_const()) fn(*expr.a.expr());
    if (!expr.b.is_const()) fn(*expr.b.expr());
    for (const Expr::Term& term : expr.terms)
      for (const Expr* factor : term.factors) fn(*factor);
  }

  // True if the feeds' shapes (and the run around a body) determine the extent. Expressions may be as deep as the graph: no recursion.
  bool is_determined(const Dim& dim) {
    if (dim.is_const()) return true;
    if (const auto found = determined_.find(dim.expr()->index); found != determined_.end()) return found->second;
    std::vector<const Expr*> open{dim.expr()};
    while (!open.empty()) {
      const Expr& expr = *open.back();
      const size_t before = open.size();
      bool result = !expr.data_dependent;
      if (result && expr.kind == Expr::Kind::symbol) {
        result = available_.contains(expr.index);
      } else if (result) {
        for_each_operand(expr, [&](const Expr& operand) {
          const auto found = determined_.find(operand.index);
          if (found == determined_.end()) open.push_back(&operand);
          result = result && found != determined_.end() && found->second;
        });
      }
      if (open.size() > before) continue;
      determined_[expr.index] = result;
      open.pop_back();
    }
    return determined_[dim.expr()->index];
  }

  bool extents_are_static(const Type& type) {
    return type.is_tensor() && type.dtype != DType::undefined && type.has_rank() &&
           std::all_of(type.shape->begin(), type.shape->end(), [&](const Dim& dim) { return is_determined(dim); });
  }

  void find_parameters() {
    auto parameters = std::make_unique<ProgramParameters>(graph_, options_);
    if (!parameters->empty()) p_.parameters_ = std::move(parameters);
  }

  bool follows_parameters(ValueId id) const { return p_.parameters_ && p_.parameters_->has(id); }

  // Values whose elements the feeds' shapes determine need no instruction: they are written when binding.
  bool is_known(const Value& value) {
    if (value.is_constant() || value.kind == Value::Kind::parameter || !value.known || !extents_are_static(value.type)) return false;
    if (value.type.dtype != DType::int64 && value.type.dtype != DType::int32) return false;
    if (!value.type.is_static() || value.type.static_shape().num_elements() != static_cast<int64_t>(value.known->size())) return false;
    return std::all_of(value.known->begin(), value.known->end(), [&](const Dim& dim) { return is_determined(dim); });
  }

  void make_slots() {
    slot_of_value_.assign(graph_.num_values(), kNoSlot);
    auto add = [&](ValueId id) {
      if (id == kNoValue || slot_of_value_[index_of(id)] != kNoSlot) return slot_of(id);
      const Value& value = graph_.value(id);
      Slot made;
      made.value = id;
      made.dtype = value.type.dtype;
      made.static_shape = extents_are_static(value.type);
      made.constant_shape = value.type.is_static();
      made.root = p_.slots_.next_id();
      if (value.kind == Value::Kind::constant || value.kind == Value::Kind::parameter || follows_parameters(id))
        made.location = LocationKind::constant;
      else if (is_known(value))
        made.location = LocationKind::known;  // also a body's captured shape
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

  // An output is handed over: it must be reference-counted. Feeds, constants and known values are handed over as they are.
  void mark_output(SlotId index) {
    slot(index).is_output = true;
    if (slot(index).location == LocationKind::arena) slot(index).location = LocationKind::held;
  }

  // A known value is written when binding, once for all runs. A node that has other outputs as well writes it to where nobody reads it.
  SlotId written_slot(SlotId index) {
    if (slot(index).location != LocationKind::known) return index;
    Slot made = slot(index);
    made.location = LocationKind::arena;
    made.is_output = false;
    made.root = p_.slots_.next_id();
    return p_.slots_.add(made);
  }

  void lower(const Node& node) {
    // Nothing to run if every output is written when binding.
    bool all_known = !node.outputs.empty();
    for (ValueId output : node.outputs) all_known &= output == kNoValue || slot(slot_of(output)).location == LocationKind::known;
    if (all_known && node.bodies.empty()) return;

    Instruction made;
    made.node = &node;
    made.first_operand = static_cast<uint32_t>(p_.operands_.size());
    if (std::max(node.inputs.size(), node.outputs.size()) > UINT16_MAX)
      throw Error(ErrorCode::not_implemented, fmt::format("{} inputs and {} outputs; a node may have at most {} of each",
                                                          node.inputs.size(), node.outputs.size(), UINT16_MAX));
    made.num_inputs = static_cast<uint16_t>(node.inputs.size());
    made.num_outputs = static_cast<uint16_t>(node.outputs.size());
    made.is_yield = node.op && node.op->barrier;
    made.moves = node.op && node.op->moves != Moves::no;
    auto operand = [&](ValueId id) {
      SlotId index = slot_of(id);
      p_.operands_.push_back(index);
      if (index == kNoSlot) return;
      made.dynamic |= !slot(index).static_shape || slot(index).dtype == DType::string;
    };
    for (ValueId input : node.inputs) operand(input);
    for (ValueId output : node.outputs) {
      operand(output);
      if (SlotId& made_here = p_.operands_.back(); made_here != kNoSlot) made_here = written_slot(made_here);
    }

    if (node.op->control_flow != ControlFlow::none || made.is_yield) {
      made.dynamic = true;
      std::vector<int32_t> symbols(available_.begin(), available_.end());
      for (const Body& body : node.bodies) {
        ProgramOptions options = options_;
        if (options_.release_packed) options.release_packed = body.graph.get();
        options.device_kernel = nullptr;  // bodies run on the host
        options.variables = nullptr;      // they capture parameters
        options.forward_outputs.reset(), options.early_updates = false;
        made.bodies.push_back(std::make_unique<Program>(std::shared_ptr<const Graph>(p_.graph_, body.graph.get()), options, symbols));
        made.bodies.back()->is_body_ = true;
        p_.weights_.add_body(made.bodies.back()->weights_);
      }
    } else {
      made.kernel = &select_kernel(graph_, node);
      made.run = made.kernel->run;
      made.dynamic |= made.kernel->allocates;
      for (int input : node.op->value_inputs) {
        if (!node.has_input(static_cast<size_t>(input))) continue;
        LocationKind location = slot(slot_of(node.inputs[static_cast<size_t>(input)])).location;
        made.dynamic |= location != LocationKind::constant && location != LocationKind::known;
      }
      if (!made.dynamic) note_comparisons(node, made);
      if (!made.dynamic && options_.device_kernel) take_device_kernel(node, made);
      p_.state_bytes_ = align_up(p_.state_bytes_, alignof(std::max_align_t));
      made.state_offset = static_cast<uint32_t>(p_.state_bytes_);
      p_.state_bytes_ += made.kernel->state_bytes;
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

  void take_device_kernel(const Node& node, Instruction& made) {
    DeviceKernel found = options_.device_kernel(graph_, node);
    if (!found.kernel) return;
    made.kernel = found.kernel;
    made.run = found.kernel->run;
    made.packed = std::move(found.state);
    made.on_device = true;
  }

  // Inference takes extents to be equal that need not be, and extents that it could not tell come from a declaration. Where the feeds'
  // shapes determine what inference says, binding compares; otherwise the node is bound in the run, where its outputs are compared.
  void note_comparisons(const Node& node, Instruction& made) {
    const Inferred inferred = infer_alone(graph_, node);
    for (const Assumption& assumed : inferred.assumptions)
      if (is_determined(assumed.a) && is_determined(assumed.b)) compare(node, assumed.a, assumed.b, assumed.what);
    for (size_t i = 0; i < node.outputs.size() && !made.dynamic; ++i) {
      if (node.outputs[i] == kNoValue) continue;
      const SymbolicShape& declared = *graph_.type(node.outputs[i]).shape;
      const Type& told = inferred.outputs[i];
      made.dynamic = !told.shape || told.shape->size() != declared.size() || !extents_are_static(told);
      for (size_t axis = 0; axis < declared.size() && !made.dynamic; ++axis)
        if ((*told.shape)[axis] != declared[axis])
          compare(node, (*told.shape)[axis], declared[axis],
                  fmt::format("axis {} of \"{}\", inferred and declared", axis, graph_.value(node.outputs[i]).name));
    }
  }

  void compare(const Node& node, const Dim& a, const Dim& b, std::string what) {
    p_.comparisons_.push_back({&node, extent_of(kNoSlot, 0, a), extent_of(kNoSlot, 0, b), std::move(what)});
  }

  void share_bytes() {
    Sharing sharing = choose_sharing(p_, options_);
    p_.slots_ = std::move(sharing.slots);
    viewed_ = std::move(sharing.viewed);
    IdVector<InstructionId, Instruction> kept;
    for (InstructionId i : p_.instructions_.ids())
      if (!sharing.elided[i]) kept.push_back(std::move(p_.instructions_[i]));
    p_.instructions_ = std::move(kept);
    note_pieces(sharing.places);
    note_rewritten(sharing.places);
  }

  // Held values are kept by reference, in a sequence for example: not those over which, or over a piece of whose root, others are written.
  void note_rewritten(const Places& places) {
    IdVector<SlotId, InstructionId> made(p_.slots_.size(), kNoInstruction), last_write = made;
    for (InstructionId i : p_.instructions_.ids())
      for (SlotId output : p_.operands(p_.instructions_[i]).subspan(p_.instructions_[i].num_inputs))
        if (output != kNoSlot) made[output] = last_write[slot(output).root] = i;
    for (SlotId s : p_.slots_.ids()) {
      if (p_.slots_[s].location != LocationKind::held) continue;
      SlotId maker = s;  // of a view: what it is a view of
      while (made[maker] == kNoInstruction && places.base[maker] != kNoSlot) maker = places.base[maker];
      p_.slots_[s].rewritten = made[maker] < last_write[p_.slots_[s].root];
    }
  }

  // Values whose bytes do not begin where their root's do, each behind what it lies in.
  void note_pieces(const Places& places) {
    enum class State : uint8_t { unknown, at_root, behind };
    IdVector<SlotId, State> states(p_.slots_.size(), State::unknown);
    std::vector<SlotId> chain;
    for (SlotId s : p_.slots_.ids()) {
      // From the slot to the first one that is known, or has bytes of its own; then back.
      chain.clear();
      for (SlotId at = s; at != kNoSlot && states[at] == State::unknown; at = places.base[at]) chain.push_back(at);
      for (; !chain.empty(); chain.pop_back()) {
        const SlotId at = chain.back(), base = places.base[at];
        const auto [first, count] = places.preceding[at];
        const bool behind = count > 0 || (base != kNoSlot && states[base] == State::behind);
        states[at] = behind ? State::behind : State::at_root;
        if (!behind && !is_smaller(at)) continue;
        p_.pieces_.push_back({at, base, first, count});
        slot(slot(at).root).in_pieces = true;
      }
    }
  }

  // Than its root: the first piece begins with it, but is not all of it.
  bool is_smaller(SlotId index) const {
    const SlotId root = p_.slots_[index].root;
    const Type& own = p_.type(index);
    return root != index && own.shape && p_.type(root).shape && !same_size(p_.type(index), p_.type(root));
  }

  void make_buffers() {
    for (InstructionId step : p_.instructions_.ids()) {
      Instruction& instruction = p_.instructions_[step];
      for (SlotId operand : p_.operands(instruction)) {
        if (operand == kNoSlot) continue;
        Slot& root = slot(slot(operand).root);
        if (root.location != LocationKind::arena) continue;
        if (root.buffer == kNoBuffer) root.buffer = p_.buffers_.add({slot(operand).root, kNoInstruction, step, step});
        slot(operand).buffer = root.buffer;  // a view's, too
        p_.buffers_[root.buffer].last = step;
      }
      if (!instruction.dynamic) instruction.scratch_buffer = p_.buffers_.add({kNoSlot, step, step, step});
    }
  }

  void make_releases() {
    IdVector<SlotId, InstructionId> last(p_.slots_.size(), kNoInstruction);
    for (InstructionId i : p_.instructions_.ids())
      for (SlotId operand : p_.operands(p_.instructions_[i]))
        if (operand != kNoSlot) last[slot(operand).root] = i;
    IdVector<InstructionId, std::vector<SlotId>> at(p_.instructions_.size());
    for (SlotId s : p_.slots_.ids()) {
      const Slot& candidate = p_.slots_[s];
      if (candidate.location != LocationKind::held || candidate.is_output || candidate.root != s || last[s] == kNoInstruction) continue;
      at[last[s]].push_back(s);
    }
    for (InstructionId i : at.ids()) {
      p_.instructions_[i].first_release = static_cast<uint32_t>(p_.releases_.size());
      p_.instructions_[i].num_releases = static_cast<uint32_t>(at[i].size());
      p_.releases_.insert(p_.releases_.end(), at[i].begin(), at[i].end());
    }
  }

  void find_held() {
    for (SlotId s : p_.slots_.ids())
      if (p_.slots_[s].location == LocationKind::held) p_.held_slots_.push_back(s);
    for (const Instruction& instruction : p_.instructions_) {
      if (instruction.dynamic) continue;
      for (SlotId output : p_.operands(instruction).subspan(instruction.num_inputs))
        if (output != kNoSlot && slot(output).location == LocationKind::held && slot(output).root == output)
          p_.preallocated_.push_back(output);
    }
  }

  void make_patches() {
    IdVector<SlotId, std::vector<uint32_t>> positions(p_.slots_.size());
    for (const Instruction& instruction : p_.instructions_) {
      auto operands = p_.operands(instruction);
      for (size_t k = 0; k < operands.size(); ++k) {
        if (operands[k] == kNoSlot) continue;
        SlotId root = slot(operands[k]).root;
        LocationKind location = slot(root).location;
        if (location == LocationKind::feed || location == LocationKind::held)
          positions[root].push_back(instruction.first_operand + static_cast<uint32_t>(k));
      }
    }
    for (const auto& list : positions) {
      p_.patch_begin_.push_back(static_cast<uint32_t>(p_.patch_positions_.size()));
      p_.patch_positions_.insert(p_.patch_positions_.end(), list.begin(), list.end());
    }
    p_.patch_begin_.push_back(static_cast<uint32_t>(p_.patch_positions_.size()));
  }

  static Program::SymbolicExtent extent_of(SlotId slot, size_t position, const Dim& dim) {
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
          p_.symbolic_extents_.push_back(extent_of(s, axis, (*value.type.shape)[axis]));
        }
      }
      if (candidate.location != LocationKind::known) continue;
      for (size_t i = 0; i < value.known->size(); ++i) {
        need((*value.known)[i]);
        p_.known_elements_.push_back(extent_of(s, i, (*value.known)[i]));
      }
    }
    for (const Program::Comparison& comparison : p_.comparisons_) need(comparison.a.dim), need(comparison.b.dim);
    for (const Instruction& instruction : p_.instructions_)
      for (const auto& body : instruction.bodies)
        for (int32_t symbol : body->symbols_)
          if (available_.contains(symbol)) needed.insert(symbol);
    const SymbolTable& table = graph_.symbols();
    // Operands have smaller indices: those of the largest first, what they need is met on the way down.
    for (auto next = needed.rbegin(); next != needed.rend(); ++next)
      for_each_operand(table[static_cast<size_t>(*next)], [&](const Expr& operand) { needed.insert(operand.index); });
    for (int32_t index : needed) {
      p_.expressions_.push_back(index);
      if (table[static_cast<size_t>(index)].kind == Expr::Kind::symbol) p_.symbols_.push_back(index);
    }
    // Symbols of the feeds that nothing else reads: the feeds are checked against them.
    for (SlotId input : p_.input_slots_) {
      const Type& type = p_.type(input);
      if (!type.is_tensor() || !type.shape) continue;
      for (const Dim& dim : *type.shape)
        p_.num_expressions_ = std::max(p_.num_expressions_, dim.is_const() ? 0 : static_cast<size_t>(dim.expr()->index) + 1);
    }
    if (!p_.expressions_.empty()) p_.num_expressions_ = std::max(p_.num_expressions_, static_cast<size_t>(p_.expressions_.back()) + 1);
    p_.extent_code_.compile(table, p_.expressions_);
  }

  Program& p_;
  const Graph& graph_;
  const ProgramOptions& options_;
  std::vector<SlotId> slot_of_value_;
  IdVector<SlotId, SlotId> viewed_;  // what each is a view of, if no instruction makes it
  std::set<int32_t> available_;      // symbols whose values a run knows when it starts
  std::unordered_map<int32_t, bool> determined_;
};

Program::Program(std::shared_ptr<const Graph> graph, const ProgramOptions& options, std::span<const int32_t> outer_symbols)
    : graph_(std::move(graph)) {
  Lowering(*this, options, outer_symbols).run();
  uint32_t name = Recorder::reserve_names(instructions_.size());
  for (Instruction& instruction : instructions_) instruction.record_name = name++;
}

Program::~Program() = default;

std::span<const uint32_t> Program::patches(SlotId slot) const {
  const size_t s = index_of(slot);
  return std::span(patch_positions_).subspan(patch_begin_[s], patch_begin_[s + 1] - patch_begin_[s]);
}

}  // namespace treadle::exec
