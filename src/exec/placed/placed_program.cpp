#include "exec/placed/placed_program.h"

#include <optional>
#include <utility>

#include "exec/memory/governor.h"
#include "exec/placed/placed_run.h"

namespace treadle::exec {

PlacedProgram::PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan,
                             std::shared_ptr<DeviceMemory> memory)
    : Executor(program),
      program_(program),
      devices_(std::move(devices)),
      plan_(std::move(plan)),
      steps_(program_, plan_, devices_),
      crossings_(steps_),
      memory_(steps_, std::move(memory)) {}

PlacedProgram::~PlacedProgram() = default;

void PlacedProgram::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound,
                        std::span<const OutputMemory> memory) {
  std::optional<Governor::Exclusive> exclusive;
  if (memory_.keeps_limits() || memory_.is_full()) exclusive.emplace(memory_.of_session()->governor(), this, control.stop.interruption());
  const RunHandle run = take();
  run->start(feeds, bound, control, memory);
  if (!run->advance()) throw_stops_at_yield();
  run->take_outputs(outputs);
}

RunHandle PlacedProgram::take() {
  return RunHandle(runs_.take([&] { return std::make_unique<PlacedRun>(*this); }).release(), GiveBack{this});
}

void PlacedProgram::give_back(std::unique_ptr<Run> run) noexcept {
  runs_.give_back(std::unique_ptr<PlacedRun>(static_cast<PlacedRun*>(run.release())));
}

}  // namespace treadle::exec
