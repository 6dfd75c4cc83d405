// Deferred execution: kernels that continue after run() has returned.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"

namespace treadle {

/// Receives the end of a deferred execution: called once, from any thread, after the outputs have been set.
class Completion {
 public:
  virtual ~Completion() = default;
  /// Ends the node. @param error  null on success
  virtual void complete(std::exception_ptr error) = 0;
};

/// Operands of evaluate_node(), which outlive run() if the kernel defers.
class DeferringOperands : public DynamicOperands {
 public:
  /// Like input(), but never copies. The result must not be used after the kernel has ended.
  virtual const Datum& borrowed_input(int i) const = 0;
  /// Called in run() by a kernel that will finish later: it must then call the returned object. Operands stay valid until then.
  virtual std::shared_ptr<Completion> defer() = 0;
  /// Returns true if the run is to stop, so that the outputs will not be used.
  virtual bool stop_requested() const = 0;
};

/// An execution for which the executor does not wait.
struct DeferredNode {
  const Node* node = nullptr;
  const KernelDef* kernel = nullptr;
  const PackedState* packed = nullptr;
  std::vector<Datum> inputs;  ///< operands like the inputs of evaluate_node(), but not in lent storage
  std::vector<DType> output_dtypes;
  ThreadPool* pool = nullptr;
  uint64_t run_id = 0;
  std::function<bool()> stop_requested;
  /// Called once, with the outputs or an error: within evaluate_deferred(), or later on the thread that completes the kernel.
  std::function<void(std::vector<Datum> outputs, std::exception_ptr error)> done;
};

/// Like evaluate_node(), but does not wait for a kernel that defers.
void evaluate_deferred(DeferredNode node);

}  // namespace treadle
