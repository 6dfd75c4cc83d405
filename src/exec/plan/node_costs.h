// Estimates how long nodes take for the extents of a binding.
#pragma once

#include <cstdint>
#include <utility>

#include "exec/program/program.h"
#include "sharing/node_hint.h"

namespace treadle::exec {

class Binding;
class Plans;

/// Returns the estimated nanoseconds for the arithmetic and for the memory traffic of an instruction, at the rates of one core.
std::pair<double, double> estimate_cost(const Binding& binding, const Instruction& instruction);

class NodeCosts {
 public:
  /// @param plans  the program's plans, with measured times; must outlive this object
  explicit NodeCosts(Plans& plans) : plans_(plans) {}

  /// Called for each new set of input shapes. If the program runs nodes in parallel, also decides which nodes are worth another thread.
  void estimate(const Binding& binding);

  /// Returns what the scheduler of shared devices needs to know about a node; an empty hint before estimate().
  sharing::NodeHint hint(InstructionId instruction) const { return hints_.empty() ? sharing::NodeHint{} : hints_[instruction]; }
  /// Returns true if the instruction is worth passing to another thread. @pre the program has a ParallelPlan
  bool expensive(InstructionId instruction) const {
    const Worth worth = worth_[instruction];
    return worth == Worth::yes || (worth == Worth::if_measured && is_measured_expensive(instruction));
  }
  /// Returns true if parallel execution may pay off: two (possibly) expensive instructions do not depend on each other, or a custom
  /// operator's kernel may continue on another thread.
  bool wide() const { return wide_; }

 private:
  enum class Worth : uint8_t { no, yes, if_measured };
  void judge(const Program& program);
  bool is_measured_expensive(InstructionId instruction) const;
  static constexpr double kExpensiveNs = 5'000;  // several times the cost of passing a node to another thread

  Plans& plans_;
  IdVector<InstructionId, sharing::NodeHint> hints_;
  IdVector<InstructionId, Worth> worth_;
  bool wide_ = false;
};

}  // namespace treadle::exec
