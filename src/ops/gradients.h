// Helpers for gradient rules. A rule takes the gradients of a node's outputs and returns one gradient per input, computed by ONNX nodes or,
// if these do not suffice, by nodes of the treadle domain. Each rule is in the file of its operator; this file has what several rules
// share.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_def.h"

namespace treadle::ops {

/// The result of a rule: one gradient per input of the forward node, kNoValue for inputs without a gradient.
using Gradients = std::vector<ValueId>;
using GradientRule = TrainingFunction<Gradients(GradientContext&)>;

/// Returns `ops` with a gradient rule added to each operator that `rules` names.
std::vector<OpDef> with_gradients(std::vector<OpDef> ops, std::initializer_list<std::pair<std::string_view, GradientRule>> rules);

/// Returns output i of the forward node. If the model has left out this optional output, adds it to the node.
ValueId require_output(GradientContext& g, size_t i);
/// Broadcasts x to the shape of `like`.
ValueId expand_like(GradientContext& g, ValueId x, ValueId like);
/// Returns zeros of the shape of `like`. Their dtype is that of `like` if it is a float type, otherwise float32.
ValueId zeros_like(GradientContext& g, ValueId like);
/// Returns the quotient of two sizes, elements of `x` divided by elements of `y`, as a scalar of x's dtype.
ValueId elements_per_element(GradientContext& g, ValueId x, ValueId y);
/// Reshapes [C] to [C, 1, 1, ...], to broadcast over tensors of `rank` axes.
ValueId per_channel(GradientContext& g, ValueId parameter, int rank);
/// Sums x [N, C, ...] over all axes except axis 1, the channels. The result is [C].
ValueId sum_per_channel(GradientContext& g, ValueId x);
/// Casts a float16 or bfloat16 value to float32, because sums over rows need that precision. Returns other values unchanged.
ValueId widened(GradientContext& g, ValueId value);
/// Casts each gradient to the dtype of the forward input at the same index.
std::vector<ValueId> narrowed(GradientContext& g, std::vector<ValueId> values);
/// Returns dy where the condition holds, and 0 elsewhere.
ValueId masked(GradientContext& g, ValueId condition, ValueId dy);
/// Returns the rank of a value. @throws Error(not_implemented) if it is unknown.
int rank_of(const GradientContext& g, ValueId x);

namespace gradients {

/// Returns the gradients of the matrix product a b with respect to a and b.
Gradients product(GradientContext& g, ValueId a, ValueId b, ValueId dy);
/// Returns the gradients of the convolution that is being differentiated, with respect to its image x and its filters w.
Gradients convolution(GradientContext& g, ValueId x, ValueId w, ValueId dy);
/// Returns the gradients of X, scale and bias (kNoValue if absent), computed by one node `op`. Empty unless `scale` has a number per
/// element of a row.
Gradients norm_of_rows(GradientContext& g, std::string_view op, ValueId dy, ValueId x, ValueId scale, ValueId bias);
/// The rule for functions that are constant almost everywhere (Sign, Floor, comparisons): their inputs have no gradients.
Gradients none(GradientContext& g);
Gradients identity(GradientContext& g);
Gradients resize(GradientContext& g);  // defined in a separate file
Gradients rnn(GradientContext& g);
Gradients gru(GradientContext& g);
Gradients lstm(GradientContext& g);

}  // namespace gradients
}  // namespace treadle::ops
