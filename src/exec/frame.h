// The values of one run in flight. A frame outlives a call, so that a run can stop at a Yield and resume.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/fork_mutex.h"
#include "exec/binding.h"
#include "exec/program.h"
#include "graph/evaluate.h"
#include "treadle/datum.h"

namespace treadle {
class Recorder;
}

namespace treadle::exec {

/// How a run is done, apart from what it computes.
struct RunControl {
  ThreadPool* pool = nullptr;
  const std::atomic<bool>* cancel = nullptr;  ///< true: stop before the next instruction
  std::optional<std::chrono::steady_clock::time_point> deadline;
  Recorder* recorder = nullptr;
  uint64_t run_id = 0;  ///< what randomness depends on, besides seed and node
};

/// Where a run may put an output whose extents the feeds' shapes determine, if it is not bound.
struct OutputMemory {
  std::shared_ptr<Storage> storage;  ///< used if it is large enough
  bool reusable = false;             ///< new memory is made larger than needed: it will come back for outputs that grow
  int appends_to = -1;               ///< a feed that the output begins with, in memory that may be written behind its end
};

class Frame {
 public:
  explicit Frame(const Program& program);

  /// Takes the feeds, finds the binding and readies every pointer. Allocates nothing if the binding is the one of the last run.
  /// @param feeds    one per input of the program; an undefined Datum where the program has an input that is not fed is an error.
  /// @param bound    empty, or one per output: memory that the caller wants the output in (undefined: none).
  /// @param parent_values  of a body: the symbols' values of the run around it; empty otherwise.
  /// @param memory   empty, or one per output.
  /// @throws Error naming the feed, its type and what was expected.
  void start(std::span<const Datum> feeds, std::span<const Datum> bound, const RunControl& control,
             std::span<const int64_t> parent_values = {}, std::span<const OutputMemory> memory = {});

  /// Runs from the program counter until a Yield or the end. @return true at the end.
  bool advance();
  bool finished() const { return pc_ == program_.instructions().size(); }

  /// Stopped at a Yield: the values handed out, and what to hand in before advance() goes on.
  const Instruction& yield() const { return program_.instructions()[pc_]; }
  std::vector<Datum> yielded();
  void resume(std::span<const Datum> values);

  /// After the end: the outputs, one per output of the program. The frame keeps none of them.
  void take_outputs(std::span<Datum> outputs);
  /// Drops everything that the run holds (after the end, or an error).
  void clear();

  const Program& program() const { return program_; }
  const Binding& binding() const { return *binding_; }
  RunControl& control() { return control_; }

 private:
  friend class DynamicInstruction;
  void bind_feeds(std::span<const Datum> feeds);
  void ready_pointers();
  Tensor make_output(int32_t slot, std::span<const OutputMemory> memory) const;
  void check_control() const;
  void hold(int32_t slot, Datum datum);
  Datum datum_of(int32_t slot, bool shared) const;

  const Program& program_;
  RunControl control_;
  std::shared_ptr<const Binding> binding_;
  uint64_t generation_ = 0;  // of the binding that the pointers were readied for
  std::vector<int64_t> symbol_values_;
  std::vector<void*> pointers_;  // per operand
  std::vector<Datum> held_;      // per slot: feeds and held values
  std::vector<Datum> bound_;     // per output
  std::shared_ptr<Storage> arena_;
  Evaluator evaluator_;  // for instructions bound in the run
  size_t pc_ = 0;
};

/// Frames of a program that no run uses right now.
class FramePool {
 public:
  std::unique_ptr<Frame> take(const Program& program);
  void give_back(std::unique_ptr<Frame> frame);

 private:
  ForkMutex mutex_;
  std::vector<std::unique_ptr<Frame>> idle_;
};

/// Runs a whole program. @throws Error; a Yield in it is an error (use a Frame).
void run(const Program& program, std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control,
         std::span<const Datum> bound = {}, std::span<const int64_t> parent_values = {}, std::span<const OutputMemory> memory = {});

}  // namespace treadle::exec
