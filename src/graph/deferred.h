// Kernels that go on after their run() has returned, and what an executor does with them.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"

namespace treadle {

/// Told once, from any thread, when a deferred execution has ended; its outputs have been set before.
class Completion {
 public:
  virtual ~Completion() = default;
  /// @param error  null: the outputs are there.
  virtual void complete(std::exception_ptr error) = 0;
};

/// Operands of evaluate_node(), which outlive run() if the kernel defers.
class DeferringOperands : public DynamicOperands {
 public:
  /// As input(), but never a copy: nobody keeps it beyond the kernel's end.
  virtual const Datum& borrowed_input(int i) const = 0;
  /// Called in run(): the kernel will end later, and says so to what this returns. Operands are valid until then.
  virtual std::shared_ptr<Completion> defer() = 0;
  /// True if the run is to stop: nobody will look at the outputs.
  virtual bool stop_requested() const = 0;
};

/// One execution that its executor does not wait for.
struct DeferredNode {
  const Node* node = nullptr;
  const KernelDef* kernel = nullptr;
  const PackedState* packed = nullptr;
  std::vector<Datum> inputs;  ///< as of evaluate_node(), none lent
  std::vector<DType> output_dtypes;
  ThreadPool* pool = nullptr;
  uint64_t run_id = 0;
  std::function<bool()> stop_requested;
  /// Called once, with the outputs or an error: in evaluate_deferred(), or later on the thread that completes the kernel.
  std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done;
};

/// As evaluate_node(), but a kernel that defers is not waited for.
void evaluate_deferred(DeferredNode node);

}  // namespace treadle
