// Evaluates one node on given values: for data-dependent shapes in a run, and for constant folding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"

namespace treadle {

/// Settings of evaluate_node(), and memory that it reuses between calls. Not thread-safe.
struct Evaluator {
  ThreadPool* pool = nullptr;
  uint64_t run_id = 0;
  size_t max_output_bytes = SIZE_MAX;  ///< limit for each output and for the scratch memory; exceeding it throws Error(resource_exhausted)
  /// Called by kernels that defer their end (graph/deferred.h): returns true if the run is to stop. Empty: the run never stops early.
  std::function<bool()> stop_requested;
  /// Allocates outputs in a device's memory. Empty: outputs are allocated in host memory.
  std::function<Tensor(DType, const Shape&)> allocate;
  /// True for a device's own kernel. The host can then read only the inputs in OpDef::value_inputs, and `allocate` provides scratch memory.
  bool on_device = false;

  // The working memory of evaluate_node().
  std::shared_ptr<Storage> scratch;
  Tensor device_scratch;
  std::vector<std::byte> state;
  std::vector<Shape> shapes;
  std::vector<const Shape*> shape_pointers;
  std::vector<DType> dtypes;
  std::vector<const Tensor*> values;
  std::vector<void*> pointers;
  std::vector<Type> types;
  std::vector<InferContext::Operand> operands;
};

/// Infers the output shapes, using the elements of the inputs (unless the kernel allocates its outputs). Then binds the kernel and runs it.
/// @param inputs         one per input of the node, including captures; undefined if absent. Tensors may be in lent storage; a kernel that
/// requests the Datum itself gets a copy.
/// @param output_dtypes  one per output; undefined if absent
/// @return one value per output; undefined if absent
/// @throws Error of inference or of the kernel; Error(internal) if the kernel did not set an output
std::vector<Datum> evaluate_node(const Node& node, const KernelDef& kernel, const PackedState* packed, std::span<const Datum> inputs,
                                 std::span<const DType> output_dtypes, Evaluator& evaluator);

}  // namespace treadle
