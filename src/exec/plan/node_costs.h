// What nodes are estimated to cost for the extents of a binding.
#pragma once

#include <cstdint>
#include <utility>

#include "exec/program/program.h"
#include "sharing/node_hint.h"

namespace treadle::exec {

class Binding;
class Plans;

/// Nanoseconds of computing and of moving bytes, at rates that one core reaches.
std::pair<double, double> estimate_cost(const Binding& binding, const Instruction& instruction);

class NodeCosts {
 public:
  /// @param plans  of the program; outlive the object.
  explicit NodeCosts(Plans& plans) : plans_(plans) {}

  /// For new extents. In programs for parallel execution also what is worth another thread.
  void estimate(const Binding& binding);

  /// What a run that shares its device needs to know of a node; nothing before estimate().
  sharing::NodeHint hint(InstructionId instruction) const { return hints_.empty() ? sharing::NodeHint{} : hints_[instruction]; }
  /// Whether the instruction is worth another thread. @pre the program is for parallel execution
  bool expensive(InstructionId instruction) const {
    const Worth worth = worth_[instruction];
    return worth == Worth::yes || (worth == Worth::if_measured && is_measured_expensive(instruction));
  }
  /// True if two instructions that are or may be expensive need not wait for each other.
  bool wide() const { return wide_; }

 private:
  enum class Worth : uint8_t { no, yes, if_measured };
  void judge(const Program& program);
  bool is_measured_expensive(InstructionId instruction) const;
  static constexpr double kExpensiveNs = 5'000;  // several times what it takes to hand a node to another thread

  Plans& plans_;
  IdVector<InstructionId, sharing::NodeHint> hints_;
  IdVector<InstructionId, Worth> worth_;
  bool wide_ = false;
};

}  // namespace treadle::exec
