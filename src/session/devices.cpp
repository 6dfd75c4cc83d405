#include "session/devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/base/nearest.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_type.h"
#include "exec/placed/device_memory.h"
#include "exec/program/determined_extents.h"
#include "exec/program/host_settings.h"
#include "gpu/gpu_type.h"
#include "graph/inferred_types.h"
#include "session/model.h"
#include "session/refusals.h"
#include "treadle/error.h"

namespace treadle {
namespace {

// Registers the library's own device types; plugins register theirs.
void register_types() {
  register_sim_type();
  gpu::register_gpu_type();
}

[[noreturn]] void throw_no_device(std::string_view name) {
  const std::vector<std::string> types = device_type_names();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no device \"{}\"; the devices are: cpu, {}; of each, TYPE:NAME is one of several", name,
                          fmt::join(types, ", ")));
}

// Returns true if the node's extents are known before a run, by the same rule as in lowering (exec/program/lowering.cpp).
bool has_determined_extents(const Graph& graph, const Node& node) {
  exec::DeterminedExtents determined(graph, {});
  for (const auto* ids : {&node.inputs, &node.outputs})
    for (const ValueId id : *ids)
      if (id != kNoValue && !determined.has_extents(graph.type(id))) return false;
  const Inferred inferred = infer_alone(graph, node);
  return std::all_of(inferred.outputs.begin(), inferred.outputs.end(), [&](const Type& type) { return determined.has_extents(type); });
}

}  // namespace

std::shared_ptr<Device> device_named(std::string_view name) {
  if (name == "cpu") return nullptr;
  register_types();
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Device>, std::less<>> made;
  std::lock_guard lock(mutex);
  std::weak_ptr<Device>& known = made[std::string(name)];
  if (std::shared_ptr<Device> device = known.lock()) return device;
  const std::optional<DeviceType> type = find_device_type(name.substr(0, name.find(':')));
  if (!type) made.erase(std::string(name)), throw_no_device(name);
  const std::shared_ptr<Device> device = type->make({std::string(name), {}, {}});
  known = device;
  return device;
}

Tensor to_device(const Tensor& tensor, std::string_view name) {
  const std::shared_ptr<Device> device = device_named(name);
  const std::shared_ptr<Device>& lies_on = tensor.storage()->device();
  if (lies_on == device) return tensor;
  if (!device) return tensor.clone();
  if (tensor.dtype() == DType::string) throw Error(ErrorCode::invalid_argument, "strings stay on the host");
  Tensor copy(tensor.dtype(), tensor.shape(), device->allocate(tensor.size_bytes()));
  copy.copy_from(tensor);
  return copy;
}

std::string_view device_of(const Tensor& tensor) {
  return tensor.defined() && tensor.storage()->device() ? std::string_view(tensor.storage()->device()->name()) : "cpu";
}

std::string group_of(const Node& node) {
  for (const auto& [key, value] : node.metadata)
    if (key == "ctx_group" || key == "__ctx_group__") return value;
  return {};
}

const Device* SessionDevices::with_own_memory() const {
  const auto found = std::find_if(devices_.begin(), devices_.end(), [](const auto& device) { return !device->memory_is_hosts(); });
  return found == devices_.end() ? nullptr : found->get();
}

SessionDevices::SessionDevices(const SessionOptions& options, const std::shared_ptr<Job>& job)
    : compute_streams_(std::max(1, options.compute_streams)) {
  register_types();
  std::vector<std::string> names{options.device.empty() ? "cpu" : options.device};
  for (const auto* map : {&options.group2ctx, &options.argument_devices})
    for (const auto& [key, device] : *map) names.push_back(device);
  devices_.push_back(cpu_device());
  types_.emplace_back();
  by_name_["cpu"] = exec::DevicePlacement::kHost;
  // Handles names with an index ("TYPE:INDEX") first: a device without an index is made last, so that its maker knows the devices that
  // exist.
  for (const bool named : {true, false})
    for (const std::string& name : names)
      if ((name.find(':') != std::string::npos) == named && !by_name_.contains(name)) add(name, options);
  if (any() && types_.back().make_host) devices_.front() = types_.back().make_host({"cpu", options.config, std::span(devices_).subspan(1)});
  default_device_ = by_name_.at(names.front());
  for (const auto& [group, device] : options.group2ctx) of_group_[group] = by_name_.at(device);
  for (const auto& [argument, device] : options.argument_devices) of_argument_[argument] = by_name_.at(device);
  if (any())
    memory_ = std::make_shared<exec::DeviceMemory>(job ? exec::JobMemory::of(job->state()) : nullptr, options.memory_limit_bytes > 0,
                                                   options.spill_folder);
}

void SessionDevices::add(const std::string& name, const SessionOptions& options) {
  const std::string type_name = name.substr(0, name.find(':'));
  const std::optional<DeviceType> type = find_device_type(type_name);
  if (!type) throw_no_device(name);
  if (any() && types_.back().name != type_name && !(type->make_host && types_.back().make_host))
    throw Error(ErrorCode::not_implemented, fmt::format("a session over devices of the types {} and {}", types_.back().name, type_name));
  by_name_[name] = static_cast<int>(devices_.size());
  std::shared_ptr<Device> made = type->make({name, options.config, std::span(devices_).subspan(1), options.cache_dir});
  for (size_t d = 1; d < devices_.size(); ++d)
    if (!devices_[d]->reaches(*made))
      throw Error(ErrorCode::not_implemented,
                  fmt::format("a session over {} and {}, which do not reach each other's memory", devices_[d]->name(), name));
  devices_.push_back(std::move(made));
  types_.push_back(*type);
}

bool SessionDevices::have_kernels() const {
  return std::any_of(types_.begin(), types_.end(), [](const DeviceType& type) { return type.kernels != nullptr; });
}

int SessionDevices::device_of(const Node& node) const {
  for (const std::string& source : node.sources)
    if (auto found = of_source_.find(source); found != of_source_.end()) return found->second;
  auto found = of_group_.find(group_of(node));
  return found == of_group_.end() ? -1 : found->second;
}

size_t SessionDevices::device_or_default(const Node& node) const {
  const int wanted = device_of(node);
  return static_cast<size_t>(wanted < 0 ? default_device_ : wanted);
}

std::string_view SessionDevices::name_for(const Node& node) const { return devices_[device_or_default(node)]->name(); }

DeviceKernel SessionDevices::kernel_for(const Graph& graph, const Node& node) const {
  const DeviceType& type = types_[device_or_default(node)];
  return type.kernels ? type.kernels->find(graph, node) : DeviceKernel();
}

namespace {
// The nodes of a graph that compute extents and other settings. They are searched only once, since passes replace only other nodes.
class SettingNodes {
 public:
  bool contain(const Graph& graph, const Node& node) {
    if (!found_) {
      found_.emplace();
      for (const Node* each : exec::nodes_of_settings(graph)) found_->insert(each->id);
    }
    return found_->contains(node.id);
  }

 private:
  std::optional<std::set<NodeId>> found_;
};
}  // namespace

passes::DeviceForms forms_of(const DeviceType& type, const Graph& graph,
                             std::function<DeviceKernel(const Graph&, const Node&)> kernel_for) {
  const auto settings = std::make_shared<SettingNodes>();
  return {type.fused_operators, [main = &graph, settings, kernel_for = std::move(kernel_for)](const Graph& inside, const Node& node) {
            // Bodies, nodes whose extents are known only during a run, and nodes that compute extents and other settings stay on the host.
            return &inside == main && has_determined_extents(inside, node) && !settings->contain(inside, node) &&
                   kernel_for(inside, node).kernel;
          }};
}

std::optional<passes::DeviceForms> SessionDevices::forms(const Graph& graph) const {
  const auto found = std::find_if(types_.begin(), types_.end(), [](const DeviceType& type) { return type.kernels != nullptr; });
  if (found == types_.end()) return std::nullopt;
  return forms_of(*found, graph, [this](const Graph& inside, const Node& node) { return kernel_for(inside, node); });
}

void SessionDevices::set_memory_limit(size_t limit_bytes) {
  for (size_t d = 1; d < devices_.size(); ++d)
    if (!devices_[d]->bus()) refuse("a device without a bus", "memory_limit_bytes", devices_[d]->name());
  memory_->set_limit(limit_bytes);
}

void SessionDevices::read_groups(const Model& model) {
  if (of_group_.empty() && of_argument_.empty()) return;
  const std::unique_ptr<Graph> as_read = model.impl().import();
  for (const auto& [name, device] : of_argument_) {
    const ValueId id = as_read->find_value(name);
    if (id != kNoValue && as_read->value(id).kind != Value::Kind::computed) continue;
    std::vector<std::string> names;
    for (size_t v = 0; v < as_read->num_values(); ++v)
      if (const Value& value = as_read->value(ValueId{static_cast<uint32_t>(v)});
          value.kind != Value::Kind::computed && !value.name.empty())
        names.push_back(value.name);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("argument_devices: the model has no input or initializer \"{}\"; is it {}?", name, nearest_names(name, names)));
  }
  std::set<std::string> groups;
  for (NodeId id = as_read->first(); id != kNoNode; id = as_read->next(id)) {
    const Node& node = as_read->node(id);
    const std::string group = group_of(node);
    if (!group.empty()) groups.insert(group);
    auto found = of_group_.find(group);
    if (found == of_group_.end()) continue;
    of_source_[node.name] = found->second;
    for (const std::string& source : node.sources) of_source_[source] = found->second;
  }
  for (const auto& [group, device] : of_group_) {
    if (groups.contains(group)) continue;
    const std::vector<std::string> names(groups.begin(), groups.end());
    throw Error(ErrorCode::invalid_argument,
                names.empty()
                    ? fmt::format("group2ctx: \"{}\" is the ctx_group of no node, and no node has one", group)
                    : fmt::format("group2ctx: \"{}\" is the ctx_group of no node; is it {}?", group, nearest_names(group, names)));
  }
}

}  // namespace treadle
