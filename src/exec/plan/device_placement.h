// Which device each instruction of a program runs on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/program/program.h"

namespace treadle::exec {

/// Indices into a list of devices, of which the first is the host.
struct DevicePlacement {
  static constexpr int kHost = 0;
  IdVector<InstructionId, int> of_instruction;
  std::map<SlotId, int> of_argument;  ///< by the slot of a feed or constant: where it goes first; absent: where it is read
};

/// What a caller says of where a program's nodes run.
struct PlacementRequest {
  int default_device = DevicePlacement::kHost;
  /// The device of a node, or -1: its group is on none. Empty: no node has a group.
  std::function<int(const Node&)> of_node;
  std::map<std::string, int, std::less<>> of_argument;  ///< by the name of an input or initializer
  /// Of a device: it runs those instructions only whose kernel is its own (Instruction::on_device). Empty: none is such.
  std::function<bool(int)> has_own_kernels;
};

/// A node that `request` places runs there. Others follow the first operand that is placed, in order; what is still without a device
/// follows its first reader, and the rest goes to the default device (MXNet's PlaceDevice). What only the host can do (strings,
/// sequences, optionals, maps, control flow, Yield) stays there, and so does what a device with kernels of its own has
/// none for; a node with such a kernel and without a group is on the default device.
DevicePlacement place_instructions(const Program& program, const PlacementRequest& request);

/// True for bytes that every device can hold: a tensor of a known dtype other than strings.
bool is_plain(const Program& program, SlotId slot);
/// True if the kernel has packed a copy of the constant and does not look at the operand.
bool has_own_copy(const Instruction& instruction, size_t operand);
/// True if all operands are plain, and the node is neither control flow nor a Yield.
bool runs_on_devices(const Program& program, const Instruction& instruction);

}  // namespace treadle::exec
