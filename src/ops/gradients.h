// Gradient rules, each defined in its operator's file. A rule takes the gradients of a node's outputs and returns one gradient per input.
// It builds them from ordinary nodes and, where those do not suffice, from operators of the treadle domain.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_def.h"

namespace treadle::ops {

using GradientRule = TrainingFunction<std::vector<ValueId>(GradientContext&)>;

/// Adds gradient rules to the operators that are named.
std::vector<OpDef> with_gradients(std::vector<OpDef> ops, std::initializer_list<std::pair<std::string_view, GradientRule>> rules);

/// Returns output i of the forward node, and adds it to the node if the model has left it out.
ValueId require_output(GradientContext& g, size_t i);
/// Broadcasts x to the shape of `like`.
ValueId expand_like(GradientContext& g, ValueId x, ValueId like);
/// Zeros of the shape of `like`, in its dtype if that is a float type.
ValueId zeros_like(GradientContext& g, ValueId like);
/// The number of elements of `x` per element of `y`, as a scalar of x's dtype.
ValueId elements_per_element(GradientContext& g, ValueId x, ValueId y);
/// Reshapes [C] to [C, 1, 1, ...], to broadcast over tensors of `rank` axes.
ValueId per_channel(GradientContext& g, ValueId parameter, int rank);
/// Casts 16-bit floats to float32: statistics of rows lose too much precision in 16 bits.
ValueId widened(GradientContext& g, ValueId value);
/// Casts each value to the dtype of the input at the same index.
std::vector<ValueId> narrowed(GradientContext& g, std::vector<ValueId> values);
/// dy where the condition holds, else 0.
ValueId masked(GradientContext& g, ValueId condition, ValueId dy);
/// The rank of a value. @throws Error(not_implemented) if it is unknown.
int rank_of(const GradientContext& g, ValueId x);

namespace gradients {

using Result = std::vector<ValueId>;

/// The gradients of the factors of the matrix product a b.
Result product(GradientContext& g, ValueId a, ValueId b, ValueId dy);
/// The gradients of the input and the weights of a convolution, which is the forward node.
Result convolution(GradientContext& g, ValueId x, ValueId w, ValueId dy);
/// The gradients of X, scale and bias (kNoValue if absent), by one node `op`. Returns nothing unless scale has one element per element of a
/// row.
Result norm_of_rows(GradientContext& g, std::string_view op, ValueId dy, ValueId x, ValueId scale, ValueId bias);

// Arithmetic and functions of one tensor.
Result add(GradientContext& g);
Result sub(GradientContext& g);
Result mul(GradientContext& g);
Result div(GradientContext& g);
Result mod(GradientContext& g);
Result pow(GradientContext& g);
Result cum_sum(GradientContext& g);
Result cum_prod(GradientContext& g);
Result maximum(GradientContext& g);
Result minimum(GradientContext& g);
Result where(GradientContext& g);
Result identity(GradientContext& g);
Result cast(GradientContext& g);
Result dropout(GradientContext& g);
Result range(GradientContext& g);
Result one_hot(GradientContext& g);   // with respect to the values
Result quantize(GradientContext& g);  // straight-through: dy where nothing was clipped, else 0
Result dequantize(GradientContext& g);
Result dynamic_quantize(GradientContext& g);
Result matmul_integer(GradientContext& g);
Result conv_integer(GradientContext& g);
/// For operators that are constant almost everywhere (Sign, Floor, comparisons): the gradient is zero.
Result none(GradientContext& g);

// Activations.
Result prelu(GradientContext& g);
Result shrink(GradientContext& g);
Result softmax(GradientContext& g);
Result log_softmax(GradientContext& g);

// Movement.
Result reshape(GradientContext& g);  // also Flatten, Squeeze, Unsqueeze
Result transpose(GradientContext& g);
Result concat(GradientContext& g);
Result split(GradientContext& g);
Result slice(GradientContext& g);
Result gather(GradientContext& g);
Result expand(GradientContext& g);
Result tile(GradientContext& g);
Result pad(GradientContext& g);
Result center_crop_pad(GradientContext& g);
Result trilu(GradientContext& g);
Result reverse_sequence(GradientContext& g);
Result compress(GradientContext& g);
Result depth_to_space(GradientContext& g);
Result space_to_depth(GradientContext& g);
Result sparse_matmul(GradientContext& g);
Result top_k(GradientContext& g);
Result unique(GradientContext& g);
Result col2im(GradientContext& g);
Result grid_sample(GradientContext& g);
Result affine_grid(GradientContext& g);  // with respect to theta
Result roi_align(GradientContext& g);    // with respect to the image; regions get no gradient
Result max_roi_pool(GradientContext& g);
Result resize(GradientContext& g);  // also Upsample
Result gather_elements(GradientContext& g);
Result gather_nd(GradientContext& g);
Result scatter_elements(GradientContext& g);
Result scatter_nd(GradientContext& g);
Result tensor_scatter(GradientContext& g);

// Sequences.
Result sequence_construct(GradientContext& g);
Result sequence_at(GradientContext& g);
Result sequence_insert(GradientContext& g);
Result sequence_erase(GradientContext& g);
Result split_to_sequence(GradientContext& g);
Result concat_from_sequence(GradientContext& g);

// Reductions and products.
Result reduce_sum(GradientContext& g);
Result reduce_mean(GradientContext& g);
Result reduce_sum_square(GradientContext& g);
Result reduce_l1(GradientContext& g);
Result reduce_l2(GradientContext& g);
Result reduce_log_sum(GradientContext& g);
Result reduce_log_sum_exp(GradientContext& g);
Result reduce_extremum(GradientContext& g);
Result reduce_prod(GradientContext& g);
Result matmul(GradientContext& g);
Result gemm(GradientContext& g);
Result einsum(GradientContext& g);
Result det(GradientContext& g);
Result inverse(GradientContext& g);

// Networks.
Result conv(GradientContext& g);
Result conv_transpose(GradientContext& g);
Result max_pool(GradientContext& g);
Result average_pool(GradientContext& g);
Result lp_pool(GradientContext& g);
Result global_average_pool(GradientContext& g);
Result global_max_pool(GradientContext& g);
Result global_lp_pool(GradientContext& g);
Result max_unpool(GradientContext& g);
Result rnn(GradientContext& g);
Result gru(GradientContext& g);
Result lstm(GradientContext& g);
Result attention(GradientContext& g);
Result rotary_embedding(GradientContext& g);
Result linear_attention(GradientContext& g);
Result causal_conv_with_state(GradientContext& g);
Result deform_conv(GradientContext& g);
Result conv_transpose_with_pads(GradientContext& g);  // for any auto_pad and output_shape
Result dft(GradientContext& g);
Result stft(GradientContext& g);
Result batch_normalization(GradientContext& g);
Result layer_normalization(GradientContext& g);
Result rms_normalization(GradientContext& g);
Result instance_normalization(GradientContext& g);
Result group_normalization(GradientContext& g);
Result mean_variance_normalization(GradientContext& g);
Result lp_normalization(GradientContext& g);
Result lrn(GradientContext& g);
Result negative_log_likelihood(GradientContext& g);

}  // namespace gradients
}  // namespace treadle::ops
