// Manages versions of a program's parameters, of values derived from parameters, and of the packed copies that kernels make of both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/program/ids.h"
#include "graph/kernel.h"
#include "treadle/datum.h"

namespace treadle {
class ThreadPool;
}

namespace treadle::exec {

class Program;
struct Instruction;

/// One version of the parameters. Immutable, and shared by all bindings whose runs read this version.
struct ParameterVersion {
  struct Packed {
    std::shared_ptr<PackedState> state;
    std::vector<uint64_t> versions;  ///< for each input of the node, the version that the kernel has packed
  };
  std::vector<uint64_t> numbers;      ///< version number of each parameter
  IdVector<SlotId, Datum> constants;  ///< for each slot, the elements of a parameter or derived value; undefined for all other slots
  /// For each slot, the sum of the version numbers of the parameters that its value depends on (ProgramParameters::made_of).
  IdVector<SlotId, uint64_t> made_of;
  std::vector<Packed> packed;  ///< indexed by Instruction::versioned
};

/// At the start of the first run after a change, makes a new version: computes the derived values, and lets kernels pack. Runs in progress
/// keep their version. Thread-safe.
class ParameterVersions {
 public:
  /// @param program  must have parameters (Program::parameters()) and outlive this object
  explicit ParameterVersions(const Program& program);

  /// Returns the current version. If it has to be made, one thread makes it and other callers wait.
  /// @param before_change  called before a new version is made, to free the parts of the previous one that no run needs.
  /// @throws errors of kernels that pack
  std::shared_ptr<const ParameterVersion> current(ThreadPool* pool, const std::function<void()>& before_change);
  /// The version that was made last; null before the first run.
  std::shared_ptr<const ParameterVersion> latest() const;

 private:
  void pack(ParameterVersion& version, ThreadPool* pool) const;
  void keep_elements(ParameterVersion& version) const;

  const Program& program_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> in_graph_;  // version numbers of the elements to which Value::constant refers
  uint64_t looked_at_ = 0;          // value of Variables::version() when current_ was last checked to be current
  std::shared_ptr<const ParameterVersion> current_;
};

}  // namespace treadle::exec
