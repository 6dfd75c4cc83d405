// Computes operators that only move elements. They run the host's kernels, whose copies are executed on the GPU.
#include "ops/tensor/movement.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "gpu/device_data.h"
#include "gpu/launch.h"
#include "gpu/shader_writer.h"
#include "graph/op_def.h"
#include "kernels/movement/copy.h"

namespace treadle::gpu {
namespace {

using kernels::CopyPlan;

/// Returns a shader that copies elements of 1, 2 or 4 bytes as a CopyPlan of this rank describes.
const vulkan::Shader& copy_shader(size_t element_bytes, int rank) {
  const DType dtype = element_bytes == 1 ? DType::uint8 : element_bytes == 2 ? DType::uint16 : DType::uint32;
  ShaderWriter shader(std::span(&dtype, 1), dtype, rank, /*output_is_strided=*/true);
  shader.store(shader.load(0));
  return vulkan::Shader::of(shader.finish(), {}, "copy");
}

/// Returns the shader of copy_shader() from a cache, whose indices are the element size (1, 2, 4 bytes) and rank - 1.
const vulkan::Shader& cached_copy_shader(size_t element_bytes, int rank) {
  static const auto shaders = [] {
    std::array<std::array<const vulkan::Shader*, kMaxSpaceRank>, 3> made{};
    for (size_t size = 0; size < 3; ++size)
      for (int r = 1; r <= kMaxSpaceRank; ++r) made[size][static_cast<size_t>(r - 1)] = &copy_shader(size_t{1} << size, r);
    return made;
  }();
  return *shaders[element_bytes / 2].at(static_cast<size_t>(rank - 1));
}

/// Converts a plan that copies longer elements to one that copies 4-byte words.
CopyPlan in_words(const CopyPlan& plan, int64_t words) {
  std::vector<int64_t> dims(plan.dims, plan.dims + plan.rank), src, dst;
  for (int axis = 0; axis < plan.rank; ++axis) {
    src.push_back(plan.strides[0][axis] * words);
    dst.push_back(plan.strides[1][axis] * words);
  }
  dims.push_back(words), src.push_back(1), dst.push_back(1);
  return kernels::plan_copy(dims, src, dst);
}

class GpuMover final : public kernels::Mover {
 public:
  void copy(const CopyPlan& plan, size_t element_bytes, const void* src, void* dst) override {
    // Nothing to copy: a Concat's output begins in the memory of its first operand.
    if (src == dst && std::equal(plan.strides[0], plan.strides[0] + plan.rank, plan.strides[1])) return;
    for (const int operand : {0, 1}) {
      int64_t reach = 1;
      for (int axis = 0; axis < plan.rank; ++axis) reach += (plan.dims[axis] - 1) * std::abs(plan.strides[operand][axis]);
      count32(reach);
    }
    if (element_bytes > 4) return copy(in_words(plan, static_cast<int64_t>(element_bytes / 4)), 4, src, dst);
    if (plan.rank == 1 && plan.inner_stride(0) == 1 && plan.inner_stride(1) == 1)
      return stream().copy(dst, src, static_cast<size_t>(plan.size) * element_bytes, CopyKind::device_to_device);
    if (plan.rank > kMaxSpaceRank) return copy_outermost(plan, element_bytes, src, dst);
    Push push;
    push.pointer(dst).pointer(src).word(count32(plan.size));
    push_extents(push, plan.rank, plan.dims);
    for (const int operand : {1, 0})
      for (int axis = 0; axis < plan.rank; ++axis) push.word(static_cast<int32_t>(plan.strides[operand][axis]));
    stream().dispatch(cached_copy_shader(element_bytes, plan.rank), push.bytes(), groups_over(count32(plan.size)));
  }

 private:
  // Dispatches one copy for each index of the outermost dimension, because the plan has too many dimensions for one dispatch.
  void copy_outermost(const CopyPlan& plan, size_t element_bytes, const void* src, void* dst) {
    CopyPlan inner;
    inner.rank = plan.rank - 1;
    inner.size = plan.size / plan.dims[0];
    std::copy(plan.dims + 1, plan.dims + plan.rank, inner.dims);
    for (const int operand : {0, 1}) std::copy(plan.strides[operand] + 1, plan.strides[operand] + plan.rank, inner.strides[operand]);
    const auto bytes = static_cast<int64_t>(element_bytes);
    for (int64_t i = 0; i < plan.dims[0]; ++i)
      copy(inner, element_bytes, static_cast<const std::byte*>(src) + i * plan.strides[0][0] * bytes,
           static_cast<std::byte*>(dst) + i * plan.strides[1][0] * bytes);
  }
};

/// The host's kernel of a node, and a GPU kernel that runs it with a Mover, which executes its copies on the GPU.
struct MovementState final : PackedState {
  const KernelDef* host = nullptr;
  KernelDef on_gpu;
  bool copies_apart = false;  // true: the copies are independent, so they may run concurrently
};

void run_with_mover(const void* state, RunContext& c) {
  GpuMover mover;
  const kernels::Mover::Scope scope(mover);
  const auto& own = c.packed<MovementState>();
  if (own.copies_apart) stream().declare_apart();
  own.host->run(state, c);
}

/// Returns true if the host's kernel accesses elements only by strided_copy and copy_blocks, and everything else that it reads, such as a
/// shape, is known before the run. A Gather, for example, also reads indices.
bool touches_by_copying(const OpDef& op) {
  if (op.moves != Moves::in_order && op.moves != Moves::anywhere) return false;
  auto is_copied_or_known = [&](const Port& input) {
    const auto position = static_cast<int>(&input - op.inputs.data());
    return input.type_name == op.outputs[0].type_name || std::ranges::find(op.value_inputs, position) != op.value_inputs.end();
  };
  return std::ranges::all_of(op.inputs, is_copied_or_known);
}

/// The state of a ConstantOfShape node, which copies one element to all positions.
struct FillState final : PackedState {
  DeviceData data;
  int64_t element_bytes = 4;
};
struct Fill {
  int64_t count;

  static Fill bind(BindContext& c) { return {count32(c.output_shape(0).num_elements())}; }
  void run(RunContext& c) const {
    if (count == 0) return;
    const auto& state = c.packed<FillState>();
    const int64_t from = 0, to = 1;
    GpuMover().copy(kernels::plan_copy(std::span(&count, 1), std::span(&from, 1), std::span(&to, 1)),
                    static_cast<size_t>(state.element_bytes), state.data.here(), c.out<void>(0));
  }
};

DeviceKernel find_fill(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Fill>("gpu");
  const DType dtype = graph.type(node.outputs[0]).dtype;
  if (!ops::has_plain_bytes(dtype)) return {};
  auto state = std::make_shared<FillState>();
  state->element_bytes = ops::element_bytes(dtype);
  std::vector<std::byte> element(static_cast<size_t>(state->element_bytes));
  if (node.attributes.has("value")) {
    const Tensor value = node.attributes.get_tensor("value").contiguous();
    if (value.size_bytes() != element.size()) return {};  // the host's kernel reports the error
    std::memcpy(element.data(), value.raw(), element.size());
  }
  state->data.add(element);
  return {&kernel, std::move(state)};
}

}  // namespace

DeviceKernel find_movement(const Graph& graph, const Node& node) {
  if (node.is("ConstantOfShape", "")) return find_fill(graph, node);
  if (!node.op || !touches_by_copying(*node.op) || !ops::has_plain_bytes(graph.type(node.inputs[0]).dtype)) return {};
  const KernelDef& host = select_kernel(graph, node);
  if (host.allocates || host.create) return {};
  auto state = std::make_shared<MovementState>();
  state->host = &host;
  state->copies_apart = node.is("Concat") || node.is("Split");
  state->on_gpu = host;
  state->on_gpu.name = "gpu";
  state->on_gpu.run = run_with_mover;
  state->on_gpu.strided_inputs = state->on_gpu.strided_outputs = 0;
  const KernelDef* const kernel = &state->on_gpu;
  return {kernel, std::move(state)};
}

}  // namespace treadle::gpu
