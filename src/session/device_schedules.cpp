// Executors of a session's programs on its devices. They are in a separate file, because a library without devices replaces it
// (training_runtime/no_devices.cpp).
#include <fmt/format.h>

#include <algorithm>

#include "core/base/utf8.h"
#include "exec/placed/placed_program.h"
#include "exec/program/host_settings.h"
#include "session/device_rows.h"
#include "session/devices.h"

namespace treadle {
namespace {

constexpr size_t kTrainingBulk = 15;  // default of MXNet's MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN

}  // namespace

exec::DevicePlacement SessionDevices::placement(const exec::Program& program) const {
  exec::PlacementRequest request{.default_device = default_device_, .of_argument = of_argument_};
  request.of_node = [this](const Node& node) { return device_of(node); };
  request.has_own_kernels = [this](int device) { return types_[static_cast<size_t>(device)].kernels != nullptr; };
  return exec::place_instructions(program, request);
}

std::unique_ptr<exec::Executor> SessionDevices::place(const exec::Program& program, bool training) const {
  exec::StreamOptions streams{.compute_streams = compute_streams_, .max_bulk = training ? kTrainingBulk : SIZE_MAX};
  for (const auto& device : devices_) streams.at_once.push_back(device->calls_work_at_once());
  return std::make_unique<exec::PlacedProgram>(
      program, devices_, exec::plan_streams(program, placement(program), static_cast<int>(devices_.size()), streams), memory_);
}

void add_device_rows(const exec::Executor& executor, profile::ProfilePlan& plan) {
  const auto* placed = dynamic_cast<const exec::PlacedProgram*>(&executor);
  if (!placed) return;
  const exec::PlacedSteps& steps = placed->steps();
  profile::DeviceRows& rows = plan.device_rows;
  rows.of_node.resize(plan.profile.nodes.size(), -1);
  for (const exec::StepId s : steps.plan().steps.ids()) {
    const int device = steps.device_of(steps[s]);
    const auto node = plan.node_of.find(steps.record_name(s));
    if (device == exec::DevicePlacement::kHost || node == plan.node_of.end()) continue;
    const std::string name = steps.stream_name(steps[s].stream);
    auto row = std::find_if(rows.rows.begin(), rows.rows.end(), [&](const profile::DeviceRow& other) { return other.name == name; });
    if (row == rows.rows.end())
      row = rows.rows.insert(row, {.name = name, .device = steps.device(device).name(), .tells_times = steps.device(device).tells_times()});
    rows.of_node[static_cast<size_t>(node->second)] = static_cast<int32_t>(row - rows.rows.begin());
  }
}

std::string SessionDevices::describe(const exec::Program& program) const {
  std::vector<std::string> names(devices_.size());
  for (const auto& [name, index] : by_name_) names[static_cast<size_t>(index)] = name;
  const exec::StreamOptions streams{.compute_streams = compute_streams_};
  return exec::describe(program, exec::plan_streams(program, placement(program), static_cast<int>(devices_.size()), streams), names);
}

std::string field_of(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (c == '\t' || c == '\n')
      text += c == '\t' ? "\\x09" : "\\x0a";
    else
      text += c;
  }
  return printable(std::move(text));
}

std::string SessionDevices::list_nodes(const exec::Program& program) const { return list_nodes(program, placement(program)); }

std::string SessionDevices::list_nodes(const exec::Program& program, const exec::DevicePlacement& placed) const {
  const std::set<const Node*> settings = have_kernels() ? exec::nodes_of_settings(program.graph()) : std::set<const Node*>();
  std::string text;
  for (const exec::InstructionId i : program.instructions().ids()) {
    const exec::Instruction& instruction = program.instructions()[i];
    if (!instruction.node) continue;
    const int device = placed.of_instruction[i];
    const exec::SlotId output = instruction.num_outputs > 0 ? program.operands(instruction)[instruction.num_inputs] : exec::kNoSlot;
    const std::string_view value = output == exec::kNoSlot ? std::string_view() : program.name(output);
    const char* why = "";
    if (device == exec::DevicePlacement::kHost && device_or_default(*instruction.node) != exec::DevicePlacement::kHost)
      why = !instruction.bodies.empty()                      ? "the host looks at the condition; the bodies' nodes follow"
            : !exec::runs_on_devices(program, instruction)   ? "strings and sequences are the host's"
            : settings.contains(instruction.node)            ? "what it makes is read by the host only, such as extents"
            : exec::reads_only_shapes(*instruction.node->op) ? "it reads an extent, which the host knows"
                                                             : "the device has no kernel for it with these types and attributes";
    text += fmt::format("{}\t{}\t{}\t{}\t{}\n", devices_[static_cast<size_t>(device)]->name(), field_of(instruction.node->op_type),
                        field_of(instruction.node->name), field_of(value), why);
    for (size_t b = 0; b < instruction.bodies.size(); ++b)
      text += list_nodes(*instruction.bodies[b], placed.of_control_flow.at(i).bodies[b]);
  }
  return text;
}

}  // namespace treadle
