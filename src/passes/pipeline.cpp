#include "passes/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <iterator>
#include <span>

#include "core/allocation.h"
#include "core/load_phases.h"
#include "core/verify_switch.h"
#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "graph/patch.h"
#include "passes/captured_constants.h"
#include "passes/layout.h"
#include "passes/rules.h"
#include "passes/trace.h"
#include "passes/whole_graph.h"
#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::passes {
namespace {

/// Inputs of passes besides the graph.
struct PassContext {
  const PipelineOptions& options;
  FoldLimits fold_limits;
};

/// An entry of the pass list: a rule, or a function over the whole graph.
struct Pass {
  PassInfo info;
  std::unique_ptr<Rule> (*rule)() = nullptr;
  int64_t (*run)(Graph&, PassContext&, int64_t limit) = nullptr;
};

constexpr Pass entry(PassInfo info, std::unique_ptr<Rule> (*rule)()) { return {info, rule, nullptr}; }
constexpr Pass entry(PassInfo info, int64_t (*run)(Graph&, PassContext&, int64_t)) { return {info, nullptr, run}; }
/// A function over the whole graph that needs no context.
template <int64_t (*kPass)(Graph&, int64_t)>
constexpr Pass entry(PassInfo info) {
  return {info, nullptr, [](Graph& graph, PassContext&, int64_t limit) { return kPass(graph, limit); }};
}

/// A rule that produces patterns which other tools look for; runs only if patterns are kept.
template <std::unique_ptr<Rule> (*kRule)()>
constexpr Pass for_patterns(PassInfo info) {
  return {info, nullptr, [](Graph& graph, PassContext& context, int64_t limit) -> int64_t {
            if (!context.options.keep_patterns) return 0;
            std::unique_ptr<Rule> rules[] = {kRule()};
            return apply_rules(graph, rules, {.max_patches = limit, .num_visits = context.options.num_visits});
          }};
}

constexpr Level kBasic = Level::basic, kExtended = Level::extended, kLayout = Level::layout;
constexpr PassConditions kAlways{}, kHidesPatterns{.hides_patterns = true}, kNotBeforeAutodiff{.not_before_autodiff = true},
    kInMemory{.frozen_weights = true, .not_before_autodiff = true, .only_in_memory = true},
    kPacked{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true},
    kPackedFloat32{.packed_weights = true, .not_before_autodiff = true, .only_in_memory = true, .only_float32 = true};

// Runs in this order, for one or more rounds; later passes and the next round see the results of earlier ones. Constants come first, as
// rules check for them; dead nodes are removed last.
constexpr Pass kRounds[] = {
    entry<capture_loop_invariants>(
        {"capture-loop-invariants", kBasic, kAlways, "what a Loop carries but never changes is captured by its body"}),
    entry({"copy-captured-constants", kBasic, kAlways, "constants that a body captures become its own"},
          [](Graph& graph, PassContext&, int64_t) { return copy_captured_constants(graph); }),
    entry({"fold-shapes", kBasic, kAlways, "values that follow from constant extents become constants"},
          [](Graph& graph, PassContext& context, int64_t limit) { return fold_shapes(graph, limit, context.options.keep_patterns); }),
    entry({"fold-constants", kBasic, kAlways, "nodes with constant inputs are computed once"},
          [](Graph& graph, PassContext& context, int64_t limit) { return fold_constants(graph, context.fold_limits, limit); }),
    entry<inline_constant_if>({"inline-constant-if", kBasic, kAlways, "an If with a constant condition becomes the branch that it takes"}),
    entry({"compute-in-float32", kExtended, kInMemory,
           "16-bit floats -> float32 between Casts, constants converted once, outside of training"},
          [](Graph& graph, PassContext& context, int64_t limit) { return compute_in_float32(graph, context.fold_limits, limit); }),
    entry({"remove-identity", kBasic, kAlways, "Identity(x) -> x"}, remove_identity),
    entry({"remove-dropout", kBasic, kNotBeforeAutodiff, "Dropout(x) -> x outside of training"}, remove_dropout),
    entry({"remove-no-op", kBasic, kHidesPatterns, "Reshape, Cast, Slice, Pad, Transpose … that give back their input -> x"}, remove_no_op),
    entry({"remove-neutral-operand", kBasic, kAlways, "x * 1, x / 1, x - 0 … -> x"},
          [](Graph& graph, PassContext& context, int64_t limit) {
            std::unique_ptr<Rule> rules[] = {remove_neutral_operand(/*scalars_only=*/context.options.keep_patterns)};
            return apply_rules(graph, rules, {.max_patches = limit, .num_visits = context.options.num_visits});
          }),
    entry({"static-reshape", kBasic, kHidesPatterns, "Reshape to a computed shape -> Reshape to a constant with 0 and -1"}, static_reshape),
    for_patterns<remove_expand>({"remove-expand", kBasic, kAlways, "Expand to a constant that gives back its input -> x, in saved models"}),
    for_patterns<own_extents>(
        {"own-extents", kBasic, kAlways, "Reshape to extents of its own input -> Reshape to a constant with 0, in saved models"}),
    entry({"merge-views", kBasic, kHidesPatterns, "Reshape, Flatten, Squeeze, Unsqueeze of one another -> one Reshape"}, merge_views),
    entry({"merge-transposes", kBasic, kAlways, "Transpose(Transpose(x)) -> Transpose(x) or x"}, merge_transposes),
    entry({"merge-casts", kBasic, kAlways, "Cast(Cast(x)) -> Cast(x) or x, where the first loses nothing; Cast to the same dtype -> x"},
          merge_casts),
    entry({"merge-constant-operands", kBasic, kHidesPatterns, "(x * c1) * c2 -> x * c, where exact"}, merge_constant_operands),
    entry({"divide-to-multiply", kBasic, kHidesPatterns, "x / 2^k -> x * 2^-k"}, divide_to_multiply),
    for_patterns<merge_reciprocal>({"merge-reciprocal", kBasic, kAlways, "x * (1 / y) -> x / y, in saved models"}),
    entry({"stack-to-pairs", kExtended, kNotBeforeAutodiff, "ReduceMax(Concat(x, y)) along an axis that they lack -> Max(x, y)"},
          stack_to_pairs),
    entry({"absorb-pad", kBasic, kAlways, "Pad of zeros -> the pads of the convolution or pool that reads it"}, absorb_pad),
    entry({"batch-norm-into-conv",
           kBasic,
           {.packed_weights = true},
           "BatchNormalization(Conv(x)), Conv(x) * constant … -> Conv(x) with other weights, outside of training"},
          batch_norm_into_conv),
    entry({"fuse-gelu", kExtended, kAlways, "Gelu and Swish written out -> one operator"}, fuse_gelu),
    entry({"fuse-normalization", kExtended, kAlways, "LayerNormalization and RMSNormalization written out -> one operator"},
          fuse_normalization),
    entry({"fuse-attention", kExtended, kAlways, "products around a Softmax -> FusedAttention"}, fuse_attention),
    entry({"fuse-rotary", kExtended, kNotBeforeAutodiff, "rotary position embedding written out -> FusedRotary"}, fuse_rotary),
    entry({"fuse-quantized-matmul",
           kExtended,
           {.not_before_autodiff = true, .removes_quantisation = true},
           "products of dequantised operands -> QuantizedMatMul"},
          fuse_quantized_matmul),
    // The resulting QLinearConv needs the layout pass.
    entry({"fuse-quantized-conv", kLayout, kInMemory,
           "convolutions, pools, joins of dequantised bytes -> the same of bytes, outside of training"},
          fuse_quantized_conv),
    entry({"fuse-blocked-matmul",
           kExtended,
           {.frozen_weights = true, .not_before_autodiff = true, .removes_quantisation = true},
           "products with dequantised weights -> BlockedMatMul, outside of training"},
          fuse_blocked_matmul),
    // After fuse-blocked-matmul, as dequantized weights are usually transposed.
    entry({"absorb-transposes", kExtended, kAlways, "MatMul and Gemm of transposed matrices, and transposed Gemm -> Gemm"},
          absorb_transposes),
    entry({"rotary-layouts", kExtended, kNotBeforeAutodiff, "Transposes around FusedRotary -> its strides"}, rotary_layouts),
    entry({"attention-layouts", kExtended, kAlways, "Transposes around FusedAttention -> its strides"}, attention_layouts),
    entry<merge_constants>({"merge-constants", kBasic, kAlways, "small constants of equal contents become one"}),
    entry<merge_common_nodes>({"merge-common-nodes", kBasic, kAlways, "nodes that compute the same thing become one"}),
    entry<remove_dead_nodes>({"remove-dead", kBasic, kAlways, "nodes and captures that nothing reads go"}),
};
// The caller's pass for backends; not in the list, as it is not ours.
constexpr PassInfo kBackends{"backends", kBasic, kAlways, "subgraphs that backends compile -> Subgraph"};
// Runs once, after the rounds, because it removes operators that other rules look for.
constexpr Pass kFusions[] = {
    entry({"fuse-into-matmul",
           kExtended,
           {.packed_weights = true, .not_before_autodiff = true},
           "bias, residual and activation behind a product -> FusedMatMul, outside of training"},
          fuse_into_matmul),
};
// Runs once, last of all, because its operators exist in memory only.
constexpr Pass kAssignLayout =
    entry({"assign-layout",
           kLayout,
           {.not_before_autodiff = true, .only_in_memory = true},
           "convolutions, their gradients, and what lies between them, channels innermost"},
          [](Graph& graph, PassContext& context, int64_t limit) { return assign_layout(graph, limit, context.options.weights_change); });
constexpr Pass kAfterLayout[] = {
    entry<fuse_conv>({"fuse-conv", kLayout, kPacked, "NhwcConv + Add + activation -> NhwcConv"}),
    entry<fuse_scale>({"fuse-scale", kLayout, kPacked, "channels' scaling and the pointwise NhwcConv behind it -> NhwcScaledPointwise"}),
    entry<read_planes>({"read-planes", kLayout, kPackedFloat32, "a NhwcConv of few channels reads the model's input with channels second"}),
    entry<fuse_depthwise>({"fuse-depthwise", kLayout, kPackedFloat32,
                           "a pointwise NhwcConv, or one of a few channels, and the depthwise one that reads it -> NhwcConvDepthwise"}),
};
constexpr Pass kLast[] = {
    entry<merge_movements>(
        {"merge-movements", kExtended, kNotBeforeAutodiff, "Transposes with nothing but views between them -> one Transpose"}),
    entry<split_inputs>({"split-inputs", kExtended, kNotBeforeAutodiff, "Gathers that take an input apart along its first axis -> Split"}),
    entry({"fuse-elementwise", kExtended, kNotBeforeAutodiff, "pointwise operators behind one another -> FusedElementwise"},
          [](Graph& graph, PassContext& context, int64_t limit) {
            return fuse_elementwise(graph, limit, context.fold_limits.keep_quantisation);
          }),
    entry<fuse_chain_into_reader>({"fuse-chain-into-reader",
                                   kLayout,
                                   {.not_before_autodiff = true, .only_in_memory = true},
                                   "FusedElementwise and the operator that computes such a chain on its way in -> that operator"}),
    entry({"assign-precision",
           kExtended,
           {.not_before_autodiff = true, .only_in_memory = true},
           "products and convolutions to be computed in less than float32, where the session asks"},
          [](Graph& graph, PassContext& context, int64_t limit) {
            return assign_precision(graph, context.options.precision, limit, context.options.weights_change);
          }),
    entry({"assign-conv-choice",
           kLayout,
           {.not_before_autodiff = true, .only_in_memory = true},
           "which ways convolutions may go, where the session says"},
          [](Graph& graph, PassContext& context, int64_t limit) {
            return context.options.conv_choice.empty() ? 0 : assign_conv_choice(graph, context.options.conv_choice, limit);
          }),
};

std::atomic<bool>& verifies_all() {
  static std::atomic<bool> on = verifies_by_default("TREADLE_VERIFY_PASSES");
  return on;
}

class Pipeline {
 public:
  Pipeline(Graph& graph, const PipelineOptions& options)
      : graph_(graph),
        context_{options, FoldLimits::of(graph)},
        left_(options.max_patches),
        verifies_(options.verify || verifies_passes()) {
    settled_at_.fill(-1);
    context_.fold_limits.max_bytes_each = options.max_folded_bytes;
    context_.fold_limits.keep_quantisation = true;
  }

  void run() {
    // Two rounds settle nearly every model; a sixth would not be worth its load time. Weights stay quantized until the rules have seen
    // them.
    constexpr int kMaxRounds = 5;
    const PipelineOptions& options = context_.options;
    for (int round = 0; round < kMaxRounds && left_ > 0; ++round) {
      int64_t before = left_;
      apply_round();
      const bool has_folded_weights = context_.fold_limits.keep_quantisation == options.keep_quantisation;
      if (left_ == before && has_folded_weights) break;
      if (!has_folded_weights) set_keep_quantisation(options.keep_quantisation);
      // Values that became constants tell more about the shapes of their readers.
      infer_again();
    }
    if (options.before_fusion && left_ > 0) timed(kBackends, [&] { return options.before_fusion(graph_, left_); });
    apply(kFusions);
    settle_layout();
    apply(kLast);
    release_unused_constants(graph_);
  }

 private:
  void settle_layout() {
    const int64_t before = left_;
    apply(kAssignLayout);
    if (left_ == before) return;
    // New Transposes meet the model's own ones, and computed axes have become constants.
    apply_round();
    apply(kAfterLayout);
    infer_again();
  }

  // A pass that found nothing to change is skipped until the graph changes.
  void apply_round() {
    for (size_t i = 0; i < std::size(kRounds); ++i) {
      if (settled_at_[i] == version_) continue;
      apply(kRounds[i]);
      settled_at_[i] = found_nothing_ ? version_ : -1;
    }
  }

  // Only whole-graph passes depend on the fold limits, so only they must run again.
  void set_keep_quantisation(bool keep) {
    context_.fold_limits.keep_quantisation = keep;
    for (size_t i = 0; i < std::size(kRounds); ++i)
      if (kRounds[i].run) settled_at_[i] = -1;
  }

  void infer_again() {
    if (inferred_at_ == version_) return;
    const LoadPhases::Phase phase("inference");
    version_ += infer(graph_, {.warn = context_.options.warn}) ? 1 : 0;
    inferred_at_ = version_;
  }

  bool is_active(const PassInfo& info) const {
    const PipelineOptions& options = context_.options;
    const PassConditions& conditions = info.conditions;
    if (info.level > options.level) return false;
    if (options.weights_change && conditions.frozen_weights) return false;
    if (options.weights_change && conditions.packed_weights && !options.weights_packed) return false;
    if (options.before_autodiff && conditions.not_before_autodiff) return false;
    if (options.for_file && conditions.only_in_memory) return false;
    if (options.keep_patterns && (info.level > kBasic || conditions.hides_patterns)) return false;
    if (options.keep_quantisation && conditions.removes_quantisation) return false;
    if (!options.precision.empty() && conditions.only_float32) return false;
    return left_ > 0 && std::find(options.skip.begin(), options.skip.end(), info.name) == options.skip.end();
  }

  void apply(std::span<const Pass> passes) {
    for (const Pass& pass : passes) apply(pass);
  }
  void apply(const Pass& pass) {
    found_nothing_ = true;
    if (!is_active(pass.info)) return;
    timed(pass.info, [&] {
      if (pass.run) return pass.run(graph_, context_, left_);
      std::unique_ptr<Rule> rules[] = {pass.rule()};
      return apply_rules(graph_, rules, rule_options());
    });
  }

  PatchOptions rule_options() const { return {.max_patches = left_, .num_visits = context_.options.num_visits}; }

  template <typename Fn>
  void timed(const PassInfo& info, Fn&& fn) {
    size_t nodes = graph_.num_nodes();
    PassTrace* trace = PassTrace::current();
    if (trace) trace->begin(info.name, graph_);
    const std::string before = verifies_ ? print(graph_) : "";
    const bool is_told = trace || context_.options.log;
    const auto now = [&] { return is_told ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point(); };
    const auto start = now();
    int64_t count = 0;
    const size_t allocated_bytes = AllocationScope::allocated_bytes();
    try {
      const LoadPhases::Phase phase(info.name);
      count = fn();
    } catch (OutOfMemory& error) {
      error.add_context(fmt::format("while the pass {} ran", info.name));
      error.set_remedy(fmt::format("with disabled_passes={}, the {} bytes are not made that it has allocated so far", info.name,
                                   AllocationScope::allocated_bytes() - allocated_bytes));
      throw;
    }
    const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(now() - start);
    left_ -= std::min(left_, count);
    version_ += count > 0 ? 1 : 0;
    found_nothing_ = count == 0;
    if (trace) trace->end(graph_, count, elapsed.count());
    if (verifies_) check(info, count, before);
    if (count > 0 && context_.options.log)
      context_.options.log(info.name, fmt::format("{} changes, {} -> {} nodes", count, nodes, graph_.num_nodes()), elapsed.count());
  }

  void check(const PassInfo& info, int64_t count, const std::string& before) const {
    try {
      verify(graph_);
    } catch (Error& error) {
      error.add_context(fmt::format("after the pass {}", info.name));
      throw;
    }
    if (count == 0 && print(graph_) != before)
      throw Error(ErrorCode::internal, fmt::format("{} counts no change, and made one", info.name));
  }

  Graph& graph_;
  PassContext context_;
  int64_t left_;
  const bool verifies_;
  int64_t version_ = 0;                                 // version of the graph, incremented by each change
  std::array<int64_t, std::size(kRounds)> settled_at_;  // version at which the pass found nothing to change
  int64_t inferred_at_ = -1;
  bool found_nothing_ = false;  // by the last pass
};

}  // namespace

bool verifies_passes() { return verifies_all(); }
void set_verifies_passes(bool on) { verifies_all() = on; }

void canonicalise(Graph& graph) {
  if (copy_captured_constants(graph) > 0) infer(graph);
}

void optimize(Graph& graph, const PipelineOptions& options) {
  canonicalise(graph);
  Pipeline(graph, options).run();
  canonicalise(graph);
}

std::vector<PassInfo> list_passes() {
  std::vector<PassInfo> list;
  for (std::span<const Pass> passes :
       {std::span<const Pass>(kRounds), std::span<const Pass>(kFusions), std::span<const Pass>(&kAssignLayout, 1),
        std::span<const Pass>(kAfterLayout), std::span<const Pass>(kLast)})
    for (const Pass& pass : passes) list.push_back(pass.info);
  return list;
}

}  // namespace treadle::passes
