// Computes matrix products, and convolutions as matrix products, including a chain of pointwise operators after them.
#include <algorithm>
#include <array>
#include <optional>

#include "gpu/batches.h"
#include "gpu/epilogue.h"
#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "kernels/gemm/gemm.h"
#include "ops/math/product.h"
#include "ops/nn/convolution.h"
#include "ops/precision.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kTile = 64;  // number of rows, and of columns, that a work group computes

int64_t tiles(int64_t extent) { return (extent + kTile - 1) / kTile; }

struct ProductState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  int64_t element_bytes = 4;
  const vulkan::Shader* direct = nullptr;  // shader for convolutions with few channels per group
  Epilogue epilogue;

  /// Returns the addresses of the operands of the operators after the product, for a part of the result: from this element and row on.
  std::array<const void*, 3> operands(RunContext& c, int64_t first_element, int64_t first_row) const {
    return epilogue.operands(c, first_element * element_bytes, first_row * element_bytes);
  }
};

/// The arguments of the shader product.comp, for all matrices of a batch.
struct MatrixProduct {
  kernels::GemmShape shape;
  kernels::BatchStrides batch;
  float alpha = 1, beta = 1;
  int64_t c_row = 0, c_column = 0;
  bool has_c = false;

  void run(RunContext& c) const {
    count32(shape.M * shape.N * std::max<int64_t>(shape.batch, 1));
    for_each_batch(shape, batch, [&](const kernels::BatchOffsets& at, int64_t count, int64_t a_step, int64_t b_step) {
      dispatch(c, at, count, a_step, b_step);
    });
  }

 private:
  void dispatch(RunContext& c, const kernels::BatchOffsets& at, int64_t count, int64_t a_step, int64_t b_step) const {
    const auto& state = c.packed<ProductState>();
    const int64_t size = state.element_bytes;
    ProductCall call{c.out<std::byte>(0) + at.c * size,
                     c.in<std::byte>(0) + at.a * size,
                     c.in<std::byte>(1) + at.b * size,
                     c.in<void>(2),
                     has_c,
                     shape.M,
                     shape.N,
                     shape.K,
                     shape.a_row,
                     shape.a_col};
    call.b_row = shape.b_transposed ? 1 : shape.ldb, call.b_column = shape.b_transposed ? shape.ldb : 1;
    call.c_row = c_row, call.c_column = c_column;
    call.batch = count, call.a_step = a_step, call.b_step = b_step;
    call.alpha = alpha, call.beta = beta;
    call.operands = state.operands(c, at.c, shape.N > 0 ? at.c / shape.N : 0);
    dispatch_product(*state.shader, call);
  }
};

struct MatMul : MatrixProduct {
  static MatMul bind(BindContext& c) {
    const ops::Product product = ops::Product::of(c.shape(0), c.shape(1));
    count32(c.num_elements(0)), count32(c.num_elements(1));
    MatMul k;
    k.shape = product.shape;
    k.batch = product.batch;
    return k;
  }
};

struct Gemm : MatrixProduct {
  static Gemm bind(BindContext& c) {
    const ops::GemmPlan plan = ops::GemmPlan::of(c);
    count32(c.num_elements(0)), count32(c.num_elements(1));
    Gemm k;
    k.shape = plan.shape;
    k.shape.batch = 1;
    k.alpha = plan.alpha;
    k.beta = plan.beta;
    k.has_c = c.has_input(2) && plan.beta != 0;
    k.c_row = plan.bias_row;
    k.c_column = plan.bias_col;
    return k;
  }
};

struct Conv {
  kernels::ConvParams params;
  bool has_bias;

  static Conv bind(BindContext& c) {
    Conv k{ops::bind_convolution(c, {}), c.has_input(2)};
    count32(c.output_shape(0).num_elements());
    for (const int i : {0, 1}) count32(c.num_elements(i));
    return k;
  }
  void run(RunContext& c) const {
    for_each_images(params, [&](int64_t first, int64_t images) { dispatch(c, first, images); });
  }

 private:
  // Dispatches the work for `images` images, beginning with image `first`.
  void dispatch(RunContext& c, int64_t first, int64_t images) const {
    const auto& state = c.packed<ProductState>();
    const kernels::Window& w = params.window;
    const int64_t rows = params.M / params.group, columns = w.out_size(), terms = params.C / params.group * w.kernel_size();
    Push push;
    push.pointer(c.out<std::byte>(0) + first * params.M * columns * state.element_bytes);
    push.pointer(c.in<std::byte>(0) + first * params.C * w.in_size() * state.element_bytes);
    push.pointer(c.in<void>(1)).pointer(has_bias ? c.in<void>(2) : nullptr);
    for (const void* operand : state.operands(c, first * params.M * columns, first * params.M)) push.pointer(operand);
    push.word(uint32_t{has_bias});
    push_sizes(push, {rows, columns, terms, params.group});
    push_plane(push, w);
    const bool is_direct = rows < 8;
    std::array<uint32_t, 3> groups = is_direct ? groups_over(count32(rows * columns)) : groups_for(tiles(rows) * tiles(columns));
    groups[2] = static_cast<uint32_t>(images * params.group);
    stream().dispatch(is_direct ? *state.direct : *state.shader, push.bytes(), groups);
  }
};

/// The arguments of the shader convolution_transposed.comp.
struct ConvTranspose {
  kernels::ConvParams params;  // the convolution from Y to X, which is transposed
  bool has_bias;

  static ConvTranspose bind(BindContext& c) {
    const ConvTranspose k{ops::bind_conv_transpose(c), c.has_input(2)};
    for (const int i : {0, 1}) count32(c.num_elements(i));
    count32(c.output_shape(0).num_elements());
    return k;
  }
  void run(RunContext& c) const {
    const kernels::Window& w = params.window;
    const int64_t count = params.N * params.M * w.in_size();
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.in<void>(2)).word(uint32_t{has_bias});
    push_sizes(push, {count, params.C / params.group, params.M / params.group, params.group});
    push_plane(push, w);
    stream().dispatch(*c.packed<ProductState>().shader, push.bytes(), groups_over(count32(count)));
  }
};

/// Returns true for the dtypes whose matrix products product_wide.comp computes.
bool is_wide(DType dtype) { return dtype == DType::float64 || (is_integer(dtype) && bits_of(dtype) >= 32); }

bool are_alike(const Graph& graph, const Node& node) {
  const DType dtype = graph.type(node.outputs[0]).dtype;
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return id == kNoValue || graph.type(id).dtype == dtype; });
}

}  // namespace

void dispatch_product(const vulkan::Shader& shader, const ProductCall& call) {
  Push push;
  push.pointer(call.y).pointer(call.a).pointer(call.b).pointer(call.c);
  for (const void* operand : call.operands) push.pointer(operand);
  push.word(uint32_t{call.has_c});
  push_sizes(push, {call.rows, call.columns, call.terms, call.a_row, call.a_column, call.b_row, call.b_column, call.c_row, call.c_column,
                    call.a_step, call.b_step, 0});
  push.word(call.alpha).word(call.beta);
  std::array<uint32_t, 3> groups = groups_for(tiles(call.rows) * tiles(call.columns));
  groups[2] = static_cast<uint32_t>(call.batch);
  stream().dispatch(shader, push.bytes(), groups);
}

namespace {
/// Finds the kernel for a product of a training step in lower precision: operands are rounded, and sums stay float32. If the precision is
/// bfloat16x3 (three bfloat16 products that approximate float32), operands are not rounded, because float32 itself is more exact.
DeviceKernel find_rounded(const Graph& graph, const Node& node, const KernelDef& kernel) {
  const std::string_view precision = ops::precision_of(node);
  const uint32_t constants[] = {0, 0, 0,
                                precision == ops::name_of(ops::Precision::bfloat16)  ? 1U
                                : precision == ops::name_of(ops::Precision::float16) ? 2U
                                                                                     : 0U};
  if (graph.type(node.outputs[0]).dtype != DType::float32) return {};
  auto state = std::make_shared<ProductState>();
  state->shader = find_shader("product", DType::float32, constants);
  return {&kernel, std::move(state)};
}
}  // namespace

DeviceKernel find_product(const Graph& graph, const Node& node) {
  if (node.outputs.empty() || !are_alike(graph, node)) return {};
  static const KernelDef matmul = kernel<MatMul>("gpu"), gemm = kernel<Gemm>("gpu"), conv = kernel<Conv>("gpu"),
                         transposed = kernel<ConvTranspose>("gpu");
  if (node.is("RoundedMatMul", "treadle")) return find_rounded(graph, node, matmul);
  if (node.is("RoundedGemm", "treadle")) return find_rounded(graph, node, gemm);
  const std::optional<Epilogue> epilogue = Epilogue::of(graph, node);
  if (!epilogue) return {};
  const std::string_view product = epilogue->product;
  const KernelDef* const found = product == "MatMul"          ? &matmul
                                 : product == "Gemm"          ? &gemm
                                 : product == "Conv"          ? &conv
                                 : product == "ConvTranspose" ? &transposed
                                                              : nullptr;
  if (!found) return {};
  const bool is_convolution = found == &conv || found == &transposed;
  // The push constants of these shaders have no depth axis. If the image's rank is unknown, the rank of the weights tells it.
  const Type &image = graph.type(node.inputs[0]), &weights = graph.type(node.inputs[1]);
  const size_t rank = image.has_rank() ? image.shape->size() : weights.has_rank() ? weights.shape->size() : kMaxRank;
  if (is_convolution && rank > 4) return {};
  const DType dtype = graph.type(node.outputs[0]).dtype;
  auto state = std::make_shared<ProductState>();
  state->epilogue = *epilogue;
  state->element_bytes = static_cast<int64_t>(bits_of(dtype) / 8);
  if (found == &transposed) {
    state->shader = find_shader("convolution_transposed", dtype);
  } else if (is_wide(dtype)) {
    // Unsigned integers are computed as signed ones: the sums of products have the same bits.
    if (is_convolution || !node.domain.empty() || (is_integer(dtype) && found == &gemm)) return {};
    const DType computed = dtype == DType::uint32 ? DType::int32 : dtype == DType::uint64 ? DType::int64 : dtype;
    state->shader = find_shader("product_wide", computed);
  } else {
    state->shader = epilogue->shader(found == &conv ? "convolution_tile" : "product", dtype);
    if (found == &conv) state->direct = epilogue->shader("convolution", dtype);
  }
  return state->shader ? DeviceKernel{found, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
