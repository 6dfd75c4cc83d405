#include "exec/run/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "core/threads/thread_pool.h"
#include "exec/memory/memory_pass.h"
#include "exec/plan/budget.h"
#include "exec/plan/plans.h"
#include "exec/run/run_control.h"
#include "exec/verify/verify_plan.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// Returns a tensor of this shape whose rows have the row stride of the slot.
Tensor piece_of_rows(const Slot& slot, const Shape& shape, std::shared_ptr<Storage> storage, size_t offset_bytes) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 1);
  int64_t stride = slot.row_step;
  for (int axis = shape.rank() - 2; axis >= 0; stride *= shape[axis--]) strides[static_cast<size_t>(axis)] = stride;
  return {slot.dtype, shape, strides, std::move(storage), offset_bytes};
}

size_t offset_in_storage(const Tensor& tensor) { return static_cast<size_t>(tensor.raw() - tensor.storage()->data()); }

}  // namespace

Datum for_node(const Slot& slot, Datum value) {
  if (!slot.rewritten || !value.is_tensor()) return value;
  const Tensor& tensor = value.tensor();
  auto loan = Storage::lend(tensor.storage()->data(), tensor.storage()->size_bytes());
  if (slot.row_step == 0) return Tensor(tensor.dtype(), tensor.shape(), std::move(loan), offset_in_storage(tensor));
  return Tensor(tensor.dtype(), tensor.shape(), tensor.strides(), std::move(loan), offset_in_storage(tensor));
}

Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape) {
  if (root.dtype() == dtype) return root.reshaped(shape);
  return {dtype, shape, root.storage(), offset_in_storage(root)};
}

RunState::RunState(Plans& plans)
    : plans_(plans), program_(plans.program()), pointers_(program_.operands().size(), nullptr), held_(program_.slots().size()) {}

RunState::~RunState() {
  drop_arena();
  if (binding_) plans_.bindings().let_go(std::move(binding_));
}

void RunState::take_binding(std::span<const int64_t> symbol_values, const RunControl& control) {
  const auto& symbols = program_.extents().symbols;
  const bool same = binding_ && std::all_of(symbols.begin(), symbols.end(), [&](int32_t s) {
                      return binding_->values()[static_cast<size_t>(s)] == symbol_values[static_cast<size_t>(s)];
                    });
  if (same) return binding_->note_return();
  const int threads = control.threads.most();
  std::shared_ptr<const Binding> bound = plans_.bindings().get(symbol_values, threads, control.threads.pool, std::move(binding_));
  prove(*bound);
  binding_ = std::move(bound);
}

Datum RunState::value(SlotId index, bool shared) const {
  const Slot& slot = program_.slots()[index];
  auto viewed = [&](const Datum& root) {
    if (!root.is_tensor()) return root;
    Datum datum = for_node(slot, slot.root == index ? root.tensor() : piece_of(index, root.tensor()));
    if (shared && datum.tensor().storage()->lent()) datum = datum.tensor().clone();
    return datum;
  };
  switch (slot.location) {
    case LocationKind::constant: return viewed(binding_->constant(slot.root));
    case LocationKind::feed:
    case LocationKind::held: return viewed(held(slot.root));
    case LocationKind::known: return shared ? binding_->known(index).clone() : binding_->known(index);
    case LocationKind::arena: break;
  }
  if (!uses_arena_ || place_of(slot.buffer) == kAway) return {};
  const Tensor view = in_arena(index);
  return shared ? view.clone() : view;
}

Tensor RunState::piece_of(SlotId index, const Tensor& root) const {
  const Slot& slot = program_.slots()[index];
  const Shape& shape = binding_->shape(index);
  const size_t offset = binding_->piece_offset(index);
  if (slot.row_step != 0) return piece_of_rows(slot, shape, root.storage(), offset_in_storage(root) + offset);
  if (offset == 0 && shape.num_elements() == root.num_elements()) return whole_as(root, slot.dtype, shape);
  return {slot.dtype, shape, root.storage(), offset_in_storage(root) + offset};
}

Tensor RunState::in_arena(SlotId index) const {
  const Slot& slot = program_.slots()[index];
  const Shape& shape = binding_->shape(index);
  auto* data = arena_->data() + place_of(slot.buffer) + binding_->piece_offset(index);
  const bool by_rows = slot.row_step != 0 && shape.num_elements() > 0;
  const int64_t row = by_rows ? shape[shape.rank() - 1] : 0;
  const int64_t reach = by_rows ? (shape.num_elements() / row - 1) * slot.row_step + row : shape.num_elements();
  const auto storage = Storage::lend(data, size_bytes(slot.dtype, reach));
  return by_rows ? piece_of_rows(slot, shape, storage, 0) : Tensor(slot.dtype, shape, storage);
}

void RunState::hold(SlotId slot, Datum datum) {
  if (datum.is_tensor()) {
    const Slot& info = program_.slots()[slot];
    if (info.static_shape && datum.tensor().shape() != binding_->shape(slot))
      throw Error(ErrorCode::invalid_argument, fmt::format("the value \"{}\" has the shape {}, inferred was {}", program_.name(slot),
                                                           to_string(datum.tensor().shape()), to_string(binding_->shape(slot))));
    point_at(slot, datum.tensor());
  }
  held_[slot] = std::move(datum);
}

void RunState::put(SlotId slot, const Datum& value) {
  const Datum own = this->value(slot, /*shared=*/false);
  if (!own.is_tensor() || !value.is_tensor())
    hold(slot, value);
  else if (Tensor target = own.tensor(); target.raw() != value.tensor().raw())
    target.copy_from(value.tensor());
}

void RunState::drop_all() noexcept {
  for (SlotId slot : program_.input_slots()) drop(slot);
  for (SlotId slot : program_.held_slots()) drop(slot);
  // Otherwise the binding would keep weights packed for outdated parameters in memory.
  if (program_.parameters() && binding_) plans_.bindings().let_go(std::move(binding_));
}

bool RunState::is_fed(const Tensor& memory) const {
  const std::less<> before;
  const std::byte *begin = memory.raw(), *end = begin + memory.size_bytes();
  return std::any_of(program_.input_slots().begin(), program_.input_slots().end(), [&](SlotId slot) {
    const Datum& feed = held(slot);
    return feed.is_tensor() && before(feed.tensor().raw(), end) && before(begin, feed.tensor().raw() + feed.tensor().size_bytes());
  });
}

size_t RunState::needed_arena_bytes() const {
  if (lodges_) return lodgings().arena_bytes;
  return budget_ ? budget_->arena_bytes : binding_->offsets().arena_bytes;
}

void RunState::set_uses_arena(bool on) {
  if (on == uses_arena_) return;
  drop_arena();
  uses_arena_ = on;
}

void RunState::set_lodges(bool on) {
  if (on != lodges_) generation_ = 0;
  lodges_ = on;
}

const Lodgings& RunState::lodgings() const {
  if (!lodgings_ || lodgings_generation_ != binding_->places_generation() || lodgings_budget_ != budget_) {
    Lodgings found = find_lodgings(*binding_, budget_.get());
    prove(*binding_, budget_.get(), found);
    lodgings_ = std::move(found);
    lodgings_generation_ = binding_->places_generation();
    lodgings_budget_ = budget_;
  }
  return *lodgings_;
}

void RunState::drop_arena() noexcept {
  if (arena_is_lent()) arena_->keep_only(lodged_);
  arena_.reset();
  generation_ = 0;
}

std::shared_ptr<LargeBlock> RunState::take_arena() noexcept {
  generation_ = 0;
  return std::move(arena_);
}

void RunState::give_arena(std::shared_ptr<LargeBlock> arena) noexcept {
  generation_ = 0;
  arena_ = std::move(arena);
}

void RunState::drop_former(std::shared_ptr<LargeBlock> arena) noexcept {
  std::swap(arena, arena_);
  drop_arena();
  arena_ = std::move(arena);
}

bool RunState::arena_is_lent() const {
  if (!arena_ || lodged_.empty() || arena_.use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);  // orders the accesses of other threads to the arena before the following ones
    return false;
  }
  return true;
}

bool RunState::drop_lent_arena() noexcept {
  const bool is_lent = arena_is_lent();
  if (is_lent) drop_arena();
  lodged_.clear();
  return is_lent;
}

std::shared_ptr<Storage> RunState::lodge(size_t preallocated, size_t size_bytes) {
  // Gradients can stay in the arena only if it is a large block that can be resized, and not memory of the caller.
  if (!lodges_ || !arena_ || !arena_->can_resize()) return nullptr;
  const Lodgings::Place& place = lodgings().places[preallocated];
  if (!place.found()) return nullptr;
  lodged_.push_back({place.offset, size_bytes});
  return Storage::borrow(arena_->data() + place.offset, size_bytes, [arena = arena_] {});
}

bool RunState::resize_arena(size_t size_bytes) noexcept {
  if (!can_resize_arena() || !arena_->resize(size_bytes)) return false;
  generation_ = 0;
  return true;
}

void RunState::set_budget(std::shared_ptr<const BudgetedPlan> plan) {
  if (plan && plan->carried.empty()) prove(*binding_, *plan);
  if (plan != budget_) generation_ = 0;
  budget_ = std::move(plan);
  if (!budget_) return;
  places_.assign(program_.num_buffers(), kAway);
  for (BufferId b : places_.ids())
    if (!budget_->stays[b].empty()) places_[b] = budget_->stays[b].front().offset;
}

void RunState::place(bool exact) {
  const size_t needed = uses_arena_ ? needed_arena_bytes() : 0;
  // Frees memory that was needed only for other extents.
  if (budget_ && !exact && arena_ && arena_bytes() > needed) resize_arena(needed);
  if (uses_arena_ && (!arena_ || arena_bytes() < needed || (exact && arena_bytes() > needed))) {
    drop_arena();  // comes first, so that memory need not hold both arenas
    const MemoryHolder holder(RecordWindow::any_for_memory() ? Recorder::of_process().intern("arena") : MemoryHolder::kNobody);
    arena_ = std::make_shared<LargeBlock>(needed);
    lodged_.clear();
  }
  const auto operands = program_.operands();
  const auto slots = program_.slots();
  for (size_t k = 0; k < operands.size(); ++k) {
    pointers_[k] = nullptr;
    if (operands[k] == kNoSlot) continue;
    const Slot& slot = slots[operands[k]];
    if (slot.location == LocationKind::arena) {
      if (slot.buffer == kNoBuffer || !arena_) continue;
      const size_t offset =
          budget_ ? budget_->operand_offsets[k] : binding_->offsets().offsets[slot.buffer] + binding_->piece_offset(operands[k]);
      if (offset != BudgetedPlan::kNowhere) pointers_[k] = arena_->data() + offset;
    } else if (slot.location == LocationKind::known) {
      pointers_[k] = binding_->known(operands[k]).raw();
    } else if (slot.location == LocationKind::constant) {
      if (const Datum& constant = binding_->constant(slot.root); constant.is_tensor()) pointers_[k] = constant.tensor().raw();
    }
  }
  for (SlotId s : held_.ids())
    if (held_[s].is_tensor() && slots[s].location != LocationKind::known) point_at(s, held_[s].tensor());
  generation_ = binding_->places_generation();
}

void* RunState::budgeted_scratch(const Instruction& instruction) const {
  return arena_->data() + budget_->scratch_offsets[program_.id_of(instruction)];
}

void RunState::point_at(SlotId slot, const Tensor& tensor) {
  for (uint32_t position : program_.patches(slot))
    pointers_[position] = tensor.raw() + binding_->piece_offset(program_.operands()[position]);
}

RunSnapshot RunState::snapshot(const RunControl& control) const {
  RunSnapshot made{.binding = *binding_, .budget = budget_.get(), .arena_bytes = arena_bytes(), .planned_bytes = needed_arena_bytes()};
  if (control.memory.context) made.account = control.memory.context->account.get();
  if (control.memory.pass) made.arena_capacity = control.memory.pass->arena_capacity(0);
  for (BufferId b : program_.buffers().ids()) made.places.push_back(place_of(b));
  for (SlotId s : held_.ids()) {
    const Slot& slot = program_.slots()[s];
    if (slot.root != s || (slot.location != LocationKind::held && slot.location != LocationKind::feed)) continue;
    if (held_[s].is_tensor() && held_[s].tensor().defined()) made.held.push_back({s, held_[s].tensor().size_bytes()});
  }
  return made;
}

}  // namespace treadle::exec
