// Computes the operators on key and value caches in which each sample has its own length: positions in such caches, and their updates.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "gpu/launch.h"
#include "gpu/shaders.h"
#include "ops/microsoft/attention_cache.h"
#include "ops/tensor/movement.h"

namespace treadle::gpu {
namespace {

struct CacheState final : FaultState {
  const vulkan::Shader *shader = nullptr, *present = nullptr;
  int64_t word_bytes = 4;
};

void push_site(Push& push, const vulkan::VulkanStream::FaultSite& site) { push.fault(site).word(site.number); }
/// Returns the number of words in a cache row. Shaders count in words of 1, 2 or 4 bytes.
template <typename Plan>
int64_t words_of_row(const Plan& plan, const CacheState& state) {
  return plan.size * (static_cast<int64_t>(plan.element) / state.word_bytes);
}

/// `rows` are the numbers of rows per head in the buffers. @throws Error(not_implemented) if a buffer has more words than shaders can count
template <typename Plan>
void check_words(const Plan& plan, const CacheState& state, std::initializer_list<int64_t> rows) {
  for (const int64_t rows_of_head : rows) count32(plan.batch * plan.heads * rows_of_head * words_of_row(plan, state));
}

struct Positions {
  int64_t batch, tokens, rows, window;
  bool causal;

  static Positions bind(BindContext& c) {
    if (c.node().op_type == "CachePositions") {
      const auto plan = ops::CachePositionsPlan::bind(c);
      return checked({plan.batch, plan.length, plan.past, 0, plan.causal});
    }
    const auto plan = ops::WindowPositionsPlan::bind(c);
    return checked({plan.batch, plan.length, plan.capacity, plan.window, true});
  }
  void run(RunContext& c) const {
    using Plan = ops::WindowPositionsPlan;  // also for CachePositions, whose inputs are the same
    Push push;
    for (const int output : {0, 1, 2, 3, 4}) push.pointer(c.out<void>(output));
    for (const int input : {Plan::kLengths, Plan::kTotal, Plan::kPositions, Plan::kCounts}) push.pointer(c.in<void>(input));
    push_site(push, c.packed<CacheState>().fault(
                        fmt::format("seqlens_k, total_sequence_length or query_seqlens do not fit {} new tokens of each of {} samples, "
                                    "and a cache of {} rows",
                                    tokens, batch, rows)));
    int64_t outputs = 0;
    for (const int output : {0, 1, 2, 3, 4}) outputs |= int64_t{c.out<void>(output) != nullptr} << output;
    push_sizes(push, {batch, tokens, rows, window, c.in<void>(Plan::kPositions) != nullptr, c.in<void>(Plan::kCounts) != nullptr, causal,
                      outputs});
    stream().dispatch(*c.packed<CacheState>().shader, push.bytes(), groups_over(count32(batch * std::max<int64_t>(tokens, 1))));
  }

 private:
  static Positions checked(const Positions& k) {
    count32(k.batch * k.tokens), count32(k.rows);
    return k;
  }
};

struct UpdateCache {
  ops::UpdateCachePlan plan;

  static UpdateCache bind(BindContext& c) {
    const UpdateCache k{ops::UpdateCachePlan::bind(c)};
    check_words(k.plan, c.packed<CacheState>(), {k.plan.added, k.plan.past, k.plan.length});
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<CacheState>();
    const bool in_place = c.out<void>(0) == c.in<void>(3);
    const int64_t words = words_of_row(plan, state);
    const uint32_t count = count32(plan.batch * plan.heads * (in_place ? plan.added : plan.length) * words);
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(3)).pointer(c.in<void>(1)).pointer(c.in<void>(4));
    push_site(push, c.packed<CacheState>().fault(fmt::format(
                        "write_indices or counts are outside of a cache of {} rows, of which {} are there", plan.length, plan.past)));
    push_sizes(push, {count, plan.heads, words, plan.added, plan.past, plan.length, c.in<void>(4) != nullptr, in_place});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count));
  }
};

struct GatherBeams {
  ops::GatherBeamsPlan plan;

  static GatherBeams bind(BindContext& c) {
    const GatherBeams k{ops::GatherBeamsPlan::bind(c)};
    count32(k.plan.planes * k.plan.length * words_of_row(k.plan, c.packed<CacheState>()));
    count32(c.num_elements(1));
    return k;
  }
  void run(RunContext& c) const {
    const auto& state = c.packed<CacheState>();
    const int64_t words = words_of_row(plan, state);
    const uint32_t count = count32(plan.planes * plan.length * words);
    Push push;
    push.pointer(c.out<void>(0)).pointer(c.in<void>(0)).pointer(c.in<void>(1)).pointer(c.in<void>(2));
    push_site(push, c.packed<CacheState>().fault(
                        fmt::format("cache_indirection names one of {} beams for each of {} keys; a beam or the past's length is outside",
                                    plan.beams, plan.columns)));
    push_sizes(push, {count, plan.heads, plan.length, words, plan.beams, plan.columns});
    stream().dispatch(*state.shader, push.bytes(), groups_over(count));
  }
};

/// The rows that stay in the cache are copied from the output `keys`. Copying them within the past would let source and target overlap.
struct UpdateWindow {
  ops::UpdateWindowPlan plan;

  static UpdateWindow bind(BindContext& c) {
    const UpdateWindow k{ops::UpdateWindowPlan::bind(c)};
    check_words(k.plan, c.packed<CacheState>(), {k.plan.added, k.plan.capacity, k.plan.length});
    return k;
  }
  void run(RunContext& c) const {
    using Plan = ops::UpdateWindowPlan;
    const auto& state = c.packed<CacheState>();
    const int64_t words = words_of_row(plan, state);
    const vulkan::VulkanStream::FaultSite site = c.packed<CacheState>().fault(
        fmt::format("first, rows, kept or counts are outside of a cache of {} rows and its keys of {}", plan.capacity, plan.length));
    for (const bool present : {false, true}) {
      const uint32_t count = count32(plan.batch * plan.heads * (present ? plan.capacity : plan.length) * words);
      Push push;
      push.pointer(c.out<void>(Plan::kPresent)).pointer(c.out<void>(Plan::kKeys));
      for (const int input : {Plan::kUpdate, Plan::kPast, Plan::kFirst, Plan::kRows, Plan::kKept, Plan::kCounts})
        push.pointer(c.in<void>(input));
      push_site(push, site);
      push_sizes(push, {count, plan.heads, words, plan.added, plan.capacity, plan.length, c.in<void>(Plan::kCounts) != nullptr,
                        c.out<void>(Plan::kPresent) == c.in<void>(Plan::kPast)});
      stream().dispatch(present ? *state.present : *state.shader, push.bytes(), groups_over(count));
    }
  }
};

}  // namespace

DeviceKernel find_cache(const Graph& graph, const Node& node) {
  static const KernelDef positions = kernel<Positions>("gpu"), cache = kernel<UpdateCache>("gpu"), beams = kernel<GatherBeams>("gpu"),
                         window = kernel<UpdateWindow>("gpu");
  if (node.domain != "treadle") return {};
  const uint32_t no[] = {0}, yes[] = {1};
  auto state = std::make_shared<CacheState>();
  state->node = describe(node);
  if (node.op_type == "CachePositions" || node.op_type == "WindowPositions") {
    state->shader = find_moving_shader("cache_positions", 4, node.op_type == "WindowPositions" ? yes : no);
    return {&positions, std::move(state)};
  }
  const DType dtype = graph.type(node.inputs[0]).dtype;
  if (!ops::has_plain_bytes(dtype)) return {};
  state->word_bytes = std::min<int64_t>(ops::element_bytes(dtype), 4);
  const auto word = static_cast<size_t>(state->word_bytes);
  if (node.op_type == "UpdateCache") {
    state->shader = find_moving_shader("update_cache", word);
    return {&cache, std::move(state)};
  }
  if (node.op_type == "GatherBeams") {
    state->shader = find_moving_shader("gather_beams", word);
    return {&beams, std::move(state)};
  }
  if (node.op_type != "UpdateWindow" || !node.has_output(1)) return {};
  state->shader = find_moving_shader("update_window", word, no);
  state->present = find_moving_shader("update_window", word, yes);
  return {&window, std::move(state)};
}

}  // namespace treadle::gpu
