// What a program reads of its parameters, version by version.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "exec/program/ids.h"
#include "exec/program/variables.h"
#include "graph/graph.h"
#include "graph/kernel.h"
#include "treadle/datum.h"

namespace treadle {
struct AllocationContext;
}

namespace treadle::exec {

class Program;
struct Instruction;
struct ProgramOptions;

/// The parameters as of one version: never changed once it is made, and held by every binding whose runs read it.
struct ParameterVersion {
  struct Packed {
    std::shared_ptr<PackedState> state;
    std::vector<uint64_t> versions;  ///< per input of the node: of the elements that the kernel saw
  };
  std::vector<uint64_t> numbers;       ///< per variable of the program
  IdVector<SlotId, Datum> constants;   ///< undefined where it is no parameter, and follows from none
  IdVector<SlotId, uint64_t> made_of;  ///< the sum of the numbers of what it depends on
  std::vector<Packed> packed;          ///< by Instruction::versioned
};

/// Parameters that the program's graph does not update. Kernels pack them as they pack constants, and nodes that read nothing else are
/// computed with them: both again at the start of the first run after a change. Runs in flight keep what they began with.
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

  /// Of a program whose instructions are all there: which of them have states that versions keep.
  void take_instructions(const Program& program, std::span<Instruction> instructions);
  /// As of now, made if the parameters have changed. Thread-safe; one thread makes what others wait for.
  /// @throws Error as kernels do that pack
  std::shared_ptr<const ParameterVersion> current(const Program& program, ThreadPool* pool);
  /// What was made last; null if nothing has run yet.
  std::shared_ptr<const ParameterVersion> latest() const;

 private:
  struct Source {
    ValueId value;
    size_t place;  // in variables_
  };
  struct StoredSlot {
    SlotId slot;
    ValueId value;
    bool is_read;  // in runs: not only by kernels that have packed it
  };
  void find_derived(const Graph& graph);
  bool is_derivable(const Graph& graph, const Node& node) const;
  std::vector<uint64_t> numbers_now() const;
  void derive(const Graph& graph, const std::vector<bool>& changed, ThreadPool* pool) const;
  void pack(const Program& program, ParameterVersion& version, ThreadPool* pool) const;
  void keep_elements(const Program& program, ParameterVersion& version) const;
  uint64_t made_of(ValueId value, std::span<const uint64_t> numbers) const;
  std::vector<uint64_t> versions_of(const Instruction& instruction, std::span<const uint64_t> numbers) const;

  std::shared_ptr<Variables> variables_;
  const AllocationContext* memory_;
  std::vector<Source> sources_;
  std::vector<NodeId> derived_;                   // in the order in which they are computed
  std::vector<bool> is_derived_;                  // per node
  std::vector<std::vector<uint32_t>> depends_;    // per value: sources; of other values none
  std::vector<const Instruction*> instructions_;  // by Instruction::versioned
  std::vector<StoredSlot> slots_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> read_numbers_;  // of the sources, as of the elements in the graph
  uint64_t looked_at_ = 0;              // of the variables, when current_ was made
  std::shared_ptr<const ParameterVersion> current_;
};

}  // namespace treadle::exec
