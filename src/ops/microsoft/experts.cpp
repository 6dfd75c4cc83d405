// Implements MoE and QMoE (com.microsoft 1): mixtures of experts.
#include "kernels/gemm/experts.h"

#include <array>
#include <limits>
#include <string>

#include "core/base/checked.h"
#include "graph/infer.h"
#include "kernels/elementwise/unary_f32.h"
#include "ops/checks.h"
#include "ops/list.h"
#include "ops/microsoft/widen_floats.h"

namespace treadle::ops {
namespace {

using kernels::ExpertGate;
using kernels::ExpertLayer;
using kernels::ExpertsParams;

/// The indices of the inputs of one layer; -1 for an input that the operator does not have.
struct LayerInputs {
  int weights, scales, bias, zero_points;
};
constexpr std::array<LayerInputs, 3> kMoE = {{{2, -1, 3, -1}, {4, -1, 5, -1}, {6, -1, 7, -1}}};
constexpr std::array<LayerInputs, 3> kQMoE = {{{2, 3, 4, 11}, {5, 6, 7, 12}, {8, 9, 10, 13}}};
constexpr int kRouterWeights = 14;

bool is_swiglu(std::string_view activation_type) { return activation_type == "swiglu"; }

/// Returns the activation after the first layer. onnxruntime's "gelu" is the tanh approximation. SwiGLU is computed separately, so it maps
/// to none.
kernels::ExpertActivation activation_of(std::string_view name) {
  if (name == "identity" || is_swiglu(name)) return {.code = kernels::Unary::none};
  if (name != "relu" && name != "silu" && name != "gelu")
    throw Error(ErrorCode::invalid_argument, fmt::format("activation_type is \"{}\"", name));
  const ScalarFunction& function = *find_function(name == "gelu" ? "gelu_tanh" : name);
  return {function.code, function.a.otherwise, function.b.otherwise};
}

bool is_quantized(const Node& node) { return node.op_type == "QMoE"; }

void infer(InferContext& c) {
  const int64_t sparse = c.get_int("use_sparse_mixer"), fusion = c.get_int("swiglu_fusion"), k = c.get_int("k", 1);
  if (sparse != 0) throw Error(ErrorCode::not_implemented, "use_sparse_mixer is not implemented");
  if (k < 1) throw Error(ErrorCode::invalid_argument, fmt::format("k = {}; expected at least 1", k));
  const std::string_view activation = c.get_string("activation_type", "relu");
  activation_of(activation);  // throws for unknown names
  const bool gated = is_swiglu(activation);
  if (!gated && c.get_int("swiglu_limit_after_activation") != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("swiglu_limit_after_activation = 1 with activation_type = \"{}\"", activation));
  const bool third = c.has_input((is_quantized(c.node()) ? kQMoE : kMoE)[2].weights);
  if (gated && (fusion == 0) != third)
    throw Error(ErrorCode::invalid_argument, "swiglu needs its gate and its factor in fc1 (swiglu_fusion = 1 or 2) or in fc1 and fc3 (0)");
  if (is_quantized(c.node())) {
    if (c.get_string("quant_type", "int") != "int")
      throw Error(ErrorCode::not_implemented, fmt::format("quant_type \"{}\" is not implemented", c.get_string("quant_type")));
    if (c.get_int("weights_prepacked", -1) > 0) throw Error(ErrorCode::not_implemented, "prepacked weights are not implemented");
    for (int i = 15; i < c.num_inputs(); ++i)
      if (c.has_input(i)) throw Error(ErrorCode::not_implemented, fmt::format("the input {} is not implemented", i));
  }
  if (c.has_rank(0) && c.rank(0) != 2 && c.rank(0) != 3)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input is {}; expected [tokens, hidden] or [batch, sequence, hidden]", to_string(c.shape(0))));
  c.set_output(0, c.input(0));
}

/// Throws Error(invalid_argument) if an input does not have the expected shape.
void check_shape(const BindContext& c, int input, const Shape& expected) {
  if (c.shape(input) != expected)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the input {} is {}, expected {}", input, to_string(c.shape(input)), to_string(expected)));
}

/// Describes a layer whose weights are floats or quantized codes [experts, N, K], and checks the shapes of its operands.
ExpertLayer bind_layer(const BindContext& c, const LayerInputs& inputs, int64_t experts, int64_t N, int64_t K, int bits) {
  ExpertLayer layer{.N = N, .K = K};
  if (c.has_input(inputs.bias)) check_shape(c, inputs.bias, {experts, N});
  if (inputs.scales < 0) {
    // Files of an older schema declare the shape [experts, K, N], but onnxruntime reads the elements as [experts, N, K].
    if (c.shape(inputs.weights) != Shape{experts, K, N}) check_shape(c, inputs.weights, {experts, N, K});
    return layer;
  }
  if (bits != 2 && bits != 4 && bits != 8)
    throw Error(ErrorCode::not_implemented, fmt::format("weights of {} bits are not implemented", bits));
  const int64_t block = c.get_int("block_size", 0);
  if (block < 0 || (block > 0 && K % block != 0) || checked_mul(K, bits) % 8 != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("rows of {} codes of {} bits with block_size = {}", K, bits, block));
  layer.bits = bits;
  layer.block = block > 0 ? block : std::max<int64_t>(K, 1);
  layer.zeros_per_row = block > 0;
  const int64_t blocks = K / layer.block;
  check_shape(c, inputs.weights, {experts, N, K * bits / 8});
  if (!c.has_input(inputs.scales)) throw Error(ErrorCode::invalid_argument, fmt::format("the input {} (scales) is missing", inputs.scales));
  check_shape(c, inputs.scales, block > 0 ? Shape{experts, N, blocks} : Shape{experts, N});
  if (c.has_input(inputs.zero_points))
    check_shape(c, inputs.zero_points, block > 0 ? Shape{experts, N, ceil_div(blocks * bits, 8)} : Shape{experts, ceil_div(N * bits, 8)});
  return layer;
}

struct Experts {
  ExpertsParams params;
  int max_threads;
  bool quantized;

  static Experts bind(BindContext& c) {
    Experts e{.params = {}, .max_threads = c.max_threads(), .quantized = is_quantized(c.node())};
    const auto& inputs = e.quantized ? kQMoE : kMoE;
    const Shape& x = c.shape(0);
    ExpertsParams& p = e.params;
    const int64_t hidden = x.back();
    p.tokens = x.product(0, x.rank() - 1);
    if (c.shape(inputs[0].weights).rank() != 3 || c.shape(inputs[1].weights).rank() != 3)
      throw Error(ErrorCode::invalid_argument, "the experts' weights must be of rank 3");
    p.experts = c.shape(inputs[0].weights)[0];
    p.k = c.get_int("k", 1);
    if (p.k > p.experts) throw Error(ErrorCode::invalid_argument, fmt::format("k = {} of {} experts", p.k, p.experts));
    check_shape(c, 1, {p.tokens, p.experts});
    if (e.quantized && c.has_input(kRouterWeights)) check_shape(c, kRouterWeights, {p.tokens, p.experts});
    p.activation = activation_of(c.get_string("activation_type", "relu"));
    p.swiglu = is_swiglu(c.get_string("activation_type", "relu"));
    // Without router weights, onnxruntime's QMoE normalizes the weights of the chosen experts even if the attribute is 0.
    p.normalize = c.get_int("normalize_routing_weights") != 0 || (e.quantized && !c.has_input(kRouterWeights));
    p.alpha = c.get_float("activation_alpha", 1);
    p.beta = c.get_float("activation_beta", 0);
    p.limit = c.get_float("swiglu_limit", std::numeric_limits<float>::infinity());
    p.limits_activated = c.get_int("swiglu_limit_after_activation") != 0;
    if (!(p.limit >= 0)) throw Error(ErrorCode::invalid_argument, fmt::format("swiglu_limit = {}", p.limit));
    const bool third = c.has_input(inputs[2].weights);
    if (third)
      p.gate = ExpertGate::third_layer;
    else if (p.swiglu)
      p.gate = c.get_int("swiglu_fusion") == 1 ? ExpertGate::interleaved : ExpertGate::halves;
    const auto bits = static_cast<int>(c.get_int("expert_weight_bits", 4));
    auto bits_of_layer = [&](std::string_view name) { return static_cast<int>(c.get_int(name, bits)); };
    const bool fused = p.gate == ExpertGate::interleaved || p.gate == ExpertGate::halves;
    const Shape& second = c.shape(inputs[1].weights);
    const int64_t width = second[1] == hidden ? second[2] : second[1];
    const int64_t rows = e.quantized ? c.shape(inputs[0].weights)[1] : width * (fused ? 2 : 1);
    if (fused && rows % 2 != 0) throw Error(ErrorCode::invalid_argument, fmt::format("fc1 has {} rows for gates and factors", rows));
    const int64_t inner = fused ? rows / 2 : rows;
    p.first = bind_layer(c, inputs[0], p.experts, rows, hidden, bits_of_layer("fc1_expert_weight_bits"));
    p.second = bind_layer(c, inputs[1], p.experts, hidden, inner, bits_of_layer("fc2_expert_weight_bits"));
    if (third) p.third = bind_layer(c, inputs[2], p.experts, inner, hidden, bits_of_layer("fc3_expert_weight_bits"));
    c.request_scratch(kernels::experts_scratch_bytes(p, e.max_threads));
    return e;
  }

  void run(RunContext& c) const {
    if (params.tokens == 0 || params.hidden() == 0) return;
    const auto& inputs = quantized ? kQMoE : kMoE;
    ExpertsParams p = params;
    ExpertLayer* layers[] = {&p.first, &p.second, &p.third};
    for (size_t i = 0; i < 3; ++i) {
      layers[i]->bias = c.in<float>(inputs[i].bias);
      if (!quantized) {
        layers[i]->weights = c.in<float>(inputs[i].weights);
        continue;
      }
      layers[i]->codes = c.in<uint8_t>(inputs[i].weights);
      layers[i]->scales = c.in<float>(inputs[i].scales);
      layers[i]->zero_points = c.in<uint8_t>(inputs[i].zero_points);
    }
    kernels::run_experts(p, c.in<float>(0), c.in<float>(1), quantized ? c.in<float>(kRouterWeights) : nullptr, c.out<float>(0),
                         c.scratch<void>(), max_threads, c.pool());
  }
};

}  // namespace

std::vector<OpDef> microsoft_experts_ops() {
  const std::vector<AttributeDef> attributes = {{"activation_alpha", 1.0F},
                                                {"activation_beta", 0.0F},
                                                {"activation_type", std::string_view("relu")},
                                                {"k", int64_t{1}},
                                                {"normalize_routing_weights", int64_t{0}},
                                                {"swiglu_fusion", int64_t{0}, between(0, 2)},
                                                {"swiglu_limit"},
                                                {"swiglu_limit_after_activation", int64_t{0}, zero_or_one()},
                                                {"use_sparse_mixer", int64_t{0}}};
  std::vector<AttributeDef> quantized = attributes;
  quantized.insert(quantized.end(), {{"accuracy_level"},
                                     {"block_size"},
                                     {"expert_weight_bits", int64_t{4}},
                                     {"fc1_expert_weight_bits"},
                                     {"fc2_expert_weight_bits"},
                                     {"fc3_expert_weight_bits"},
                                     {"quant_type", std::string_view("int")},
                                     {"weights_prepacked", int64_t{-1}}});
  const Port input{"input", kFloats, "T"}, router{"router_probs", kFloats, "T"}, output{"output", kFloats, "T"};
  auto weights = [](std::string_view name) { return Port{name, {DType::uint8}}; };
  auto codes = [](std::string_view name) { return maybe(name, {DType::uint8}); };
  auto values = [](std::string_view name) { return maybe(name, kFloats); };
  return {{.name = "MoE",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {input,
                      router,
                      {"fc1_experts_weights", kFloats, "T"},
                      values("fc1_experts_bias"),
                      {"fc2_experts_weights", kFloats, "T"},
                      values("fc2_experts_bias"),
                      values("fc3_experts_weights"),
                      values("fc3_experts_bias")},
           .outputs = {output},
           .attributes = attributes,
           .infer = infer,
           .kernels = {kernel<Experts>("plain", DType::float32)},
           .decompose = widen_floats},
          {.name = "QMoE",
           .domain = kMicrosoft,
           .since = {1},
           .inputs = {input,
                      router,
                      weights("fc1_experts_weights"),
                      values("fc1_scales"),
                      values("fc1_experts_bias"),
                      weights("fc2_experts_weights"),
                      values("fc2_scales"),
                      values("fc2_experts_bias"),
                      codes("fc3_experts_weights"),
                      values("fc3_scales"),
                      values("fc3_experts_bias"),
                      codes("fc1_zero_points"),
                      codes("fc2_zero_points"),
                      codes("fc3_zero_points"),
                      values("router_weights"),
                      values("fc1_global_scale"),
                      values("fc2_global_scale"),
                      values("fc1_act_scale"),
                      values("fc2_act_scale"),
                      maybe("fc1_act_block_scale", kFloat8),
                      maybe("fc2_act_block_scale", kFloat8)},
           .outputs = {output},
           .attributes = quantized,
           .infer = infer,
           .kernels = {kernel<Experts>("plain", DType::float32)},
           .decompose = widen_floats}};
}

}  // namespace treadle::ops
