// Shared parts of gradient rules. A rule takes the gradients of a node's outputs and returns one per input, as ONNX nodes or, if these do
// not suffice, as nodes of the treadle domain. Rules are in the files of their operators; the functions below are for rules in several
// files.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_def.h"

namespace treadle::ops {

/// The result of a rule: one gradient per input; kNoValue for an input without a gradient.
using Gradients = std::vector<ValueId>;
using GradientRule = TrainingFunction<Gradients(GradientContext&)>;

/// Adds gradient rules to the operators that are named.
std::vector<OpDef> with_gradients(std::vector<OpDef> ops, std::initializer_list<std::pair<std::string_view, GradientRule>> rules);

/// Returns output i of the forward node, and adds it to the node if the model has left it out.
ValueId require_output(GradientContext& g, size_t i);
/// Broadcasts x to the shape of `like`.
ValueId expand_like(GradientContext& g, ValueId x, ValueId like);
/// Returns zeros of the shape of `like`, in its dtype if that is a float type.
ValueId zeros_like(GradientContext& g, ValueId like);
/// Returns the number of elements of `x` per element of `y`, as a scalar of x's dtype.
ValueId elements_per_element(GradientContext& g, ValueId x, ValueId y);
/// Reshapes [C] to [C, 1, 1, ...], to broadcast over tensors of `rank` axes.
ValueId per_channel(GradientContext& g, ValueId parameter, int rank);
/// Sums x over all axes except the channels: [C].
ValueId sum_per_channel(GradientContext& g, ValueId x);
/// Casts a 16-bit value to float32, because sums over rows need the precision.
ValueId widened(GradientContext& g, ValueId value);
/// Casts each value to the dtype of the input at the same index.
std::vector<ValueId> narrowed(GradientContext& g, std::vector<ValueId> values);
/// Returns dy where the condition holds, and 0 elsewhere.
ValueId masked(GradientContext& g, ValueId condition, ValueId dy);
/// Returns the rank of a value. @throws Error(not_implemented) if it is unknown.
int rank_of(const GradientContext& g, ValueId x);

namespace gradients {

/// Returns the gradients of a and b of the matrix product a b.
Gradients product(GradientContext& g, ValueId a, ValueId b, ValueId dy);
/// Returns the gradients of image x and filters w of the convolution that is being differentiated.
Gradients convolution(GradientContext& g, ValueId x, ValueId w, ValueId dy);
/// Returns the gradients of X, scale and bias (kNoValue if absent) by one node `op`; empty unless scale has one element per row element.
Gradients norm_of_rows(GradientContext& g, std::string_view op, ValueId dy, ValueId x, ValueId scale, ValueId bias);
/// The rule for functions that are constant almost everywhere (Sign, Floor, comparisons): no input has a gradient.
Gradients none(GradientContext& g);
Gradients identity(GradientContext& g);
Gradients resize(GradientContext& g);  // defined in a separate file
Gradients rnn(GradientContext& g);
Gradients gru(GradientContext& g);
Gradients lstm(GradientContext& g);

}  // namespace gradients
}  // namespace treadle::ops
