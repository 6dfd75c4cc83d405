// Lists every pass of the graph optimizer, one per line: PASS(function). The file of the pass defines the function. Within a stage, passes
// run in this order.
#pragma once

#include "passes/pass.h"

namespace treadle::passes {

// Passes that are repeated in rounds until nothing changes. Passes that make constants come first, because rules examine constants. Passes
// that remove nodes come last.
#define TREADLE_PASSES_ROUNDS(PASS)                                                     \
  PASS(capture_loop_invariants)                                                         \
  PASS(copy_captured_constants)                                                         \
  PASS(fold_shapes)                                                                     \
  PASS(fold_constants)                                                                  \
  PASS(inline_constant_if)                                                              \
  PASS(compute_in_float32)                                                              \
  PASS(remove_identity)                                                                 \
  PASS(remove_dropout)                                                                  \
  PASS(remove_no_op)                                                                    \
  PASS(remove_neutral_operand)                                                          \
  PASS(static_reshape)                                                                  \
  PASS(remove_expand)                                                                   \
  PASS(own_extents)                                                                     \
  PASS(merge_views)                                                                     \
  PASS(merge_transposes)                                                                \
  PASS(merge_casts)                                                                     \
  PASS(merge_constant_operands)                                                         \
  PASS(divide_to_multiply)                                                              \
  PASS(merge_reciprocal)                                                                \
  PASS(stack_to_pairs)                                                                  \
  PASS(absorb_pad)                                                                      \
  PASS(batch_norm_into_conv)                                                            \
  PASS(fuse_gelu)                                                                       \
  PASS(fuse_normalization)                                                              \
  PASS(fuse_attention)                                                                  \
  PASS(fuse_rotary)                                                                     \
  PASS(fuse_quantized_matmul)                                                           \
  PASS(fuse_quantized_conv) /* its QLinearConv is for the layout pass */                \
  PASS(fuse_quantized_conv_transpose)                                                   \
  PASS(fuse_quantized_rows)                                                             \
  PASS(fuse_blocked_matmul)                                                             \
  PASS(absorb_transposes) /* behind it: dequantised weights are transposed as a rule */ \
  PASS(rotary_layouts)                                                                  \
  PASS(attention_layouts)                                                               \
  PASS(merge_constants)                                                                 \
  PASS(merge_common_nodes)                                                              \
  PASS(remove_dead)
// Passes that run once, when the rounds above find nothing more to change. They remove operators for which other rules look.
#define TREADLE_PASSES_FUSIONS(PASS) PASS(fuse_into_matmul)
// Passes that run once, after all others. Their operators exist only in memory and are not written to files.
#define TREADLE_PASSES_LAYOUT(PASS) PASS(assign_layout)
#define TREADLE_PASSES_AFTER_LAYOUT(PASS) \
  PASS(fuse_conv)                         \
  PASS(fuse_scale)                        \
  PASS(read_planes)                       \
  PASS(fuse_depthwise)
#define TREADLE_PASSES_LAST(PASS) \
  PASS(fuse_quantized_sums)       \
  PASS(merge_movements)           \
  PASS(split_inputs)              \
  PASS(fuse_elementwise)          \
  PASS(fuse_epilogue)             \
  PASS(fuse_chain_into_reader)    \
  PASS(assign_precision)          \
  PASS(assign_conv_choice)

#define TREADLE_DECLARE_PASS(pass) Pass pass();
TREADLE_PASSES_ROUNDS(TREADLE_DECLARE_PASS)
TREADLE_PASSES_FUSIONS(TREADLE_DECLARE_PASS)
TREADLE_PASSES_LAYOUT(TREADLE_DECLARE_PASS)
TREADLE_PASSES_AFTER_LAYOUT(TREADLE_DECLARE_PASS)
TREADLE_PASSES_LAST(TREADLE_DECLARE_PASS)
#undef TREADLE_DECLARE_PASS

}  // namespace treadle::passes
