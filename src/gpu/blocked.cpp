// Computes BlockedMatMul: matrix products whose weights of 4 or 8 bits are expanded to floats where the shader reads them.
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/treadle/blocked_matmul.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kFewRows = 4;  // with at most this many rows, each work group computes one column

struct BlockedState final : PackedState {
  const vulkan::Shader *tiles = nullptr, *few_rows = nullptr;
};

struct BlockedProduct {
  kernels::BlockedShape shape;
  int64_t rows;
  bool has_zeros;

  static BlockedProduct bind(BindContext& c) {
    const auto geometry = ops::BlockedGeometry::of(c.node().attributes, c.shape(ops::kCodes), c.dtype(ops::kCodes));
    const BlockedProduct k{geometry.shape, geometry.rows_of(c.shape(ops::kActivations)), c.has_input(ops::kZeros)};
    count32(c.num_elements(ops::kActivations)), count32(c.num_elements(ops::kCodes)), count32(c.output_shape(0).num_elements());
    return k;
  }
  void run(RunContext& c) const {
    if (rows == 0) return;
    const auto& state = c.packed<BlockedState>();
    Push push;
    push.pointer(c.out<void>(0));
    for (const int input : {ops::kActivations, ops::kCodes, ops::kScales, ops::kZeros}) push.pointer(c.in<void>(input));
    push.word(uint32_t{has_zeros});
    push_sizes(push, {rows, shape.N, shape.K, shape.block_size, shape.blocks()});
    constexpr int64_t kTile = 64;
    const auto tiles = [](int64_t extent) { return (extent + kTile - 1) / kTile; };
    if (rows <= kFewRows)
      stream().dispatch(*state.few_rows, push.bytes(), groups_for(shape.N));
    else
      stream().dispatch(*state.tiles, push.bytes(), groups_for(tiles(rows) * tiles(shape.N)));
  }
};

}  // namespace

DeviceKernel find_blocked(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<BlockedProduct>("gpu");
  if (!node.is("BlockedMatMul", "treadle")) return {};
  const DType codes = graph.type(node.inputs[ops::kCodes]).dtype;
  const Type& scales = graph.type(node.inputs[ops::kScales]);
  const bool is_signed = codes == DType::int4 || codes == DType::int8;
  const bool one_scale = scales.is_static() && scales.static_shape().num_elements() == 1;
  const uint32_t constants[] = {static_cast<uint32_t>(bits_of(codes)), uint32_t{is_signed},
                                uint32_t{node.attributes.get_int("axis", 0) == 1}, uint32_t{one_scale}};
  auto state = std::make_shared<BlockedState>();
  const DType dtype = graph.type(node.inputs[ops::kActivations]).dtype;
  state->tiles = find_shader("product_blocked", dtype, constants);
  state->few_rows = find_shader("product_blocked_few", dtype, constants);
  return state->tiles ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
