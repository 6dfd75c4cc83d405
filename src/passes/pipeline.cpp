#include "passes/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "graph/infer.h"
#include "graph/patch.h"
#include "passes/captured_constants.h"
#include "passes/layout.h"
#include "passes/rules.h"
#include "passes/whole_graph.h"

namespace treadle::passes {
namespace {

struct WholeGraphPass {
  PassInfo info;
  int64_t (*run)(Graph&, FoldBudget&, int64_t limit);
};
struct RulePass {
  PassInfo info;
  std::unique_ptr<Rule> (*make)();
};

constexpr std::string_view kComputeInFloat32 = "compute-in-float32", kFuseDepthwise = "fuse-depthwise", kReadPlanes = "read-planes";

// In this order, once or more per optimisation: what a pass makes, the later ones and the next round see. Constants first, because the
// rules look at them; removal last.
constexpr WholeGraphPass kBefore[] = {
    {{"capture-loop-invariants", "what a Loop carries but never changes is captured by its body", false},
     [](Graph& graph, FoldBudget&, int64_t limit) { return capture_loop_invariants(graph, limit); }},
    {{"copy-captured-constants", "constants that a body captures become its own", false},
     [](Graph& graph, FoldBudget&, int64_t) { return copy_captured_constants(graph); }},
    {{"fold-shapes", "values that follow from constant extents become constants", false},
     [](Graph& graph, FoldBudget&, int64_t limit) { return fold_shapes(graph, limit); }},
    {{"fold-constants", "nodes with constant inputs are computed once", false}, fold_constants},
    {{"inline-constant-if", "an If with a constant condition becomes the branch that it takes", false},
     [](Graph& graph, FoldBudget&, int64_t limit) { return inline_constant_if(graph, limit); }},
    {{kComputeInFloat32, "16-bit floats -> float32 between Casts, constants converted once, outside of training", true},
     [](Graph& graph, FoldBudget& budget, int64_t limit) { return compute_in_float32(graph, budget, limit); }},
};
// Takes DequantizeLinear away, which other runtimes look for.
constexpr std::string_view kQuantizedMatMul = "fuse-quantized-matmul", kQuantizedConv = "fuse-quantized-conv",
                           kBlockedMatMul = "fuse-blocked-matmul";
constexpr RulePass kRules[] = {
    {{"remove-identity", "Identity(x) -> x", false}, remove_identity},
    {{"remove-dropout", "Dropout(x) -> x outside of training", true}, remove_dropout},
    {{"remove-no-op", "Reshape, Cast, Slice, Pad, Transpose … that give back their input -> x", false}, remove_no_op},
    {{"remove-neutral-operand", "x * 1, x / 1, x - 0 … -> x", false}, remove_neutral_operand},
    {{"static-reshape", "Reshape to a computed shape -> Reshape to a constant with 0 and -1", false}, static_reshape},
    {{"merge-views", "Reshape, Flatten, Squeeze, Unsqueeze of one another -> one Reshape", false}, merge_views},
    {{"merge-transposes", "Transpose(Transpose(x)) -> Transpose(x) or x", false}, merge_transposes},
    {{"merge-casts", "Cast(Cast(x)) -> Cast(x) or x, where the first loses nothing", false}, merge_casts},
    {{"merge-constant-operands", "(x * c1) * c2 -> x * c, where exact", false}, merge_constant_operands},
    {{"divide-to-multiply", "x / 2^k -> x * 2^-k", false}, divide_to_multiply},
    {{"stack-to-pairs", "ReduceMax(Concat(x, y)) along an axis that they lack -> Max(x, y), outside of training", true}, stack_to_pairs},
    {{"absorb-pad", "Pad of zeros -> the pads of the convolution or pool that reads it", false}, absorb_pad},
    {{"batch-norm-into-conv", "BatchNormalization(Conv(x)), Conv(x) * constant … -> Conv(x) with other weights, outside of training", true},
     batch_norm_into_conv},
    {{"fuse-gelu", "Gelu and Swish written out -> one operator, outside of training", true}, fuse_gelu},
    {{"fuse-normalization", "LayerNormalization and RMSNormalization written out -> one operator, outside of training", true},
     fuse_normalization},
    {{"fuse-attention", "products around a Softmax -> FusedAttention, outside of training", true}, fuse_attention},
    {{"fuse-rotary", "rotary position embedding written out -> FusedRotary, outside of training", true}, fuse_rotary},
    {{kQuantizedMatMul, "products of dequantised operands -> QuantizedMatMul, outside of training", true}, fuse_quantized_matmul},
    {{kQuantizedConv, "convolutions, pools, joins of dequantised bytes -> the same of bytes, outside of training", true},
     fuse_quantized_conv},
    {{kBlockedMatMul, "products with dequantised weights -> BlockedMatMul, outside of training", true}, fuse_blocked_matmul},
    {{"rotary-layouts", "Transposes around FusedRotary -> its strides", true}, rotary_layouts},
    {{"attention-layouts", "Transposes around FusedAttention -> its strides", true}, attention_layouts},
};
// Once, when the rounds above have settled: these take operators away that other rules look for.
constexpr RulePass kFusions[] = {
    {{"fuse-into-matmul", "bias, residual and activation behind a product -> FusedMatMul, outside of training", true}, fuse_into_matmul},
};
constexpr WholeGraphPass kAfter[] = {
    {{"merge-common-nodes", "nodes that compute the same thing become one", false},
     [](Graph& graph, FoldBudget&, int64_t limit) { return merge_common_nodes(graph, limit); }},
    {{"remove-dead", "nodes and captures that nothing reads go", false},
     [](Graph& graph, FoldBudget&, int64_t limit) { return remove_dead(graph, limit); }},
};

// Once, when all else is settled: their operators exist in memory only.
constexpr WholeGraphPass kAssignLayout = {{"assign-layout", "convolutions and what lies between them, channels innermost", true},
                                          [](Graph& graph, FoldBudget&, int64_t limit) { return assign_layout(graph, limit); }};
constexpr WholeGraphPass kAfterLayout[] = {
    {{"fuse-conv", "NhwcConv + Add + activation -> NhwcConv", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return fuse_conv(graph, limit); }},
    {{"fuse-scale", "channels' scaling and the pointwise NhwcConv behind it -> NhwcScaledPointwise", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return fuse_scale(graph, limit); }},
    {{kReadPlanes, "a NhwcConv of few channels reads the model's input with channels second", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return read_planes(graph, limit); }},
    {{kFuseDepthwise, "a pointwise NhwcConv, or one of a few channels, and the depthwise one that reads it -> NhwcConvDepthwise", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return fuse_depthwise(graph, limit); }},
};
constexpr WholeGraphPass kLast[] = {
    {{"merge-movements", "Transposes with nothing but views between them -> one Transpose, outside of training", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return merge_movements(graph, limit); }},
    {{"split-inputs", "Gathers that take an input apart along its first axis -> Split, outside of training", true},
     [](Graph& graph, FoldBudget&, int64_t limit) { return split_inputs(graph, limit); }},
    {{"fuse-elementwise", "pointwise operators behind one another -> FusedElementwise, outside of training", true},
     [](Graph& graph, FoldBudget& budget, int64_t limit) { return fuse_elementwise(graph, limit, budget.keep_quantisation); }},
};

constexpr PassInfo kAssignPrecision{"assign-precision",
                                    "products and convolutions to be computed in less than float32, where the session asks", true};

constexpr PassInfo kAssignConvChoice{"assign-conv-choice", "which ways convolutions may go, where the session says", true};

class Pipeline {
 public:
  Pipeline(Graph& graph, const PipelineOptions& options) : graph_(graph), options_(options), left_(options.max_patches) {
    budget_.max_bytes_each = options.max_folded_bytes;
    budget_.keep_quantisation = true;
  }

  void run() {
    // Two rounds settle nearly every model; what a sixth one would find is not worth the load time. Weights stay quantised until the rules
    // have seen them so.
    constexpr int kMaxRounds = 5;
    for (int round = 0; round < kMaxRounds && left_ > 0; ++round) {
      int64_t before = left_;
      for (const WholeGraphPass& pass : kBefore) apply(pass);
      for (const RulePass& pass : kRules) apply(pass);
      for (const WholeGraphPass& pass : kAfter) apply(pass);
      const bool has_folded_weights = budget_.keep_quantisation == options_.keep_quantisation;
      budget_.keep_quantisation = options_.keep_quantisation;
      if (left_ == before && has_folded_weights) break;
      // Constants that were computed values say more about what reads them.
      infer(graph_, {.warn = options_.warn});
    }
    if (options_.before_fusion) options_.before_fusion(graph_);
    for (const RulePass& pass : kFusions) apply(pass);
    if (options_.layout) settle_layout();
    for (const WholeGraphPass& pass : kLast) apply(pass);
    if ((options_.layout || !options_.precision.empty()) && is_active(kAssignPrecision))
      timed(kAssignPrecision, [&] { return assign_precision(graph_, options_.precision, left_); });
    if (!options_.conv_choice.empty() && is_active(kAssignConvChoice))
      timed(kAssignConvChoice, [&] { return assign_conv_choice(graph_, options_.conv_choice, left_); });
    release_unused_constants(graph_);
  }

 private:
  void settle_layout() {
    const int64_t before = left_;
    apply(kAssignLayout);
    if (left_ == before) return;
    // Transposes meet those of the model, and axes that are computed have become constants.
    for (const WholeGraphPass& pass : kBefore) apply(pass);
    for (const RulePass& pass : kRules) apply(pass);
    for (const WholeGraphPass& pass : kAfter) apply(pass);
    for (const WholeGraphPass& pass : kAfterLayout) apply(pass);
    infer(graph_, {.warn = options_.warn});
  }

  bool is_active(const PassInfo& info) const {
    if (info.inference_only && options_.training) return false;
    if (options_.keep_quantisation && (info.name == kQuantizedMatMul || info.name == kBlockedMatMul)) return false;
    if (!options_.layout && info.name == kQuantizedConv) return false;  // its QLinearConv is for the layout pass
    if (!options_.widen && info.name == kComputeInFloat32) return false;
    if (!options_.precision.empty() && (info.name == kFuseDepthwise || info.name == kReadPlanes)) return false;  // in float32 only
    return left_ > 0 && std::find(options_.skip.begin(), options_.skip.end(), info.name) == options_.skip.end();
  }

  void apply(const WholeGraphPass& pass) {
    if (is_active(pass.info)) timed(pass.info, [&] { return pass.run(graph_, budget_, left_); });
  }

  void apply(const RulePass& pass) {
    if (!is_active(pass.info)) return;
    std::unique_ptr<Rule> rules[] = {pass.make()};
    timed(pass.info, [&] { return apply_rules(graph_, rules, rule_options()); });
  }

  PatchOptions rule_options() const { return {.training = options_.training, .max_patches = left_, .num_visits = options_.num_visits}; }

  template <typename Fn>
  void timed(const PassInfo& info, Fn&& fn) {
    size_t nodes = graph_.num_nodes();
    auto start = std::chrono::steady_clock::now();
    int64_t count = fn();
    auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    left_ -= std::min(left_, count);
    if (options_.verify) verify(graph_);
    if (count > 0 && options_.log)
      options_.log(info.name, fmt::format("{} changes, {} -> {} nodes", count, nodes, graph_.num_nodes()), elapsed.count());
  }

  Graph& graph_;
  const PipelineOptions& options_;
  FoldBudget budget_;
  int64_t left_;
};

}  // namespace

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
  for (const WholeGraphPass& pass : kBefore) list.push_back(pass.info);
  for (const RulePass& pass : kRules) list.push_back(pass.info);
  for (const WholeGraphPass& pass : kAfter) list.push_back(pass.info);
  for (const RulePass& pass : kFusions) list.push_back(pass.info);
  list.push_back(kAssignLayout.info);
  for (const WholeGraphPass& pass : kAfterLayout) list.push_back(pass.info);
  for (const WholeGraphPass& pass : kLast) list.push_back(pass.info);
  list.push_back(kAssignPrecision);
  list.push_back(kAssignConvChoice);
  return list;
}

}  // namespace treadle::passes
