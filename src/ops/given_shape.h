// Infers the result of gradients that have the forward input's shape as an operand.
#pragma once

#include "graph/infer.h"

namespace treadle::ops {

/// Gives output 0 the dtype of input 0, and the shape that input `kInput` contains if that is known.
template <int kInput>
void infer_given_shape(InferContext& c) {
  if (const auto shape = c.known(kInput)) return c.set_output(0, c.dtype(0), SymbolicShape(shape->begin(), shape->end()));
  c.set_output_dtype(0, c.dtype(0));
}

}  // namespace treadle::ops
