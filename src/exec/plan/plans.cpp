#include "exec/plan/plans.h"

#include "exec/program/parallel_plan.h"

namespace treadle::exec {

Plans::Plans(const Program& program)
    : program_(program),
      parameters_(program.parameters() ? std::make_unique<ParameterVersions>(program) : nullptr),
      bindings_(*this),
      measured_ns_(std::make_unique<std::atomic<uint32_t>[]>(program.instructions().size())) {
  for (const Instruction& instruction : program.instructions())
    for (const auto& body : instruction.bodies) bodies_.emplace(body.get(), std::make_unique<Plans>(*body));
}

Plans::~Plans() = default;

std::shared_ptr<PackedState> Plans::latest_packed(const Instruction& instruction) const {
  if (instruction.versioned < 0) return instruction.packed;
  const auto version = parameters_->latest();
  return version ? version->packed[static_cast<size_t>(instruction.versioned)].state : nullptr;
}

}  // namespace treadle::exec
