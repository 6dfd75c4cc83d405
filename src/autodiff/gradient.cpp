#include "autodiff/gradient.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/control_flow.h"
#include "autodiff/joined_slices.h"
#include "autodiff/parts.h"
#include "graph/gradient.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "treadle/error.h"

namespace treadle::autodiff {
namespace {

bool has_derivative(const OpDef& op) { return op.gradient || op.differentiated || op.write_function; }

class Backward {
 public:
  Backward(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys, std::span<const ValueId> xs, NodeId until)
      : graph_(graph), forward_(graph.order()), partials_(graph.num_values()) {
    forward_.erase(std::find(forward_.begin(), forward_.end(), until), forward_.end());
    mark(ys, xs);
    check_rules();
    for (size_t i = 0; i < ys.size(); ++i) {
      ValueId grad = i < grad_ys.size() && grad_ys[i] != kNoValue ? grad_ys[i] : ones_like(ys[i]);
      partials_[index_of(ys[i])].push_back(grad);
    }
  }

  std::vector<ValueId> run(std::span<const ValueId> xs) {
    for (auto it = forward_.rbegin(); it != forward_.rend(); ++it)
      if (on_path(graph_.node(*it))) differentiate(*it);
    std::vector<ValueId> result;
    for (ValueId x : xs) result.push_back(total(x));
    return result;
  }

 private:
  // Marks the values that depend on one of the xs, and those on which one of the ys depends. Gradients flow only through values with both.
  void mark(std::span<const ValueId> ys, std::span<const ValueId> xs) {
    depends_.assign(graph_.num_values(), false);
    needed_.assign(graph_.num_values(), false);
    for (ValueId x : xs) depends_[index_of(x)] = true;
    for (NodeId id : forward_) {
      const Node& node = graph_.node(id);
      bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && depends_[index_of(v)]; });
      for (ValueId output : node.outputs)
        if (output != kNoValue && any && carries_gradients(node, output)) depends_[index_of(output)] = true;
    }
    for (ValueId y : ys) needed_[index_of(y)] = true;
    for (auto it = forward_.rbegin(); it != forward_.rend(); ++it) {
      const Node& node = graph_.node(*it);
      bool any = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNoValue && needed_[index_of(v)]; });
      if (!any) continue;
      for (ValueId input : node.inputs)
        if (input != kNoValue) needed_[index_of(input)] = true;
    }
  }

  // Gradients flow through floats. They also flow through the integers to which a float was quantized, and through integers that an
  // operator with a gradient rule (MatMulInteger) computes from these. The gradient of such an integer is that of the float
  // (straight-through estimator).
  bool carries_gradients(const Node& node, ValueId output) const {
    if (holds_floats(graph_.type(output))) return true;
    if (node.op->quantization == Quantization::quantizes) return true;
    return is_integer(graph_.type(output).dtype) && node.op->gradient && takes_quantized(node);
  }

  /// True if the node reads a quantized integer through which gradients flow.
  bool takes_quantized(const Node& node) const {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId v) { return v != kNoValue && depends_[index_of(v)] && is_integer(graph_.type(v).dtype); });
  }

  /// True if gradients would be lost: the node computes integers from quantized values, the ys depend on them, and the operator has no
  /// gradient rule. int64 results are indices and counts, which need no gradient.
  bool loses_gradients(const Node& node) const {
    return takes_quantized(node) && std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
             if (v == kNoValue || !needed_[index_of(v)] || depends_[index_of(v)]) return false;
             const DType dtype = graph_.type(v).dtype;
             return is_integer(dtype) && dtype != DType::int64;
           });
  }

  bool on_path(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId v) { return v != kNoValue && depends_[index_of(v)] && needed_[index_of(v)]; });
  }

  void check_rules() const {
    std::string missing;
    for (NodeId id : forward_)
      if (const Node& node = graph_.node(id);
          node.op->control_flow == ControlFlow::none && (loses_gradients(node) || (on_path(node) && !has_derivative(*node.op))))
        missing += "\n    " + describe(node);
    if (!missing.empty())
      throw Error(ErrorCode::not_implemented, "these nodes stand between the parameters and the loss and have no gradient rule:" + missing);
  }

  ValueId ones_like(ValueId y) {
    const Type& type = graph_.type(y);
    if (type.is_static() && type.static_shape().num_elements() == 1 && type.dtype == DType::float32) {
      Tensor one(DType::float32, type.static_shape());
      *one.data<float>() = 1;
      return graph_.add_constant("one", one);
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is {}; only a float32 scalar may start a backward pass without a gradient of its own",
                            graph_.value(y).name, to_string(type)));
  }

  // Returns the sum of the partial gradients that flow into a value.
  ValueId total(ValueId value) {
    std::vector<ValueId>& partials = partials_[index_of(value)];
    if (partials.empty()) return kNoValue;
    if (partials.size() > 1) join_slices(graph_, partials);
    while (partials.size() > 1) {
      const ValueId last = partials.back();
      partials.pop_back();
      ValueId added = add_to(last, partials.back());
      if (added == kNoValue) added = add_to(partials.back(), last);
      if (added != kNoValue) {
        partials.back() = added;
        continue;
      }
      const bool sequences = graph_.type(last).kind == Type::Kind::sequence;
      NodeId sum = graph_.add_node({.op_type = sequences ? "SequenceAdd" : "Add",
                                    .inputs = {partials.back(), last},
                                    .domain = sequences ? "treadle" : "",
                                    .name = graph_.value(value).name + "_grad/sum"});
      infer_node(graph_, sum);
      partials.back() = graph_.node(sum).outputs[0];
    }
    return partials[0];
  }

  // Returns the Gemm that computes a partial gradient, either directly or before a Reshape, if no other node reads its result. Returns null
  // if there is none.
  const Node* product_of(ValueId partial) const {
    const Value* value = &graph_.value(partial);
    if (!value->uses.empty() || value->kind != Value::Kind::computed) return nullptr;
    const Node* node = &graph_.node(value->producer);
    if (node->is("Reshape")) {
      value = &graph_.value(node->inputs[0]);
      if (value->uses.size() != 1 || value->kind != Value::Kind::computed) return nullptr;
      node = &graph_.node(value->producer);
    }
    const bool is_float = value->type.dtype == DType::float32 || value->type.dtype == DType::float64;
    return node->is("Gemm") && !node->has_input(2) && is_float && value->type.has_rank() ? node : nullptr;
  }

  // Computes partial + sum as one Gemm whose operand C is `sum`, so that the kernel can add in place. The old Gemm, without C, becomes
  // dead. Returns kNoValue if the partial gradient is not computed by a Gemm.
  ValueId add_to(ValueId partial, ValueId sum) {
    const Node* product = product_of(partial);
    const Type& type = graph_.type(partial);
    if (!product || !type.has_rank() || graph_.type(sum).dtype != type.dtype || graph_.type(sum).shape != type.shape) return kNoValue;
    const bool reshaped = graph_.value(partial).producer != graph_.value(product->outputs[0]).producer;
    const Dim columns = graph_.type(product->outputs[0]).shape->back();
    if (reshaped && !columns.is_const()) return kNoValue;
    const std::string name = graph_.value(partial).name + "/sum";
    NodeSpec gemm{.op_type = "Gemm", .inputs = {product->inputs[0], product->inputs[1]}, .attributes = product->attributes, .name = name};
    gemm.attributes.set("beta", 1.0F);
    const ValueId shape = reshaped ? graph_.node(graph_.value(partial).producer).inputs[1] : kNoValue;
    if (reshaped) {
      const Tensor matrix = Tensor::vector<int64_t>(std::vector<int64_t>{-1, columns.value()});
      sum = add({.op_type = "Reshape", .inputs = {sum, graph_.add_constant(name + "/matrix", matrix)}, .name = name + "/rows"});
    }
    gemm.inputs.push_back(sum);
    const ValueId result = add(std::move(gemm));
    if (!reshaped) return result;
    return add({.op_type = "Reshape", .inputs = {result, shape}, .attributes = {{"allowzero", int64_t{1}}}, .name = name + "/reshaped"});
  }

  ValueId add(NodeSpec spec) {
    const NodeId id = graph_.add_node(std::move(spec));
    infer_node(graph_, id);
    return graph_.node(id).outputs[0];
  }

  void differentiate(NodeId id) {
    std::vector<ValueId> grads;
    bool any = false;
    for (size_t i = 0; i < graph_.node(id).outputs.size(); ++i) {
      ValueId output = graph_.node(id).outputs[i];
      grads.push_back(output == kNoValue ? kNoValue : total(output));
      any |= grads.back() != kNoValue;
    }
    if (!any) return;
    std::vector<bool> wanted;
    for (ValueId input : graph_.node(id).inputs) wanted.push_back(input != kNoValue && depends_[index_of(input)]);
    GradientContext context(graph_, id, grads, wanted);
    std::vector<ValueId> flows;
    try {
      const OpDef& op = *graph_.node(id).op;
      if (op.gradient)
        flows = op.gradient(context);
      else
        flows = has_derivative(op) ? differentiate_parts(graph_, id, grads, wanted) : differentiate_bodies(graph_, id, grads, wanted);
    } catch (Error& error) {
      error.add_context(describe(graph_.node(id)) + ", during differentiation", describe_operands(graph_, graph_.node(id)));
      throw;
    }
    const Node& node = graph_.node(id);
    for (size_t i = 0; i < flows.size() && i < node.inputs.size(); ++i) {
      ValueId input = node.inputs[i];
      if (flows[i] == kNoValue || input == kNoValue || !depends_[index_of(input)]) continue;
      partials_[index_of(input)].push_back(flows[i]);
    }
  }

  Graph& graph_;
  std::vector<NodeId> forward_;
  std::vector<std::vector<ValueId>> partials_;  // for each value of the forward graph, its partial gradients
  std::vector<bool> depends_, needed_;
};

}  // namespace

bool holds_floats(const Type& type) {
  const bool contains = type.kind == Type::Kind::sequence || type.kind == Type::Kind::optional;
  return contains ? type.element && holds_floats(*type.element) : is_float(type.dtype);
}

std::vector<ValueId> add_gradients(Graph& graph, std::span<const ValueId> ys, std::span<const ValueId> grad_ys, std::span<const ValueId> xs,
                                   NodeId until) {
  // Rules compute the gradients of all inputs. Nodes whose gradients are not needed are dead, and the first pass removes them.
  return Backward(graph, ys, grad_ys, xs, until).run(xs);
}

}  // namespace treadle::autodiff
