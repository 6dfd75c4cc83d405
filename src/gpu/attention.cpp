// Computes Attention, with its caches, in one kernel; RotaryEmbedding; and the fused operators by which the optimizer replaces written-out
// forms of both.
#include "ops/nn/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/nn/rotary_embedding.h"
#include "ops/treadle/fused_attention.h"
#include "ops/treadle/fused_rotary.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kAttentionLanes = 16;          // number of invocations that compute one row together
constexpr int64_t kMostRows = int64_t{1} << 29;  // limit for queries, keys and windows: the shader adds up one of each in 32 bits
constexpr int64_t kMostFeatures = 256;           // limit for the features per head of V: each invocation keeps every 16th in registers

enum AttentionInput : int { kQ, kK, kV, kMask, kPastKey, kPastValue, kValidLengths };
enum AttentionOutput : int { kY, kPresentKey, kPresentValue, kScores };
// These flags have the same values as in attention.comp.
enum AttentionFlag : uint32_t {
  is_causal = 1,
  mask_batch = 2,
  mask_heads = 4,
  mask_rows = 8,
  mask_columns = 16,
  counts_keys = 32,
  one_batch = 64,
  one_head = 128,
  one_query = 256
};
enum class MaskKind : uint32_t { none, keeps, hides, adds };
enum class EmptyRows : uint32_t { zero, formula, zero_for_nan };

/// The specialization constants with which attention.comp is compiled for a node.
struct AttentionForm {
  uint32_t columns = 1;    // number of columns of V that each invocation sums up
  uint32_t parts[4] = {};  // for Q, K, V, Y: operands packed in one row; 0: [batch, heads, rows, size]
  int32_t left_window = -1, right_window = -1;
  float softcap = 0;
  MaskKind mask = MaskKind::none;
  float masked = -std::numeric_limits<float>::infinity();
  EmptyRows empty_rows = EmptyRows::zero;
  uint32_t shown = 0;  // qk_matmul_output_mode + 1 if the scores are an output, otherwise 0

  std::array<uint32_t, 12> constants() const {
    const auto bits = [](auto value) { return std::bit_cast<uint32_t>(value); };
    return {columns,
            parts[0],
            parts[1],
            parts[2],
            parts[3],
            bits(left_window),
            bits(right_window),
            bits(softcap),
            static_cast<uint32_t>(mask),
            bits(masked),
            static_cast<uint32_t>(empty_rows),
            shown};
  }
};

struct AttentionState final : FaultState {
  const vulkan::Shader *shader = nullptr, *cache = nullptr, *of_keys = nullptr;
};

/// Returns the flags of the axes along which the mask has its own elements, that is, where it is not broadcast.
uint32_t mask_flags(const kernels::AttentionParams& p) {
  return (p.mask_batch != 0 ? mask_batch : 0U) | (p.mask_head != 0 ? mask_heads : 0U) | (p.mask_row != 0 ? mask_rows : 0U) |
         (p.mask_column != 0 ? mask_columns : 0U);
}

/// Returns the flags of the axes along which Q is broadcast, because Q has one index and the mask more (stride 0). A Q without elements
/// also has the stride 0, but it is never read.
uint32_t broadcast_flags(const kernels::AttentionParams& p) {
  return (p.k.batch == 0 && p.v.batch == 0 ? one_batch : 0U) | (p.q.head == 0 ? one_head : 0U) | (p.q.row == 0 ? one_query : 0U);
}

/// The addresses of the operands that attention.comp reads and writes.
struct AttentionOperands {
  void *y = nullptr, *shown = nullptr;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *past_k = nullptr, *past_v = nullptr, *mask = nullptr, *valid_lengths = nullptr;
};

struct AttentionCall {
  kernels::AttentionParams params;

  /// @throws Error(not_implemented) if the shader cannot handle this number of heads, features or elements
  void check() const {
    const kernels::AttentionParams& p = params;
    count32(p.batch * p.q_heads * p.q_length * std::max(p.head_size, p.v_head_size));
    count32(p.batch * p.kv_heads * p.kv_length * std::max(p.head_size, p.v_head_size));
    if (p.q_length >= kMostRows || p.kv_length >= kMostRows)
      throw Error(ErrorCode::not_implemented, fmt::format("attention of {} queries and {} keys, on the GPU", p.q_length, p.kv_length));
    if (std::max(p.q_heads, p.kv_heads) > UINT16_MAX || p.v_head_size > kMostFeatures)
      throw Error(ErrorCode::not_implemented, fmt::format("attention of {} heads with {} features, on the GPU", p.q_heads, p.v_head_size));
  }
  void run(const AttentionState& state, const AttentionOperands& at) const {
    const kernels::AttentionParams& p = params;
    if (p.q_heads == 0 || p.kv_heads == 0) return;
    vulkan::VulkanStream::FaultSite site;
    if (at.valid_lengths) site = state.fault(fmt::format("nonpad_kv_seqlen has a length outside of [0, {}]", p.kv_length));
    const uint32_t flags = mask_flags(p) | broadcast_flags(p) | (p.causal ? is_causal : 0U) | (at.valid_lengths ? counts_keys : 0U);
    Push push;
    push.pointer(at.y);
    for (const void* operand : {at.q, at.k, at.v, at.past_k, at.past_v, at.mask, at.valid_lengths}) push.pointer(operand);
    push.pointer(at.shown).fault(site).word(site.number);
    push_sizes(push, {p.batch, p.q_heads << 16 | p.kv_heads, p.q_length, p.kv_length - p.past_length, p.past_length, p.head_size,
                      p.v_head_size, p.mask_length});
    push.word(flags).word(static_cast<float>(p.scale));
    const int64_t rows = p.q_heads / p.kv_heads * p.q_length;
    stream().dispatch(*state.shader, push.bytes(), groups_for(p.batch * p.kv_heads * ((rows + kAttentionLanes - 1) / kAttentionLanes)));
  }
};

struct Attention {
  AttentionCall call;
  bool is_packed, has_present[2];

  static Attention bind(BindContext& c) {
    const Attention k{{ops::bind_attention(c)}, c.shape(kQ).rank() == 3, {c.has_output(kPresentKey), c.has_output(kPresentValue)}};
    k.call.check();
    if (c.has_input(kMask)) count32(c.num_elements(kMask));
    if (c.has_output(kScores)) count32(c.output_shape(kScores).num_elements());
    return k;
  }

  void run(RunContext& c) const {
    for (const bool of_values : {false, true})
      if (has_present[of_values]) write_present(c, of_values);
    call.run(c.packed<AttentionState>(), {.y = c.out<void>(kY),
                                          .shown = c.out<void>(kScores),
                                          .q = c.in<void>(kQ),
                                          .k = c.in<void>(kK),
                                          .v = c.in<void>(kV),
                                          .past_k = c.in<void>(kPastKey),
                                          .past_v = c.in<void>(kPastValue),
                                          .mask = c.in<void>(kMask),
                                          .valid_lengths = c.in<void>(kValidLengths)});
  }

 private:
  void write_present(RunContext& c, bool of_values) const {
    const kernels::AttentionParams& p = call.params;
    const int64_t size = of_values ? p.v_head_size : p.head_size, count = p.batch * p.kv_heads * p.kv_length * size;
    Push push;
    push.pointer(c.out<void>(of_values ? kPresentValue : kPresentKey)).pointer(c.in<void>(of_values ? kPastValue : kPastKey));
    push.pointer(c.in<void>(of_values ? kV : kK));
    push_sizes(push, {count, p.kv_heads, p.past_length, p.kv_length - p.past_length, size, is_packed});
    stream().dispatch(*c.packed<AttentionState>().cache, push.bytes(), groups_over(count32(count)));
  }
};

/// FusedAttention, by which the optimizer replaces the several operators that exporters write for attention. Q, K and V may be parts of one
/// value.
struct FusedAttention {
  AttentionCall call;
  int64_t first[3];  // index of the first element of Q, K and V in their inputs

  static FusedAttention bind(BindContext& c) {
    const ops::AttentionCall host = ops::AttentionCall::bind(c, kQ, /*may_stretch=*/true);
    const FusedAttention k{{host.params}, {host.q, host.k, host.v}};
    if (host.any()) k.call.check();
    for (const int i : {kQ, kK, kV, kMask})
      if (c.has_input(i)) count32(c.num_elements(i));
    return k;
  }
  void run(RunContext& c) const {
    call.run(c.packed<AttentionState>(), {.y = c.out<void>(kY),
                                          .q = c.in<float>(kQ) + first[kQ],
                                          .k = c.in<float>(kK) + first[kK],
                                          .v = c.in<float>(kV) + first[kV],
                                          .mask = c.in<void>(kMask)});
  }
};

/// The arguments of the shader attention_gradient.comp.
struct FusedAttentionGradient {
  static constexpr int kDY = 0, kFirst = 1;  // the operands of attention follow dY
  ops::AttentionGradientCall host;

  static FusedAttentionGradient bind(BindContext& c) {
    const FusedAttentionGradient k{ops::AttentionGradientCall::bind(c)};
    if (!k.host.call.any()) return k;
    const kernels::AttentionParams& p = k.host.call.params;
    AttentionCall{p}.check();
    if (p.head_size > kMostFeatures)
      throw Error(ErrorCode::not_implemented, fmt::format("the gradient of attention with {} features, on the GPU", p.head_size));
    if (k.host.shows_scores) count32(p.batch * p.q_heads * p.q_length * p.kv_length);
    for (int i = 0; i < c.num_inputs(); ++i)
      if (c.has_input(i)) count32(c.num_elements(i));
    c.request_scratch(static_cast<size_t>(count32(p.batch * p.q_heads * p.q_length * 3)) * sizeof(float));
    return k;
  }
  void run(RunContext& c) const {
    if (!host.call.any()) return;
    const kernels::AttentionParams& p = host.call.params;
    const auto& state = c.packed<AttentionState>();
    const int64_t first[] = {host.call.q, host.call.k, host.call.v};
    Push push;
    for (int i = 0; i < 3; ++i) push.pointer(host.joined ? c.out<float>(0) + first[i] : c.out<float>(i));
    push.pointer(host.shows_scores ? c.out<void>(host.joined ? 1 : 3) : nullptr).pointer(c.in<void>(kDY));
    for (int i = 0; i < 3; ++i) push.pointer(c.in<float>(kFirst + i) + first[i]);
    push.pointer(c.in<void>(kFirst + kMask)).pointer(c.scratch<void>());
    push_sizes(push, {p.batch, p.q_heads << 16 | p.kv_heads, p.q_length, p.kv_length, p.head_size, p.v_head_size, mask_flags(p)});
    push.word(static_cast<float>(p.scale));
    for (const bool of_keys : {false, true}) {
      const int64_t items = of_keys ? p.kv_length : p.q_heads / p.kv_heads * p.q_length;
      stream().dispatch(of_keys ? *state.of_keys : *state.shader, push.bytes(),
                        groups_for(p.batch * p.kv_heads * ((items + kAttentionLanes - 1) / kAttentionLanes)));
    }
  }
};

/// The arguments of the shader fused_rotary.comp.
struct FusedRotary {
  kernels::RotaryParams params;

  static FusedRotary bind(BindContext& c) {
    for (const int i : {0, 1, 2}) count32(c.num_elements(i));
    return {ops::bind_fused_rotary(c)};
  }
  void run(RunContext& c) const {
    const kernels::RotaryParams& p = params;
    const int64_t pairs = p.batch * p.heads * p.length * p.size / 2;
    Push push;
    push.pointer(c.out<void>(0));
    for (const int input : {0, 1, 2}) push.pointer(c.in<void>(input));
    push_sizes(push, {pairs, p.heads, p.length, p.size, p.interleaved});
    for (const kernels::HeadStrides& strides : {p.y, p.x, p.cos, p.sin}) push_sizes(push, {strides.batch, strides.head, strides.row});
    stream().dispatch(*c.packed<AttentionState>().shader, push.bytes(), groups_over(count32(pairs)));
  }
};

struct Rotary {
  ops::RotaryEmbeddingPlan plan;
  bool heads_first;

  static Rotary bind(BindContext& c) {
    for (const int i : {0, 1}) count32(c.num_elements(i));
    return {ops::RotaryEmbeddingPlan::bind(c), c.shape(0).rank() == 4};
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<AttentionState>();
    const ops::RotaryEmbeddingPlan& k = plan;
    const int64_t count = k.batch * k.heads * k.length * k.size;
    vulkan::VulkanStream::FaultSite site;
    if (k.has_positions) site = state.fault(fmt::format("position_ids has a number outside of [0, {})", k.positions));
    Push push;
    push.pointer(c.out<void>(0));
    for (const int input : {0, 1, 2, 3}) push.pointer(c.in<void>(input));
    push.fault(site).word(site.number);
    push_sizes(push, {count, k.heads, k.length, k.size, k.rotated, k.positions, k.has_positions, heads_first, k.interleaved});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

/// Returns the number of features of a head; -1 if the type of the input does not determine it.
int64_t features_of_head(const Graph& graph, const Node& node, size_t input, std::string_view heads) {
  const SymbolicShape& shape = *graph.type(node.inputs[input]).shape;
  if (!shape.back().is_const()) return -1;
  const int64_t parts = shape.size() == 3 ? node.attributes.get_int(heads, 0) : 1;
  return parts < 1 ? -1 : shape.back().value() / parts;
}

/// Returns the kernel, with the shader that is compiled for `form`. @param features  features per head of V; -1 if unknown
DeviceKernel with_shader(const KernelDef& kernel, const Node& node, AttentionForm form, int64_t features, DType dtype) {
  if (features < 0 || features > kMostFeatures) return {};
  form.columns = static_cast<uint32_t>(std::max<int64_t>((features + kAttentionLanes - 1) / kAttentionLanes, 1));
  auto state = std::make_shared<AttentionState>();
  state->shader = find_shader("attention", dtype, form.constants());
  state->cache = find_shader("attention_cache", dtype);
  state->node = describe(node);
  return state->shader ? DeviceKernel{&kernel, std::move(state)} : DeviceKernel();
}

DeviceKernel find_onnx_attention(const Graph& graph, const Node& node, DType dtype) {
  static const KernelDef attention = kernel<Attention>("gpu");
  if (!node.has_input(kK) || !node.has_input(kV)) return {};
  for (const size_t input : {kK, kV, kPastKey, kPastValue})
    if (node.has_input(input) && graph.type(node.inputs[input]).dtype != dtype) return {};
  const Attributes& a = node.attributes;
  AttentionForm form;
  if (node.has_input(kMask)) {
    const DType mask = graph.type(node.inputs[kMask]).dtype;
    if (mask != dtype && mask != DType::boolean) return {};
    form.mask = mask == DType::boolean ? MaskKind::keeps : MaskKind::adds;
  }
  if (graph.type(node.inputs[kQ]).shape->size() == 3) std::fill(std::begin(form.parts), std::end(form.parts), 1);
  const auto window = [&a](std::string_view name) { return static_cast<int32_t>(std::clamp<int64_t>(a.get_int(name, -1), -1, kMostRows)); };
  form.left_window = window("left_window_size"), form.right_window = window("right_window_size");
  form.softcap = std::max(a.get_float("softcap", 0), 0.0F);
  if (node.has_output(kScores)) {
    const int64_t mode = a.get_int("qk_matmul_output_mode", 0);
    if (mode < 0 || mode > 3) return {};  // the host's kernel reports the error
    form.shown = static_cast<uint32_t>(mode + 1);
  }
  return with_shader(attention, node, form, features_of_head(graph, node, kV, "kv_num_heads"), dtype);
}

/// Returns the form of a FusedAttention or of its gradient; nullopt if the shader does not support the node. @param first  index of the
/// input Q, which K, V and the mask follow
std::optional<AttentionForm> fused_form(const Graph& graph, const Node& node, size_t first) {
  const Attributes& a = node.attributes;
  AttentionForm form;
  for (size_t i = 0; i < 3; ++i) {
    const SymbolicShape& shape = *graph.type(node.inputs[first + i]).shape;
    const int64_t layout = ops::attention_layout(a, static_cast<int>(i));
    if (shape.size() != (layout == 2 ? 5U : 4U)) return std::nullopt;
    if (layout == 2 && (!shape[2].is_const() || shape[2].value() < 1 || shape[2].value() > UINT16_MAX)) return std::nullopt;
    form.parts[i] = static_cast<uint32_t>(layout == 2 ? shape[2].value() : layout);
  }
  form.parts[3] = a.get_int("y_layout", 0) != 0 ? 1 : 0;
  form.empty_rows = a.get_int("nan_to_zero", 0) != 0 ? EmptyRows::zero_for_nan : EmptyRows::formula;
  if (!node.has_input(first + kMask)) return form;
  const Type& mask = graph.type(node.inputs[first + kMask]);
  if (mask.shape->size() > 4) return std::nullopt;
  const bool is_boolean = mask.dtype == DType::boolean;
  form.mask = !is_boolean ? MaskKind::adds : a.get_int("mask_keeps", 1) != 0 ? MaskKind::keeps : MaskKind::hides;
  if (is_boolean) form.masked = a.get_float("masked_value", form.masked);
  return form;
}

DeviceKernel find_fused_attention(const Graph& graph, const Node& node) {
  static const KernelDef attention = kernel<FusedAttention>("gpu");
  const std::optional<AttentionForm> form = fused_form(graph, node, 0);
  return form ? with_shader(attention, node, *form, features_of_head(graph, node, kV, {}), DType::float32) : DeviceKernel();
}

DeviceKernel find_attention_gradient(const Graph& graph, const Node& node) {
  static const KernelDef gradient = kernel<FusedAttentionGradient>("gpu");
  const std::optional<AttentionForm> form = fused_form(graph, node, 1);
  const int64_t q_features = features_of_head(graph, node, 1 + kQ, {}), v_features = features_of_head(graph, node, 1 + kV, {});
  if (!form || q_features < 0 || v_features < 0 || std::max(q_features, v_features) > kMostFeatures) return {};
  const bool joined = node.attributes.get_int("joined", 0) != 0;
  const auto lanes = static_cast<uint32_t>(kAttentionLanes);
  const uint32_t features = static_cast<uint32_t>(std::max<int64_t>({q_features, v_features, 1}));
  std::array<uint32_t, 13> constants{0, (features + lanes - 1) / lanes};
  std::copy_n(form->parts, 4, constants.begin() + 2);
  for (size_t i = 0; i < 3; ++i) constants[6 + i] = joined ? form->parts[i] : std::min(form->parts[i], 1U);
  constants[9] = static_cast<uint32_t>(form->mask), constants[10] = std::bit_cast<uint32_t>(form->masked);
  constants[11] = static_cast<uint32_t>(form->empty_rows), constants[12] = uint32_t{node.has_output(joined ? 1 : 3)};
  auto state = std::make_shared<AttentionState>();
  state->shader = find_shader("attention_gradient", DType::float32, constants);
  constants[0] = 1;
  state->of_keys = find_shader("attention_gradient", DType::float32, constants);
  state->node = describe(node);
  return {&gradient, std::move(state)};
}

}  // namespace

DeviceKernel find_attention(const Graph& graph, const Node& node) {
  static const KernelDef rotary = kernel<Rotary>("gpu"), fused_rotary = kernel<FusedRotary>("gpu");
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (node.is("Attention", "")) return find_onnx_attention(graph, node, dtype);
  if (node.is("FusedAttention", "treadle")) return find_fused_attention(graph, node);
  if (node.is("FusedAttentionGrad", "treadle")) return find_attention_gradient(graph, node);
  const bool is_fused = node.is("FusedRotary", "treadle");
  if (!is_fused && !node.is("RotaryEmbedding", "")) return {};
  auto state = std::make_shared<AttentionState>();
  state->shader = is_fused ? find_shader("fused_rotary", DType::float32) : find_shader("rotary", dtype);
  state->node = describe(node);
  return state->shader ? DeviceKernel{is_fused ? &fused_rotary : &rotary, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
