#include "exec/run/executor.h"

#include <fmt/format.h>

#include "exec/plan/plans.h"
#include "exec/run/frame.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

class HostExecutor final : public Executor {
 public:
  using Executor::Executor;

  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound,
           std::span<const OutputMemory> memory) override {
    frames().run(feeds, outputs, control, bound, memory);
  }
  RunHandle take() override { return RunHandle(frames().take().release(), GiveBack{this}); }
  void give_back(std::unique_ptr<Run> run) noexcept override {
    frames().give_back(std::unique_ptr<Frame>(static_cast<Frame*>(run.release())));
  }
};

}  // namespace

Executor::Executor(const Program& program) : plans_(std::make_unique<Plans>(program)), frames_(std::make_unique<FramePool>(*plans_)) {}
Executor::~Executor() = default;

void check_at_end(const Program& program, const RunControl& control) {
  if (index_of(program.commit_from()) == program.instructions().size()) control.stop.check();
}

std::unique_ptr<Executor> make_host_executor(const Program& program) { return std::make_unique<HostExecutor>(program); }

const Instruction& expect_yield(const Run& run) {
  if (const Instruction* yield = run.yield()) return *yield;
  throw Error(ErrorCode::invalid_argument, run.finished() ? "the run is at its end, not at a Yield" : "the run is not at a Yield");
}

void throw_stops_at_yield() { throw Error(ErrorCode::invalid_argument, "the graph stops at a Yield; run it as a partial run"); }

}  // namespace treadle::exec
