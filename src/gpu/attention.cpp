// Attention in one kernel, with its caches, and rotary embedding.
#include "ops/nn/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/checks.h"
#include "treadle/error.h"

namespace treadle::gpu {
namespace {

constexpr int64_t kAttentionLanes = 16;  // invocations that share a row
constexpr int64_t kMostFeatures = 256;   // of a head of V, which an invocation keeps in registers, every 16th

enum AttentionInput : int { kQ, kK, kV, kMask, kPastKey, kPastValue, kValidLengths };
enum AttentionOutput : int { kY, kPresentKey, kPresentValue, kScores };
// As in attention.comp.
enum AttentionFlag : uint32_t {
  is_packed = 1,
  is_causal = 2,
  mask_keeps = 4,
  mask_adds = 8,
  mask_batch = 16,
  mask_heads = 32,
  mask_rows = 64,
  mask_columns = 128,
  counts_keys = 256
};

struct AttentionState final : PackedState {
  const vulkan::Shader *shader = nullptr, *cache = nullptr;
  std::string node;  // for errors
};

struct Attention {
  kernels::AttentionParams params;
  uint32_t flags;
  bool has_present[2];

  static Attention bind(BindContext& c) {
    Attention k{ops::bind_attention(c), 0, {c.has_output(kPresentKey), c.has_output(kPresentValue)}};
    const kernels::AttentionParams& p = k.params;
    for (const int i : {kQ, kK, kV}) count32(c.num_elements(i));
    count32(p.batch * p.kv_heads * p.kv_length * std::max(p.head_size, p.v_head_size));
    if (p.q_heads > UINT16_MAX || p.v_head_size > kMostFeatures)
      throw Error(ErrorCode::not_implemented, fmt::format("attention of {} heads with {} features, on the GPU", p.q_heads, p.v_head_size));
    const auto set = [&k](bool on, AttentionFlag flag) { k.flags |= on ? flag : 0U; };
    set(c.shape(kQ).rank() == 3, is_packed), set(p.causal, is_causal), set(c.has_input(kValidLengths), counts_keys);
    if (c.has_input(kMask)) set(true, c.dtype(kMask) == DType::boolean ? mask_keeps : mask_adds);
    set(p.mask_batch != 0, mask_batch), set(p.mask_head != 0, mask_heads), set(p.mask_row != 0, mask_rows);
    set(p.mask_column != 0, mask_columns);
    return k;
  }

  void run(RunContext& c) const {
    for (const bool of_values : {false, true})
      if (has_present[of_values]) write_present(c, of_values);
    const auto& state = c.packed<AttentionState>();
    const kernels::AttentionParams& p = params;
    if (p.q_heads == 0 || p.kv_heads == 0) return;
    vulkan::VulkanStream::FaultSite site;
    if ((flags & counts_keys) != 0)
      site = stream().fault_site(fmt::format("{}: nonpad_kv_seqlen has a length outside of [0, {}]", state.node, p.kv_length));
    Push push;
    push.pointer(c.out<void>(kY));
    for (const int input : {kQ, kK, kV, kPastKey, kPastValue, kMask, kValidLengths}) push.pointer(c.in<void>(input));
    push.pointer(reinterpret_cast<const void*>(site.address)).word(site.number);
    for (const int64_t size : {p.batch, p.q_heads << 16 | p.kv_heads, p.q_length, p.kv_length - p.past_length, p.past_length, p.head_size,
                               p.v_head_size, p.mask_length, int64_t{flags}, p.left_window, p.right_window})
      push.word(static_cast<uint32_t>(std::clamp<int64_t>(size, -1, UINT32_MAX)));
    push.word(static_cast<float>(p.scale)).word(static_cast<float>(p.softcap));
    const int64_t rows = p.q_heads / p.kv_heads * p.q_length;
    stream().dispatch(*state.shader, push.bytes(), groups_for(p.batch * p.kv_heads * ((rows + kAttentionLanes - 1) / kAttentionLanes)));
  }

 private:
  void write_present(RunContext& c, bool of_values) const {
    const kernels::AttentionParams& p = params;
    const int64_t size = of_values ? p.v_head_size : p.head_size, count = p.batch * p.kv_heads * p.kv_length * size;
    Push push;
    push.pointer(c.out<void>(of_values ? kPresentValue : kPresentKey)).pointer(c.in<void>(of_values ? kPastValue : kPastKey));
    push.pointer(c.in<void>(of_values ? kV : kK));
    for (const int64_t value : {count, p.kv_heads, p.past_length, p.kv_length - p.past_length, size, int64_t{flags & is_packed}})
      push.word(static_cast<uint32_t>(value));
    stream().dispatch(*c.packed<AttentionState>().cache, push.bytes(), groups_over(count32(count)));
  }
};

struct RotaryState final : PackedState {
  const vulkan::Shader* shader = nullptr;
  std::string node;  // for errors
};

struct Rotary {
  int64_t count, heads, tokens, size, turned, rows;
  bool has_ids, heads_first, interleaved;

  static Rotary bind(BindContext& c) {
    const Shape &x = c.shape(0), &table = c.shape(1);
    Rotary k{count32(x.num_elements()),    0, 0, 0, c.get_int("rotary_embedding_dim"), table[0], c.has_input(3), x.rank() == 4,
             c.get_int("interleaved") != 0};
    k.heads = k.heads_first ? x[1] : c.get_int("num_heads");
    if (k.heads < 1 || (!k.heads_first && x[2] % k.heads != 0))
      throw Error(ErrorCode::invalid_argument, fmt::format("{} features cannot be split into {} heads", x.back(), k.heads));
    k.tokens = x[k.heads_first ? 2 : 1], k.size = k.heads_first ? x[3] : x[2] / k.heads;
    if (k.turned == 0) k.turned = k.size;
    if (k.turned < 0 || k.turned > k.size || k.turned % 2 != 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} of {} features cannot be rotated in pairs", k.turned, k.size));
    if (!(table == c.shape(2)) || table.rank() != (k.has_ids ? 2 : 3))
      throw Error(ErrorCode::invalid_argument, fmt::format("cos_cache is {}, sin_cache {}; their rank has to be {}", to_string(table),
                                                           to_string(c.shape(2)), k.has_ids ? 2 : 3));
    ops::check_equal(table.back(), k.turned / 2, "the last extent of cos_cache, and half of the rotated features");
    if (k.has_ids)
      ops::check_equal(c.num_elements(3), x[0] * k.tokens, "elements of position_ids and tokens");
    else
      ops::check_equal(table[0] * table[1], x[0] * k.tokens, "rows of cos_cache and tokens");
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<RotaryState>();
    vulkan::VulkanStream::FaultSite site;
    if (has_ids) site = stream().fault_site(fmt::format("{}: position_ids has a number outside of [0, {})", state.node, rows));
    Push push;
    push.pointer(c.out<void>(0));
    for (const int input : {0, 1, 2, 3}) push.pointer(c.in<void>(input));
    push.pointer(reinterpret_cast<const void*>(site.address)).word(site.number);
    for (const int64_t value : {count, heads, tokens, size, turned, rows, int64_t{has_ids}, int64_t{heads_first}, int64_t{interleaved}})
      push.word(static_cast<uint32_t>(value));
    stream().dispatch(*state.shader, push.bytes(), groups_over(count32(count)));
  }
};

/// The features of a head, if the type tells; -1: it does not.
int64_t features_of_head(const Graph& graph, const Node& node, size_t input, std::string_view heads) {
  const SymbolicShape& shape = *graph.type(node.inputs[input]).shape;
  if (!shape.back().is_const()) return -1;
  const int64_t parts = shape.size() == 3 ? node.attributes.get_int(heads, 0) : 1;
  return parts < 1 ? -1 : shape.back().value() / parts;
}

}  // namespace

DeviceKernel find_attention(const Graph& graph, const Node& node) {
  static const KernelDef attention = kernel<Attention>("gpu"), rotary = kernel<Rotary>("gpu");
  if (!node.domain.empty()) return {};
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (node.op_type == "RotaryEmbedding") {
    auto state = std::make_shared<RotaryState>();
    state->shader = find_shader("rotary", dtype);
    state->node = describe(node);
    return state->shader ? DeviceKernel{&rotary, std::move(state)} : DeviceKernel();
  }
  if (node.op_type != "Attention" || node.has_output(kScores) || !node.has_input(kK) || !node.has_input(kV)) return {};
  for (const size_t input : {kK, kV, kPastKey, kPastValue})
    if (node.has_input(input) && graph.type(node.inputs[input]).dtype != dtype) return {};
  if (node.has_input(kMask) && graph.type(node.inputs[kMask]).dtype != dtype && graph.type(node.inputs[kMask]).dtype != DType::boolean)
    return {};
  const int64_t features = features_of_head(graph, node, kV, "kv_num_heads");
  if (features < 0 || features > kMostFeatures) return {};
  auto state = std::make_shared<AttentionState>();
  const uint32_t constants[] = {static_cast<uint32_t>(std::max<int64_t>((features + kAttentionLanes - 1) / kAttentionLanes, 1))};
  state->shader = find_shader("attention", dtype, constants);
  state->cache = find_shader("attention_cache", dtype);
  state->node = describe(node);
  return state->shader ? DeviceKernel{&attention, std::move(state)} : DeviceKernel();
}

}  // namespace treadle::gpu
