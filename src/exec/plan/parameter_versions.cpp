#include "exec/plan/parameter_versions.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/threads/thread_pool.h"
#include "core/values/allocation.h"
#include "exec/program/parameters.h"
#include "exec/program/program.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::exec {

ParameterVersions::ParameterVersions(const Program& program)
    : program_(program), in_graph_(program.parameters()->first_numbers().begin(), program.parameters()->first_numbers().end()) {}

std::shared_ptr<const ParameterVersion> ParameterVersions::latest() const {
  std::lock_guard lock(mutex_);
  return current_;
}

std::shared_ptr<const ParameterVersion> ParameterVersions::current(ThreadPool* pool, const std::function<void()>& before_change) {
  const ProgramParameters& parameters = *program_.parameters();
  std::lock_guard lock(mutex_);
  parameters.variables().look(pool);
  const uint64_t version = parameters.variables().version();
  if (current_ && looked_at_ == version) return current_;
  auto made = std::make_shared<ParameterVersion>();
  made->numbers = parameters.numbers_now();
  if (!current_ || current_->numbers != made->numbers) {
    AllocationScope scope(parameters.memory(), MemoryClass::packed);
    before_change();
    // Keeps packed weights that are still valid. Frees the others before new ones are made, unless a run in progress uses them.
    const auto instructions = parameters.instructions();
    made->packed.resize(instructions.size());
    for (size_t i = 0; i < instructions.size(); ++i)
      if (current_ && current_->packed[i].versions == parameters.versions_of(*instructions[i], made->numbers))
        made->packed[i] = current_->packed[i];
    current_.reset();
    parameters.update(program_.graph(), in_graph_, made->numbers, pool);
    in_graph_ = made->numbers;
    pack(*made, pool);
    keep_elements(*made);
    current_ = std::move(made);
  }
  looked_at_ = version;
  return current_;
}

// Packs in parallel, beginning with the largest weights.
void ParameterVersions::pack(ParameterVersion& version, ThreadPool* pool) const {
  const Graph& graph = program_.graph();
  const ProgramParameters& parameters = *program_.parameters();
  const auto instructions = parameters.instructions();
  std::vector<std::pair<size_t, size_t>> missing;  // (bytes, index of the instruction)
  size_t total_bytes = 0;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (version.packed[i].state) continue;
    size_t bytes = 0;
    for (ValueId input : instructions[i]->node->inputs)
      if (input != kNoValue && graph.value(input).constant.is_tensor()) bytes += graph.value(input).constant.tensor().size_bytes();
    missing.emplace_back(bytes, i);
    total_bytes += bytes;
  }
  std::stable_sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::mutex mutex;  // guards first_error
  std::exception_ptr first_error;
  parallel_for(total_bytes < kLittleToPack ? nullptr : pool, static_cast<int64_t>(missing.size()), 1, [&](int64_t begin, int64_t end) {
    AllocationScope scope(parameters.memory(), MemoryClass::packed);  // scopes are per thread, so a thread of the pool needs its own
    for (auto m = static_cast<size_t>(begin); m < static_cast<size_t>(end); ++m) {
      const Instruction& instruction = *instructions[missing[m].second];
      try {
        version.packed[missing[m].second] = {instruction.kernel->create(CreateContext(graph, *instruction.node)),
                                             parameters.versions_of(instruction, version.numbers)};
      } catch (Error& error) {
        error.add_context(describe(*instruction.node), describe_operands(graph, *instruction.node));
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
      }
    }
  });
  if (first_error) std::rethrow_exception(first_error);
}

// Keeps the elements that runs read. Derived values that runs do not read are freed, because kernels have packed copies of them. Parameters
// are not freed here, because their owner manages them.
void ParameterVersions::keep_elements(ParameterVersion& version) const {
  const Graph& graph = program_.graph();
  const ProgramParameters& parameters = *program_.parameters();
  version.constants.resize(program_.slots().size());
  for (const Slot& slot : program_.slots()) version.made_of.push_back(parameters.made_of(slot.value, version.numbers));
  for (const auto& [slot, value, is_read] : parameters.slots()) {
    const Value& parameter = graph.value(value);
    const bool is_own = parameter.kind == Value::Kind::parameter;
    if (is_read || is_own) version.constants[slot] = Datum(readable(parameter.constant.tensor()));
    if (!is_read && !is_own) parameter.constant = Datum();
  }
}

}  // namespace treadle::exec
