// Implements Einsum. An equation of two operands becomes transpositions and one matrix or elementwise product, a longer equation a chain of
// such pairs. Equations with diagonals, and those of 8-bit and 16-bit integers, are computed by direct loops.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/gradients.h"
#include "ops/list.h"
#include "ops/math/einsum_equation.h"
#include "ops/math/elementwise.h"
#include "ops/tensor/movement.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

using namespace equations;

void infer_einsum(InferContext& c) {
  const Equation equation = equation_of(c.attributes(), c.num_inputs());
  SymbolicShape extents(kNumLabels, Dim(1));
  Elided elided;
  for (int i = 0; i < c.num_inputs(); ++i) {
    const Term& term = equation.inputs[static_cast<size_t>(i)];
    if (!c.has_rank(i)) return c.set_output_dtype(0, c.dtype(0));
    const Term labels = expand(term, c.rank(i));
    for (int axis = 0; axis < c.rank(i); ++axis) {
      const Dim& own = c.shape(i)[static_cast<size_t>(axis)];
      if (const int earlier = earlier_axis(labels, axis); earlier >= 0)
        unify(c.shape(i)[static_cast<size_t>(earlier)], own, "extents of a label in one operand");
      Dim& extent = extents[static_cast<size_t>(labels[static_cast<size_t>(axis)])];
      extent = broadcast(extent, own);
    }
    elided.take(term, c.rank(i));
  }
  SymbolicShape out;
  for (int label : equation.output) {
    if (label != kEllipsis)
      out.push_back(extents[static_cast<size_t>(label)]);
    else
      for (int left = elided.rank(); left > 0; --left) out.push_back(extents[static_cast<size_t>(kEllipsisLabel + left - 1)]);
  }
  c.set_output(0, c.dtype(0), std::move(out));
}

// Decomposition. In the functions below, terms have no ellipsis: every axis has its own label.

bool contains(const Term& term, int label) { return std::find(term.begin(), term.end(), label) != term.end(); }
int64_t place_of(const Term& term, int label) { return std::find(term.begin(), term.end(), label) - term.begin(); }

/// A value of the graph with a label for each axis. The methods add nodes that rearrange the axes.
struct Labelled {
  Graph* graph;
  NodeId before;
  ValueId value;
  Term labels;
  std::vector<std::optional<Dim>> extents_of;  ///< by label; nullopt if unknown before the run

  ValueId add(NodeSpec spec) const { return graph->node(graph->add_node(std::move(spec), before)).outputs[0]; }
  ValueId constant(const std::vector<int64_t>& values) const { return graph->add_constant("axes", Tensor::vector<int64_t>(values)); }

  /// Sums over all axes whose labels are not in `wanted`.
  void sum_all_but(const Term& wanted) {
    std::vector<int64_t> axes;
    Term left;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (contains(wanted, labels[i]))
        left.push_back(labels[i]);
      else
        axes.push_back(static_cast<int64_t>(i));
    }
    if (axes.empty()) return;
    value = add({.op_type = "ReduceSum", .inputs = {value, constant(axes)}, .attributes = {{"keepdims", int64_t{0}}}});
    labels = left;
  }
  /// Transposes the value so that its axes have the order of `wanted`, which contains the same labels.
  void transpose(const Term& wanted) {
    if (labels == wanted) return;
    std::vector<int64_t> perm;
    for (int label : wanted) perm.push_back(place_of(labels, label));
    value = add({.op_type = "Transpose", .inputs = {value}, .attributes = {{"perm", perm}}});
    labels = wanted;
  }
  /// Adds axes of extent 1 for the labels of `wanted` that the value lacks. The labels that it has are already in the order of `wanted`.
  void stretch(const Term& wanted) {
    std::vector<int64_t> axes;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!contains(labels, wanted[i])) axes.push_back(static_cast<int64_t>(i));
    if (!axes.empty()) value = add({.op_type = "Unsqueeze", .inputs = {value, constant(axes)}});
    labels = wanted;
  }
  /// Broadcasts the axis with this label to the extent that `other` has for the label.
  void stretch_to(const Labelled& other, int label) {
    std::vector<ValueId> parts;
    auto ones = [&](size_t count) {
      if (count > 0) parts.push_back(constant(std::vector<int64_t>(count, 1)));
    };
    const auto place = static_cast<size_t>(place_of(labels, label));
    ones(place);
    parts.push_back(other.extents(static_cast<size_t>(place_of(other.labels, label)), 1));
    ones(labels.size() - place - 1);
    const ValueId shape = parts.size() == 1 ? parts[0] : add({.op_type = "Concat", .inputs = parts, .attributes = {{"axis", int64_t{0}}}});
    value = add({.op_type = "Expand", .inputs = {value, shape}});
  }
  /// Returns the extents of the axes [first, first + count), as a vector.
  ValueId extents(size_t first, size_t count) const {
    return add({.op_type = "Shape",
                .inputs = {value},
                .attributes = {{"start", static_cast<int64_t>(first)}, {"end", static_cast<int64_t>(first + count)}}});
  }
};

Term intersect(const Term& a, const Term& b) {
  Term both;
  for (int label : a)
    if (contains(b, label)) both.push_back(label);
  return both;
}
Term without(const Term& a, const Term& b) {
  Term rest;
  for (int label : a)
    if (!contains(b, label)) rest.push_back(label);
  return rest;
}
Term operator+(Term a, const Term& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// For each summed label, makes the extents in both operands equal: an extent of 1 is broadcast to the extent in the other operand.
void match_inner(Labelled& a, Labelled& b, const Term& output) {
  Term summed;
  for (int label : without(intersect(a.labels, b.labels), output)) {
    const auto &one = a.extents_of[static_cast<size_t>(label)], &other = b.extents_of[static_cast<size_t>(label)];
    if (one && other && *one == *other) continue;
    if ((one && one->is_const(1)) || (other && other->is_const(1))) {
      summed.push_back(label);  // sums each operand by itself: sum_i (a_i b) = (sum_i a_i) b
      continue;
    }
    const bool open_a = !one || !one->is_const(), open_b = !other || !other->is_const();
    const Labelled before = a;
    if (open_a) a.stretch_to(b, label);
    if (open_b) b.stretch_to(before, label);
  }
  if (summed.empty()) return;
  a.sum_all_but(without(a.labels, summed));
  b.sum_all_but(without(b.labels, summed));
}

/// Returns the product of a and b, summed over the labels that `output` does not have.
Labelled multiply(Labelled a, Labelled b, const Term& output) {
  a.sum_all_but(output + b.labels);
  b.sum_all_but(output + a.labels);
  match_inner(a, b, output);
  for (int label : intersect(a.labels, b.labels)) {
    auto &one = a.extents_of[static_cast<size_t>(label)], &other = b.extents_of[static_cast<size_t>(label)];
    one = one && other ? std::optional(broadcast(*one, *other)) : std::nullopt;
  }
  for (int label : without(b.labels, a.labels)) a.extents_of[static_cast<size_t>(label)] = b.extents_of[static_cast<size_t>(label)];
  const Term shared = intersect(a.labels, b.labels), batch = intersect(shared, output), inner = without(shared, output);
  if (inner.empty()) {
    const Term all = intersect(output, a.labels + b.labels);
    a.transpose(intersect(all, a.labels)), b.transpose(intersect(all, b.labels));
    a.stretch(all), b.stretch(all);
    a.value = a.add({.op_type = "Mul", .inputs = {a.value, b.value}});
    return a;
  }
  const Term rows = without(a.labels, shared), columns = without(b.labels, shared);
  a.transpose(batch + rows + inner), b.transpose(batch + inner + columns);
  // Merges the axes [first, first + count) of x into one axis.
  auto join = [](Labelled& x, size_t first, size_t count) {
    if (count == 1) return;
    const size_t rank = x.labels.size();
    std::vector<ValueId> parts;
    if (first > 0) parts.push_back(x.extents(0, first));
    // Computes the product instead of passing -1, which a Reshape cannot resolve if another extent is 0.
    parts.push_back(count == 0
                        ? x.constant({1})
                        : x.add({.op_type = "ReduceProd", .inputs = {x.extents(first, count)}, .attributes = {{"keepdims", int64_t{1}}}}));
    if (first + count < rank) parts.push_back(x.extents(first + count, rank - first - count));
    const ValueId shape =
        parts.size() == 1 ? parts[0] : x.add({.op_type = "Concat", .inputs = parts, .attributes = {{"axis", int64_t{0}}}});
    x.value = x.add({.op_type = "Reshape", .inputs = {x.value, shape}, .attributes = {{"allowzero", int64_t{1}}}});
    Term joined(x.labels.begin(), x.labels.begin() + static_cast<std::ptrdiff_t>(first));
    joined.push_back(kEllipsis);
    x.labels = joined + Term(x.labels.begin() + static_cast<std::ptrdiff_t>(first + count), x.labels.end());
  };
  const Labelled a_apart = a, b_apart = b;
  join(a, batch.size(), rows.size()), join(a, batch.size() + 1, inner.size());
  join(b, batch.size(), inner.size()), join(b, batch.size() + 1, columns.size());
  Labelled product = a;
  product.value = a.add({.op_type = "MatMul", .inputs = {a.value, b.value}});
  product.labels = batch + rows + columns;
  if (rows.size() != 1 || columns.size() != 1) {
    std::vector<ValueId> parts;
    if (!batch.empty()) parts.push_back(product.extents(0, batch.size()));
    if (!rows.empty()) parts.push_back(a_apart.extents(batch.size(), rows.size()));
    if (!columns.empty()) parts.push_back(b_apart.extents(batch.size() + inner.size(), columns.size()));
    const ValueId shape = parts.empty()       ? product.constant({})
                          : parts.size() == 1 ? parts[0]
                                              : product.add({.op_type = "Concat", .inputs = parts, .attributes = {{"axis", int64_t{0}}}});
    product.value = product.add({.op_type = "Reshape", .inputs = {product.value, shape}, .attributes = {{"allowzero", int64_t{1}}}});
  }
  return product;
}

bool repeats_label(const Term& term) {
  for (size_t i = 0; i < term.size(); ++i)
    if (std::find(term.begin() + static_cast<std::ptrdiff_t>(i) + 1, term.end(), term[i]) != term.end()) return true;
  return false;
}

// Checks during the run that the operand has as many axes as labels: passes it through an Einsum that changes nothing else.
ValueId of_rank(const Labelled& operand) {
  std::string term;
  for (int label : operand.labels) term += static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26);
  return operand.add({.op_type = "Einsum", .inputs = {operand.value}, .attributes = {{"equation", term + "->" + term}}});
}

void decompose_einsum(Graph& graph, NodeId id) {
  constexpr TypeSet kProducts = kFloats | TypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64};
  const std::vector<ValueId> inputs = graph.node(id).inputs;
  const Equation equation = equation_of(graph.node(id).attributes, static_cast<int>(inputs.size()));
  Elided elided;
  std::vector<Labelled> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Type& type = graph.type(inputs[i]);
    if (!type.is_tensor() || !kProducts.has(type.dtype)) return;
    // An Einsum that changes nothing ("ij->ij") is kept if its operand has no known rank, because its kernel checks during the run that the
    // operand has as many axes as the term has labels.
    const bool is_check = inputs.size() == 1 && equation.output == equation.inputs[i];
    if (!type.has_rank() && (has_ellipsis(equation.inputs[i]) || is_check)) return;
    // A term without an ellipsis has as many labels as its operand has axes.
    const int rank = type.has_rank() ? type.rank() : static_cast<int>(equation.inputs[i].size());
    elided.take(equation.inputs[i], rank);
    operands.push_back({&graph, id, inputs[i], expand(equation.inputs[i], rank), {}});
    Labelled& operand = operands.back();
    if (repeats_label(operand.labels)) return;
    operand.extents_of.resize(kNumLabels);
    for (size_t axis = 0; type.has_rank() && axis < operand.labels.size(); ++axis)
      operand.extents_of[static_cast<size_t>(operand.labels[axis])] = (*type.shape)[axis];
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!graph.type(inputs[i]).has_rank()) operands[i].value = of_rank(operands[i]);
  Term output;
  for (int label : equation.output) {
    if (label != kEllipsis)
      output.push_back(label);
    else
      for (int left = elided.rank(); left > 0; --left) output.push_back(kEllipsisLabel + left - 1);
  }
  // Multiplies the operands from left to right. Each product keeps the labels that a later operand or the output has.
  Labelled result = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) {
    Term needed = output;
    for (size_t later = i + 1; later < operands.size(); ++later) needed = needed + without(operands[later].labels, needed);
    result = multiply(result, operands[i], needed);
  }
  result.sum_all_but(output);
  result.transpose(output);
  if (result.value == inputs[0]) result.value = result.add({.op_type = "Identity", .inputs = {result.value}});
  graph.replace_uses(graph.node(id).outputs[0], result.value);
  graph.remove_node(id);
}

// Loops that compute the equations that have not been decomposed.

struct ParsedEquation final : PackedState {
  Equation equation;
};

template <typename T>
struct Einsum {
  static constexpr int kMaxOperands = 8, kMaxLabels = 24;
  using C = compute_type_t<T>;
  /// Nested loops, one per label: the extent of each loop, and the stride of its index in each operand.
  struct Loops {
    int rank = 0;
    int64_t extent[kMaxLabels], stride[kMaxLabels][kMaxOperands], size = 1;
  };
  int num_operands;
  Loops kept, summed;

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<ParsedEquation>();
    state->equation = equation_of(c.attributes(), c.node().num_formal_inputs);
    return state;
  }
  static Einsum bind(BindContext& c) { return bind_from(c, 0); }
  /// @param first  index of the Einsum's first operand among the node's inputs
  static Einsum bind_from(BindContext& c, int first) {
    Einsum k{};
    k.num_operands = c.num_inputs() - first;
    if (k.num_operands > kMaxOperands)
      throw Error(ErrorCode::not_implemented, fmt::format("{} operands; direct loops take up to {}", k.num_operands, kMaxOperands));
    const Equation& equation = c.packed<ParsedEquation>().equation;
    int64_t extent[kNumLabels], stride[kNumLabels][kMaxOperands] = {};
    bool used[kNumLabels] = {};
    std::fill_n(extent, kNumLabels, 1);
    Elided elided;
    for (int i = 0; i < k.num_operands; ++i) {
      const Shape& shape = c.shape(first + i);
      const Term& term = equation.inputs[static_cast<size_t>(i)];
      const Term labels = expand(term, shape.rank());
      elided.take(term, shape.rank());
      for (int axis = 0; axis < shape.rank(); ++axis) {
        const int label = labels[static_cast<size_t>(axis)];
        const int64_t own = shape[axis];
        if (const int earlier = earlier_axis(labels, axis); earlier >= 0)
          check_equal(shape[earlier], own, "extents of a label in one operand");
        used[label] = true;
        if (own != 1 && extent[label] != 1 && own != extent[label])
          throw Error(ErrorCode::invalid_argument, fmt::format("a label stands for extents of {} and {}", extent[label], own));
        if (own != 1) extent[label] = own, stride[label][i] += shape.product(axis + 1, shape.rank());
      }
    }
    auto add = [&](Loops& loops, int label) {
      if (loops.rank == kMaxLabels) throw Error(ErrorCode::not_implemented, fmt::format("more than {} labels", kMaxLabels));
      used[label] = false;
      loops.extent[loops.rank] = extent[label];
      std::copy_n(stride[label], kMaxOperands, loops.stride[loops.rank++]);
      loops.size *= extent[label];
    };
    for (int label : equation.output) {
      if (label != kEllipsis)
        add(k.kept, label);
      else
        for (int left = elided.rank(); left > 0; --left) add(k.kept, kEllipsisLabel + left - 1);
    }
    for (int label = 0; label < kNumLabels; ++label)
      if (used[label]) add(k.summed, label);
    return k;
  }

  void offsets_at(const Loops& loops, int64_t index, const int64_t* base, int64_t* offsets) const {
    std::copy_n(base, num_operands, offsets);
    for (int d = loops.rank - 1; d >= 0; --d) {
      const int64_t at = index % loops.extent[d];
      index /= loops.extent[d];
      for (int i = 0; i < num_operands; ++i) offsets[i] += at * loops.stride[d][i];
    }
  }
  void run(RunContext& c) const {
    T* y = c.out<T>(0);
    parallel_for(c.pool(), kept.size, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, summed.size)),
                 [&](int64_t begin, int64_t end) {
                   const int64_t origin[kMaxOperands] = {};
                   for (int64_t o = begin; o < end; ++o) {
                     int64_t base[kMaxOperands], at[kMaxOperands];
                     offsets_at(kept, o, origin, base);
                     C total{0};
                     for (int64_t s = 0; s < summed.size; ++s) {
                       offsets_at(summed, s, base, at);
                       C product = static_cast<C>(c.in<T>(0)[at[0]]);
                       for (int i = 1; i < num_operands; ++i) product = static_cast<C>(product * static_cast<C>(c.in<T>(i)[at[i]]));
                       total = static_cast<C>(total + product);
                     }
                     y[o] = static_cast<T>(total);
                   }
                 });
  }
};

// Computes dX_i: each element gets the sum, over all products that contain it, of dY times the other factors.
template <typename T>
struct EinsumGrad {
  Einsum<T> forward;
  int64_t counts[Einsum<T>::kMaxOperands];

  static std::unique_ptr<PackedState> create(const CreateContext& c) {
    auto state = std::make_unique<ParsedEquation>();
    state->equation = equation_of(c.attributes(), c.node().num_formal_inputs - 1);
    return state;
  }
  static EinsumGrad bind(BindContext& c) {
    EinsumGrad k{Einsum<T>::bind_from(c, 1), {}};
    if (c.num_elements(0) != k.forward.kept.size)
      throw Error(ErrorCode::invalid_argument, fmt::format("{} is no gradient of this equation's result", to_string(c.shape(0))));
    for (int i = 0; i < k.forward.num_operands; ++i) k.counts[i] = c.num_elements(1 + i);
    return k;
  }
  void run(RunContext& c) const {
    const T* dy = c.in<T>(0);
    const int n = forward.num_operands;
    for (int i = 0; i < n; ++i) std::fill_n(c.out<T>(i), counts[i], T{0});
    const int64_t origin[Einsum<T>::kMaxOperands] = {};
    for (int64_t o = 0; o < forward.kept.size; ++o) {
      int64_t base[Einsum<T>::kMaxOperands], at[Einsum<T>::kMaxOperands];
      forward.offsets_at(forward.kept, o, origin, base);
      for (int64_t s = 0; s < forward.summed.size; ++s) {
        forward.offsets_at(forward.summed, s, base, at);
        for (int i = 0; i < n; ++i) {
          T product = dy[o];
          for (int other = 0; other < n; ++other)
            if (other != i) product *= c.in<T>(1 + other)[at[other]];
          c.out<T>(i)[at[i]] += product;
        }
      }
    }
  }
};

void infer_einsum_grad(InferContext& c) {
  for (int i = 0; i + 1 < c.num_inputs(); ++i) c.set_output(i, c.input(1 + i));
}

Cost einsum_cost(const ShapeContext& c) {
  double work = 1, bytes = 0;
  for (int i = 0; i < c.num_inputs(); ++i) work = std::max(work, static_cast<double>(c.num_elements(i))), bytes += c.size_bytes(i);
  return {2 * work * static_cast<double>(std::max<int64_t>(c.output_shape(0).num_elements(), 1)), bytes};
}

// Differentiates equations with diagonals. All other equations have been decomposed into differentiable operators.
Gradients einsum_gradient(GradientContext& g) {
  std::vector<ValueId> inputs{g.grad_output(0)};
  inputs.insert(inputs.end(), g.node().inputs.begin(), g.node().inputs.end());
  const auto count = static_cast<int>(inputs.size()) - 1;
  const Attributes attributes = g.attributes();
  return g.op_n("EinsumGrad", std::move(inputs), count, attributes, "treadle");
}

// The gradient of the gradient. Let G_i be the incoming gradient for operand i's gradient. The loss is linear in dY and in each operand, so
// its gradient for dY is the equation with G_i in place of operand i, and its gradients for the other operands are that equation's
// gradients.
Gradients einsum_grad_gradient(GradientContext& g) {
  const Attributes attributes = g.attributes();
  const std::vector<ValueId> inputs = g.node().inputs;
  const auto count = static_cast<int>(inputs.size()) - 1;
  Gradients result(inputs.size(), kNoValue);
  auto add = [&](size_t i, ValueId part) { result[i] = result[i] == kNoValue ? part : g.add(result[i], part); };
  for (size_t i = 1; i < inputs.size(); ++i) {
    const ValueId flow = g.grad_output(i - 1);
    if (flow == kNoValue) continue;
    std::vector<ValueId> operands = inputs;
    operands[i] = flow;
    add(0, g.op("Einsum", {operands.begin() + 1, operands.end()}, attributes));
    const std::vector<ValueId> parts = g.op_n("EinsumGrad", operands, count, attributes, "treadle");
    for (size_t k = 1; k < inputs.size(); ++k)
      if (k != i) add(k, parts[k - 1]);
  }
  return result;
}

}  // namespace

std::vector<OpDef> einsum_ops() {
  constexpr TypeSet kGradientTypes{DType::float32, DType::float64};
  return {{.name = "Einsum",
           .since = {12, 28},
           .inputs = {{"Inputs", kNumeric, "T", Presence::variadic}},
           .outputs = {{"Output", kNumeric, "T"}},
           .attributes = {{"equation", AttributeDef::Required{}}},
           .infer = infer_einsum,
           .cost = einsum_cost,
           .kernels =
               typed<Einsum, float, double, Float16, BFloat16, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(),
           .gradient = einsum_gradient,
           .decompose = decompose_einsum,
           .half = HalfFloats::float32_by_itself},
          {.name = "EinsumGrad",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"dY", kGradientTypes, "T"}, {"Inputs", kGradientTypes, "T", Presence::variadic}},
           .outputs = {{"gradients", kGradientTypes, "T", Presence::variadic}},
           .attributes = {{"equation", AttributeDef::Required{}}},
           .infer = infer_einsum_grad,
           .kernels = typed<EinsumGrad, float, double>(),
           .gradient = einsum_grad_gradient}};
}

}  // namespace treadle::ops
