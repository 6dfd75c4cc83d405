#include "exec/placed/placed_program.h"

#include <optional>
#include <utility>

#include "exec/memory/governor.h"
#include "exec/placed/placed_run.h"

namespace treadle::exec {

PlacedProgram::PlacedProgram(const Program& program, std::vector<std::shared_ptr<Device>> devices, StreamPlan plan,
                             const std::shared_ptr<DeviceMemory>& memory)
    : Executor(program),
      program_(program),
      devices_(std::move(devices)),
      plan_(std::move(plan)),
      schedule_(plans(), frames(), devices_, plan_, memory) {}

PlacedProgram::~PlacedProgram() = default;

void PlacedProgram::run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound,
                        std::span<const OutputMemory> memory) {
  std::optional<Governor::Exclusive> exclusive;
  ProgramMemory& shared = schedule_.memory();
  if (shared.keeps_limits() || shared.is_full()) exclusive.emplace(shared.of_session()->governor(), this, control.stop.interruption());
  const RunHandle run = take();
  run->start(feeds, bound, control, memory);
  if (!run->advance()) throw_stops_at_yield();
  run->take_outputs(outputs);
}

RunHandle PlacedProgram::take() { return RunHandle(schedule_.take().release(), GiveBack{this}); }

void PlacedProgram::give_back(std::unique_ptr<Run> run) noexcept {
  schedule_.give_back(std::unique_ptr<PlacedRun>(static_cast<PlacedRun*>(run.release())));
}

}  // namespace treadle::exec
