// A decomposition for those operators of com.microsoft whose kernels compute only in float32.
#pragma once

#include <utility>
#include <vector>

#include "ops/microsoft/microsoft.h"

namespace treadle::ops {

/// Casts inputs of other float types to float32. Output 0 is cast back to the dtype of input 0; further outputs stay float32.
inline void widen_floats(Graph& graph, NodeId id) {
  Decomposition d(graph, id);
  auto is_other = [&](size_t i) { return d.has(i) && kFloats.has(d.type(d.in(i)).dtype) && d.type(d.in(i)).dtype != DType::float32; };
  const auto count = static_cast<size_t>(d.node().num_formal_inputs);
  bool any = false;
  for (size_t i = 0; i < count; ++i) any = any || is_other(i);
  if (!any) return;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < count; ++i) inputs.push_back(is_other(i) ? d.cast(d.in(i), DType::float32) : d.in(i));
  const auto outputs = static_cast<int>(d.node().outputs.size());
  const auto y = d.op_n(d.node().op_type, std::move(inputs), outputs, d.node().attributes, kMicrosoft);
  if (d.wants(0)) d.give(0, d.op("CastLike", {y[0], d.in(0)}));
  for (size_t i = 1; i < y.size(); ++i) d.give(i, y[i]);
  d.finish();
}

}  // namespace treadle::ops
