// The weights of a program: packed copies for kernels, and constants that runs read.
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

/// Adds the node's name and operands to the error. A not_implemented error is appended to the list, so that all missing kernels are
/// reported together; any other error is thrown.
/// @param missing  the list, as text
void note_missing(Error& error, const Graph& graph, const Node& node, std::string& missing);

/// If there are fewer bytes of weights than this, the calling thread packs alone: it is done before another thread would wake up.
inline constexpr size_t kLittleToPack = 65'536;

class ProgramWeights {
 public:
  /// Packs the weights of all instructions, and places the constants that runs read. Called when the program has all its instructions.
  /// @throws Error(not_implemented) naming every node whose weights its kernel cannot pack, Error(invalid_model) if restored packed weights
  /// do not fit their node
  void place(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options);
  void add_body(const ProgramWeights& body);

  /// Returns the constant of a root slot (a slot with bytes of its own), in aligned memory if runs read it.
  const Datum& constant(SlotId slot) const { return constants_[slot]; }
  /// Bytes that have not been charged to a memory account yet; the session charges them. foreign_constant_bytes() counts constants in the
  /// model's memory and shared copies of constants. foreign_packed_bytes() counts packed copies that Storage::allocate() did not make. Both
  /// include bodies.
  size_t foreign_constant_bytes() const { return foreign_constant_bytes_; }
  size_t foreign_packed_bytes() const { return foreign_packed_bytes_; }
  /// Charges the program's account for packed weights that programs share and that have grown since the last call. Thread-safe.
  /// @throws Error(resource_exhausted) as MemoryAccount::charge().
  void charge_shared() const;

 private:
  struct SharedCharge {
    std::shared_ptr<MemoryAccount> account;  // null: nothing is charged
    std::atomic<size_t> size_bytes{0};
    ~SharedCharge() {
      if (account) account->discharge(MemoryClass::packed, size_bytes);
    }
  };
  void pack(const Program& program, std::span<Instruction> instructions, const ProgramOptions& options);
  void place_constants(const Program& program, const ProgramOptions& options);

  IdVector<SlotId, Datum> constants_;
  size_t foreign_constant_bytes_ = 0, foreign_packed_bytes_ = 0;
  std::vector<const PackedState*> shared_packed_;  // packed weights shared with other programs, each once
  mutable SharedCharge shared_charge_;
};

}  // namespace treadle::exec
