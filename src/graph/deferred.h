// Deferred execution: kernels that continue after run() has returned.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/kernel.h"

namespace treadle {

/// Is told when a deferred execution ends: called once, from any thread, after the outputs have been set.
class Completion {
 public:
  virtual ~Completion() = default;
  /// Reports that the node has ended. @param error  null on success
  virtual void complete(std::exception_ptr error) = 0;
};

/// Operands of evaluate_node(). If the kernel defers its end, they remain valid after run() has returned.
class DeferringOperands : public DynamicOperands {
 public:
  /// Like input(), but never makes a copy. The result must not be used after the kernel has ended.
  virtual const Datum& borrowed_input(int i) const = 0;
  /// Called within run() by a kernel that will end later, and must then call complete() of the result. Operands stay valid until then.
  virtual std::shared_ptr<Completion> defer() = 0;
  /// Returns true if the run is to stop. Then the outputs will not be used.
  virtual bool stop_requested() const = 0;
};

/// A node to execute without waiting for its end.
struct DeferredNode {
  const Node* node = nullptr;
  const KernelDef* kernel = nullptr;
  const PackedState* packed = nullptr;
  std::vector<Datum> inputs;  ///< operands, as for evaluate_node(), but not in lent storage
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
