// The weights of a program: packed for the kernels that read them, and constants where runs find them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/program/ids.h"
#include "graph/graph.h"
#include "graph/kernel.h"
#include "treadle/allocator.h"
#include "treadle/datum.h"
#include "treadle/error.h"

namespace treadle::exec {

class Program;
struct Instruction;
struct ProgramOptions;

/// What this build lacks is listed for all nodes; any other error goes on, with the node's name and operands.
/// @param missing  the list, to which the error is added.
void note_missing(Error& error, const Graph& graph, const Node& node, std::string& missing);

/// Bytes of weights that the caller packs before another thread is awake.
inline constexpr size_t kLittleToPack = 65'536;

class ProgramWeights {
 public:
  /// Of a program whose instructions are all there, their packed states still to be made.
  /// @throws Error(not_implemented) naming every node whose weights no kernel takes, Error(invalid_model) if restored states do not fit.
  void place(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options);
  void add_body(const ProgramWeights& body);

  /// A constant as a run reads it, of a root slot.
  const Datum& constant(SlotId slot) const { return constants_[slot]; }
  /// What no account was charged with while the program was made: constants that stay in memory (the model's), and packed copies that
  /// did not come from Storage::allocate(). Bodies included.
  size_t foreign_constant_bytes() const { return foreign_constant_bytes_; }
  size_t foreign_packed_bytes() const { return foreign_packed_bytes_; }
  /// Charges the program's account with what packed weights that it shares have grown by since the last call. Thread-safe.
  /// @throws Error(resource_exhausted) as MemoryAccount::charge().
  void charge_shared() const;

 private:
  struct SharedCharge {
    std::shared_ptr<MemoryAccount> account;  // null: nobody is charged
    std::atomic<size_t> size_bytes{0};
    ~SharedCharge() {
      if (account) account->discharge(MemoryClass::packed, size_bytes);
    }
  };
  void pack(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options);
  void place_constants(const Program& program, const ProgramOptions& options);

  IdVector<SlotId, Datum> constants_;
  size_t foreign_constant_bytes_ = 0, foreign_packed_bytes_ = 0;
  std::vector<const PackedState*> shared_packed_;  // each once
  mutable SharedCharge shared_charge_;
};

}  // namespace treadle::exec
