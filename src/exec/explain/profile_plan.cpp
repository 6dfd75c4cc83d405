#include "exec/explain/profile_plan.h"

#include <algorithm>

#include "core/values/elements_text.h"
#include "exec/plan/binding.h"
#include "exec/plan/budget.h"
#include "exec/plan/lodging.h"
#include "graph/layers.h"
#include "graph/op_def.h"

namespace treadle::exec {
namespace {

// Keeps the most recently used binding while its data is read, so that the cache does not reuse the object for other extents.
class LatestBinding {
 public:
  explicit LatestBinding(Plans& plans) : plans_(plans), binding_(plans.bindings().latest()) {}
  ~LatestBinding() { plans_.bindings().let_go(std::move(binding_)); }
  LatestBinding(const LatestBinding&) = delete;
  LatestBinding& operator=(const LatestBinding&) = delete;
  const Binding* get() const { return binding_.get(); }

 private:
  Plans& plans_;
  std::shared_ptr<const Binding> binding_;
};

// Returns the elements of a scalar or short vector as text if the tensor is constant or stored in the binding; otherwise an empty text.
// Parameters get no text, because their values change.
std::string value_of(const Program& program, const Binding* binding, SlotId index) {
  constexpr int64_t kLongest = 16;
  const Slot& slot = program.slots()[index];
  const SlotId root = slot.root == kNoSlot ? index : slot.root;
  Tensor tensor;
  if (slot.location == LocationKind::known && binding)
    tensor = binding->known(root);
  else if (program.graph().value(slot.value).is_constant() && program.constant(root).is_tensor())
    tensor = program.constant(root).tensor();
  const Type& type = program.type(index);
  if (!tensor.defined() || tensor.storage()->device() || !type.has_rank() || type.shape->size() > 1 || tensor.num_elements() > kLongest)
    return {};
  const std::string elements = elements_text(tensor);
  if (type.shape->empty()) return elements;
  if (elements.empty() && tensor.num_elements() > 0) return {};
  std::string text = "[";
  for (char c : elements) text += c == ',' ? std::string(", ") : std::string(1, c);
  return text + "]";
}

ProfiledOperand operand_of(const Program& program, const Binding* binding, SlotId index) {
  ProfiledOperand operand;
  if (index == kNoSlot) return operand;
  const Slot& slot = program.slots()[index];
  operand.name = program.name(index);
  operand.dtype = slot.dtype;
  if (slot.root != index && slot.root != kNoSlot) operand.shares = program.name(slot.root);
  operand.constant = slot.location == LocationKind::constant;
  operand.row_step = slot.row_step;
  operand.value = value_of(program, binding, index);
  if (slot.static_shape && binding)
    operand.shape = binding->shape(index);
  else if (program.type(index).is_static())
    operand.shape = program.type(index).static_shape();
  return operand;
}

void set_cost(const Instruction& instruction, ProfiledNode& node) {
  const OpDef* op = instruction.node->op;
  if (!op || !op->cost || !instruction.bodies.empty()) return;
  static const Shape kAbsent;
  std::vector<const Shape*> shapes;
  std::vector<DType> dtypes;
  for (const auto* operands : {&node.inputs, &node.outputs})
    for (const ProfiledOperand& operand : *operands) {
      if (!operand.name.empty() && !operand.shape) return;
      shapes.push_back(operand.shape ? &*operand.shape : &kAbsent);
      dtypes.push_back(operand.dtype);
    }
  ShapeContext context(*instruction.node);
  context.shapes_ = shapes;
  context.dtypes_ = dtypes;
  const Cost cost = op->cost(context);
  node.flops = cost.flops;
  node.bytes = cost.bytes;
}

// Links each backward node to the forward nodes that come from the same nodes of the loaded model (its `sources`).
void find_forward_nodes(std::span<ProfiledNode> nodes, int32_t first) {
  std::unordered_map<std::string, std::vector<int32_t>> forward;  // forward nodes, by the name of the model node that they come from
  int64_t sequence = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].phase != "forward") continue;
    nodes[i].sequence = sequence++;
    for (const std::string& source : nodes[i].sources) forward[source].push_back(first + static_cast<int32_t>(i));
  }
  for (ProfiledNode& node : nodes) {
    if (node.phase != "backward") continue;
    for (const std::string& source : node.sources)
      if (const auto found = forward.find(source); found != forward.end())
        node.forward.insert(node.forward.end(), found->second.begin(), found->second.end());
    std::sort(node.forward.begin(), node.forward.end());
    node.forward.erase(std::unique(node.forward.begin(), node.forward.end()), node.forward.end());
    if (!node.forward.empty()) node.sequence = nodes[static_cast<size_t>(node.forward.back() - first)].sequence;
  }
}

}  // namespace

void add_profiled_nodes(Plans& plans, int32_t parent, std::vector<ProfiledNode>& nodes, std::unordered_map<uint32_t, int32_t>& index_of) {
  const Program& program = plans.program();
  const LatestBinding binding(plans);
  const size_t first = nodes.size();
  for (const Instruction& instruction : program.instructions()) {
    ProfiledNode node;
    node.name = instruction.node->name;
    node.op_type = instruction.node->op_type;
    if (instruction.kernel) node.kernel = instruction.kernel->name;
    node.parent = parent;
    node.phase = parent < 0 ? name_of(instruction.phase) : nodes[static_cast<size_t>(parent)].phase;
    node.sources = instruction.node->sources;
    node.layers = layers_of(*instruction.node);
    node.moves = instruction.node->op && instruction.node->op->moves != Moves::no;
    if (const auto packed = plans.latest_packed(instruction)) {
      node.packed_bytes = packed->size_bytes();
      node.forms = packed->forms();
    }
    const auto operands = program.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k)
      (k < instruction.num_inputs ? node.inputs : node.outputs).push_back(operand_of(program, binding.get(), operands[k]));
    set_cost(instruction, node);
    const auto index = static_cast<int32_t>(nodes.size());
    index_of.emplace(instruction.record_name, index);
    nodes.push_back(std::move(node));
    for (const auto& body : instruction.bodies) add_profiled_nodes(plans.of_body(*body), index, nodes, index_of);
  }
  if (parent < 0) find_forward_nodes(std::span(nodes).subspan(first), static_cast<int32_t>(first));
}

ProfiledNode profiled_copy(Plans& plans, SlotId slot, const std::string& from, const std::string& to) {
  const Program& program = plans.program();
  const LatestBinding binding(plans);
  ProfiledNode node;
  node.name = program.name(slot) + ": " + from + " to " + to;
  node.op_type = "Memcpy";
  node.moves = node.between_devices = true;
  node.inputs = {operand_of(program, binding.get(), slot)};
  node.outputs = node.inputs;
  return node;
}

void add_held_weights(const Program& program, std::vector<MemoryHolding>& holdings) {
  for (SlotId index : program.slots().ids()) {
    const Slot& slot = program.slots()[index];
    if (slot.location != LocationKind::constant || (slot.root != kNoSlot && slot.root != index)) continue;
    const Datum& constant = program.constant(index);
    if (constant.is_tensor() && constant.tensor().defined() && constant.tensor().size_bytes() > 0)
      holdings.push_back({program.name(index), MemoryClass::weights, constant.tensor().size_bytes()});
  }
  for (const Instruction& instruction : program.instructions()) {
    if (instruction.packed && instruction.packed->size_bytes() > 0)
      holdings.push_back({instruction.node->name, MemoryClass::packed, instruction.packed->size_bytes()});
    for (const auto& body : instruction.bodies) add_held_weights(*body, holdings);
  }
}

namespace {

// Returns the buffers of a run whose plan keeps to a memory limit (BudgetedPlan).
std::vector<ProfiledBuffer> buffers_of(const Program& program, const Binding& binding, const BudgetedPlan& plan) {
  std::vector<ProfiledBuffer> buffers;
  for (BufferId b : plan.stays.ids())
    for (const BudgetedPlan::Stay& stay : plan.stays[b])
      buffers.push_back({.name = program.name_of_buffer(b),
                         .memory_class = program.class_of_buffer(b),
                         .size_bytes = binding.buffer_sizes()[b],
                         .offset_bytes = stay.offset,
                         .first = stay.first,
                         .last = stay.last});
  return buffers;
}

std::vector<ProfiledBuffer> buffers_of(const Program& program, const OffsetPlan& plan) {
  std::vector<ProfiledBuffer> buffers;
  for (BufferId b : plan.sizes.ids())
    buffers.push_back({.name = program.name_of_buffer(b),
                       .memory_class = program.class_of_buffer(b),
                       .size_bytes = plan.sizes[b],
                       .offset_bytes = plan.offsets[b],
                       .first = static_cast<int32_t>(program.buffers()[b].first),
                       .last = static_cast<int32_t>(program.buffers()[b].last)});
  return buffers;
}

void add_lodged(const Program& program, const Binding& binding, const BudgetedPlan* plan, ProfiledArena& arena) {
  const Lodgings lodgings = find_lodgings(binding, plan);
  arena.arena_bytes = lodgings.arena_bytes;
  for (size_t k = 0; k < lodgings.places.size(); ++k) {
    const Lodgings::Place& place = lodgings.places[k];
    if (!place.found()) continue;
    const SlotId slot = program.preallocated()[k];
    arena.buffers.push_back({.name = program.name(slot),
                             .memory_class = MemoryClass::gradients,
                             .size_bytes = binding.bytes_of(slot),
                             .offset_bytes = place.offset,
                             .first = place.made_at,
                             .last = static_cast<int32_t>(program.instructions().size()) - 1});
  }
}

}  // namespace

ProfiledArena profiled_arena(Plans& plans) {
  const Program& program = plans.program();
  ProfiledArena arena;
  const auto offsets = plans.bindings().latest_plan();
  if (!offsets) return arena;
  const LatestBinding binding(plans);
  const auto budget = binding.get() ? binding.get()->budgets().affordable() : nullptr;
  arena.arena_bytes = budget ? budget->arena_bytes : offsets->arena_bytes;
  arena.lower_bound_bytes = budget ? budget->arena_bytes : offsets->lower_bound_bytes;
  arena.buffers = budget ? buffers_of(program, *binding.get(), *budget) : buffers_of(program, *offsets);
  std::erase_if(arena.buffers, [](const ProfiledBuffer& buffer) { return buffer.size_bytes == 0; });
  if (binding.get() && plans.lodges_gradients()) add_lodged(program, *binding.get(), budget.get(), arena);
  return arena;
}

}  // namespace treadle::exec
