#include "ops/tensor/movement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "graph/inferred_types.h"
#include "treadle/error.h"

namespace treadle::ops {

void move_elements(const kernels::CopyPlan& plan, DType dtype, const void* src, int64_t src_offset, void* dst, int64_t dst_offset,
                   ThreadPool* pool) {
  if (has_plain_bytes(dtype)) {
    const int64_t bytes = element_bytes(dtype);
    return kernels::strided_copy(plan, static_cast<size_t>(bytes), static_cast<const std::byte*>(src) + src_offset * bytes,
                                 static_cast<std::byte*>(dst) + dst_offset * bytes, pool);
  }
  // The copy runs on one thread, because adjacent packed elements share a byte, which two threads must not write.
  visit_access(dtype, [&]<typename Access>() {
    kernels::for_each_run(plan, 0, plan.size, [&](int64_t, int64_t n, const int64_t* at) {
      for (int64_t i = 0; i < n; ++i)
        Access::copy(dst, dst_offset + at[1] + i * plan.inner_stride(1), src, src_offset + at[0] + i * plan.inner_stride(0));
    });
  });
}

void copy_elements(DType dtype, const void* src, void* dst, int64_t n, ThreadPool* pool) {
  if (src == dst || n == 0) return;
  if (dtype == DType::string) {
    std::copy_n(static_cast<const std::string*>(src), n, static_cast<std::string*>(dst));
    return;
  }
  const auto bytes = static_cast<int64_t>(size_bytes(dtype, n));
  kernels::copy_blocks(1, bytes, src, bytes, dst, bytes, pool);
}

void move_blocks(DType dtype, int64_t count, int64_t length, const void* src, int64_t src_offset, int64_t src_pitch, void* dst,
                 int64_t dst_offset, int64_t dst_pitch, ThreadPool* pool) {
  if (count == 0 || length == 0) return;
  if (has_plain_bytes(dtype)) {
    const int64_t bytes = element_bytes(dtype);
    return kernels::copy_blocks(count, length * bytes, static_cast<const std::byte*>(src) + src_offset * bytes, src_pitch * bytes,
                                static_cast<std::byte*>(dst) + dst_offset * bytes, dst_pitch * bytes, pool);
  }
  const std::array<int64_t, 2> dims{count, length}, from{src_pitch, 1}, to{dst_pitch, 1};
  move_elements(kernels::plan_copy(dims, from, to), dtype, src, src_offset, dst, dst_offset, pool);
}

Cost move_cost(const ShapeContext& c) {
  return {0, 2 * static_cast<double>(c.output_shape(0).num_elements()) * static_cast<double>(bits_of(c.output_dtype(0))) / 8};
}

Dim unify(const Dim& a, const Dim& b, std::string_view what) {
  if (a.is_const() && b.is_const() && a != b)
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} and {} differ", what, to_string(a), to_string(b)));
  assume_equal(a, b, what);
  if (a.is_const()) return a;
  if (b.is_const()) return b;
  return a.data_dependent() ? b : a;
}

std::optional<int64_t> known_length(InferContext& c, int input) {
  if (!c.has_input(input) || !c.has_rank(input)) return std::nullopt;
  if (c.rank(input) != 1) throw Error(ErrorCode::invalid_argument, fmt::format("the input {} is of rank {}, not 1", input, c.rank(input)));
  const Dim& length = c.shape(input)[0];
  if (!length.is_const()) return std::nullopt;
  if (length.value() > kMaxRank)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input {} has {} elements; at most {} axes are supported", input, length.value(), kMaxRank));
  return length.value();
}

void ints_to_input(Graph& graph, NodeId id, std::string_view attribute, int input) {
  if (!graph.node(id).attributes.has(attribute)) return;
  const std::vector<int64_t> values = graph.node(id).attributes.get_ints(attribute);
  ValueId constant = graph.add_constant(attribute, Tensor::vector<int64_t>(values));
  graph.node(id).attributes.erase(attribute);
  if (graph.node(id).num_formal_inputs <= input) graph.resize_inputs(id, static_cast<size_t>(input) + 1);
  graph.set_input(id, static_cast<size_t>(input), constant);
}

NodeId replace_node(Graph& graph, NodeId id, NodeSpec spec) {
  const std::vector<ValueId> old = graph.node(id).outputs;
  if (spec.name.empty()) spec.name = graph.node(id).name;
  spec.num_outputs = static_cast<int>(old.size());
  NodeId made = graph.add_node(std::move(spec), id);
  for (size_t i = 0; i < old.size(); ++i) {
    if (old[i] == kNoValue) continue;
    const ValueId fresh = graph.node(made).outputs[i];
    graph.replace_uses(old[i], fresh);
    // The new output takes over the name and the declared type of the old one.
    const std::string name = graph.value(old[i]).name;
    graph.value(fresh).type = graph.type(old[i]);
    graph.value(fresh).doc = graph.value(old[i]).doc;
    graph.rename_value(old[i], "replaced");
    graph.rename_value(fresh, name);
  }
  graph.remove_node(id);
  return made;
}

bool keeps_type_and_shape(const Graph& graph, const Node& node) { return graph.same_type_and_shape(node.inputs[0], node.outputs[0]); }

bool all_integers_are(const Graph& graph, ValueId id, int64_t number) {
  const Tensor* tensor = graph.constant_tensor(id);
  auto all = [&](auto elements) { return std::all_of(elements.begin(), elements.end(), [&](auto element) { return element == number; }); };
  if (tensor && tensor->dtype() == DType::int64) return all(tensor->span<int64_t>());
  return tensor && tensor->dtype() == DType::int32 && all(tensor->span<int32_t>());
}

}  // namespace treadle::ops
