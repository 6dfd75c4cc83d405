#include "exec/placed/placed_steps.h"

#include <fmt/format.h>

#include "core/trace/recorder.h"

namespace treadle::exec {

PlacedSteps::PlacedSteps(const Program& program, const StreamPlan& plan, std::span<const std::shared_ptr<Device>> devices)
    : program_(program), plan_(plan), devices_(devices), position_(plan.steps.size()) {
  for (const std::vector<StepId>& bulk : plan.bulks) {
    for (const StepId s : bulk) {
      position_[s] = order_.size();
      order_.push_back(s);
    }
    bulk_end_.resize(order_.size(), order_.size());
  }
  name_copies();
}

std::span<const LocationId> PlacedSteps::operands(const StreamPlan::Step& step) const {
  return std::span(plan_.operands).subspan(step.first_operand, program_.operands(instruction(step)).size());
}

std::span<const LocationId> PlacedSteps::inputs(const StreamPlan::Step& step) const {
  return operands(step).first(instruction(step).num_inputs);
}

std::span<const LocationId> PlacedSteps::outputs(const StreamPlan::Step& step) const {
  return operands(step).subspan(instruction(step).num_inputs);
}

void PlacedSteps::name_copies() {
  auto name_at = [&](LocationId at) { return device(location(at).device).name(); };
  for (const StreamPlan::Step& step : plan_.steps) {
    copy_of_.push_back(step.is_copy() ? static_cast<int32_t>(copies_.size()) : -1);
    if (step.is_copy()) copies_.push_back({.slot = location(step.source).slot, .from = name_at(step.source), .to = name_at(step.target)});
  }
  const uint32_t first = Recorder::reserve_names(copies_.size());
  for (size_t i = 0; i < copies_.size(); ++i) copies_[i].record_name = first + static_cast<uint32_t>(i);
}

uint32_t PlacedSteps::record_name(StepId step) const {
  const int32_t copy = copy_of_[step];
  return copy >= 0 ? copies_[static_cast<size_t>(copy)].record_name : instruction(plan_.steps[step]).record_name;
}

std::string PlacedSteps::stream_name(int stream) const {
  static constexpr const char* kNames[] = {"compute", "copy-in", "copy-out"};
  const StreamPlan::Stream& planned = plan_.streams[static_cast<size_t>(stream)];
  return fmt::format("{} {} {}", device(planned.device).name(), kNames[static_cast<size_t>(planned.queue)], stream);
}

}  // namespace treadle::exec
