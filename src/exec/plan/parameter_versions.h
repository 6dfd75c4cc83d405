// The elements of a program's parameters, and all that is made of them, version by version.
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

/// Makes a version at the start of the first run after a change: computes what follows from the parameters, and has kernels pack what they
/// pack. Runs in flight keep the version that they began with. Thread-safe.
class ParameterVersions {
 public:
  /// @param program  has parameters; outlives the object.
  explicit ParameterVersions(const Program& program);

  /// The version as of now; one thread makes it, and others wait for it.
  /// @param before_change  lets go of what holds the version before, so that it is not in memory beside the new one.
  /// @throws Error as kernels do that pack
  std::shared_ptr<const ParameterVersion> current(ThreadPool* pool, const std::function<void()>& before_change);
  /// The version that was made last; null if nothing has run yet.
  std::shared_ptr<const ParameterVersion> latest() const;

 private:
  void pack(ParameterVersion& version, ThreadPool* pool) const;
  void keep_elements(ParameterVersion& version) const;

  const Program& program_;
  mutable std::mutex mutex_;
  std::vector<uint64_t> in_graph_;  // the numbers of the elements that the graph has
  uint64_t looked_at_ = 0;          // Variables::version() when current_ was made
  std::shared_ptr<const ParameterVersion> current_;
};

}  // namespace treadle::exec
