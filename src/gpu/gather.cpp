// Gather: rows of a table by indices, which only the GPU looks at.
#include "ops/tensor/gather.h"

#include <fmt/format.h>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

struct GatherState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  int64_t words = 1;  // of an element
  std::string node;   // for errors
};

struct Gather : ops::GatherExtents {
  uint32_t index_words;

  static Gather bind(BindContext& c) {
    Gather k{GatherExtents::of(c, c.shape(0)), c.dtype(1) == DType::int64 ? 2U : 1U};
    k.inner *= c.packed<GatherState>().words;
    count32(k.outer * k.extent * k.inner);
    count32(k.outer * k.num_indices * k.inner);
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<GatherState>();
    const uint32_t count = count32(outer * num_indices * inner);
    if (count == 0) return;
    const vulkan::VulkanStream::FaultSite site =
        stream().fault_site(fmt::format("{}: an index is outside of the axis, which has {} elements", state.node, extent));
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(reinterpret_cast<const void*>(site.address));
    push.word(count);
    for (const int64_t value : {num_indices, inner, extent}) push.word(static_cast<uint32_t>(value));
    push.word(index_words).word(site.number);
    stream().dispatch(*state.shader, push.bytes(), groups_over(count));
  }
};

}  // namespace

DeviceKernel find_gather(const Graph& graph, const Node& node) {
  if (!node.is("Gather", "")) return {};
  const DType dtype = graph.type(node.inputs[0]).dtype, index = graph.type(node.inputs[1]).dtype;
  if (!ops::has_plain_bytes(dtype) || (index != DType::int32 && index != DType::int64)) return {};
  static const KernelDef kernel = treadle::kernel<Gather>("gpu");
  const int64_t bytes = ops::element_bytes(dtype), word = bytes < 4 ? bytes : 4;
  auto state = std::make_shared<GatherState>();
  state->shader = find_moving_shader("gather", static_cast<size_t>(word));
  state->words = bytes / word;
  state->node = fmt::format("Gather node \"{}\"", node.name);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
