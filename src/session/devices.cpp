#include "session/devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "exec/placed_program.h"
#include "exec/residency.h"
#include "sharing/quantities.h"
#include "treadle/error.h"

namespace treadle {
namespace {

constexpr size_t kTrainingBulk = 15;  // MXNet's MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN

SimOptions sim_options(const SessionOptions& options) {
  SimOptions sim;
  auto given = [&](const char* key) -> const std::string* {
    auto found = options.config.find(key);
    return found == options.config.end() ? nullptr : &found->second;
  };
  if (const std::string* text = given("treadle.sim.memory")) sim.memory_bytes = sharing::parse_bytes(*text);
  if (const std::string* text = given("treadle.sim.bus_per_second"))
    sim.bus_bytes_per_second = static_cast<double>(sharing::parse_bytes(*text));
  if (const std::string* text = given("treadle.sim.max_delay_us"))
    sim.max_delay_us = static_cast<int>(std::min<uint64_t>(sharing::parse_bytes(*text), 1'000'000));
  if (const std::string* text = given("treadle.sim.shared_engine")) sim.shared_engine = *text == "1";
  if (const std::string* text = given("treadle.sim.engine_pace"))
    sim.engine_pace = static_cast<double>(std::min<uint64_t>(sharing::parse_bytes(*text), 1000));
  return sim;
}

}  // namespace

std::string group_of(const Node& node) {
  for (const auto& [key, value] : node.metadata)
    if (key == "ctx_group" || key == "__ctx_group__") return value;
  return {};
}

SessionDevices::SessionDevices(const SessionOptions& options)
    : compute_streams_(std::max(1, options.compute_streams)), spill_folder_(options.spill_folder) {
  std::vector<std::string> names{options.device.empty() ? "cpu" : options.device};
  for (const auto* map : {&options.group2ctx, &options.argument_devices})
    for (const auto& [key, device] : *map) names.push_back(device);
  SimOptions sim = sim_options(options);
  devices_.push_back(cpu_device());
  by_name_["cpu"] = exec::DevicePlacement::kHost;
  auto add = [&](const std::string& name, std::shared_ptr<SimDevice> device) {
    by_name_[name] = static_cast<int>(devices_.size());
    sim.checker = device->checker();  // one for all of them: events of one device count on the others
    devices_.push_back(std::move(device));
  };
  SimOptions named = sim;
  for (const std::string& name : names)
    if (name.rfind("sim:", 0) == 0 && !by_name_.contains(name)) add(name, SimDevice::shared(name.substr(4), named));
  for (const std::string& name : names) {
    if (by_name_.contains(name)) continue;
    if (name != "sim")
      throw Error(ErrorCode::invalid_argument, fmt::format("there is no device \"{}\"; the devices are: cpu, sim, sim:NAME", name));
    add(name, SimDevice::create(sim));
  }
  if (any()) {
    // Beside simulated devices the host is one as well: its work is asynchronous, and every access is checked.
    sim.name = "cpu";
    sim.host_accessible = true;
    sim.shared_engine = false;
    sim.memory_bytes = SIZE_MAX;
    devices_.front() = SimDevice::create(sim);
  }
  default_device_ = by_name_.at(names.front());
  for (const auto& [group, device] : options.group2ctx) of_group_[group] = by_name_.at(device);
  for (const auto& [argument, device] : options.argument_devices) of_argument_[argument] = by_name_.at(device);
}

void SessionDevices::set_memory_limit(size_t limit_bytes) {
  for (size_t d = 1; d < devices_.size(); ++d)
    if (!devices_[d]->has_bus())
      throw Error(ErrorCode::not_implemented,
                  fmt::format("a memory limit does not hold on {}, which does not reach the host's memory", devices_[d]->name()));
  if (!limit_) limit_ = std::make_shared<exec::DeviceMemoryLimit>();
  limit_->limit_bytes = limit_bytes;
  // A run under way keeps to it at its next node.
  limit_->run.if_idle([&] {
    std::lock_guard lock(limit_->mutex);
    for (exec::Residency* holder : limit_->holders) holder->limit_changed(/*may_wait=*/true);
  });
}

void SessionDevices::read_groups(const Graph& as_read) {
  if (of_group_.empty()) return;
  for (NodeId id = as_read.first(); id != kNoNode; id = as_read.next(id)) {
    const Node& node = as_read.node(id);
    auto found = of_group_.find(group_of(node));
    if (found == of_group_.end()) continue;
    of_source_[node.name] = found->second;
    for (const std::string& source : node.sources) of_source_[source] = found->second;
  }
}

exec::DevicePlacement SessionDevices::placement(const exec::Program& program) const {
  exec::PlacementRequest request{.default_device = default_device_, .of_argument = of_argument_};
  request.of_node = [this](const Node& node) {
    for (const std::string& source : node.sources)
      if (auto found = of_source_.find(source); found != of_source_.end()) return found->second;
    auto found = of_group_.find(group_of(node));
    return found == of_group_.end() ? -1 : found->second;
  };
  return exec::place_instructions(program, request);
}

std::unique_ptr<exec::Executor> SessionDevices::place(const exec::Program& program, sharing::JobState* job, bool training) const {
  const exec::StreamOptions streams{.compute_streams = compute_streams_, .max_bulk = training ? kTrainingBulk : SIZE_MAX};
  return std::make_unique<exec::PlacedProgram>(program, devices_,
                                               exec::plan_streams(program, placement(program), static_cast<int>(devices_.size()), streams),
                                               exec::ResidencyOptions{.job = job, .limit = limit_, .spill_folder = spill_folder_});
}

std::string SessionDevices::describe(const exec::Program& program) const {
  std::vector<std::string> names(devices_.size());
  for (const auto& [name, index] : by_name_) names[static_cast<size_t>(index)] = name;
  const exec::StreamOptions streams{.compute_streams = compute_streams_};
  return exec::describe(program, exec::plan_streams(program, placement(program), static_cast<int>(devices_.size()), streams), names);
}

}  // namespace treadle
