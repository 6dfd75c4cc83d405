// A program, with everything needed to run it on the host.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "exec/plan/plans.h"
#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "exec/run/frame.h"

namespace treadle::testing {

class HostProgram : public exec::Program {
 public:
  explicit HostProgram(std::shared_ptr<const Graph> graph, const exec::ProgramOptions& options = {})
      : exec::Program(std::move(graph), options), executor_(exec::make_host_executor(*this)) {}

  exec::Plans& plans() const { return executor_->plans(); }
  exec::FramePool& frames() const { return executor_->frames(); }

  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const exec::RunControl& control = {}, std::span<const Datum> bound = {},
           std::span<const exec::OutputMemory> memory = {}) const {
    executor_->run(feeds, outputs, control, bound, memory);
  }

 private:
  std::unique_ptr<exec::Executor> executor_;
};

}  // namespace treadle::testing
