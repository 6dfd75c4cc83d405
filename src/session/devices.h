// The devices of a session, and which of them a node of its graphs goes to.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device_registry.h"
#include "exec/plan/device_placement.h"
#include "exec/program/program.h"
#include "exec/run/executor.h"
#include "graph/graph.h"
#include "graph/kernel_table.h"
#include "treadle/session.h"

namespace treadle {

class Job;
namespace exec {
struct DeviceMemory;
}

class SessionDevices {
 public:
  /// Makes the devices that the options name, for the default, groups and arguments. None: everything is the host's.
  /// @throws Error(invalid_argument) for a device that there is not.
  /// @param job  whose limits count besides the session's; null: none.
  SessionDevices(const SessionOptions& options, const std::shared_ptr<Job>& job);

  /// True if anything runs elsewhere than on the host.
  bool any() const { return devices_.size() > 1; }
  /// The first that has memory which the host cannot reach; null: none.
  const Device* with_own_memory() const;
  /// True if some of them compute by kernels of their own.
  bool have_kernels() const;
  /// Of the device that the node is to run on; none if that has the host's, or none for the node.
  DeviceKernel kernel_for(const Graph& graph, const Node& node) const;
  /// The device that the node's group says, or the default one, as the options name it. Not whether it has a kernel for the node.
  std::string_view name_for(const Node& node) const;
  /// Of the session, on all of its devices together. @throws Error(not_implemented) for one that does not reach the host's memory.
  void set_memory_limit(size_t limit_bytes);
  /// Finds the nodes of the options' groups, by their names in the model as read; nodes that passes make of them go where the first of
  /// them goes. @throws Error(invalid_argument) for a group that no node outside of bodies names, or an argument that the model does not
  /// have.
  void read_groups(const Model& model);
  /// What runs the program over these devices, within the job's limits and the session's. Nodes' groups are looked up by their sources.
  std::unique_ptr<exec::Executor> place(const exec::Program& program, bool training) const;
  /// The plan as text, for Session::to_text.
  std::string describe(const exec::Program& program) const;

 private:
  void add(const std::string& name, const std::map<std::string, std::string>& config);
  int device_of(const Node& node) const;  // -1: nobody says
  size_t device_or_default(const Node& node) const;
  exec::DevicePlacement placement(const exec::Program& program) const;

  std::vector<std::shared_ptr<Device>> devices_;  // the host is the first
  std::vector<DeviceType> types_;                 // of those
  std::map<std::string, int, std::less<>> by_name_;
  int default_device_ = exec::DevicePlacement::kHost;
  std::map<std::string, int, std::less<>> of_group_, of_argument_, of_source_;
  int compute_streams_ = 1;
  std::shared_ptr<exec::DeviceMemory> memory_;  // null: no devices
};

/// The device that sessions call by this name, for values that come from no run; null: the host.
/// @throws Error(invalid_argument) if there is none.
std::shared_ptr<Device> device_named(std::string_view name);

/// The group of a node: what its metadata have under "ctx_group", or under "__ctx_group__", as MXNet writes it. Empty: none.
std::string group_of(const Node& node);

}  // namespace treadle
