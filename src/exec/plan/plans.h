// What the runs of a program plan and learn, for the runs that follow.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "core/load_phases.h"
#include "core/node_counters.h"
#include "exec/plan/binding.h"
#include "exec/plan/parameter_versions.h"
#include "exec/program/program.h"

namespace treadle::exec {

/// What runs of one program share beside the program, which never changes. Each body of its control flow has such an object of its own.
/// Thread-safe.
class Plans {
 public:
  /// @param program  outlives the object.
  explicit Plans(const Program& program);
  ~Plans();
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  const Program& program() const { return program_; }
  /// @param body  of one of the program's instructions
  Plans& of_body(const Program& body) { return *bodies_.at(&body); }

  BindingCache& bindings() { return bindings_; }
  /// How long the parts of the first binding took.
  LoadPhases& first_binding() { return first_binding_; }
  /// Null where the program has no parameters that kernels pack.
  ParameterVersions* parameters() { return parameters_.get(); }
  /// What kernels have packed for an instruction, of parameters as of the last run; null if nothing.
  std::shared_ptr<PackedState> latest_packed(const Instruction& instruction) const;

  /// Time that a dynamic instruction took, averaged over recent parallel runs. It decides where the instruction runs, never what it
  /// computes.
  std::atomic<uint32_t>& measured_ns(InstructionId instruction) { return measured_ns_[index_of(instruction)]; }
  /// One for each run that counts at the same time.
  NodeCounterList& counters() { return counters_; }

  /// Whether gradients that a run hands out may lie in its arena. Not once a run has begun while somebody had those of the run before: each
  /// run would need another arena.
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
