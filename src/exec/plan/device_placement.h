// Chooses the device that each instruction of a program runs on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

struct ControlFlowPlacement;

/// Devices are numbered; device 0 is the host.
struct DevicePlacement {
  static constexpr int kHost = 0;
  IdVector<InstructionId, int> of_instruction;
  /// Placement of the bodies of each If, Loop and Scan. The If, Loop or Scan itself runs on the host.
  std::map<InstructionId, ControlFlowPlacement> of_control_flow;
  /// For a feed or constant: the device that it is copied to first. Absent: it is copied directly to the devices that read it.
  std::map<SlotId, int> of_argument;
};

/// The devices on which the bodies of an If, Loop or Scan run, and the devices on which its operands and outputs are stored.
struct ControlFlowPlacement {
  static constexpr int kAnywhere = -1;  ///< an operand stays where it is
  std::vector<int> of_operand;          ///< a device for each operand, inputs first
  std::vector<DevicePlacement> bodies;
};

/// The caller's choices of devices for the nodes and arguments of a program.
struct PlacementRequest {
  int default_device = DevicePlacement::kHost;
  /// Returns the device that the caller has chosen for a node, or -1 if the caller has not chosen one. Empty: no choices.
  std::function<int(const Node&)> of_node;
  std::map<std::string, int, std::less<>> of_argument;  ///< device for an input or initializer, by name
  /// Returns true if a device runs only instructions for which it has a kernel (Instruction::on_device). Empty: false for all devices.
  std::function<bool(int)> has_own_kernels;
};

/// Places instructions by these rules. The rules about operands and readers are those of MXNet's PlaceDevice.
/// - An instruction that only the host can run (strings, sequences, optionals, maps, control flow, Yield) runs on the host.
///   The same rules place the bodies of control flow. Operands of control flow are stored where the bodies read them.
/// - A node for which the request names a device runs on that device.
/// - A node that has a device's own kernel, and for which the request names no device, runs on the default device.
/// - Any other node runs where its first placed operand is, otherwise where its first placed reader runs, otherwise on the default device.
/// - If these rules give a node to a device that runs only its own kernels and has none for it, the node runs on the host instead.
DevicePlacement place_instructions(const Program& program, const PlacementRequest& request);

/// Returns true if every device can hold the value: it is a tensor of a known dtype other than string.
bool is_plain(const Program& program, SlotId slot);
/// Returns true if the kernel uses a packed copy of this constant operand and never reads the operand itself.
bool has_own_copy(const Instruction& instruction, size_t operand);
/// Returns true if the part of the kernel that runs on the host reads this input, for example as a shape or axes.
bool reads_on_host(const Instruction& instruction, size_t operand);
/// Returns true if all operands are plain, and the node is neither control flow nor a Yield.
bool runs_on_devices(const Program& program, const Instruction& instruction);

}  // namespace treadle::exec
