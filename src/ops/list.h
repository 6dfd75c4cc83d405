// The families of operators. Each family is defined in one file of this folder.
#pragma once

#include <vector>

#include "graph/op_def.h"

namespace treadle::ops {

using Family = std::vector<OpDef> (*)();

std::vector<OpDef> activation_ops();
std::vector<OpDef> arg_min_max_ops();
std::vector<OpDef> attention_ops();
std::vector<OpDef> batch_normalization_ops();
std::vector<OpDef> bitwise_ops();
std::vector<OpDef> blocked_matmul_ops();
std::vector<OpDef> broadcast_gradient_ops();
std::vector<OpDef> cache_ops();
std::vector<OpDef> cast_ops();
std::vector<OpDef> comparison_ops();
std::vector<OpDef> col2im_ops();
std::vector<OpDef> concat_ops();
std::vector<OpDef> constant_ops();
std::vector<OpDef> control_flow_ops();
std::vector<OpDef> conv_gradient_ops();
std::vector<OpDef> conv_ops();
std::vector<OpDef> conv_transpose_ops();
std::vector<OpDef> crop_and_resize_ops();
std::vector<OpDef> cumulative_ops();
std::vector<OpDef> deform_conv_ops();
std::vector<OpDef> dropout_ops();
std::vector<OpDef> einsum_ops();
std::vector<OpDef> elementwise_binary_ops();
std::vector<OpDef> elementwise_unary_ops();
std::vector<OpDef> expand_ops();
std::vector<OpDef> experimental_ops();
std::vector<OpDef> flex_attention_ops();
std::vector<OpDef> fused_attention_ops();
std::vector<OpDef> fused_elementwise_ops();
std::vector<OpDef> fused_matmul_ops();
std::vector<OpDef> fused_rotary_ops();
std::vector<OpDef> gather_ops();
std::vector<OpDef> generation_steps_ops();
std::vector<OpDef> grid_sample_ops();
std::vector<OpDef> image_decoder_ops();
std::vector<OpDef> indexing_gradient_ops();
std::vector<OpDef> linalg_ops();
std::vector<OpDef> linear_attention_gradient_ops();
std::vector<OpDef> linear_attention_ops();
std::vector<OpDef> loss_gradient_ops();
std::vector<OpDef> loss_ops();
std::vector<OpDef> matmul_ops();
std::vector<OpDef> microsoft_attn_lstm_ops();
std::vector<OpDef> microsoft_delta_net_ops();
std::vector<OpDef> microsoft_domain_ops();
std::vector<OpDef> microsoft_experts_ops();
std::vector<OpDef> microsoft_gates_ops();
std::vector<OpDef> microsoft_generation_ops();
std::vector<OpDef> microsoft_image_ops();
std::vector<OpDef> microsoft_lstm_ops();
std::vector<OpDef> microsoft_matrix_ops();
std::vector<OpDef> microsoft_ngrams_ops();
std::vector<OpDef> microsoft_packed_rows_ops();
std::vector<OpDef> microsoft_quantized_ops();
std::vector<OpDef> microsoft_router_ops();
std::vector<OpDef> microsoft_tokenizer_ops();
std::vector<OpDef> microsoft_words_ops();
std::vector<OpDef> ml_encoders_ops();
std::vector<OpDef> ml_linear_ops();
std::vector<OpDef> ml_maps_ops();
std::vector<OpDef> ml_scaler_ops();
std::vector<OpDef> ml_svm_ops();
std::vector<OpDef> ml_tree_ensemble_ops();
std::vector<OpDef> nhwc_batch_norm_ops();
std::vector<OpDef> nhwc_bytes_ops();
std::vector<OpDef> nhwc_normalization_ops();
std::vector<OpDef> nhwc_ops();
std::vector<OpDef> nhwc_pool_ops();
std::vector<OpDef> nhwc_training_ops();
std::vector<OpDef> non_max_suppression_ops();
std::vector<OpDef> nonzero_ops();
std::vector<OpDef> normalization_gradient_ops();
std::vector<OpDef> normalization_ops();
std::vector<OpDef> one_hot_ops();
std::vector<OpDef> optional_ops();
std::vector<OpDef> pad_ops();
std::vector<OpDef> pool_gradient_ops();
std::vector<OpDef> pool_ops();
std::vector<OpDef> quantize_ops();
std::vector<OpDef> quantized_matmul_ops();
std::vector<OpDef> quantized_product_ops();
std::vector<OpDef> random_ops();
std::vector<OpDef> reduce_ops();
std::vector<OpDef> reshape_ops();
std::vector<OpDef> resize_ops();
std::vector<OpDef> rnn_gradient_ops();
std::vector<OpDef> rounded_matmul_ops();
std::vector<OpDef> row_gradient_ops();
std::vector<OpDef> rnn_ops();
std::vector<OpDef> roi_ops();
std::vector<OpDef> rotary_embedding_ops();
std::vector<OpDef> row_normalization_ops();
std::vector<OpDef> scatter_ops();
std::vector<OpDef> sequence_gradient_ops();
std::vector<OpDef> sequence_join_ops();
std::vector<OpDef> sequence_map_ops();
std::vector<OpDef> sequence_ops();
std::vector<OpDef> shape_ops();
std::vector<OpDef> signal_ops();
std::vector<OpDef> signal_window_ops();
std::vector<OpDef> slice_ops();
std::vector<OpDef> softmax_ops();
std::vector<OpDef> space_depth_ops();
std::vector<OpDef> sparse_ops();
std::vector<OpDef> split_ops();
std::vector<OpDef> string_ops();
std::vector<OpDef> text_ops();
std::vector<OpDef> top_k_ops();
std::vector<OpDef> all_reduce_ops();
std::vector<OpDef> training_optimizers_ops();
std::vector<OpDef> training_state_ops();
std::vector<OpDef> transpose_ops();
std::vector<OpDef> treadle_domain_ops();
std::vector<OpDef> trilu_ops();
std::vector<OpDef> variadic_ops();
std::vector<OpDef> where_ops();

#ifdef TREADLE_OPERATOR_FAMILIES
#include TREADLE_OPERATOR_FAMILIES  // the families that the build was configured with
#else
inline constexpr Family kFamilies[] = {
    activation_ops,
    all_reduce_ops,
    arg_min_max_ops,
    attention_ops,
    batch_normalization_ops,
    bitwise_ops,
    blocked_matmul_ops,
    broadcast_gradient_ops,
    cache_ops,
    cast_ops,
    comparison_ops,
    col2im_ops,
    concat_ops,
    constant_ops,
    control_flow_ops,
    conv_gradient_ops,
    conv_ops,
    conv_transpose_ops,
    crop_and_resize_ops,
    cumulative_ops,
    deform_conv_ops,
    dropout_ops,
    einsum_ops,
    elementwise_binary_ops,
    elementwise_unary_ops,
    expand_ops,
    experimental_ops,
    flex_attention_ops,
    fused_attention_ops,
    fused_elementwise_ops,
    fused_matmul_ops,
    fused_rotary_ops,
    gather_ops,
    generation_steps_ops,
    grid_sample_ops,
    image_decoder_ops,
    indexing_gradient_ops,
    linalg_ops,
    linear_attention_gradient_ops,
    linear_attention_ops,
    loss_gradient_ops,
    loss_ops,
    matmul_ops,
    microsoft_attn_lstm_ops,
    microsoft_delta_net_ops,
    microsoft_domain_ops,
    microsoft_experts_ops,
    microsoft_gates_ops,
    microsoft_generation_ops,
    microsoft_image_ops,
    microsoft_lstm_ops,
    microsoft_matrix_ops,
    microsoft_ngrams_ops,
    microsoft_packed_rows_ops,
    microsoft_quantized_ops,
    microsoft_router_ops,
    microsoft_tokenizer_ops,
    microsoft_words_ops,
    ml_encoders_ops,
    ml_linear_ops,
    ml_maps_ops,
    ml_scaler_ops,
    ml_svm_ops,
    ml_tree_ensemble_ops,
    nhwc_batch_norm_ops,
    nhwc_bytes_ops,
    nhwc_normalization_ops,
    nhwc_ops,
    nhwc_pool_ops,
    nhwc_training_ops,
    non_max_suppression_ops,
    nonzero_ops,
    normalization_gradient_ops,
    normalization_ops,
    one_hot_ops,
    optional_ops,
    pad_ops,
    pool_gradient_ops,
    pool_ops,
    quantize_ops,
    quantized_matmul_ops,
    quantized_product_ops,
    random_ops,
    reduce_ops,
    reshape_ops,
    resize_ops,
    rnn_gradient_ops,
    rounded_matmul_ops,
    row_gradient_ops,
    rnn_ops,
    roi_ops,
    rotary_embedding_ops,
    row_normalization_ops,
    scatter_ops,
    sequence_gradient_ops,
    sequence_join_ops,
    sequence_map_ops,
    sequence_ops,
    shape_ops,
    signal_ops,
    signal_window_ops,
    slice_ops,
    softmax_ops,
    space_depth_ops,
    sparse_ops,
    split_ops,
    string_ops,
    text_ops,
    top_k_ops,
    training_optimizers_ops,
    training_state_ops,
    transpose_ops,
    treadle_domain_ops,
    trilu_ops,
    variadic_ops,
    where_ops,
};
#endif

}  // namespace treadle::ops
