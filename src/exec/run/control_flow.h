// Executes If, Loop and Scan. Each body is a program of its own. Values stay on the device where the bodies make them; the host reads only
// conditions and trip counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "exec/run/run_instruction.h"

namespace treadle::exec {

/// Runs the bodies of an If, Loop or Scan.
class BodyRunner {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  virtual ~BodyRunner() = default;
  /// Executes a body from beginning to end.
  /// @param results    one per output of the body. A value may be in the memory of the device that makes it.
  /// @param looked_at  the output whose elements the host reads next, which must therefore be in the host's memory; kNone: there is none
  virtual void run(const Program& body, std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
                   std::span<const int64_t> parent_values, size_t looked_at) = 0;

  /// Executions of a body one after the other.
  class Rounds {
   public:
    virtual ~Rounds() = default;
    /// Like BodyRunner::run(), but results on devices may be in the making: until finish() they may only be fed to the next rounds.
    virtual void run(std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
                     std::span<const int64_t> parent_values, size_t looked_at) = 0;
    /// Waits until all results are made. @throws the first error of a round
    virtual void finish() {}
  };
  /// Returns an object for the rounds of a Loop or Scan.
  virtual std::unique_ptr<Rounds> rounds(const Program& body);
};

class HostBodies final : public BodyRunner {
 public:
  /// @param frames  frames of the program that contains the bodies; must outlive this object
  explicit HostBodies(FramePool& frames) : frames_(frames) {}
  void run(const Program& body, std::span<const Datum> feeds, std::span<Datum> results, const RunControl& control,
           std::span<const int64_t> parent_values, size_t looked_at) override;

 private:
  FramePool& frames_;
};

/// Executes an If, Loop or Scan. @return one value per output
std::vector<Datum> run_control_flow(BodyRunner& bodies, const Instruction& instruction, const Binding& binding, const RunControl& control,
                                    const OperandSource& operands);

/// Like the other run_dynamic(), for a program whose bodies run on devices.
std::vector<Datum> run_dynamic(BodyRunner& bodies, const Instruction& instruction, const Binding& binding, const RunControl& control,
                               const OperandSource& operands, Evaluator& evaluator);

}  // namespace treadle::exec
