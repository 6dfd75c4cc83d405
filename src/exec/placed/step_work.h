// Builds the work that steps enqueue on their streams: kernels and copies, with calls of observers and records of times.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "exec/placed/device_io.h"
#include "exec/placed/placed_memory.h"
#include "exec/placed/placed_steps.h"
#include "exec/placed/placed_values.h"
#include "exec/placed/work_times.h"
#include "exec/run/control_flow.h"
#include "exec/run/first_error.h"
#include "exec/run/node_runner.h"
#include "graph/evaluate.h"

namespace treadle::exec {

/// Operands are looked up when a step is issued. The work itself runs later; it does nothing if the run has failed by then.
class StepWork {
 public:
  /// All arguments belong to one run and must outlive this object. @param error  gets the first error of the work.
  StepWork(PlacedMemory& memory, PlacedValues& values, DeviceIo& io, const NodeRunner& nodes, BodyRunner& bodies, FirstError& error);

  void begin();
  void clear() noexcept {
    made_.clear();
    lent_.clear();
    evaluator_.device_scratch = Tensor();
  }

  /// Returns the work of a kernel. The work does not own its operands' memory: after enqueuing it, PlacedValues::keep() must be called. If
  /// the shapes of the outputs depend on data, the host must wait for the work before it issues another step.
  Stream::Work kernel(StepId step, Stream& queue);
  /// Issues a copy between devices.
  void copy(StepId step, Stream& queue);
  /// Copies a cached output to the location that the kernel would have written, and waits for the copy.
  void put_cached(StepId step, const Datum& value, Stream& queue);
  /// Called when the host has waited for a kernel, or has run the kernel's work itself. Outputs whose shapes depend on data become values
  /// of the run. Outputs that the caller or an observer reads are copied to the host.
  void take_up(StepId step, Stream& queue);
  /// Returns a copy of a kernel's only output, to be stored in the cache. Called after take_up().
  Datum to_cache(StepId step) const;

 private:
  Stream::Work static_work(StepId step, Stream& queue);
  Stream::Work dynamic_work(StepId step, Stream& queue);
  Datum for_bodies(LocationId at, Datum value);
  Datum kept(Datum made) const;
  bool hand_over(const StreamPlan::Step& step, const Tensor& source);
  template <typename Body>
  Stream::Work guarded(StepId step, Stream& queue, Body body);
  void declare(Stream& on, LocationId at, const Datum& datum, Access access, std::string_view name) const;
  static void declare(Stream& on, const void* data, size_t size_bytes, Access access, std::string_view name);

  const PlacedSteps& steps_;
  PlacedMemory& memory_;
  PlacedValues& values_;
  DeviceIo& io_;
  const NodeRunner& nodes_;
  const RunControl& control_;
  BodyRunner& bodies_;
  FirstError& error_;
  WorkTimes times_;
  Evaluator evaluator_;                         // runs kernels whose output shapes depend on data; the host waits for each of them
  std::vector<Datum> made_;                     // outputs of the kernel that the host waits for
  std::vector<std::shared_ptr<Storage>> lent_;  // planned memory that the bodies of an If, Loop or Scan read
};

}  // namespace treadle::exec
