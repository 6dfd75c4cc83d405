// Computes one node on given values: what the executor does for shapes that only the run can tell, and constant folding before any run.
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

/// What evaluate_node() may use, and memory that it keeps from one call to the next. One thread at a time.
struct Evaluator {
  ThreadPool* pool = nullptr;
  uint64_t run_id = 0;
  size_t max_output_bytes = SIZE_MAX;  ///< of one output, and of the scratch; more is Error(resource_exhausted)
  /// What a kernel that goes on elsewhere (graph/deferred.h) may ask: true if the run is to stop. Empty: it is not.
  std::function<bool()> stop_requested;
  /// Where outputs lie: a device's memory; empty: the host's.
  std::function<Tensor(DType, const Shape&)> allocate;

  // Working memory, of evaluate_node() alone.
  std::shared_ptr<Storage> scratch;
  std::vector<std::byte> state;
  std::vector<Shape> shapes;
  std::vector<const Shape*> shape_pointers;
  std::vector<DType> dtypes;
  std::vector<const Tensor*> values;
  std::vector<void*> pointers;
  std::vector<Type> types;
  std::vector<InferContext::Operand> operands;
};

/// Infers the outputs' shapes from the inputs' elements (unless the kernel allocates its outputs itself), binds and runs the kernel.
/// @param inputs         one per input of the node, captures included; undefined for an absent operand. They may lie in lent storage: a
///                       kernel that asks for the Datum itself gets a copy of such.
/// @param output_dtypes  one per output; undefined for an absent one.
/// @return one value per output; undefined for an absent one.
/// @throws Error of inference or of the kernel; Error(internal) if an output was not made.
std::vector<Datum> evaluate_node(const Node& node, const KernelDef& kernel, const PackedState* packed, std::span<const Datum> inputs,
                                 std::span<const DType> output_dtypes, Evaluator& evaluator);

}  // namespace treadle
