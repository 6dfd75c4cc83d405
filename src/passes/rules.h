// The rewrite rules, one file each. Each file begins with its rule and the conditions under which it is exact.
#pragma once

#include <memory>

#include "graph/patch.h"

namespace treadle::passes {

std::unique_ptr<Rule> absorb_pad();
std::unique_ptr<Rule> absorb_transposes();
std::unique_ptr<Rule> remove_identity();
std::unique_ptr<Rule> remove_dropout();
std::unique_ptr<Rule> remove_no_op();
std::unique_ptr<Rule> remove_expand();
std::unique_ptr<Rule> remove_neutral_operand(bool scalars_only = false);
std::unique_ptr<Rule> merge_views();
std::unique_ptr<Rule> merge_transposes();
std::unique_ptr<Rule> merge_casts();
std::unique_ptr<Rule> merge_constant_operands();
std::unique_ptr<Rule> divide_to_multiply();
std::unique_ptr<Rule> stack_to_pairs();
std::unique_ptr<Rule> static_reshape();
std::unique_ptr<Rule> own_extents();
std::unique_ptr<Rule> merge_reciprocal();
std::unique_ptr<Rule> batch_norm_into_conv();
std::unique_ptr<Rule> fuse_gelu();
std::unique_ptr<Rule> fuse_normalization();
std::unique_ptr<Rule> fuse_attention();
std::unique_ptr<Rule> attention_layouts();
std::unique_ptr<Rule> fuse_rotary();
std::unique_ptr<Rule> rotary_layouts();
std::unique_ptr<Rule> fuse_into_matmul();
std::unique_ptr<Rule> fuse_quantized_matmul();
std::unique_ptr<Rule> fuse_quantized_conv();
std::unique_ptr<Rule> fuse_blocked_matmul();

}  // namespace treadle::passes
