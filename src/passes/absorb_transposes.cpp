// A product absorbs the Transposes of its matrices: MatMul(x, Transpose(W)) -> Gemm(x, W, transB), which is how exporters write linear
// layers and their gradients; Gemm(Transpose(a), b) -> Gemm(a, b, transA); Transpose(Gemm(a, b)) -> Gemm(b, a), both transposed. Results
// are the same, bit for bit, because sums have the same terms in the same order.
#include <fmt/format.h>

#include "graph/op_def.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {
namespace {

bool is_float_of_rank(const Graph& graph, ValueId id, int least, int most) {
  if (id == kNoValue) return false;
  const Type& type = graph.type(id);
  return type.is_tensor() && (type.dtype == DType::float32 || type.dtype == DType::float64) && type.has_rank() && type.rank() >= least &&
         type.rank() <= most;
}

/// Returns the matrix whose Transpose is `id`, otherwise kNoValue. Constants do not count, because constant folding transposes them.
ValueId matrix_behind(const Graph& graph, ValueId id) {
  if (!is_float_of_rank(graph, id, 2, 2)) return kNoValue;
  const Node* node = producer_of(graph, id);
  if (!node || !node->is("Transpose") || graph.value(node->inputs[0]).is_constant()) return kNoValue;
  const std::vector<int64_t> perm = node->attributes.get_ints("perm");
  return perm.empty() || perm == std::vector<int64_t>{1, 0} ? node->inputs[0] : kNoValue;
}

Patch in_place_of(const Node& node, NodeSpec spec) {
  Patch patch;
  patch.replace(node.outputs[0], patch.add(std::move(spec)));
  return patch;
}

class AbsorbTransposes final : public Rule {
 public:
  std::string_view name() const override { return "absorb-transposes"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (auto patch = match_gemm(graph, node)) return patch;
    if (auto patch = match_matmul(graph, node)) return patch;
    return match_transpose(graph, node);
  }

 private:
  static std::optional<Patch> match_gemm(const Graph& graph, const Node& node) {
    if (!node.is("Gemm")) return std::nullopt;
    NodeSpec spec{.op_type = "Gemm", .inputs = node.inputs, .attributes = node.attributes, .name = node.name};
    bool any = false;
    for (size_t i : {0U, 1U}) {
      const ValueId matrix = matrix_behind(graph, node.inputs[i]);
      if (matrix == kNoValue) continue;
      const char* turned = i == 0 ? "transA" : "transB";
      spec.inputs[i] = matrix;
      spec.attributes.set(turned, int64_t{node.attributes.get_int(turned) == 0});
      any = true;
    }
    if (!any) return std::nullopt;
    return in_place_of(node, std::move(spec));
  }

  static std::optional<Patch> match_matmul(const Graph& graph, const Node& node) {
    if (!node.is("MatMul")) return std::nullopt;
    const ValueId weights = matrix_behind(graph, node.inputs[1]), x = node.inputs[0], y = node.outputs[0];
    if (weights == kNoValue || !is_float_of_rank(graph, x, 2, 8)) return std::nullopt;
    NodeSpec gemm{.op_type = "Gemm", .inputs = {x, weights}, .attributes = {{"transB", int64_t{1}}}, .name = node.name};
    if (graph.type(x).rank() == 2) return in_place_of(node, std::move(gemm));
    // The batch axes of x become additional rows.
    const Dim depth = graph.type(x).shape->back(), columns = graph.type(y).has_rank() ? graph.type(y).shape->back() : Dim();
    if (!depth.is_const() || !columns.is_const() || depth.value() <= 0 || columns.value() <= 0)
      return no_patch(node, [&] {
        return fmt::format("its second operand is a Transpose, but the depth or the columns of {} are known only in the run",
                           found(graph, y));
      });
    const SymbolicShape &in = *graph.type(x).shape, &out = *graph.type(y).shape;
    Dim rows(1);
    for (size_t i = 0; i + 1 < in.size(); ++i) rows = rows * in[i];
    const auto target = reshape_target({rows, columns}, out);
    if (!target)
      return no_patch(
          node, [&] { return fmt::format("its second operand is a Transpose, but no constant shape makes {} of rows", found(graph, y)); });
    Patch patch;
    const ValueId flat = patch.constant(node.name + "/rows", Tensor::vector<int64_t>(std::vector<int64_t>{-1, depth.value()})),
                  shape = patch.constant(node.name + "/shape", Tensor::vector<int64_t>(*target));
    gemm.inputs[0] = patch.add({.op_type = "Reshape", .inputs = {x, flat}, .name = node.name + "/flat"});
    patch.replace(y, patch.add({.op_type = "Reshape", .inputs = {patch.add(std::move(gemm)), shape}, .name = node.name + "/shaped"}));
    return patch;
  }

  static std::optional<Patch> match_transpose(const Graph& graph, const Node& node) {
    if (!node.is("Transpose")) return std::nullopt;
    const ValueId product = node.inputs[0];
    const std::vector<int64_t> perm = node.attributes.get_ints("perm");
    if (!is_float_of_rank(graph, product, 2, 2) || !(perm.empty() || perm == std::vector<int64_t>{1, 0})) return std::nullopt;
    const Node* gemm = producer_of(graph, product);
    if (!gemm || !gemm->is("Gemm")) return std::nullopt;
    if (gemm->has_input(2)) return no_patch(node, "it would have to turn the bias of", gemm, " before it, too");
    if (!is_used_once(graph, product))
      return no_patch(node, "several nodes read the result of", gemm, " before it, or it is an output of the model");
    NodeSpec spec{.op_type = "Gemm", .inputs = {gemm->inputs[1], gemm->inputs[0]}, .attributes = gemm->attributes, .name = gemm->name};
    spec.attributes.set("transA", int64_t{gemm->attributes.get_int("transB") == 0});
    spec.attributes.set("transB", int64_t{gemm->attributes.get_int("transA") == 0});
    return in_place_of(node, std::move(spec));
  }
};

}  // namespace

Pass absorb_transposes() {
  return rule_pass<AbsorbTransposes>(kExtended, kAlways, "MatMul and Gemm of transposed matrices, and transposed Gemm -> Gemm");
}

}  // namespace treadle::passes
