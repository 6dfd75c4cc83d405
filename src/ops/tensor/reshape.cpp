// Implements operators that keep all elements in the same order: Reshape, Flatten, Squeeze, Unsqueeze, Identity.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "graph/dim_bounds.h"
#include "graph/infer.h"
#include "graph/inferred_types.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// Computes the extent that -1 represents. Extents that both shapes have are canceled first, so that `(past + seq) * 8 / (past + seq)` is
// exact, and the result is defined even if a copied extent is 0 in a run.
Dim remaining_extent(const SymbolicShape& in, const SymbolicShape& out, const std::vector<bool>& copied, size_t hole) {
  SymbolicShape left, divisors;
  for (size_t i = 0; i < in.size(); ++i)
    if (i >= copied.size() || !copied[i]) left.push_back(in[i]);
  for (size_t i = 0; i < out.size(); ++i) {
    if (i == hole || copied[i]) continue;
    auto same = std::find(left.begin(), left.end(), out[i]);
    if (same != left.end() && !same->is_const(0))
      left.erase(same);
    else
      divisors.push_back(out[i]);
  }
  const Dim dividend = product(left), divisor = product(divisors);
  if (divisor.is_const(0)) {
    if (dividend.is_const(0)) return 0;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("-1 cannot be resolved: {} elements for a shape with an extent of 0", to_string(product(in))));
  }
  if (dividend.is_const() && divisor.is_const() && dividend.value() % divisor.value() != 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("{} of {} elements cannot be reshaped: the other extents have the product {}",
                                                         to_string(in), dividend.value(), divisor.value()));
  return floor_div(dividend, divisor);
}

// A computed extent may be 0 in a run, and a 0 copies an extent of the data. Models often reshape `[batch*seq, 64]` to `[batch, seq, 64]`;
// if seq is 0, this would copy 64 into an empty tensor. An expression that covers this case would hide from later operators that the extent
// is `seq`. So inference assumes that the case does not occur, and the assumption is checked for every run.
Dim computed_extent(InferContext& c, const Dim& extent, size_t i) {
  const Dim& copied = c.shape(0)[i];
  if (is_zero_with(copied, extent)) return extent;
  const Dim if_zero = (Dim(1) - minimum(extent, 1)) * copied;
  if (!is_zero_with(product(c.shape(0)), extent)) return extent + if_zero;
  assume_equal(if_zero, 0, fmt::format("what shape[{}] = 0 copies, and 0", i));
  return extent;
}

// Returns true if a computed extent is probably never positive, such as `min(-1, N)` or `ceil(N / 2) - N`. It tests a few values of the
// symbols, with the first or the last symbol as the largest: `total - past` is a valid extent although it is 0 if both are equal. Small
// values are included, because products may overflow for large ones.
bool seems_never_above_zero(const Dim& extent) {
  bool known = false;
  std::vector<int64_t> values(static_cast<size_t>(extent.expr()->index) + 1);  // operands have smaller indices
  for (int64_t sample : {1, 2, 7, 64, 5000}) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = sample * static_cast<int64_t>(i + 1);
    for (int order = 0; order < 2; ++order, std::reverse(values.begin(), values.end())) {
      const auto most = UpperBounds(values).of(extent);
      if (most && *most > 0) return false;
      known = known || most;
    }
  }
  return known;
}

// Returns true for expressions that are -1 for some value, such as `M - 2`; `64 * M - 128` never is.
bool is_less_a_constant(const Dim& extent) {
  auto magnitude = [](int64_t x) { return x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x); };
  int64_t less = 0;
  uint64_t divisor = 0;
  for (const Expr::Term& term : extent.expr()->terms) {
    if (term.factors.empty())
      less = term.coefficient;
    else
      divisor = std::gcd(divisor, magnitude(term.coefficient));
  }
  return less < 0 && divisor != 0 && magnitude(less + 1) % divisor == 0;
}

// Returns true if a computed extent may be -1 in a run, where it would mean "all remaining elements". Differences of symbols and extents of
// the data are assumed to be real extents: a run in which one of them is -1 is rejected.
bool may_be_minus_one(const InferContext& c, const Dim& extent) {
  if (extent.is_const() || is_nonnegative(extent)) return false;
  if (c.has_rank(0) && std::find(c.shape(0).begin(), c.shape(0).end(), extent) != c.shape(0).end()) return false;
  return is_less_a_constant(extent) || seems_never_above_zero(extent);
}

// Replaces extents that may be -1 by expressions that cover the special values: -1 means the remaining elements, 0 copies an extent.
void settle_extents(InferContext& c, SymbolicShape& out, const std::vector<size_t>& unsettled) {
  const SymbolicShape& in = c.shape(0);
  const bool zero_is_copy = c.get_int("allowzero") == 0;
  const SymbolicShape wanted = out;
  for (size_t i : unsettled) {
    assume_equal(minimum(wanted[i], -1), -1, fmt::format("the least that shape[{}] may be, and -1", i));
    out[i] = maximum(wanted[i], 0);
    if (zero_is_copy && i < in.size()) out[i] = out[i] + (Dim(1) - minimum(maximum(wanted[i], Dim(0) - wanted[i]), 1)) * in[i];
  }
  const SymbolicShape settled = out;  // here, the unsettled extents have the value 0 where -1 is wanted
  for (size_t i : unsettled) {
    SymbolicShape others = settled;
    others.erase(others.begin() + static_cast<int64_t>(i));
    out[i] = settled[i] + maximum(Dim(0) - wanted[i], 0) * floor_div(product(in), maximum(product(others), 1));
  }
}

void infer_reshape(InferContext& c) {
  keep_known(c);
  const auto wanted = c.known(1);
  if (!wanted) {
    auto rank = known_length(c, 1);
    if (!rank) return c.set_output_dtype(0, c.dtype(0));
    return c.set_output(0, c.dtype(0), c.data_dependent_shape("reshape", static_cast<int>(*rank)));
  }
  // Finds the extents that may be -1 in a run. If one extent is the constant -1, no other may be.
  std::vector<size_t> unsettled;
  for (size_t i = 0; i < wanted->size(); ++i)
    if (may_be_minus_one(c, (*wanted)[i])) unsettled.push_back(i);
  if (std::any_of(wanted->begin(), wanted->end(), [](const Dim& extent) { return extent.is_const(-1); })) unsettled.clear();
  if (!unsettled.empty() && !c.has_rank(0))
    return c.set_output(0, c.dtype(0), c.data_dependent_shape("reshape", static_cast<int>(wanted->size())));
  const bool zero_is_copy = c.get_int("allowzero") == 0;
  SymbolicShape out;
  std::vector<bool> copied(wanted->size());
  std::optional<size_t> hole;
  for (size_t i = 0; i < wanted->size(); ++i) {
    Dim extent = (*wanted)[i];
    if (extent.is_const(0) && zero_is_copy) {
      if (!c.has_rank(0))
        extent = c.data_dependent_dim("reshape");
      else if (static_cast<int>(i) < c.rank(0))
        extent = c.shape(0)[i], copied[i] = true;
      else
        throw Error(ErrorCode::invalid_argument, fmt::format("shape[{}] = 0 copies an extent, but the data are of rank {}", i, c.rank(0)));
    } else if (extent.is_const(-1)) {
      if (hole) throw Error(ErrorCode::invalid_argument, fmt::format("shape[{}] and shape[{}] are both -1", *hole, i));
      hole = i;
    } else if (extent.is_const() && extent.value() < 0) {
      throw Error(ErrorCode::invalid_argument, fmt::format("shape[{}] = {} is negative", i, extent.value()));
    } else if (std::find(unsettled.begin(), unsettled.end(), i) != unsettled.end()) {
      // settle_extents() replaces this extent when all others are known
    } else if (!extent.is_const() && zero_is_copy && !is_nonnegative(extent - Dim(1))) {
      if (!c.has_rank(0))
        extent = c.data_dependent_dim("reshape");
      else if (static_cast<int>(i) < c.rank(0))
        extent = computed_extent(c, extent, i);
    }
    out.push_back(extent);
  }
  if (!unsettled.empty()) settle_extents(c, out, unsettled);
  if (hole) {
    out[*hole] = c.has_rank(0) ? remaining_extent(c.shape(0), out, copied, *hole) : c.data_dependent_dim("reshape");
  }
  if (c.has_rank(0) && (!hole || notes_assumptions())) {
    const Dim have = product(c.shape(0)), want = product(out);
    if (!hole && have.is_const() && want.is_const() && have != want)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} has {} elements, {} would have {}", to_string(c.shape(0)), have.value(), to_string(out), want.value()));
    assume_equal(have, want, "elements of the input and of the output");
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

void infer_flatten(InferContext& c) {
  keep_known(c);
  if (!c.has_rank(0)) return c.set_output(0, c.dtype(0), c.data_dependent_shape("flatten", 2));
  const int rank = c.rank(0);
  const int64_t axis = c.get_int("axis", 1);
  if (axis < -rank || axis > rank)
    throw Error(ErrorCode::invalid_argument, fmt::format("axis = {} is outside [{}, {}]", axis, -rank, rank));
  const auto split = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  c.set_output(0, c.dtype(0), {product(c.shape(0), 0, split), product(c.shape(0), split, c.shape(0).size())});
}

// Returns the number of axes that are listed. A scalar lists one axis.
std::optional<int64_t> count_of_axes(InferContext& c) { return c.has_rank(1) && c.rank(1) == 0 ? 1 : known_length(c, 1); }

void infer_squeeze(InferContext& c) {
  keep_known(c);
  const auto axes = c.known_ints(1);
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const SymbolicShape& in = c.shape(0);
  const auto count = c.has_input(1) ? count_of_axes(c) : 0;
  if (count != 0 && !axes) {
    if (!count || *count > c.rank(0)) return c.set_output_dtype(0, c.dtype(0));
    return c.set_output(0, c.dtype(0), c.data_dependent_shape("squeeze", c.rank(0) - static_cast<int>(*count)));
  }
  std::vector<bool> removed(in.size(), false);
  if (count != 0) {
    for (int64_t axis : *axes) {
      if (in.empty() && (axis == 0 || axis == -1)) continue;  // axis of a scalar, as in NumPy
      const auto at = static_cast<size_t>(normalize_axis(axis, c.rank(0), "axes"));
      if (in[at].is_const() && !in[at].is_const(1))
        throw Error(ErrorCode::invalid_argument, fmt::format("axis {} of {} has {} elements, not 1", axis, to_string(in), in[at].value()));
      assume_equal(in[at], 1, "an axis that is removed");
      removed[at] = true;
    }
  } else {
    // As in onnxruntime, an empty list of axes is treated as absent: all extents of 1 are removed. So the rank is known only if it is known
    // which extents are 1.
    for (size_t i = 0; i < in.size(); ++i) {
      if (!in[i].is_const()) return c.set_output_dtype(0, c.dtype(0));
      removed[i] = in[i].is_const(1);
    }
  }
  SymbolicShape out;
  for (size_t i = 0; i < in.size(); ++i)
    if (!removed[i]) out.push_back(in[i]);
  c.set_output(0, c.dtype(0), std::move(out));
}

void infer_unsqueeze(InferContext& c) {
  keep_known(c);
  if (!c.has_rank(0)) return c.set_output_dtype(0, c.dtype(0));
  const auto axes = c.known_ints(1);
  if (!axes) {
    const auto count = count_of_axes(c);
    if (!count) return c.set_output_dtype(0, c.dtype(0));
    return c.set_output(0, c.dtype(0), c.data_dependent_shape("unsqueeze", c.rank(0) + static_cast<int>(*count)));
  }
  const int rank = c.rank(0) + static_cast<int>(axes->size());
  std::vector<bool> inserted(static_cast<size_t>(rank), false);
  for (int64_t axis : *axes) {
    const auto at = static_cast<size_t>(normalize_axis(axis, rank, "axes"));
    if (inserted[at]) throw Error(ErrorCode::invalid_argument, fmt::format("axis {} is given twice in axes", axis));
    inserted[at] = true;
  }
  SymbolicShape out;
  auto next = c.shape(0).begin();
  for (bool one : inserted) out.push_back(one ? Dim(1) : *next++);
  c.set_output(0, c.dtype(0), std::move(out));
}

void infer_identity(InferContext& c) {
  c.set_output(0, c.input(0));
  keep_known(c);
}

// The kernel for sequences, optionals and maps. The output shares the contents of the input, without a copy.
struct PassOn {
  static constexpr bool allocates = true;
  static std::string declines(const CreateContext& c) {
    return c.type(0).kind == Type::Kind::tensor ? "for values other than tensors" : "";
  }
  static PassOn bind(BindContext&) { return {}; }
  void run(RunContext& c) const { c.set_output(0, c.input(0)); }
};

// In opset 1, the shape was an attribute. This upgrade makes it an input, and drops `consumed_inputs`, a leftover from before ONNX 1.0.
void reshape_shape_to_input(Graph& graph, NodeId id) {
  graph.node(id).attributes.erase("consumed_inputs");
  ints_to_input(graph, id, "shape", 1);
}
void axes_to_input(Graph& graph, NodeId id) { ints_to_input(graph, id, "axes", 1); }

Gradients reshape_gradient(GradientContext& g) { return {g.reshape_like(g.grad_output(0), g.input(0))}; }

}  // namespace

namespace gradients {

Gradients identity(GradientContext& g) { return {g.grad_output(0)}; }

}  // namespace gradients

std::vector<OpDef> reshape_ops() {
  return {
      {.name = "Reshape",
       .since = {1, 5, 13, 14, 19, 21, 23, 24, 25},
       .upgrade = {{1, reshape_shape_to_input}},
       .inputs = {{"data", kAllTensors, "T"}, {"shape", kInt64}},
       .outputs = {{"reshaped", kAllTensors, "T"}},
       .attributes = {{"allowzero", int64_t{0}}},
       .infer = infer_reshape,
       .alias = {is_view(0, 0)},
       .kernels = {kernel<CopyAll>()},
       .gradient = reshape_gradient,
       .value_inputs = {1},
       .moves = Moves::in_order,
       .quantization = Quantization::chooses,
       .returns_input = keeps_type_and_shape},
      {.name = "Flatten",
       .since = {1, 9, 11, 13, 21, 23, 24, 25},
       .inputs = {{"input", kAllTensors, "T"}},
       .outputs = {{"output", kAllTensors, "T"}},
       .attributes = {{"axis", int64_t{1}}},
       .infer = infer_flatten,
       .alias = {is_view(0, 0)},
       .kernels = {kernel<CopyAll>()},
       .gradient = reshape_gradient,
       .moves = Moves::in_order,
       .quantization = Quantization::chooses,
       .returns_input = keeps_type_and_shape},
      {.name = "Squeeze",
       .since = {1, 11, 13, 21, 23, 24, 25},
       .upgrade = {{11, axes_to_input}},
       .inputs = {{"data", kAllTensors, "T"}, {"axes", kInt64, "", Presence::optional}},
       .outputs = {{"squeezed", kAllTensors, "T"}},
       .infer = infer_squeeze,
       .alias = {is_view(0, 0)},
       .kernels = {kernel<CopyAll>()},
       .gradient = reshape_gradient,
       .value_inputs = {1},
       .moves = Moves::in_order,
       .quantization = Quantization::chooses,
       .returns_input = keeps_type_and_shape},
      {.name = "Unsqueeze",
       .since = {1, 11, 13, 21, 23, 24, 25},
       .upgrade = {{11, axes_to_input}},
       .inputs = {{"data", kAllTensors, "T"}, {"axes", kInt64}},
       .outputs = {{"expanded", kAllTensors, "T"}},
       .infer = infer_unsqueeze,
       .alias = {is_view(0, 0)},
       .kernels = {kernel<CopyAll>()},
       .gradient = reshape_gradient,
       .value_inputs = {1},
       .moves = Moves::in_order,
       .quantization = Quantization::chooses,
       .returns_input = keeps_type_and_shape},
      {.name = "Identity",
       .since = {1, 13, 14, 16, 19, 21, 23, 24, 25},
       .inputs = {{"input", kAnything, "V"}},
       .outputs = {{"output", kAnything, "V"}},
       .infer = infer_identity,
       .alias = {is_view(0, 0)},
       .kernels = {kernel<PassOn>("pass on"), kernel<CopyAll>()},
       .gradient = gradients::identity,
       .keeps_zeros = true,
       .moves = Moves::anywhere},
  };
}

}  // namespace treadle::ops
