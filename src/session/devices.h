// The devices of a session, and the choice of a device for each node.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/devices/device_registry.h"
#include "exec/plan/device_placement.h"
#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "graph/graph.h"
#include "graph/kernel_table.h"
#include "passes/pipeline.h"
#include "treadle/session.h"

namespace treadle {

class Job;
namespace exec {
struct DeviceMemory;
}

/// Formats a name as a field of a line of list_nodes(): tabs and line ends are escaped, like other control characters.
std::string field_of(std::string_view name);

class SessionDevices {
 public:
  /// Makes the devices that the options name: the default device and those of groups and arguments. If they name none, everything runs on
  /// the host.
  /// @param job  a job whose limits apply in addition to the session's; null: no job.
  /// @throws Error(invalid_argument) for an unknown device.
  SessionDevices(const SessionOptions& options, const std::shared_ptr<Job>& job);

  /// Returns the devices, the host first.
  std::span<const std::shared_ptr<Device>> all() const { return devices_; }
  /// True if any node may run on a device other than the host.
  bool any() const { return devices_.size() > 1; }
  /// Returns the first device whose memory the host cannot access; null: there is none.
  const Device* with_own_memory() const;
  /// Returns true if any of the devices has its own kernels.
  bool have_kernels() const;
  /// Returns the kernel that the node's device has for it. Empty if that device uses the host's kernels or has none for the node.
  DeviceKernel kernel_for(const Graph& graph, const Node& node) const;
  /// Returns the operators that passes may use for devices with their own kernels; nullopt if there is no such device. Valid as long as the
  /// graph exists.
  std::optional<passes::DeviceForms> forms(const Graph& graph) const;
  /// Returns the name of the device that the options give for the node's group, or of the default device. Does not check that the device
  /// has a kernel for the node.
  std::string_view name_for(const Node& node) const;
  /// Sets the limit, in bytes, of the memory that the session uses on all of its devices together.
  /// @throws Error(not_implemented) if a device cannot access the host's memory.
  void set_memory_limit(size_t limit_bytes);
  /// Records the group of each node, by the node's name in the model as read. A node that a pass creates belongs to the first group among
  /// those of the nodes that it replaces.
  /// @throws Error(invalid_argument) for a group that no node of the main graph belongs to, or an argument that is no input or initializer
  void read_groups(const Model& model);
  /// Makes the executor that runs the program on these devices, within the job's and the session's memory limits.
  std::unique_ptr<exec::Executor> place(const exec::Program& program, bool training) const;
  /// Returns the placement and plan as text, for Session::to_text.
  std::string describe(const exec::Program& program) const;
  /// Returns one line per node: device, operator, name, first output, and the reason why the node is not on the device that is wanted for
  /// it, separated by tabs. Control characters of names are escaped.
  std::string list_nodes(const exec::Program& program) const;

 private:
  void add(const std::string& name, const SessionOptions& options);
  int device_of(const Node& node) const;  // returns an index in devices_; -1: neither a group nor an argument names one
  size_t device_or_default(const Node& node) const;
  exec::DevicePlacement placement(const exec::Program& program) const;
  std::string list_nodes(const exec::Program& program, const exec::DevicePlacement& placed) const;

  std::vector<std::shared_ptr<Device>> devices_;  // the first one is the host
  std::vector<DeviceType> types_;                 // types_[i] is the type of devices_[i]
  std::map<std::string, int, std::less<>> by_name_;
  int default_device_ = exec::DevicePlacement::kHost;
  std::map<std::string, int, std::less<>> of_group_, of_argument_, of_source_;
  int compute_streams_ = 1;
  std::shared_ptr<exec::DeviceMemory> memory_;  // null: there are no devices besides the host
};

/// Returns the operators that passes may use for devices of this type. @param kernel_for  returns the device's kernel for a node; empty if
/// there is none
passes::DeviceForms forms_of(const DeviceType& type, const Graph& graph, std::function<DeviceKernel(const Graph&, const Node&)> kernel_for);

/// Returns the device that has this name in session options; null: the host. Used for values that do not come from a run.
/// @throws Error(invalid_argument) if there is no such device.
std::shared_ptr<Device> device_named(std::string_view name);

/// Returns the node's group: the metadata entry "ctx_group", or "__ctx_group__" as MXNet writes it. Empty: the node is in no group.
std::string group_of(const Node& node);

}  // namespace treadle
