#include "exec/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "core/allocation.h"
#include "core/large_memory.h"
#include "core/recorder.h"
#include "core/thread_pool.h"
#include "exec/budget.h"
#include "exec/parallel.h"
#include "exec/parallel_plan.h"
#include "exec/run_instruction.h"
#include "graph/op_def.h"
#include "memory/spill_file.h"
#include "sharing/turn.h"
#include "treadle/error.h"

namespace treadle::exec {

Frame::Frame(const Program& program)
    : program_(program),
      symbol_values_(program.num_expressions()),
      pointers_(program.operands().size(), nullptr),
      held_(program.slots().size()) {}

namespace {

[[noreturn]] void throw_feed(const Program& program, int32_t slot, const Datum& datum, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("input \"{}\": {}; got {}, expected {}", program.name(slot), what, describe(datum),
                                                       to_string(program.type(slot))));
}

// Nodes that read it are bound in the run, so that its extents bind no symbols.
void check_sparse_feed(const Program& program, int32_t slot, const Datum& feed) {
  const Type& type = program.type(slot);
  const SparseTensor& sparse = feed.sparse_tensor();
  if (sparse.values.dtype() != type.dtype) throw_feed(program, slot, feed, "another dtype");
  if (!type.shape) return;
  if (static_cast<int>(type.shape->size()) != sparse.dense_shape.rank()) throw_feed(program, slot, feed, "another rank");
  for (int axis = 0; axis < sparse.dense_shape.rank(); ++axis) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(axis)];
    if (dim.is_const() && dim.value() != sparse.dense_shape[axis])
      throw_feed(program, slot, feed, fmt::format("axis {} is {}, not {}", axis, sparse.dense_shape[axis], dim.value()));
  }
}

}  // namespace

void Frame::bind_feeds(std::span<const Datum> feeds) {
  const auto inputs = program_.input_slots();
  if (feeds.size() != inputs.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} feeds for {} inputs", feeds.size(), inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type& type = program_.type(inputs[i]);
    const Datum& feed = feeds[i];
    if (!feed.defined()) throw_feed(program_, inputs[i], feed, "it is missing");
    if (!feed.is_tensor() || !type.is_tensor()) {
      if (type.kind != Type::Kind::unknown && type.kind != Type::of(feed).kind)
        throw_feed(program_, inputs[i], feed, "another kind of value");
      if (type.kind == Type::Kind::sparse_tensor) check_sparse_feed(program_, inputs[i], feed);
      held_[static_cast<size_t>(inputs[i])] = feed;
      continue;
    }
    const Tensor& tensor = feed.tensor();
    if (type.dtype != DType::undefined && tensor.dtype() != type.dtype) throw_feed(program_, inputs[i], feed, "another dtype");
    // Clients of ONNX Runtime, which does not look at the rank then, feed one number as a vector where the model says a scalar.
    if (type.shape && type.shape->empty() && tensor.shape().rank() > 0 && tensor.num_elements() == 1) {
      held_[static_cast<size_t>(inputs[i])] = tensor.contiguous().reshaped(Shape{});
      continue;
    }
    if (type.shape) {
      if (static_cast<int>(type.shape->size()) != tensor.shape().rank()) throw_feed(program_, inputs[i], feed, "another rank");
      for (size_t axis = 0; axis < type.shape->size(); ++axis) {
        const Dim& dim = (*type.shape)[axis];
        int64_t extent = tensor.shape()[static_cast<int>(axis)];
        if (dim.is_const()) {
          if (dim.value() != extent) throw_feed(program_, inputs[i], feed, fmt::format("axis {} is {}, not {}", axis, extent, dim.value()));
        } else if (dim.expr()->kind == Expr::Kind::symbol && !dim.data_dependent()) {
          int64_t& known = symbol_values_[static_cast<size_t>(dim.expr()->index)];
          if (known >= 0 && known != extent)
            throw_feed(program_, inputs[i], feed,
                       fmt::format("axis {} is {}, but the symbol {} is {} in another input", axis, extent, to_string(dim), known));
          known = extent;
        }
      }
    }
    held_[static_cast<size_t>(inputs[i])] = tensor.is_contiguous() ? feed : Datum(tensor.contiguous());
  }
}

void Frame::ready_pointers() {
  size_t arena_bytes = budget_ ? budget_->arena_bytes : binding_->offsets().arena_bytes;
  if (!arena_ || arena_->size_bytes() < arena_bytes || (control_.pass && capped_ && arena_->size_bytes() > arena_bytes)) {
    generation_ = 0;  // pointers into what is let go now, should the machine have no more
    arena_.reset();
    arena_ = allocate_large(arena_bytes);
  }
  const auto operands = program_.operands();
  const auto slots = program_.slots();
  for (size_t k = 0; k < operands.size(); ++k) {
    pointers_[k] = nullptr;
    if (operands[k] < 0) continue;
    const Slot& slot = slots[static_cast<size_t>(operands[k])];
    if (slot.placement == Placement::arena) {
      if (slot.buffer < 0) continue;
      const size_t offset = budget_ ? budget_->operand_offsets[k]
                                    : binding_->offsets().offsets[static_cast<size_t>(slot.buffer)] + binding_->part_offset(operands[k]);
      if (offset != BudgetedPlan::kNowhere) pointers_[k] = arena_->data() + offset;
    } else if (slot.placement == Placement::known) {
      pointers_[k] = binding_->known(operands[k]).raw();
    } else if (slot.placement == Placement::constant) {
      if (const Datum& constant = program_.constant(slot.root); constant.is_tensor()) pointers_[k] = constant.tensor().raw();
    }
  }
  generation_ = binding_->places_generation();
}

void Frame::start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
                  std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  control_ = control;
  pc_ = 0;
  committed_ = false;
  moved_before_ = kNeverMoved;
  sliding_.clear();
  std::fill(symbol_values_.begin(), symbol_values_.end(), int64_t{-1});
  std::copy_n(parent_values.begin(), std::min(parent_values.size(), symbol_values_.size()), symbol_values_.begin());
  bind_feeds(feeds);
  const auto symbols = program_.symbols();
  bool same = binding_ && std::all_of(symbols.begin(), symbols.end(), [&](int32_t s) {
                return binding_->values()[static_cast<size_t>(s)] == symbol_values_[static_cast<size_t>(s)];
              });
  if (same) {
    binding_->note_return();
  } else {
    const int threads = control.max_threads > 0 ? control.max_threads : control.pool ? control.pool->num_threads() : 1;
    binding_ = program_.bindings().get(program_, symbol_values_, threads, control.pool, std::move(binding_));
  }
  bound_.assign(bound.begin(), bound.end());
  memory_.assign(memory.begin(), memory.end());
  std::unique_lock<std::mutex> room;  // nobody else takes it until everything is allocated
  if (control.pass && !program_.is_body()) {
    room = begin_within_limit();
  } else if (budget_) {
    budget_.reset();
    generation_ = 0;
  }
  if (generation_ != binding_->places_generation()) ready_pointers();
  if (control.memory && control.memory->allocator) control.memory->allocator->renew(arena_->data(), arena_->size_bytes());

  for (int32_t slot : program_.input_slots()) {
    const Slot& info = program_.slots()[static_cast<size_t>(slot)];
    const Datum& feed = held_[static_cast<size_t>(slot)];
    if (info.placement == Placement::known || !feed.is_tensor()) continue;
    if (info.static_shape && feed.tensor().shape() != binding_->shape(slot))
      throw_feed(program_, slot, feed, "another shape than " + to_string(binding_->shape(slot)));
    point_at(slot, feed.tensor());
  }
  for (int32_t slot : program_.preallocated()) {
    const Slot& info = program_.slots()[static_cast<size_t>(slot)];
    Tensor tensor;
    const auto outputs = program_.output_slots();
    for (size_t k = 0; k < bound_.size(); ++k) {
      if (!bound_[k].defined() || program_.slots()[static_cast<size_t>(outputs[k])].root != slot) continue;
      const Tensor& memory = bound_[k].tensor();
      const Shape& shape = binding_->shape(outputs[k]);
      const DType dtype = program_.slots()[static_cast<size_t>(outputs[k])].dtype;
      if (memory.dtype() != dtype || memory.shape() != shape)
        throw Error(ErrorCode::invalid_argument, fmt::format("output \"{}\" is bound to {}, it has {}{}", program_.graph().output_names[k],
                                                             describe(memory), short_name_of(dtype), to_string(shape)));
      if (!memory.is_contiguous() || !memory.storage()->writable()) continue;  // copied at the end
      if (info.in_pieces && is_fed(memory)) continue;                          // as is what would be written over before it is read
      tensor = whole_as(memory, info.dtype, binding_->shape(slot));
      break;
    }
    if (!tensor.defined()) tensor = make_beside_feed(slot);
    if (!tensor.defined()) tensor = make_output(slot);
    hold(slot, std::move(tensor));
  }
  if (program_.verifies_plans()) verify_outputs_over_feeds();
}

bool Frame::is_fed(const Tensor& memory) const {
  const std::less<> before;
  const std::byte *begin = memory.raw(), *end = begin + memory.size_bytes();
  return std::any_of(program_.input_slots().begin(), program_.input_slots().end(), [&](int32_t slot) {
    const Datum& feed = held_[static_cast<size_t>(slot)];
    return feed.is_tensor() && before(feed.tensor().raw(), end) && before(begin, feed.tensor().raw() + feed.tensor().size_bytes());
  });
}

namespace {

// True if a tensor of shape `whole` begins with one of shape `part`: they differ in one axis, and no axis before it has more than one row.
bool is_prefix(const Shape& part, const Shape& whole) {
  if (part.rank() != whole.rank()) return false;
  int axis = 0;
  while (axis < part.rank() && part[axis] == whole[axis] && whole[axis] == 1) ++axis;
  if (axis < part.rank() && part[axis] > whole[axis]) return false;
  for (int i = axis + 1; i < part.rank(); ++i)
    if (part[i] != whole[i]) return false;
  return true;
}

}  // namespace

namespace {

Tensor allocate_from(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape) {
  const AllocationContext* around = AllocationScope::current();
  const AllocationContext own{allocator, around ? around->account : nullptr};
  AllocationScope scope(&own, MemoryClass::io);
  return Tensor(dtype, shape);
}

// A state that grows by a row a run asks for new memory ever more rarely. Where it is small, and has grown before, more rarely still:
// memory that no cache has and whose pages are fresh costs a run more than all that it copies.
size_t room_to_grow(size_t needed_bytes, bool has_grown) {
  constexpr size_t kLittle = size_t{64} << 10, kMuch = size_t{1} << 20;
  const size_t half = needed_bytes / 2 + 4096;
  return has_grown ? std::max(half, std::clamp(7 * needed_bytes, kLittle, kMuch)) : half;
}

}  // namespace

Tensor Frame::make_output(int32_t slot) const {
  const DType dtype = program_.slots()[static_cast<size_t>(slot)].dtype;
  const Shape& shape = binding_->shape(slot);
  const auto outputs = program_.output_slots();
  AllocationScope scope(AllocationScope::current(), program_.is_body() ? MemoryClass::activations : MemoryClass::io);
  for (size_t k = 0; k < memory_.size(); ++k) {
    if (memory_[k].allocator && program_.slots()[static_cast<size_t>(outputs[k])].root == slot && dtype != DType::string)
      return allocate_from(memory_[k].allocator, dtype, shape);
    if (!memory_[k].reusable || program_.slots()[static_cast<size_t>(outputs[k])].root != slot || dtype == DType::string) continue;
    const size_t needed = size_bytes(dtype, shape.num_elements());
    if (memory_[k].appends_to >= 0) {
      const int32_t input = program_.input_slots()[static_cast<size_t>(memory_[k].appends_to)];
      const Datum& feed = held_[static_cast<size_t>(input)];
      if (feed.is_tensor() && feed.tensor().raw() == feed.tensor().storage()->data() && feed.tensor().storage()->size_bytes() >= needed &&
          is_prefix(feed.tensor().shape(), shape))
        return Tensor(dtype, shape, feed.tensor().storage());
    }
    if (memory_[k].storage && memory_[k].storage->size_bytes() >= needed) return Tensor(dtype, shape, memory_[k].storage);
    const bool has_grown = memory_[k].storage || memory_[k].appends_to >= 0;
    return Tensor(dtype, shape, Storage::allocate(needed + room_to_grow(needed, has_grown)));
  }
  return Tensor(dtype, shape);
}

// An output that grows from a feed, before it in the same memory, or at the end of new memory: the next one will be before it. Undefined if
// that is not to be. Nobody must look at the feed while the run is under way, and the run must end before the caller goes on.
Tensor Frame::make_beside_feed(int32_t slot) {
  if (control_.observer || control_.deadline || control_.caller || control_.pass || budget_) return {};
  const auto outputs = program_.output_slots();
  for (size_t k = 0; k < memory_.size(); ++k) {
    if (memory_[k].grows_from < 0 || memory_[k].allocator || program_.slots()[static_cast<size_t>(outputs[k])].root != slot) continue;
    const int32_t input = program_.input_slots()[static_cast<size_t>(memory_[k].grows_from)];
    auto slide = std::find_if(slides_.begin(), slides_.end(), [&](const Slide& s) { return s.feed() == input && s.output() == slot; });
    if (slide == slides_.end()) slide = slides_.emplace(slides_.end(), program_, input, slot);
    if (!slide->plan(*binding_)) return {};
    const DType dtype = program_.slots()[static_cast<size_t>(slot)].dtype;
    const Shape& shape = binding_->shape(slot);
    const Tensor& feed = held_[static_cast<size_t>(input)].tensor();
    const auto room = static_cast<size_t>(feed.raw() - feed.storage()->data());
    if (room >= slide->distance()) {
      sliding_.emplace_back(&*slide, feed.raw());
      return Tensor(dtype, shape, feed.storage(), room - slide->distance());
    }
    AllocationScope scope(AllocationScope::current(), MemoryClass::io);
    const size_t needed = size_bytes(dtype, shape.num_elements());
    auto storage = Storage::allocate(needed + room_to_grow(needed, /*has_grown=*/true));
    const size_t offset = (storage->size_bytes() - needed) / Storage::kAlignment * Storage::kAlignment;
    return Tensor(dtype, shape, std::move(storage), offset);
  }
  return {};
}

void Frame::restore_feeds() {
  for (const auto& [slide, feed] : sliding_) slide->undo(feed, pc_);
  sliding_.clear();
}

void Frame::point_at(int32_t slot, const Tensor& tensor) {
  for (uint32_t position : program_.patches(slot))
    pointers_[position] = tensor.raw() + binding_->part_offset(program_.operands()[position]);
}

void Frame::hold(int32_t slot, Datum datum) {
  if (datum.is_tensor()) {
    const Slot& info = program_.slots()[static_cast<size_t>(slot)];
    if (info.static_shape && datum.tensor().shape() != binding_->shape(slot))
      throw Error(ErrorCode::invalid_argument, fmt::format("the value \"{}\" has the shape {}, inferred was {}", program_.name(slot),
                                                           to_string(datum.tensor().shape()), to_string(binding_->shape(slot))));
    point_at(slot, datum.tensor());
  }
  held_[static_cast<size_t>(slot)] = std::move(datum);
}

void Frame::put(int32_t slot, const Datum& value) {
  Datum own = datum_of(slot, /*shared=*/false);
  if (!own.is_tensor() || !value.is_tensor())
    hold(slot, value);
  else if (Tensor target = own.tensor(); target.raw() != value.tensor().raw())
    target.copy_from(value.tensor());
}

namespace {

// Rows of the shape that lie as far apart as the slot says.
Tensor part_of_rows(const Slot& slot, const Shape& shape, std::shared_ptr<Storage> storage, size_t offset_bytes) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank()), 1);
  int64_t stride = slot.row_step;
  for (int axis = shape.rank() - 2; axis >= 0; stride *= shape[axis--]) strides[static_cast<size_t>(axis)] = stride;
  return {slot.dtype, shape, strides, std::move(storage), offset_bytes};
}

}  // namespace

Datum for_node(const Slot& slot, Datum value) {
  if (!slot.rewritten || !value.is_tensor()) return value;
  const Tensor& tensor = value.tensor();
  const auto offset = static_cast<size_t>(tensor.raw() - tensor.storage()->data());
  auto loan = Storage::lend(tensor.storage()->data(), tensor.storage()->size_bytes());
  if (slot.row_step == 0) return Tensor(tensor.dtype(), tensor.shape(), std::move(loan), offset);
  return Tensor(tensor.dtype(), tensor.shape(), tensor.strides(), std::move(loan), offset);
}

Tensor whole_as(const Tensor& root, DType dtype, const Shape& shape) {
  if (root.dtype() == dtype) return root.reshaped(shape);
  return {dtype, shape, root.storage(), static_cast<size_t>(root.raw() - root.storage()->data())};
}

Datum Frame::datum_of(int32_t index, bool shared) const {
  const Slot& slot = program_.slots()[static_cast<size_t>(index)];
  auto viewed = [&](const Datum& root) {
    if (!root.is_tensor()) return root;
    Tensor tensor = root.tensor();
    if (slot.root != index) {
      const Tensor& whole = root.tensor();
      const Shape& shape = binding_->shape(index);
      const size_t offset = binding_->part_offset(index);
      if (slot.row_step != 0)
        tensor = part_of_rows(slot, shape, whole.storage(), static_cast<size_t>(whole.raw() - whole.storage()->data()) + offset);
      else if (offset == 0 && shape.num_elements() == whole.num_elements())
        tensor = whole_as(whole, slot.dtype, shape);
      else
        tensor = Tensor(slot.dtype, shape, whole.storage(), static_cast<size_t>(whole.raw() - whole.storage()->data()) + offset);
    }
    const Datum datum = for_node(slot, std::move(tensor));
    return shared && datum.tensor().storage()->lent() ? Datum(datum.tensor().clone()) : datum;
  };
  switch (slot.placement) {
    case Placement::constant: return viewed(program_.constant(slot.root));
    case Placement::feed:
    case Placement::held: return viewed(held_[static_cast<size_t>(slot.root)]);
    case Placement::known: return shared ? binding_->known(index).clone() : binding_->known(index);
    case Placement::arena: break;
  }
  const Shape& shape = binding_->shape(index);
  const auto buffer = static_cast<size_t>(slot.buffer);
  if (budget_ && where_[buffer] == kAway) return {};
  auto* data = arena_->data() + (budget_ ? where_[buffer] : binding_->offsets().offsets[buffer]) + binding_->part_offset(index);
  const bool by_rows = slot.row_step != 0 && shape.num_elements() > 0;
  const int64_t row = by_rows ? shape[shape.rank() - 1] : 0;
  const int64_t reach = by_rows ? (shape.num_elements() / row - 1) * slot.row_step + row : shape.num_elements();
  const auto storage = Storage::lend(data, size_bytes(slot.dtype, reach));
  const Tensor view = by_rows ? part_of_rows(slot, shape, storage, 0) : Tensor(slot.dtype, shape, storage);
  return shared ? view.clone() : view;
}

// Operands of an instruction that is bound in the run, and of bodies.
class Frame::Operands final : public OperandSource {
 public:
  Operands(const Frame& frame, const Instruction& instruction) : frame_(frame), slots_(frame.program_.operands(instruction)) {}
  Datum operand(size_t input, bool kept) const override { return slots_[input] < 0 ? Datum() : frame_.datum_of(slots_[input], kept); }

 private:
  const Frame& frame_;
  std::span<const int32_t> slots_;
};

void Frame::execute_dynamic(const Instruction& instruction, Evaluator& evaluator) {
  evaluator.pool = control_.pool;
  evaluator.run_id = control_.run_id;
  evaluator.stop_requested = [control = &control_] { return control->stopping(); };
  std::vector<Datum> made = run_dynamic(program_, instruction, *binding_, control_, Operands(*this, instruction), evaluator);
  const auto slots = program_.operands(instruction).subspan(instruction.num_inputs);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    if (!made[i].defined()) throw Error(ErrorCode::internal, fmt::format("output {} was not made", i));
    hold(slots[i], std::move(made[i]));
  }
}

inline void Frame::execute(const Instruction& instruction, Evaluator& evaluator) {
  if (instruction.dynamic) [[unlikely]]
    return execute_dynamic(instruction, evaluator);
  const size_t offset = budget_ ? budget_->scratch_offsets[static_cast<size_t>(&instruction - program_.instructions().data())]
                                : binding_->offsets().offsets[static_cast<size_t>(instruction.scratch_buffer)];
  run_static(instruction, *binding_, pointers_.data() + instruction.first_operand, arena_->data() + offset, control_);
}

// Cancellation and deadline, but not between updates.
inline void Frame::check_before(size_t index) {
  if (index < program_.commit_from()) [[likely]]
    return control_.check();
  if (!committed_.exchange(true, std::memory_order_relaxed)) control_.commit();
}

// Of a node that is bound in the run only the run knows what it costs.
void Frame::record(const Instruction& instruction, uint64_t start, uint64_t end) const {
  Cost cost;
  if (instruction.dynamic && instruction.bodies.empty()) {
    std::vector<Datum> operands;
    for (int32_t slot : program_.operands(instruction)) operands.push_back(slot < 0 ? Datum() : datum_of(slot, /*shared=*/false));
    cost = cost_of(program_, instruction, operands);
  }
  control_.recorder->record(instruction.record_name, RecordKind::node, start, end, static_cast<int64_t>(cost.flops),
                            static_cast<int64_t>(cost.bytes));
}

void Frame::execute_watched(const Instruction& instruction, Evaluator& evaluator) {
  if (control_.observer) control_.call([&] { control_.observer->before(*this, instruction); });
  const UnderWay node(control_.caller, instruction.node);
  uint64_t start = control_.recorder ? read_ticks() : 0;
  execute(instruction, evaluator);
  if (control_.recorder) record(instruction, start, read_ticks());
  if (control_.observer) control_.call([&] { control_.observer->after(*this, instruction); });
}

inline void Frame::release(const Instruction& instruction) {
  for (uint32_t r = 0; r < instruction.num_releases; ++r)
    held_[static_cast<size_t>(program_.releases()[instruction.first_release + r])] = Datum();
}

// For allocators that show what is read without having been written: of what the instruction is the first to touch, nothing is wanted.
void Frame::renew_buffers(size_t instruction) {
  const auto buffers = program_.buffers();  // in the order of their first instructions
  auto buffer = std::partition_point(buffers.begin(), buffers.end(),
                                     [&](const Program::BufferInfo& b) { return static_cast<size_t>(b.first) < instruction; });
  for (; buffer != buffers.end() && static_cast<size_t>(buffer->first) == instruction; ++buffer) {
    const auto b = static_cast<size_t>(buffer - buffers.begin());
    if (const size_t bytes = binding_->buffer_sizes()[b]; bytes > 0)
      control_.memory->allocator->renew(arena_->data() + binding_->offsets().offsets[b], bytes);
  }
}

// A value of the cache in place of the computation, or the other way round.
void Frame::execute_cached(const Instruction& instruction) {
  auto entry = cache_->end();
  int32_t slot = -1;
  if (instruction.num_outputs == 1) {
    slot = program_.operands(instruction)[instruction.num_inputs];
    if (slot >= 0) entry = cache_->find(program_.name(slot));
  }
  if (entry == cache_->end()) return execute_watched(instruction, evaluator_);
  if (!entry->second.defined()) {
    execute_watched(instruction, evaluator_);
    Datum value = datum_of(slot, /*shared=*/true);
    entry->second = value.is_tensor() ? Datum(value.tensor().clone()) : value;
    return;
  }
  const Slot& info = program_.slots()[static_cast<size_t>(slot)];
  if (!info.static_shape || instruction.dynamic) return hold(slot, entry->second);
  Tensor target = datum_of(slot, /*shared=*/false).tensor();
  if (!entry->second.is_tensor() || entry->second.tensor().dtype() != target.dtype() || entry->second.tensor().shape() != target.shape())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the cached value \"{}\" is {}, the node makes {}", entry->first, describe(entry->second), describe(target)));
  target.copy_from(entry->second.tensor());
}

size_t Frame::steps_left() const {
  const auto rest = program_.instructions().subspan(pc_);
  const auto stop = std::find_if(rest.begin(), rest.end(), [](const Instruction& instruction) { return instruction.is_yield; });
  return static_cast<size_t>(stop - rest.begin());
}

bool Frame::advance(size_t steps) {
  const auto instructions = program_.instructions();
  const bool watched = control_.watched(), limited = control_.pass && !program_.is_body();
  const bool renews = control_.memory && control_.memory->allocator && !budget_;
  const size_t end = pc_ + std::min(steps, instructions.size() - pc_);
  sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
  try {
    for (; pc_ < end; ++pc_) {
      const size_t index = limited ? index_at(pc_) : pc_;
      const Instruction& instruction = instructions[index];
      if (instruction.is_yield) [[unlikely]] {
        if (limited) move_values();
        return false;
      }
      if (control_.observer) [[unlikely]]
        control_.call([&] { control_.observer->ready(*this, instruction); });
      check_before(index);
      std::optional<LoopBreakScope> breaks;
      if (turn.has_duty()) [[unlikely]] {
        turn.before_node(binding_->hint(index));
        if (!instruction.dynamic && !watched) breaks.emplace(turn.within_node());
      }
      if (limited) [[unlikely]]
        move_values();
      if (renews) [[unlikely]]
        renew_buffers(index);
      if (cache_ && !cache_->empty()) [[unlikely]]
        execute_cached(instruction);
      else if (!watched) [[likely]]
        execute(instruction, evaluator_);
      else
        execute_watched(instruction, evaluator_);
      release(instruction);
    }
  } catch (...) {
    rethrow_from(instructions[limited ? index_at(pc_) : pc_]);
  }
  return finished();
}

// For the parallel executor.
void Frame::execute_one(const Instruction& instruction, size_t index, Evaluator& evaluator, sharing::Turn& turn) {
  try {
    check_before(index);
    std::optional<LoopBreakScope> breaks;
    if (turn.has_duty()) [[unlikely]] {
      turn.before_node(binding_->hint(index));
      if (!instruction.dynamic && !control_.watched()) breaks.emplace(turn.within_node());
    }
    if (!instruction.dynamic && !control_.watched()) [[likely]] {
      execute(instruction, evaluator);
      return;
    }
    auto start = std::chrono::steady_clock::now();
    execute_watched(instruction, evaluator);
    if (!instruction.dynamic) return;
    auto elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
    std::atomic<uint32_t>& average = program_.measured_ns(index);
    auto before = static_cast<int64_t>(average.load(std::memory_order_relaxed));
    average.store(static_cast<uint32_t>(std::min<int64_t>((3 * before + elapsed) / 4, UINT32_MAX)), std::memory_order_relaxed);
  } catch (...) {
    rethrow_from(instruction);
  }
}

void Frame::rethrow_from(const Instruction& instruction) const {
  std::string operands;
  for (int i = 0; i < instruction.node->num_formal_inputs; ++i) {
    int32_t slot = program_.operands(instruction)[static_cast<size_t>(i)];
    if (slot < 0) continue;
    const Slot& info = program_.slots()[static_cast<size_t>(slot)];
    std::string type = info.static_shape ? std::string(short_name_of(info.dtype)) + to_string(binding_->shape(slot))
                                         : describe(held_[static_cast<size_t>(info.root)]);
    operands += (operands.empty() ? "" : ", ") + program_.name(slot) + " " + type;
  }
  exec::rethrow_from(instruction, "while running", operands);
}

std::vector<Datum> Frame::yielded() {
  const Instruction& instruction = expect_yield(*this);
  std::vector<Datum> values;
  for (int32_t slot : program_.operands(instruction).first(instruction.num_inputs))
    values.push_back(slot < 0 ? Datum() : datum_of(slot, true));
  return values;
}

void Frame::resume(std::span<const Datum> values) {
  const Instruction& instruction = expect_yield(*this);
  const auto outputs = program_.operands(instruction).subspan(instruction.num_inputs);
  if (values.size() != outputs.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the Yield \"{}\" takes {} values back, got {}", instruction.node->name, outputs.size(), values.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] < 0) continue;
    if (!values[i].is_tensor() || values[i].tensor().dtype() != program_.slots()[static_cast<size_t>(outputs[i])].dtype)
      throw_feed(program_, outputs[i], values[i], "a value handed to a Yield has another type");
    hold(outputs[i], values[i].tensor().contiguous());
  }
  release(instruction);
  ++pc_;
}

void Frame::take_outputs(std::span<Datum> outputs) {
  const auto slots = program_.output_slots();
  for (size_t k = 0; k < slots.size(); ++k) {
    const Slot& slot = program_.slots()[static_cast<size_t>(slots[k])];
    Datum result = datum_of(slots[k], true);
    if (slot.placement == Placement::constant && result.is_tensor()) result = result.tensor().clone();
    if (k < bound_.size() && bound_[k].defined()) {
      Tensor own = bound_[k].tensor();
      if (!result.is_tensor() || result.tensor().dtype() != own.dtype() || result.tensor().shape() != own.shape())
        throw Error(ErrorCode::invalid_argument, fmt::format("output \"{}\" is bound to {}, it is {}", program_.graph().output_names[k],
                                                             describe(own), describe(result)));
      if (result.tensor().raw() != own.raw()) own.copy_from(result.tensor());
      result = own;
    } else if (k < memory_.size() && memory_[k].allocator && slot.placement == Placement::held && result.is_tensor() &&
               slot.dtype != DType::string && allocator_of(result.tensor().storage()) != memory_[k].allocator.get()) {
      Tensor own = allocate_from(memory_[k].allocator, slot.dtype, result.tensor().shape());  // its extents came out in the run
      own.copy_from(result.tensor());
      result = own;
    }
    outputs[k] = std::move(result);
  }
}

void Frame::clear() noexcept {
  for (int32_t slot : program_.input_slots()) held_[static_cast<size_t>(slot)] = Datum();
  for (size_t s = 0; s < held_.size(); ++s)
    if (program_.slots()[s].placement == Placement::held) held_[s] = Datum();
  bound_.clear();
  memory_.clear();
  cache_.reset();
}

void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound, std::span<const OutputMemory> memory, std::span<const int64_t> parent_values) {
  std::unique_ptr<Frame> frame = program.frames().take([&] { return std::make_unique<Frame>(program); });
  struct Return {
    const Program& program;
    std::unique_ptr<Frame>& frame;
    ~Return() { program.frames().give_back(std::move(frame)); }
  } give_back{program, frame};
  frame->start(feeds, bound, control, memory, parent_values);
  // A state may be made where the one before lies; nodes at once take it that no output shares bytes with an input.
  const bool in_place = std::any_of(memory.begin(), memory.end(), [](const OutputMemory& output) { return output.reusable; });
  try {
    if (!in_place && !frame->budget() && worth_parallel(program, frame->binding(), control))
      run_parallel(*frame);
    else if (!frame->advance())
      throw_stops_at_yield();
    frame->take_outputs(outputs);
  } catch (...) {
    frame->restore_feeds();
    throw;
  }
}

}  // namespace treadle::exec
