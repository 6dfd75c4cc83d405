// Computes Det, in float64 as the host does, or in float32 if the device has no float64.
#include <fmt/format.h>

#include "gpu/converted.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

struct DeterminantState final : PackedState {
  const vulkan::Shader *wide = nullptr, *narrow = nullptr;  // shaders for float64 and for float32
};

struct Determinant {
  DType given;
  int64_t matrices, extent;
  int64_t results;  // offset in scratch, after the copy of the matrices that the shader overwrites

  static Determinant bind(BindContext& c) {
    const Shape& x = c.shape(0);
    const int64_t extent = x.back();
    if (x[x.rank() - 2] != extent)
      throw Error(ErrorCode::invalid_argument, fmt::format("X is {}; its last two axes must form square matrices", to_string(x)));
    Determinant k{c.dtype(0), c.output_shape(0).num_elements(), extent, 0};
    ops::ScratchLayout layout;
    layout.take(static_cast<size_t>(count32(x.num_elements())) * sizeof(double));
    k.results = layout.take(static_cast<size_t>(k.matrices) * sizeof(double));
    c.request_scratch(layout.total());
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<DeterminantState>();
    const DType computed = stream().features().float64 ? DType::float64 : DType::float32;
    const int64_t count = matrices * extent * extent;
    void* const copy = c.scratch<void>();
    if (convert_elements(given, c.in<void>(0), computed, copy, count) != copy)
      stream().copy(copy, c.in<void>(0), static_cast<size_t>(count) * bits_of(computed) / 8, CopyKind::device_to_device);
    void* const result = given == computed ? c.out<void>(0) : ops::scratch_at(c, results);
    Push push;
    push.pointer(result).pointer(copy);
    push_sizes(push, {matrices, extent});
    stream().dispatch(computed == DType::float64 ? *state.wide : *state.narrow, push.bytes(), groups_for(matrices));
    convert_elements(computed, result, given, c.out<void>(0), matrices);
  }
};

}  // namespace

DeviceKernel find_determinant(const Graph& graph, const Node& node) {
  static const KernelDef kernel = treadle::kernel<Determinant>("gpu");
  const DType dtype = wide_type(graph.type(node.inputs[0]).dtype);
  if (!node.is("Det", "") || (dtype != DType::float32 && dtype != DType::float64)) return {};
  auto state = std::make_shared<DeterminantState>();
  state->wide = find_shader("determinant", DType::float64);
  state->narrow = find_shader("determinant", DType::float32);
  return {&kernel, std::move(state)};
}

}  // namespace treadle::gpu
