// Which values of a program are parameters, or follow from parameters alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/program/ids.h"
#include "exec/program/variables.h"
#include "graph/graph.h"

namespace treadle {
struct AllocationContext;
class ThreadPool;
}  // namespace treadle

namespace treadle::exec {

class Program;
struct Instruction;
struct ProgramOptions;

/// Parameters that the program's graph does not update, and what follows from them alone: kernels pack both as they pack constants, and a
/// run reads them as of one version (plan/parameter_versions.h). This says which they are; it does not change once the program is made.
class ProgramParameters {
 public:
  /// Finds parameters and what follows from them, and computes that a first time, so that kernels find the elements when they are chosen.
  /// @param graph  Value::constant of its parameters, and of what follows from them, has the elements of the version that was made last.
  ProgramParameters(const Graph& graph, const ProgramOptions& options);

  bool empty() const { return sources_.empty(); }
  /// Whether the node is computed when parameters change, so that no instruction is needed.
  bool computes(NodeId node) const { return index_of(node) < is_derived_.size() && is_derived_[index_of(node)]; }
  /// Whether the value is a parameter or follows from parameters alone.
  bool has(ValueId value) const { return !depends_[index_of(value)].empty(); }
  /// Notes which instructions keep a packed state for each version. @pre the program has all its instructions
  void take_instructions(const Program& program, std::span<Instruction> instructions);

  // For ParameterVersions.

  Variables& variables() const { return *variables_; }
  /// The account of what is computed and packed; null: the caller's.
  const AllocationContext* memory() const { return memory_; }
  /// By Instruction::versioned.
  std::span<const Instruction* const> instructions() const { return instructions_; }
  /// A root slot that has a parameter's elements, or what follows from parameters.
  struct StoredSlot {
    SlotId slot;
    ValueId value;
    bool is_read;  ///< by runs: not only by kernels that have packed it
  };
  std::span<const StoredSlot> slots() const { return slots_; }
  /// One for each variable that the program reads: how often its elements have changed.
  std::vector<uint64_t> numbers_now() const;
  /// Of the elements that the graph has had since the program was made.
  std::span<const uint64_t> first_numbers() const { return first_numbers_; }
  /// The sum of the numbers of what the value depends on; 0 if it depends on no parameter.
  uint64_t made_of(ValueId value, std::span<const uint64_t> numbers) const;
  /// made_of() each input of the instruction's node.
  std::vector<uint64_t> versions_of(const Instruction& instruction, std::span<const uint64_t> numbers) const;
  /// Puts new elements into the graph's Value::constant: those of parameters whose number is not `before`, and what follows from them.
  void update(const Graph& graph, std::span<const uint64_t> before, std::span<const uint64_t> numbers, ThreadPool* pool) const;

 private:
  struct Source {
    ValueId value;
    size_t place;  // in variables_
  };
  void find_derived(const Graph& graph);
  bool is_derivable(const Graph& graph, const Node& node) const;
  void derive(const Graph& graph, const std::vector<bool>& changed, ThreadPool* pool) const;

  std::shared_ptr<Variables> variables_;
  const AllocationContext* memory_;
  std::vector<Source> sources_;
  std::vector<NodeId> derived_;                 // in the order in which they are computed
  std::vector<bool> is_derived_;                // per node
  std::vector<std::vector<uint32_t>> depends_;  // per value: sources; of other values none
  std::vector<const Instruction*> instructions_;
  std::vector<StoredSlot> slots_;
  std::vector<uint64_t> first_numbers_;
};

/// The elements where kernels may read them: aligned, and without gaps; the tensor itself if it is both.
Tensor readable(const Tensor& tensor);

}  // namespace treadle::exec
