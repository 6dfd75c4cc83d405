#include "exec/program/program_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <numeric>
#include <optional>

#include "core/files/file.h"
#include "core/files/shared_storage.h"
#include "core/threads/thread_pool.h"
#include "core/trace/load_phases.h"
#include "core/values/allocation.h"
#include "exec/memory/shortage.h"
#include "exec/program/load_shortage.h"
#include "exec/program/program.h"
#include "exec/program/shared_packed.h"
#include "ops/precision.h"
#include "treadle/out_of_memory.h"

namespace treadle::exec {
namespace {

bool packs(const Instruction& instruction, size_t operand) {
  return instruction.kernel && operand < 32 && (instruction.kernel->packs >> operand & 1U) != 0;
}

// Restores the packed weights of the node from a compiled model's file. Returns false if the file has none.
bool restore(const Graph& graph, const ProgramOptions& options, Instruction& instruction, size_t& foreign_bytes) {
  if (!options.restored) return false;
  auto stored = options.restored->find(instruction.node);
  if (stored == options.restored->end()) return false;
  const KernelDef& kernel = *instruction.kernel;
  const CreateContext context(graph, *instruction.node);
  if (kernel.restore && kernel.name == stored->second.kernel) instruction.packed = kernel.restore(context, stored->second.parts);
  if (!instruction.packed)
    throw Error(ErrorCode::invalid_model,
                fmt::format("what the compiled model has for the kernel \"{}\" does not fit it", stored->second.kernel));
  foreign_bytes = instruction.packed->size_bytes();
  return true;
}

// Packs the weights of the node, or shares packed weights with other programs if possible. A kernel that is bound during a run
// (Instruction::dynamic) may pack in the run, and the memory is then charged to that run, so it never shares packed weights.
void create(const Graph& graph, const ProgramOptions& options, Instruction& instruction, size_t& foreign_bytes) {
  if (options.share_weights && !instruction.dynamic) instruction.packed = shared_packed(graph, *instruction.node, *instruction.kernel);
  instruction.packed_is_shared = instruction.packed != nullptr;
  if (instruction.packed_is_shared) return;
  const size_t before = AllocationScope::allocated_bytes();
  instruction.packed = instruction.kernel->create(CreateContext(graph, *instruction.node));
  const size_t made = AllocationScope::allocated_bytes() - before;
  if (instruction.packed) foreign_bytes = instruction.packed->size_bytes() - std::min(made, instruction.packed->size_bytes());
}

SlotId root_of(const Program& program, SlotId slot) { return program.slots()[slot].root; }

// Counts, for each root slot (a slot with bytes of its own), the operands for which no packed copy exists yet. An operand that runs read
// adds kNever, so that the count never reaches 0 and the constant is not freed.
IdVector<SlotId, std::atomic<int64_t>> count_readers(const Program& program, const ProgramOptions& options) {
  constexpr int64_t kNever = int64_t{1} << 32;
  IdVector<SlotId, std::atomic<int64_t>> readers(program.slots().size());
  for (const Instruction& instruction : program.instructions()) {
    const auto operands = program.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == kNoSlot) continue;
      bool is_packed = packs(instruction, k) && instruction.kernel->create;
      if (options.keep_for_file) is_packed = is_packed && instruction.kernel->restore;
      // A kernel that is bound during the run needs the constant itself, because it asks for its shape.
      readers[root_of(program, operands[k])] += is_packed && !instruction.dynamic ? 1 : kNever;
    }
  }
  for (SlotId output : program.output_slots()) readers[root_of(program, output)] += kNever;
  return readers;
}

// Packs the weights of all instructions of a program.
class Packing {
 public:
  Packing(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options)
      : program_(program), graph_(program.graph()), options_(options) {
    for (Instruction& instruction : instructions)
      if (instruction.kernel && instruction.kernel->create && instruction.versioned < 0) add(instruction);
    if (options.release_packed) readers_ = count_readers(program, options);
  }

  // Packs in parallel, the largest weights first. Errors are kept until throw_failures().
  void run() {
    std::vector<Task*> order;
    for (Task& task : tasks_) order.push_back(&task);
    std::ranges::stable_sort(order, std::greater(), &Task::size_bytes);
    ThreadPool* pool = total_bytes_ < kLittleToPack ? nullptr : options_.pool;
    parallel_for(pool, static_cast<int64_t>(order.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Task& task = *order[static_cast<size_t>(i)];
        try {
          pack(task);
        } catch (const OutOfMemory& error) {
          task.starved = error;
        } catch (const Error& error) {
          task.error = error;
        } catch (const std::bad_alloc&) {
          task.starved.emplace("out of memory");
        }
      }
    });
  }

  // Returns the bytes of packed copies that Storage did not allocate.
  size_t foreign_bytes() const {
    return std::accumulate(tasks_.begin(), tasks_.end(), size_t{0}, [](size_t sum, const Task& task) { return sum + task.foreign_bytes; });
  }
  // Returns the packed weights that other programs use too, each only once.
  std::vector<const PackedState*> shared() const {
    std::vector<const PackedState*> states;
    for (const Task& task : tasks_)
      if (task.instruction->packed_is_shared) states.push_back(task.instruction->packed.get());
    std::ranges::sort(states);  // two nodes may share the same packed weights
    states.erase(std::ranges::unique(states).begin(), states.end());
    return states;
  }
  // Describes the weights and their packed copies, for an error. @param failed  the node whose weights were being packed when memory ran
  // out, or null
  std::string describe(const Node* failed) const {
    std::vector<PackedWeights> packed;
    for (const Task& task : tasks_)
      packed.push_back({.node = task.instruction->node,
                        .weight_bytes = task.size_bytes,
                        .float_bytes = task.float_bytes,
                        .packed_bytes = task.instruction->packed ? task.instruction->packed->size_bytes() : 0});
    return describe_packing(&graph_, packed, options_.memory ? options_.memory->account.get() : nullptr, failed);
  }
  void throw_failures() {
    std::string missing;
    for (Task& task : tasks_) {
      const Node& node = *task.instruction->node;
      if (task.starved) {
        task.starved->add_context(treadle::describe(node) + ", while weights were packed", describe_operands(graph_, node));
        task.starved->describe(describe(&node));
        throw OutOfMemory(*task.starved);
      }
      if (task.error) note_missing(*task.error, graph_, node, missing);
    }
    if (!missing.empty()) throw Error(ErrorCode::not_implemented, missing);
  }

 private:
  // One node whose kernel packs weights.
  struct Task {
    Instruction* instruction;
    size_t size_bytes = 0, float_bytes = 0;  // bytes of all weights, and of those packed as float32
    size_t foreign_bytes = 0;                // bytes of the packed copy that Storage did not allocate
    std::optional<OutOfMemory> starved;
    std::optional<Error> error;  // any error except out of memory
  };

  void add(Instruction& instruction) {
    Task task{&instruction};
    const std::string_view precision = ops::precision_of(*instruction.node);
    const bool in_float32 = precision.empty() || precision == "float32";
    for (ValueId input : instruction.node->inputs)
      if (const Tensor* constant = graph_.stored_tensor(input)) {
        task.size_bytes += constant->size_bytes();
        if (constant->dtype() == DType::float32 && in_float32) task.float_bytes += constant->size_bytes();
      }
    total_bytes_ += task.size_bytes;
    tasks_.push_back(std::move(task));
  }

  // Packs one node's weights. Then drops their mapped pages of the model's file, so that the weights are not in memory twice.
  void pack(Task& task) {
    AllocationScope scope(options_.memory, MemoryClass::packed);  // scopes are per thread, and this may be a thread of the pool
    const Node& node = *task.instruction->node;
    const bool restored = restore(graph_, options_, *task.instruction, task.foreign_bytes);
    if (!restored) create(graph_, options_, *task.instruction, task.foreign_bytes);
    const auto operands = program_.operands(*task.instruction);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const Tensor* constant = packs(*task.instruction, k) ? graph_.stored_tensor(node.inputs[k]) : nullptr;
      if (!constant) continue;
      if (!restored) drop_mapped_pages(constant->raw(), constant->size_bytes());  // restored packed weights point into these pages
      if (!readers_.empty() && --readers_[root_of(program_, operands[k])] == 0)
        options_.release_packed->value(node.inputs[k]).constant = Datum();
    }
  }

  const Program& program_;
  const Graph& graph_;
  const ProgramOptions& options_;
  std::vector<Task> tasks_;
  size_t total_bytes_ = 0;
  IdVector<SlotId, std::atomic<int64_t>> readers_;  // see count_readers(); empty: constants are kept
};

Tensor share(const Tensor& tensor) {
  if (tensor.size_bytes() < kWorthSharing || tensor.dtype() == DType::string || !tensor.is_contiguous()) return tensor.clone();
  return Tensor(tensor.dtype(), tensor.shape(), shared_copy({tensor.raw(), tensor.size_bytes()}));
}

// Makes the session's own memory the copy that all sessions of the process share, so that a large table is not in memory twice.
Tensor share_own(const Tensor& tensor) {
  const std::shared_ptr<Storage>& storage = tensor.storage();
  const bool is_whole = storage->data() == tensor.raw() && storage->size_bytes() == tensor.size_bytes();
  if (!is_whole || tensor.size_bytes() < kWorthSharing || tensor.dtype() == DType::string || !tensor.is_contiguous()) return share(tensor);
  hand_over(storage);
  return Tensor(tensor.dtype(), tensor.shape(), share_storage(storage));
}

}  // namespace

void note_missing(Error& error, const Graph& graph, const Node& node, std::string& missing) {
  error.add_context(describe(node), describe_operands(graph, node));
  if (error.code() != ErrorCode::not_implemented) throw error;
  missing += (missing.empty() ? "" : "\n") + std::string(error.what());
}

void ProgramWeights::place(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options) {
  {
    const LoadPhases::Phase phase("pack");
    pack(program, instructions, options);
  }
  try {
    place_constants(program, options);
  } catch (...) {
    rethrow_with_memory(
        [&](const OutOfMemory&) {
          return describe_packing(&program.graph(), {}, options.memory ? options.memory->account.get() : nullptr, nullptr);
        },
        "while constants were placed");
  }
}

void ProgramWeights::add_body(const ProgramWeights& body) {
  foreign_constant_bytes_ += body.foreign_constant_bytes_;
  foreign_packed_bytes_ += body.foreign_packed_bytes_;
}

void ProgramWeights::pack(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options) {
  Packing packing(program, instructions, options);
  packing.run();
  foreign_packed_bytes_ += packing.foreign_bytes();
  shared_packed_ = packing.shared();
  if (options.memory) shared_charge_.account = options.memory->account;
  try {
    charge_shared();
  } catch (...) {
    rethrow_with_memory([&](const OutOfMemory&) { return packing.describe(nullptr); }, "while weights were packed");
  }
  packing.throw_failures();
}

// Copies unaligned constants to aligned memory. Skips constants of which all readers have packed copies.
void ProgramWeights::place_constants(const Program& program, const ProgramOptions& options) {
  const Graph& graph = program.graph();
  const auto slots = program.slots();
  IdVector<SlotId, bool> is_read(slots.size());
  for (const Instruction& instruction : program.instructions()) {
    const auto operands = program.operands(instruction);
    for (size_t k = 0; k < operands.size(); ++k)
      if (operands[k] != kNoSlot && !packs(instruction, k)) is_read[root_of(program, operands[k])] = true;
  }
  constants_.resize(slots.size());
  for (SlotId s : slots.ids()) {
    const Slot& constant = slots[s];
    if (constant.location != LocationKind::constant || constant.root != s) continue;
    if (program.parameters() && program.parameters()->has(constant.value)) continue;
    const Tensor* tensor = graph.stored_tensor(constant.value);
    if (!tensor || is_aligned(*tensor) || !is_read[s]) {
      constants_[s] = graph.value(constant.value).constant;
      // Shares constants that passes made for this session. The model's own constants were shared when the model was read.
      if (tensor && is_read[s] && options.share_weights && options.release_packed && options.memory &&
          account_of(tensor->storage()) == options.memory->account.get()) {
        constants_[s] = share_own(*tensor);
        options.release_packed->value(constant.value).constant = constants_[s];
        tensor = &constants_[s].tensor();
      }
      // A constant with stride 0 takes no memory. It is a placeholder for weights of which a compiled model has only packed copies.
      const bool in_memory = tensor && (is_read[s] || (tensor->is_contiguous() && !drop_mapped_pages(tensor->raw(), tensor->size_bytes())));
      if (in_memory && !account_of(tensor->storage())) foreign_constant_bytes_ += tensor->size_bytes();
      continue;
    }
    constants_[s] = options.share_weights ? share(*tensor) : tensor->clone();
    // the copy is shared and charged to no account
    if (!account_of(constants_[s].tensor().storage())) foreign_constant_bytes_ += tensor->size_bytes();
    const bool given_back = drop_mapped_pages(tensor->raw(), tensor->size_bytes());
    if (!given_back && !account_of(tensor->storage())) foreign_constant_bytes_ += tensor->size_bytes();
  }
}

void ProgramWeights::charge_shared() const {
  auto& [account, charged_bytes] = shared_charge_;
  if (!account || shared_packed_.empty()) return;
  size_t bytes = 0;
  for (const PackedState* state : shared_packed_) bytes += state->size_bytes();
  for (size_t charged = charged_bytes; charged < bytes;) {
    const size_t grown = bytes - charged;
    account->charge(MemoryClass::packed, grown);
    if (charged_bytes.compare_exchange_strong(charged, bytes)) return;
    account->discharge(MemoryClass::packed, grown);  // another run has charged these bytes already
  }
}

}  // namespace treadle::exec
