// Runs a job's program in one device's memory, node by node, so that the job's memory limit can be kept: every instruction is work of one
// stream, and what it touches is declared to the device. Programs of no job, and those over several devices: placed_program.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "exec/device_executor.h"
#include "exec/program.h"

namespace treadle::exec {

class Residency;
struct DeviceMemoryLimit;

/// A program placed on a device whose kernels are the host's own (`cpu`, `sim`). Constants are copied once; feeds and outputs at every run,
/// by explicit copies. What only the host can hold (strings, sequences, optionals, maps) and control flow is computed there, between
/// copies of its operands. Runs are done one after the other.
class DeviceProgram final : public DeviceExecutor {
 public:
  /// @param program  must outlive this object.
  /// @param job  whose memory limit holds on devices with a bus: what does not fit is kept on the host, and runs go on; null: what does not
  ///             fit is an error.
  /// @param limit  the session's, as well on devices with a bus: what a node does not use moves to the host, and a run whose largest node
  ///               does not fit is an error. Null: none.
  /// @param spill_folder  for what the job's limit of the host's memory leaves no room; empty: the system's for temporary files.
  DeviceProgram(const Program& program, std::shared_ptr<Device> device, sharing::JobState* job = nullptr,
                std::shared_ptr<DeviceMemoryLimit> limit = nullptr, std::string spill_folder = {});
  ~DeviceProgram() override;

  /// As exec::run. Observers and recorders see nothing of it.
  void run(std::span<const Datum> feeds, std::span<Datum> outputs, const RunControl& control, std::span<const Datum> bound = {}) override;

  Device& device() const { return *device_; }

 private:
  friend class DeviceRun;
  const Program& program_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Residency> residency_;           // null: all memory is the device's own
  std::unordered_map<int32_t, Tensor> constants_;  // by root slot, in the device's memory
  RunTurns turns_;
};

}  // namespace treadle::exec
