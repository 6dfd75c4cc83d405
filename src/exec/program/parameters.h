// Finds which values of a program are parameters, or are computed from parameters and constants alone.
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

/// The parameters that the graph only reads, and the derived values: values computed from parameters and constants alone. Kernels pack both
/// like constants, and all reads of one run see the same version (plan/parameter_versions.h). This object is immutable once the program is
/// made.
class ProgramParameters {
 public:
  /// Finds parameters and derived values. Computes the derived values, because the choice of kernels may depend on their elements.
  /// @param graph  its Value::constant holds the elements of parameters and derived values as of the latest version.
  ProgramParameters(const Graph& graph, const ProgramOptions& options);

  bool empty() const { return sources_.empty(); }
  /// Returns true if the node makes derived values. Then it is computed when parameters change, and needs no instruction.
  bool computes(NodeId node) const { return index_of(node) < is_derived_.size() && is_derived_[index_of(node)]; }
  /// Returns true if the value is a parameter or a derived value.
  bool has(ValueId value) const { return !depends_[index_of(value)].empty(); }
  /// Finds the instructions whose kernels need packed weights for each version of the parameters, and sets their Instruction::versioned.
  /// @pre the program has all its instructions
  void take_instructions(const Program& program, std::span<Instruction> instructions);

  // Used by ParameterVersions:

  Variables& variables() const { return *variables_; }
  /// Context whose account is charged for derived values and packed weights; null: the context of the current thread.
  const AllocationContext* memory() const { return memory_; }
  /// The instructions with packed weights for each version, in the order of Instruction::versioned.
  std::span<const Instruction* const> instructions() const { return instructions_; }
  /// A root slot (a slot with bytes of its own) that holds a parameter or a derived value.
  struct StoredSlot {
    SlotId slot;
    ValueId value;
    bool is_read;  ///< true: instructions read the elements; false: only kernels use them, through packed copies
  };
  std::span<const StoredSlot> slots() const { return slots_; }
  /// Returns the current version number of each parameter, which counts the changes of its elements.
  std::vector<uint64_t> numbers_now() const;
  /// The version numbers of the parameters whose elements the graph had when the program was made.
  std::span<const uint64_t> first_numbers() const { return first_numbers_; }
  /// Returns the sum of the version numbers of the parameters that the value depends on. It identifies the value's version; 0: none.
  uint64_t made_of(ValueId value, std::span<const uint64_t> numbers) const;
  /// Returns made_of() for each input of the instruction's node.
  std::vector<uint64_t> versions_of(const Instruction& instruction, std::span<const uint64_t> numbers) const;
  /// Updates Value::constant of the parameters whose version number differs from `before`, and of the values derived from them.
  void update(const Graph& graph, std::span<const uint64_t> before, std::span<const uint64_t> numbers, ThreadPool* pool) const;

 private:
  struct Source {
    ValueId value;
    size_t place;  // index into variables_
  };
  void find_derived(const Graph& graph);
  bool is_derivable(const Graph& graph, const Node& node) const;
  void derive(const Graph& graph, const std::vector<bool>& changed, ThreadPool* pool) const;

  std::shared_ptr<Variables> variables_;
  const AllocationContext* memory_;
  std::vector<Source> sources_;
  std::vector<NodeId> derived_;                 // nodes that make derived values, in the order in which they are computed
  std::vector<bool> is_derived_;                // for each node: true if it is in derived_
  std::vector<std::vector<uint32_t>> depends_;  // for each value: the parameters that it depends on, as indices into sources_
  std::vector<const Instruction*> instructions_;
  std::vector<StoredSlot> slots_;
  std::vector<uint64_t> first_numbers_;
};

/// Returns a tensor with the same elements, aligned and contiguous as kernels need them. Copies only if necessary.
Tensor readable(const Tensor& tensor);

}  // namespace treadle::exec
