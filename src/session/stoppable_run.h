// Runs that stop between two nodes and go on: what partial runs and joint modules are made of.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/memory/memory_gate.h"
#include "exec/run/executor.h"
#include "session/observe.h"
#include "session/runtime.h"

namespace treadle {

/// Shared with the thread that a run with a deadline takes place on: it may outlive its client. One thread at a time.
class StoppableRun : public std::enable_shared_from_this<StoppableRun> {
 public:
  /// @param options  may be null; must live as long as the run. The deadline counts from here.
  /// @param tag      if the options have none.
  StoppableRun(std::shared_ptr<const Runtime> runtime, std::shared_ptr<const Executable> executable, const RunOptions* options,
               std::shared_ptr<const Monitor> monitor, std::string tag);
  ~StoppableRun();

  /// What random operators draw depends on the number, instead of how many runs there were. Before start().
  void draw_by(uint64_t number) { control_.run_id = number; }
  /// @param feeds     undefined ones come later: feed().
  /// @param compiled  the executable was made for this run.
  void start(std::vector<Datum> feeds, std::span<const Datum> bound, std::shared_ptr<exec::ValueCache> cache, bool compiled);
  /// As exec::Run::advance(), with hooks around it. @throws Error(timed_out) from the time on when a node did not return before the
  /// deadline
  bool advance(size_t steps = SIZE_MAX);
  /// At a Yield: hands values in; advance() goes on.
  void resume(std::span<const Datum> values);
  /// An input that was undefined at the start. @throws as exec::Run::feed
  void feed(size_t input, Datum value);
  /// As exec::Run::move_feed().
  void move_feed(size_t input, const Datum& value) { run().move_feed(input, value); }
  /// Whether output `k` of the executable has been made.
  bool has_output(size_t k) const;
  Datum output(size_t k) const;
  /// As exec::Run::take_output().
  Datum take_output(size_t k);
  /// At the end: those that were asked for.
  std::vector<Datum> take_outputs();

  /// @throws Error(timed_out) if the run has been left behind: it is its node's.
  exec::Run& run() const;
  const Executable& executable() const { return *executable_; }

 private:
  const std::shared_ptr<const Runtime> runtime_;
  const std::shared_ptr<const Executable> executable_;
  const std::shared_ptr<const Monitor> monitor_;
  std::shared_ptr<ThreadPool> pool_;  // of the options
  const RunOptions* const options_;
  const std::string tag_;
  exec::RunControl control_;
  exec::Caller caller_;
  std::optional<exec::MemoryGate::Pass> pass_;
  std::optional<RunObserver> observer_;
  exec::RunHandle run_;
  bool left_behind_ = false, compiled_ = false, has_ended_ = false;
};

}  // namespace treadle
