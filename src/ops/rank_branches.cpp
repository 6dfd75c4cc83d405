#include "ops/rank_branches.h"

#include <algorithm>
#include <memory>
#include <string>

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

int rank_among(const NodeWriter& w, const std::vector<ValueId>& operands, const std::vector<size_t>& ranked) {
  int known = kAnyRank;
  for (size_t i : ranked) known = std::max(known, w.rank(operands[i]));
  return known;
}

/// A branch of an If, whose nodes `write` has added. `inside` has, for each operand, the value that represents it in the branch.
struct Branch {
  Body body;
  std::vector<ValueId> inside;
};

Branch branch(const NodeWriter& outer, std::string_view attribute, const std::vector<ValueId>& operands, const WriteByRank& write) {
  Branch made{{std::string(attribute), std::make_unique<Graph>(outer.graph().symbol_table()), {}}, {}};
  Graph& graph = *made.body.graph;
  for (ValueId operand : operands)
    made.inside.push_back(operand == kNoValue ? kNoValue : graph.add_value("captured", outer.type(operand), Value::Kind::input));
  NodeWriter w(graph, kNoNode, std::string(attribute));
  graph.outputs = write(w, made.inside);
  for (ValueId output : graph.outputs) graph.declared_outputs.push_back(graph.type(output));
  return made;
}

void attach(Graph& graph, NodeId id, Branch made, const std::vector<ValueId>& operands) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] == kNoValue) continue;
    made.body.graph->inputs.push_back(made.inside[i]);
    made.body.captures.emplace_back(made.inside[i], graph.add_capture(id, operands[i]));
  }
  graph.node(id).bodies.push_back(std::move(made.body));
}

/// Counts a branch as kInferences inferred nodes toward the limit for shape inference, since a small file could otherwise ask for many
/// branches and keep the loader busy. The limit allows about 500 branches, more than models need.
void charge(Graph& graph) {
  constexpr int kInferences = 40'000;
  try {
    for (int i = 0; i < kInferences; ++i) graph.symbols().charge_inference();
  } catch (const Error&) {
    throw Error(ErrorCode::resource_exhausted,
                "too many operators have operands of undeclared rank, and so a branch for every rank: declare the shapes of the inputs");
  }
}

/// Returns the dtype of output i if the operator declares that an input has the same dtype; otherwise undefined.
DType dtype_of_output(const Decomposition& d, size_t i) {
  const OpDef& op = *d.node().op;
  for (size_t k = 0; k < op.inputs.size(); ++k)
    if (i < op.outputs.size() && !op.outputs[i].type_name.empty() && op.inputs[k].type_name == op.outputs[i].type_name && d.has(k))
      return d.type(d.in(k)).dtype;
  return DType::undefined;
}

}  // namespace

ValueId with_rank(NodeWriter& w, ValueId x, int rank) {
  if (rank < 0 || w.rank(x) == rank) return x;
  // A 0 in a Reshape's shape copies the extent. So this Reshape changes nothing, but declares the rank.
  const ValueId y = w.op("Reshape", {x, w.ints(std::vector<int64_t>(static_cast<size_t>(rank), 0))});
  infer_node(w.graph(), w.graph().value(y).producer);
  return y;
}

std::vector<ValueId> by_rank(NodeWriter& w, std::vector<ValueId> operands, const std::vector<size_t>& ranked, const std::vector<int>& ranks,
                             const WriteByRank& write) {
  const int known = rank_among(w, operands, ranked);
  if (known >= 0 || ranks.size() == 1) {
    for (size_t i : ranked)
      if (operands[i] != kNoValue && w.rank(operands[i]) < 0) operands[i] = with_rank(w, operands[i], known >= 0 ? known : ranks[0]);
    return write(w, operands);
  }
  charge(w.graph());
  const auto rest = [&](std::vector<int> some) {
    return [&, some = std::move(some)](NodeWriter& inside, const std::vector<ValueId>& captured) {
      return by_rank(inside, captured, ranked, some, write);
    };
  };
  const ValueId is_first = w.op("Equal", {w.rank_of(operands[ranked[0]]), w.ints({ranks[0]})});
  Branch first = branch(w, "then_branch", operands, rest({ranks[0]})),
         others = branch(w, "else_branch", operands, rest({ranks.begin() + 1, ranks.end()}));
  const std::vector<ValueId> outputs = w.op_n("If", {is_first}, static_cast<int>(first.body.graph->outputs.size()));
  const NodeId id = w.graph().value(outputs[0]).producer;
  for (size_t i = 0; i < outputs.size(); ++i)
    w.graph().value(outputs[i]).type = Type::tensor(first.body.graph->type(first.body.graph->outputs[i]).dtype);
  attach(w.graph(), id, std::move(first), operands);
  attach(w.graph(), id, std::move(others), operands);
  return outputs;
}

bool branch_by_rank(Decomposition& d, const std::vector<size_t>& inputs, const std::vector<int>& ranks) {
  std::vector<ValueId> operands(d.node().inputs.begin(), d.node().inputs.begin() + d.node().num_formal_inputs);
  std::vector<size_t> ranked;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(ranked), [&](size_t i) { return d.has(i); });
  const int known = rank_among(d, operands, ranked);
  if (ranked.empty() || known >= 0 || ranks.size() == 1) {
    for (size_t i : ranked) d.graph().set_input(d.id(), i, with_rank(d, operands[i], known >= 0 ? known : ranks[0]));
    return false;
  }
  std::vector<size_t> given;
  for (size_t i = 0; i < d.node().outputs.size(); ++i)
    if (d.node().has_output(i)) given.push_back(i);
  const Node& node = d.node();
  const auto values = by_rank(d, operands, ranked, ranks, [&](NodeWriter& w, const std::vector<ValueId>& captured) {
    const auto made = w.op_n(node.op_type, captured, static_cast<int>(node.outputs.size()), node.attributes, node.domain);
    Node& copy = w.graph().node(w.graph().value(made[0]).producer);
    copy.sources = node.sources, copy.metadata = node.metadata;
    std::vector<ValueId> outputs;
    for (size_t i : given) {
      w.graph().value(made[i]).type = Type::tensor(dtype_of_output(d, i));
      outputs.push_back(made[i]);
    }
    return outputs;
  });
  for (size_t k = 0; k < given.size(); ++k) d.give(given[k], values[k]);
  d.finish();
  return true;
}

}  // namespace treadle::ops
