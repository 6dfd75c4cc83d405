// Estimates how long nodes take for the extents of a binding.
#pragma once

#include <cstdint>
#include <utility>

#include "exec/program/program.h"
#include "sharing/node_hint.h"

namespace treadle::exec {

class Binding;
class Plans;

/// Returns the estimated nanoseconds for arithmetic and for moving bytes, at the rates of one core.
std::pair<double, double> estimate_cost(const Binding& binding, const Instruction& instruction);

class NodeCosts {
 public:
  /// @param plans  the program's plans, with measured times; must outlive this object
  explicit NodeCosts(Plans& plans) : plans_(plans) {}

  /// Called when the binding gets new extents. For programs that run by readiness, also decides which nodes are worth another thread.
  void estimate(const Binding& binding);

  /// Returns the scheduler's facts about a node for shared devices; an empty hint before estimate().
  sharing::NodeHint hint(InstructionId instruction) const { return hints_.empty() ? sharing::NodeHint{} : hints_[instruction]; }
  /// Returns true if the instruction is worth another thread. @pre the program has a schedule by readiness
  bool expensive(InstructionId instruction) const {
    const Worth worth = worth_[instruction];
    return worth == Worth::yes || (worth == Worth::if_measured && is_measured_expensive(instruction));
  }
  /// Returns true if parallel execution may pay: two instructions that are or may be expensive do not depend on each other, or a custom
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
