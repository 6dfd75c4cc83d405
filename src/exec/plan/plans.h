// The state that runs of a program share and keep for later runs: bindings, versions of parameters, measured times.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "core/trace/load_phases.h"
#include "core/trace/node_counters.h"
#include "exec/plan/binding.h"
#include "exec/plan/parameter_versions.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// State shared by all runs of a program, while the program itself is immutable. Each body of control flow has its own Plans. Thread-safe.
class Plans {
 public:
  /// @param program  must outlive this object
  explicit Plans(const Program& program);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  const Program& program() const { return program_; }
  /// @param body  a body of one of the program's instructions
  Plans& of_body(const Program& body) { return *bodies_.at(&body); }

  BindingCache& bindings() { return bindings_; }
  /// The times that the phases of making the first binding took.
  LoadPhases& first_binding() { return first_binding_; }
  /// Null if the program has no parameters that may change.
  ParameterVersions* parameters() { return parameters_.get(); }
  /// The weights packed by the instruction's kernel, for the parameter version of the last run; null if there are none.
  std::shared_ptr<PackedState> latest_packed(const Instruction& instruction) const;

  /// Average time in nanoseconds of a dynamic instruction over recent parallel runs. It affects only the thread on which the instruction
  /// runs, never the result.
  std::atomic<uint32_t>& measured_ns(InstructionId instruction) { return measured_ns_[index_of(instruction)]; }
  /// Counters of node times. Each run in progress that measures node times has its own set.
  NodeCounterList& counters() { return counters_; }

  /// Returns true if a run may store the gradients that it hands out in its arena (plan/lodging.h). Becomes false for all later runs once a
  /// caller has kept the gradients of one run while the next one began, because then each run would need a new arena.
  bool lodges_gradients() const {
    return program_.first_gradient() != kNoSlot && !program_.parallel() && lodges_gradients_.load(std::memory_order_relaxed);
  }
  void note_kept_gradients() { lodges_gradients_.store(false, std::memory_order_relaxed); }

 private:
  const Program& program_;
  std::unordered_map<const Program*, std::unique_ptr<Plans>> bodies_;
  std::unique_ptr<ParameterVersions> parameters_;
  LoadPhases first_binding_;
  BindingCache bindings_;
  NodeCounterList counters_;
  const std::unique_ptr<std::atomic<uint32_t>[]> measured_ns_;
  std::atomic<bool> lodges_gradients_ = true;
};

}  // namespace treadle::exec
