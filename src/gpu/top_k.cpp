// Computes TopK by sorting whole rows.
#include "ops/math/top_k.h"

#include "core/base/checked.h"
#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "gpu/sorting.h"

namespace treadle::gpu {
namespace {

struct TopKState final : PackedState {
  const vulkan::Shader *keys = nullptr, *chosen = nullptr;
  DType computed = DType::undefined;
};

struct TopK {
  ops::TopKRows rows;
  int64_t items;  // number of items in a row, a power of two
  ConvertedOperand x, values;

  static TopK bind(BindContext& c) {
    TopK k{ops::TopKRows::bind(c), 0, {}, {}};
    k.items = item_extent(k.rows.extent);
    ops::ScratchLayout layout;
    layout.take(static_cast<size_t>(count32(checked_mul(k.rows.outer * k.rows.inner, k.items))) * kItemBytes);
    k.x = ConvertedOperand::reserve(layout, c.dtype(0), c.packed<TopKState>().computed, c.num_elements(0));
    k.values = ConvertedOperand::reserve(layout, c.dtype(0), c.packed<TopKState>().computed, k.rows.outer * k.rows.inner * k.rows.k);
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    if (rows.k == 0 || rows.extent == 0) return;
    const auto& state = c.packed<TopKState>();
    const int64_t count = rows.outer * rows.inner;
    Push push;
    push.pointer(values.result(c, 0)).pointer(x.read(c, 0)).pointer(c.out<void>(1)).pointer(c.scratch<void>());
    push_sizes(push, {count, rows.extent, rows.inner, items, rows.k});
    for (const int output : {0, 1}) push.word(uint32_t{c.out<void>(output) != nullptr});
    stream().dispatch(*state.keys, push.bytes(), groups_over(count32(count * items)));
    sort_items(c.scratch<void>(), count, items);
    stream().dispatch(*state.chosen, push.bytes(), groups_over(count32(count * rows.k)));
    if (c.out<void>(0)) values.store(c, 0);
  }
};

}  // namespace

DeviceKernel find_top_k(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<TopK>("gpu");
  if (!node.is("TopK", "")) return {};
  auto state = std::make_shared<TopKState>();
  const DType dtype = graph.type(node.inputs[0]).dtype;
  const bool is_unsigned = dtype == DType::uint64;
  state->computed = is_unsigned ? dtype : compared_type(dtype);
  const uint32_t largest = node.attributes.get_int("largest", 1) != 0;
  const uint32_t keys[] = {1, largest, is_unsigned}, chosen[] = {0, largest, is_unsigned};
  state->keys = find_shader("top_k", is_unsigned ? DType::int64 : state->computed, keys);
  state->chosen = find_shader("top_k", is_unsigned ? DType::int64 : state->computed, chosen);
  return state->keys ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
