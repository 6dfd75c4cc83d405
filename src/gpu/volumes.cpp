// Computes Conv and ConvTranspose of three dimensions.
#include <algorithm>

#include "gpu/batches.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/nn/convolution.h"

namespace treadle::gpu {
namespace {

struct VolumeState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  int64_t element_bytes = 4;
  bool transposed = false;
};

/// The arguments of the shader volume.comp.
struct Volume {
  kernels::ConvParams params;  // for a ConvTranspose: the convolution from Y to X that is transposed
  bool transposed, has_bias;

  static Volume bind(BindContext& c) {
    const bool transposed = c.packed<VolumeState>().transposed;
    const Volume k{transposed ? ops::bind_conv_transpose(c) : ops::bind_convolution(c, {}), transposed, c.has_input(2)};
    for (const int i : {0, 1}) count32(c.num_elements(i));
    count32(c.output_shape(0).num_elements());
    return k;
  }
  void run(RunContext& c) const {
    for_each_images(params, [&](int64_t first, int64_t images) { dispatch(c, first, images); });
  }

 private:
  // Dispatches the work for `images` images, beginning with image `first`.
  void dispatch(RunContext& c, int64_t first, int64_t images) const {
    constexpr int64_t kChannels = 4;  // output channels per invocation
    const auto& state = c.packed<VolumeState>();
    const kernels::Window& w = params.window;
    const auto& in = transposed ? w.out : w.in;
    const auto& out = transposed ? w.in : w.out;
    const int64_t rows = params.M / params.group, channels = params.C / params.group;
    const int64_t columns = out[0] * out[1] * out[2], pixels = in[0] * in[1] * in[2];
    Push push;
    push.pointer(c.out<std::byte>(0) + first * params.M * columns * state.element_bytes);
    push.pointer(c.in<std::byte>(0) + first * params.C * pixels * state.element_bytes);
    push.pointer(c.in<void>(1)).pointer(c.in<void>(2)).word(uint32_t{has_bias});
    push_sizes(push, {rows, columns, channels, params.group});
    push_window(push, {&in, &out, &w.kernel, &w.stride, &w.dilation, &w.pad_begin});
    std::array<uint32_t, 3> groups = groups_over(count32((rows + kChannels - 1) / kChannels * columns));
    groups[2] = static_cast<uint32_t>(images * params.group);
    stream().dispatch(*state.shader, push.bytes(), groups);
  }
};

}  // namespace

DeviceKernel find_volume(const Graph& graph, const Node& node) {
  static const KernelDef volume = kernel<Volume>("gpu");
  const bool transposed = node.is("ConvTranspose", "");
  if ((!transposed && !node.is("Conv", "")) || graph.type(node.inputs[0]).shape->size() != 5) return {};
  const DType dtype = graph.type(node.outputs[0]).dtype;
  auto state = std::make_shared<VolumeState>();
  const uint32_t constants[] = {uint32_t{transposed}};
  state->shader = find_shader("volume", dtype, constants);
  state->element_bytes = static_cast<int64_t>(bits_of(dtype) / 8);
  state->transposed = transposed;
  return state->shader ? DeviceKernel{&volume, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
