#include "exec/plan/binding.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <typeinfo>
#include <utility>

#include "core/base/node_fault.h"
#include "core/files/file.h"
#include "core/threads/thread_pool.h"
#include "core/values/allocation.h"
#include "core/values/large_memory.h"
#include "exec/plan/plans.h"
#include "exec/program/verify_switch.h"
#include "graph/op_def.h"
#include "treadle/error.h"
#include "treadle/memory.h"

namespace treadle::exec {
namespace {

uint64_t next_generation() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

}  // namespace

Binding::Binding(Plans& plans) : plans_(plans), program_(plans.program()), costs_(plans), budgets_(*this, plans) {
  // Known values are kept as long as the binding, even after a run, so their memory is charged as MemoryClass::other. Under a memory limit,
  // runs may use only what is left.
  AllocationScope scope(AllocationScope::current(), MemoryClass::other);
  const auto slots = program_.slots();
  values_.resize(program_.extents().num_expressions, -1);
  shapes_.resize(slots.size());
  known_.resize(slots.size());
  changed_.resize(slots.size());
  sizes_.resize(program_.num_buffers());
  // operator new[] aligns the block for every type, so the kernel states in it can be aligned too.
  state_ = std::make_unique<std::byte[]>(program_.state_bytes() + 1);
  static const Shape scalar;
  for (SlotId slot : program_.operands()) {
    operand_shapes_.push_back(slot == kNoSlot ? &scalar : &shapes_[slot]);
    operand_dtypes_.push_back(slot == kNoSlot ? DType::undefined : slots[slot].dtype);
  }
  if (std::any_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.row_step != 0; })) {
    for (SlotId slot : program_.operands()) operand_steps_.push_back(slot == kNoSlot ? 0 : slots[slot].row_step);
  }
  for (SlotId s : slots.ids()) {
    const Value& value = program_.graph().value(slots[s].value);
    if (slots[s].constant_shape)
      shapes_[s] = value.type.static_shape();
    else if (slots[s].static_shape)
      shapes_[s].resize(value.type.rank());
    if (slots[s].location == LocationKind::known) known_[s] = Tensor(slots[s].dtype, value.type.static_shape());
  }
  IdVector<SlotId, bool> varies(slots.size());
  for (const SymbolicExtent& extent : program_.extents().of_shapes) varies[extent.slot] = true;
  for (const SymbolicExtent& element : program_.extents().of_known) varies[element.slot] = true;
  auto is_varying = [&](SlotId slot) { return slot != kNoSlot && varies[slot]; };
  for (const Instruction& instruction : program_.instructions()) {
    const auto operands = program_.operands(instruction);
    if (!instruction.dynamic && std::any_of(operands.begin(), operands.end(), is_varying)) varying_.push_back(&instruction);
  }
  for (BufferId b : program_.buffers().ids())
    if (is_varying(program_.buffers()[b].slot)) varying_buffers_.push_back(b);
  for (SlotId slot : program_.operands()) operand_values_.push_back(elements_of(slot));
}

// Returns the elements if they are known before the run, otherwise null. For a view of a constant, returns the constant's own tensor. Its
// shape differs from the view's, but kernels read only the elements.
const Tensor* Binding::elements_of(SlotId slot) const {
  if (slot == kNoSlot) return nullptr;
  const Slot& s = program_.slots()[slot];
  if (s.location == LocationKind::known) return &known_[slot];
  return s.location == LocationKind::constant && constant(s.root).is_tensor() ? &constant(s.root).tensor() : nullptr;
}

// Bound kernel states point into weights packed for one version of the parameters. So a new version requires binding all kernels again.
void Binding::take_parameters(std::shared_ptr<const ParameterVersion> parameters) {
  if (parameters == parameters_) return;
  bound_before_ = false;
  parameters_ = std::move(parameters);
  const auto operands = program_.operands();
  for (size_t k = 0; k < operands.size(); ++k)
    if (operands[k] != kNoSlot && program_.slots()[operands[k]].location == LocationKind::constant)
      operand_values_[k] = elements_of(operands[k]);
}

void Binding::evaluate() {
  program_.extents().code.run(values_);
  const auto slots = program_.slots();
  std::fill(changed_.begin(), changed_.end(), uint8_t{0});
  auto set = [&](auto& target, int64_t value, SlotId slot) {
    changed_[slot] |= target != value;
    target = static_cast<std::remove_reference_t<decltype(target)>>(value);
  };
  for (const SymbolicExtent& element : program_.extents().of_known) {
    const SlotId s = element.slot;
    const auto i = static_cast<size_t>(element.position);
    if (slots[s].dtype == DType::int64)
      set(known_[s].data<int64_t>()[i], element.value(values_), s);
    else
      set(known_[s].data<int32_t>()[i], element.value(values_), s);
  }
  for (const SymbolicExtent& extent : program_.extents().of_shapes) {
    int64_t value = extent.value(values_);
    if (value < 0)
      throw Error(ErrorCode::invalid_argument,
                  "the extent " + to_string(extent.dim) + " of \"" + program_.name(extent.slot) + "\" is " + std::to_string(value));
    set(shapes_[extent.slot][extent.position], value, extent.slot);
  }
}

void Binding::compare_extents() const {
  for (const auto& [node, a, b, what] : program_.extents().comparisons) {
    const int64_t is = a.value(values_), other = b.value(values_);
    if (is == other) continue;
    auto text = [](const Dim& dim, int64_t value) { return (dim.is_const() ? "" : to_string(dim) + " = ") + std::to_string(value); };
    Error error(ErrorCode::invalid_argument, what + ": " + text(a.dim, is) + " and " + text(b.dim, other) + " differ");
    throw NodeFault(error.add_context(describe(*node) + ", binding shapes"), node->op_type, node->domain, node->name);
  }
}

void Binding::bind_instruction(const Instruction& instruction, int max_threads) {
  if (instruction.dynamic) return;
  size_t operands = static_cast<size_t>(instruction.num_inputs) + instruction.num_outputs;
  BindContext context(*instruction.node);
  context.shapes_ = std::span(operand_shapes_).subspan(instruction.first_operand, operands);
  context.dtypes_ = std::span(operand_dtypes_).subspan(instruction.first_operand, operands);
  context.values_ = std::span(operand_values_).subspan(instruction.first_operand, operands);
  if (!operand_steps_.empty()) context.steps_ = std::span(operand_steps_).subspan(instruction.first_operand, operands);
  context.packed_ = packed(instruction);
  context.max_threads_ = max_threads;
  // Some kernels pack their weights in bind(), when the extents are known. charge_shared() charges packed weights that programs share.
  AllocationScope scope(instruction.packed_is_shared ? nullptr : AllocationScope::current(), MemoryClass::packed);
  try {
    for (int i = 0; i < static_cast<int>(instruction.num_outputs); ++i)
      context.output_shape(i).num_elements();  // throws on overflow; kernels compute strides from it
    instruction.kernel->bind(state_.get() + instruction.state_offset, context);
  } catch (Error& error) {
    std::string shapes;
    for (int i = 0; i < instruction.num_inputs; ++i) shapes += (i ? ", " : "") + to_string(context.shape(i));
    error.add_context(describe(*instruction.node) + ", binding shapes", "inputs of shapes " + shapes);
    if (error.code() != ErrorCode::invalid_argument || typeid(error) != typeid(Error)) throw;
    throw NodeFault(error, instruction.node->op_type, instruction.node->domain, instruction.node->name);
  }
  sizes_[instruction.scratch_buffer] = context.scratch_bytes();
}

// Some kernels pack their weights in bind(), in a layout that depends on the extents. That takes longer than everything else in bind(), so
// these kernels are bound in parallel first. The pass over all instructions that follows finds the weights packed. Only that pass reports
// errors, so the error names the same node for any number of threads.
void Binding::pack_ahead(int max_threads, ThreadPool* pool) {
  const LoadPhases::Phase phase("pack");
  // If more bytes than this are packed, the memory that packing has freed is returned to the system before the arena is allocated.
  constexpr size_t kMuchToPack = size_t{2} << 20;
  std::vector<const Instruction*> packing;
  size_t total_bytes = 0;
  for (const Instruction& instruction : program_.instructions()) {
    if (!packed(instruction) || instruction.dynamic) continue;
    size_t weight_bytes = 0;
    for (SlotId slot : program_.operands(instruction))
      if (slot != kNoSlot && program_.slots()[slot].location == LocationKind::constant) weight_bytes += bytes_of(slot);
    if (weight_bytes == 0) continue;
    packing.push_back(&instruction);
    total_bytes += weight_bytes;
  }
  if (total_bytes < kLittleToPack) return;
  const AllocationContext* memory = AllocationScope::current();
  parallel_for(max_threads > 1 ? pool : nullptr, static_cast<int64_t>(packing.size()), 1, [&](int64_t begin, int64_t end) {
    AllocationScope scope(memory, MemoryClass::packed);  // a thread of the pool has no scope of its own
    for (int64_t i = begin; i < end; ++i) {
      try {
        bind_instruction(*packing[static_cast<size_t>(i)], max_threads);
      } catch (const Error&) {
        continue;
      }
    }
  });
  if (total_bytes < kMuchToPack || plans_.bindings().latest_plan()) return;
  give_back_free_memory();
  drop_waiting_pages();
}

void Binding::bind_all(ThreadPool* pool) {
  pack_ahead(max_threads_, pool);
  const LoadPhases::Phase phase("bind kernels");
  for (const Instruction& instruction : program_.instructions()) bind_instruction(instruction, max_threads_);
  program_.weights().charge_shared();
  for (BufferId b : sizes_.ids())
    if (program_.buffers()[b].slot != kNoSlot) sizes_[b] = bytes_of(program_.buffers()[b].slot);
}

// Binds only kernels whose operands have changed. The result of bind() depends only on shapes and known elements, so the other kernels stay
// valid. In a model whose KV cache grows by a token per run, most kernels stay valid. Their state, which the last run has displaced from
// the CPU's caches, is not even read.
void Binding::bind_again() {
  bool may_have_packed = false;
  for (const Instruction* instruction : varying_) {
    const auto operands = program_.operands(*instruction);
    if (std::none_of(operands.begin(), operands.end(), [&](SlotId slot) { return slot != kNoSlot && changed_[slot] != 0; })) continue;
    bind_instruction(*instruction, max_threads_);
    may_have_packed |= instruction->packed_is_shared;
  }
  if (may_have_packed) program_.weights().charge_shared();
  for (BufferId b : varying_buffers_) sizes_[b] = bytes_of(program_.buffers()[b].slot);
}

void Binding::bind(std::span<const int64_t> symbol_values, int max_threads, bool bucketed, ThreadPool* pool,
                   std::shared_ptr<const ParameterVersion> parameters) {
  take_parameters(std::move(parameters));
  for (int32_t symbol : program_.extents().symbols) values_[static_cast<size_t>(symbol)] = symbol_values[static_cast<size_t>(symbol)];
  // If an error is thrown below, bound_before_ stays false, and the next bind() starts from nothing.
  const bool again = std::exchange(bound_before_, false) && max_threads == max_threads_;
  max_threads_ = max_threads;
  evaluate();
  compare_extents();
  if (again)
    bind_again();
  else
    bind_all(pool);
  const std::shared_ptr<const OffsetPlan> before = offsets_;
  const bool moved = place_pieces();
  place(bucketed);
  if (program_.parallel() || program_.planning().shared) costs_.estimate(*this);
  generation_ = next_generation();
  if (!again || moved || offsets_ != before) places_generation_ = generation_;
  // Verifying other extents at the same offsets adds little. So, unless verification is on for all plans, only a sample of such bindings is
  // verified.
  constexpr uint64_t kSample = 64;
  if (!again || offsets_ != before || verifies_plans() || generation_ % kSample == 0) proof_.reset();
  bound_before_ = true;
  budgets_.clear();
}

size_t Binding::bytes_of(SlotId slot) const { return size_bytes(program_.slots()[slot].dtype, shape(slot).num_elements()); }

bool Binding::place_pieces() {
  bool moved = false;
  const auto slots = program_.slots();
  auto row_of = [&](SlotId slot) { return shapes_[slot][shapes_[slot].rank() - 1]; };
  // Returns the number of bytes from the slot's first byte to the end of its last row.
  auto reach_of = [&](SlotId slot) {
    const Slot& own = slots[slot];
    if (own.row_step == 0 || shape(slot).num_elements() == 0) return bytes_of(slot);
    return size_bytes(own.dtype, (shape(slot).num_elements() / row_of(slot) - 1) * own.row_step + row_of(slot));
  };
  if (piece_offsets_.empty() && !program_.pieces().empty()) piece_offsets_.resize(slots.size());
  uint32_t first = 0, count = 0;  // range of operands whose sizes are summed up so far; each successive piece of a node adds one operand
  size_t preceding_bytes = 0;
  for (const Piece& piece : program_.pieces()) {
    if (piece.first_preceding != first || piece.num_preceding < count) first = piece.first_preceding, count = 0, preceding_bytes = 0;
    for (; count < piece.num_preceding; ++count)
      if (const SlotId slot = program_.operands()[first + count]; slot != kNoSlot) {
        const bool by_rows = slots[piece.slot].row_step != 0;
        preceding_bytes += by_rows ? size_bytes(slots[slot].dtype, row_of(slot)) : bytes_of(slot);
      }
    const size_t reach = reach_of(piece.slot), whole = bytes_of(slots[piece.slot].root);
    size_t offset = (piece.base == kNoSlot ? 0 : piece_offsets_[piece.base]) + preceding_bytes;
    // An empty piece needs an offset too, because other pieces may be placed relative to it. The offset must lie within the whole value.
    if (reach == 0) offset = std::min(offset, whole);
    if (offset + reach > whole)
      throw Error(ErrorCode::invalid_argument, "the pieces of \"" + program_.name(slots[piece.slot].root) + "\" do not fit into it: \"" +
                                                   program_.name(piece.slot) + "\" has the shape " + to_string(shape(piece.slot)));
    size_t& own = piece_offsets_[piece.slot];
    moved |= own != offset && slots[piece.slot].location == LocationKind::arena;
    own = offset;
  }
  return moved;
}

void Binding::place(bool bucketed) {
  if (bucketed) {
    if (offsets_ && offsets_->holds(sizes_)) return;
    if (auto found = plans_.bindings().find_plan(sizes_)) {
      offsets_ = std::move(found);
      return;
    }
  }
  const LoadPhases::Phase phase("plan memory");
  auto plan = std::make_shared<OffsetPlan>();
  plan->sizes = bucketed ? bucketed_sizes(program_, sizes_, values_) : sizes_;
  add_offsets(program_, *plan);
  plans_.bindings().add_plan(plan);
  offsets_ = std::move(plan);
}

IdVector<BufferId, size_t> Binding::buffer_sizes_for(std::vector<int64_t> values) const {
  program_.extents().code.run(values);
  IdVector<BufferId, size_t> sizes = sizes_;
  for (BufferId b : sizes.ids())
    if (const SlotId slot = program_.buffers()[b].slot; slot != kNoSlot) sizes[b] = bytes_for(program_, slot, values);
  return sizes;
}

}  // namespace treadle::exec
