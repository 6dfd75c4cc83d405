// Dropout(x) -> x, and its mask -> all true, if training_mode is absent or the constant false. For inference only: in a training graph,
// training_mode is an input that each run sets, so the node stays.
#include "passes/list.h"

namespace treadle::passes {
namespace {

class RemoveDropout final : public Rule {
 public:
  std::string_view name() const override { return "remove-dropout"; }
  std::optional<Patch> match(const Graph& graph, const Node& node) const override {
    if (!node.is("Dropout") || !is_off(graph, node)) return std::nullopt;
    Patch patch = Patch::replacement(node.outputs[0], node.inputs[0]);
    if (node.has_output(1) && (!graph.value(node.outputs[1]).uses.empty() || graph.is_output(node.outputs[1]))) {
      bool yes = true;
      ValueId shape = patch.add({.op_type = "Shape", .inputs = {node.inputs[0]}});
      ValueId mask = patch.add({.op_type = "ConstantOfShape",
                                .inputs = {shape},
                                .attributes = {{"value", Datum(Tensor::vector<bool>(std::span<const bool>(&yes, 1)))}}});
      patch.replace(node.outputs[1], mask);
    }
    return patch;
  }

 private:
  static bool is_off(const Graph& graph, const Node& node) {
    if (!node.has_input(2)) return true;
    const Tensor* mode = graph.constant_tensor(node.inputs[2]);
    return mode && mode->dtype() == DType::boolean && mode->num_elements() == 1 && !*mode->data<bool>();
  }
};

}  // namespace

Pass remove_dropout() { return rule_pass<RemoveDropout>(kBasic, kNotBeforeAutodiff, "Dropout(x) -> x outside of training"); }

}  // namespace treadle::passes
