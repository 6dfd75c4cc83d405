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
  /// Placement of the bodies of each If, Loop and Scan; these nodes themselves run on the host.
  std::map<InstructionId, ControlFlowPlacement> of_control_flow;
  /// By slot of a feed or constant: the device that it is copied to first. Absent: it goes directly to where it is read.
  std::map<SlotId, int> of_argument;
};

/// Says where the bodies of an If, Loop or Scan run, and on which device its operands and outputs are.
struct ControlFlowPlacement {
  static constexpr int kAnywhere = -1;  ///< an operand stays where it is
  std::vector<int> of_operand;          ///< a device for each operand, inputs first
  std::vector<DevicePlacement> bodies;
};

/// A caller's wishes for where the nodes of a program run.
struct PlacementRequest {
  int default_device = DevicePlacement::kHost;
  /// Returns the device that the caller wants for a node, or -1 if it wants none. Empty: no wishes.
  std::function<int(const Node&)> of_node;
  std::map<std::string, int, std::less<>> of_argument;  ///< device for an input or initializer, by name
  /// Returns true if a device runs only instructions for which it has a kernel (Instruction::on_device). Empty: false for all devices.
  std::function<bool(int)> has_own_kernels;
};

/// Places instructions by these rules, of which those about operands and readers are MXNet's (PlaceDevice):
/// - An instruction that only the host can run (strings, sequences, optionals, maps, control flow, Yield) runs on the host.
///   The bodies of control flow are placed by these rules, too. Their operands are where the bodies read them.
/// - A node for which the request names a device runs there.
/// - A node with a device's own kernel that the request does not mention runs on the default device.
/// - Any other node runs where its first placed operand is, otherwise where its first placed reader runs, otherwise on the default device.
/// - If a device that runs only kernels of its own gets a node without one, the node runs on the host instead.
DevicePlacement place_instructions(const Program& program, const PlacementRequest& request);

/// Returns true if every device can hold the value: it is a tensor of a known dtype other than string.
bool is_plain(const Program& program, SlotId slot);
/// Returns true if the kernel has packed a copy of the constant and never reads the operand itself.
bool has_own_copy(const Instruction& instruction, size_t operand);
/// Returns true if the host's part of a kernel reads the input, as a shape or axes.
bool reads_on_host(const Instruction& instruction, size_t operand);
/// Returns true if all operands are plain, and the node is neither control flow nor a Yield.
bool runs_on_devices(const Program& program, const Instruction& instruction);

}  // namespace treadle::exec
