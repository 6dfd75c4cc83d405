// Passes set attributes of the library's own operators. Operators of ONNX, ONNX Runtime or plugins may have an attribute of the same name
// with another meaning, which passes must not touch.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "graph/op_def.h"
#include "passes/conv_choice.h"
#include "passes/matching.h"
#include "passes/precision.h"

namespace treadle {
namespace {

constexpr std::string_view kOwnDomain = "treadle";

// Adds a node with all inputs of shape [2, 2, 3, 3], which is valid for products, convolutions and their gradients.
NodeId add_node_of(Graph& graph, const OpDef& op) {
  const SymbolicShape shape{2, 2, 3, 3};
  NodeSpec spec{.op_type = std::string(op.name), .domain = std::string(op.domain), .name = "node"};
  for (size_t i = 0; i < op.inputs.size(); ++i)
    spec.inputs.push_back(graph.add_input("x" + std::to_string(i), Type::tensor(DType::float32, shape)));
  spec.num_outputs = 1;
  const NodeId id = graph.add_node(std::move(spec));
  graph.value(graph.node(id).outputs[0]).type = Type::tensor(DType::float32, shape);
  return id;
}

TEST(InternalAttributes, AreNotGivenToOperatorsOfOtherDomains) {
  for (const OpDef& op : all_ops()) {
    if (op.domain == kOwnDomain) continue;
    Graph graph(std::make_shared<SymbolTable>());
    const NodeId id = add_node_of(graph, op);
    EXPECT_EQ(passes::assign_precision(graph, passes::PrecisionRules::parse("bfloat16"), INT64_MAX), 0) << op.name;
    EXPECT_EQ(passes::assign_conv_choice(graph, {.max_weight_expansion = 1, .rates = {1, 1, 1, 1, 1}}, INT64_MAX), 0) << op.name;
    EXPECT_EQ(graph.node(id).attributes.size(), 0U) << op.name;
  }
}

TEST(InternalAttributes, AreThoseOfTheOwnDomainAndThoseWithItsPrefix) {
  Graph graph(std::make_shared<SymbolTable>());
  std::set<std::string> prefixed;
  for (const OpDef& op : all_ops()) {
    const NodeId id = add_node_of(graph, op);
    for (const AttributeDef& attribute : op.attributes) {
      const bool has_prefix = attribute.name.starts_with("treadle.");
      EXPECT_EQ(passes::has_internal_attribute(graph.node(id), attribute.name), op.domain == kOwnDomain || has_prefix)
          << op.name << " " << attribute.name;
      if (has_prefix) prefixed.insert(std::string(op.domain) + ":" + std::string(op.name) + "." + std::string(attribute.name));
    }
  }
  EXPECT_EQ(prefixed, std::set<std::string>{":BatchNormalization.treadle.unbiased_variance"});
}

}  // namespace
}  // namespace treadle
