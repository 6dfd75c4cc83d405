#include "exec/program/parameters.h"

#include <algorithm>

#include "core/values/allocation.h"
#include "exec/program/program.h"
#include "graph/evaluate.h"
#include "graph/op_def.h"
#include "graph/parameters.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

bool is_dense(const Graph& graph, ValueId id) { return graph.value(id).constant.is_tensor(); }

// If the node's only output is a view of an input (a reshape), returns the index of that input, otherwise -1.
int viewed_input(const Node& node) {
  if (node.outputs.size() != 1) return -1;
  for (const Alias& alias : node.op->alias)
    if (alias.kind == Alias::Kind::view && alias.output == 0 && node.has_input(static_cast<size_t>(alias.input))) return alias.input;
  return -1;
}

}  // namespace

Tensor readable(const Tensor& tensor) { return is_aligned(tensor) ? tensor.contiguous() : tensor.clone(); }

ProgramParameters::ProgramParameters(const Graph& graph, const ProgramOptions& options)
    : variables_(options.variables), memory_(options.memory), depends_(graph.num_values()) {
  if (!variables_) return;
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const ValueId id{static_cast<uint32_t>(v)};
    const Value& value = graph.value(id);
    if (value.kind != Value::Kind::parameter || !value.constant.defined() || (value.uses.empty() && !graph.is_output(id))) continue;
    const auto place = variables_->find(value.name);
    if (!place) throw Error(ErrorCode::internal, "the parameter \"" + value.name + "\" has no variable");
    depends_[v] = {static_cast<uint32_t>(sources_.size())};
    sources_.push_back({id, *place});
  }
  if (empty()) return;
  AllocationScope scope(memory_, MemoryClass::packed);
  first_numbers_ = numbers_now();
  for (size_t s = 0; s < sources_.size(); ++s) graph.value(sources_[s].value).constant = variables_->at(sources_[s].place).tensor;
  find_derived(graph);
  derive(graph, std::vector<bool>(sources_.size(), true), options.pool);
}

bool ProgramParameters::is_derivable(const Graph& graph, const Node& node) const {
  if (!may_be_computed_ahead(graph, node)) return false;
  bool follows = false;
  for (ValueId input : node.inputs) {
    if (input == kNoValue) continue;
    if (!has(input) && !is_dense(graph, input)) return false;
    follows |= has(input);
  }
  return follows;
}

void ProgramParameters::find_derived(const Graph& graph) {
  is_derived_.resize(graph.node_capacity());
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    if (!is_derivable(graph, node)) continue;
    std::vector<uint32_t> from;
    for (ValueId input : node.inputs)
      if (input != kNoValue) from.insert(from.end(), depends_[index_of(input)].begin(), depends_[index_of(input)].end());
    std::sort(from.begin(), from.end());
    from.erase(std::unique(from.begin(), from.end()), from.end());
    for (ValueId output : node.outputs) depends_[index_of(output)] = from;
    is_derived_[index_of(id)] = true;
    derived_.push_back(id);
  }
}

std::vector<uint64_t> ProgramParameters::numbers_now() const {
  std::vector<uint64_t> numbers;
  for (const Source& source : sources_) numbers.push_back(variables_->at(source.place).number);
  return numbers;
}

uint64_t ProgramParameters::made_of(ValueId value, std::span<const uint64_t> numbers) const {
  uint64_t sum = 0;
  for (uint32_t source : depends_[index_of(value)]) sum += numbers[source];
  return sum;
}

void ProgramParameters::derive(const Graph& graph, const std::vector<bool>& changed, ThreadPool* pool) const {
  Evaluator evaluator;
  evaluator.pool = pool;
  for (NodeId id : derived_) {
    const Node& node = graph.node(id);
    const std::vector<uint32_t>& from = depends_[index_of(node.outputs[0])];
    if (is_dense(graph, node.outputs[0]) && std::none_of(from.begin(), from.end(), [&](uint32_t s) { return changed[s]; })) continue;
    std::vector<Datum> inputs, outputs;
    std::vector<DType> dtypes;
    for (ValueId input : node.inputs) inputs.push_back(input == kNoValue ? Datum() : Datum(readable(graph.value(input).constant.tensor())));
    for (ValueId output : node.outputs) dtypes.push_back(graph.type(output).dtype);
    if (const int viewed = viewed_input(node); viewed >= 0) {
      const Tensor& whole = inputs[static_cast<size_t>(viewed)].tensor();
      outputs.push_back(Tensor(dtypes[0], graph.type(node.outputs[0]).static_shape(), whole.storage(),
                               static_cast<size_t>(whole.raw() - whole.storage()->data())));
    } else {
      try {
        const KernelDef& kernel = select_kernel(graph, node);
        const std::unique_ptr<PackedState> packed = kernel.create ? kernel.create(CreateContext(graph, node)) : nullptr;
        outputs = evaluate_node(node, kernel, packed.get(), inputs, dtypes, evaluator);
      } catch (Error& error) {
        error.add_context(describe(node) + ", computed from parameters", describe_operands(graph, node));
        throw;
      }
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].tensor().shape() != graph.type(node.outputs[i]).static_shape())
        throw Error(ErrorCode::internal,
                    describe(node) + " makes " + describe(outputs[i]) + ", inferred was " + to_string(graph.type(node.outputs[i])));
      graph.value(node.outputs[i]).constant = outputs[i];
    }
  }
}

void ProgramParameters::take_instructions(const Program& program, std::span<Instruction> instructions) {
  const auto slots = program.slots();
  IdVector<SlotId, bool> is_read(slots.size());
  for (SlotId output : program.output_slots()) is_read[slots[output].root] = true;
  for (Instruction& instruction : instructions) {
    const auto operands = program.operands(instruction).first(instruction.num_inputs);
    bool reads_parameters = false;
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == kNoSlot) continue;
      const SlotId root = slots[operands[k]].root;
      reads_parameters |= has(slots[root].value);
      const bool packs = instruction.kernel && k < 32 && (instruction.kernel->packs >> k & 1U) != 0 && !instruction.dynamic;
      if (!packs) is_read[root] = true;
    }
    if (!reads_parameters || !instruction.kernel || !instruction.kernel->create || instruction.on_device) continue;
    instruction.versioned = static_cast<int32_t>(instructions_.size());
    instructions_.push_back(&instruction);
  }
  for (SlotId s : slots.ids())
    if (slots[s].location == LocationKind::constant && slots[s].root == s && has(slots[s].value))
      slots_.push_back({s, slots[s].value, is_read[s]});
}

std::vector<uint64_t> ProgramParameters::versions_of(const Instruction& instruction, std::span<const uint64_t> numbers) const {
  std::vector<uint64_t> versions;
  for (ValueId input : instruction.node->inputs) versions.push_back(input == kNoValue ? 0 : made_of(input, numbers));
  return versions;
}

void ProgramParameters::update(const Graph& graph, std::span<const uint64_t> before, std::span<const uint64_t> numbers,
                               ThreadPool* pool) const {
  std::vector<bool> changed(sources_.size());
  for (size_t s = 0; s < sources_.size(); ++s) {
    changed[s] = numbers[s] != before[s];
    if (changed[s]) graph.value(sources_[s].value).constant = variables_->at(sources_[s].place).tensor;
  }
  derive(graph, changed, pool);
}

}  // namespace treadle::exec
