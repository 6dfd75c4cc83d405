// op(..., FusedElementwise(xs)) -> op(..., xs) with the chain's steps as an attribute, for operators that can compute a chain on an input
// (OpDef::chain_input). Applies only if nothing else reads the chain's result. That result is then never stored.
#include "graph/op_def.h"
#include "graph/rewriter.h"
#include "passes/list.h"
#include "passes/matching.h"
#include "passes/trace.h"

namespace treadle::passes {

namespace {

int64_t fuse_into_readers(Graph& graph, PassContext&, int64_t limit) {
  return Rewriter(graph, limit).for_each_graph([](Rewriter& rewriter) {
    Graph& g = rewriter.graph();
    for (NodeId id : g.order()) {
      const Node& reader = g.node(id);
      if (!reader.op || reader.op->chain_input < 0 || reader.attributes.has("steps")) continue;
      const auto first = static_cast<size_t>(reader.op->chain_input);
      if (first >= reader.inputs.size()) continue;  // the optional input is absent
      const Node* chain = producer_of(g, reader.inputs[first]);
      if (!chain || !chain->is("FusedElementwise", "treadle")) continue;
      if (!is_used_once(g, reader.inputs[first]) || g.type(reader.inputs[first]).dtype != DType::float32) {
        declined(reader, "others read the result, too, of", chain);
        continue;
      }
      rewriter.change(id, [&] {
        const NodeId gone = chain->id;
        const std::vector<ValueId> operands = chain->inputs;
        const std::vector<std::string> steps = chain->attributes.get_strings("steps");
        rewriter.stand_for(id, gone);
        g.resize_inputs(id, first + operands.size());
        for (size_t i = 0; i < operands.size(); ++i) g.set_input(id, first + i, operands[i]);
        g.node(id).attributes.set("steps", steps);
        g.remove_node(gone);
        return true;
      });
    }
  });
}

}  // namespace

Pass fuse_chain_into_reader() {
  return graph_pass("fuse-chain-into-reader", kLayout, {.not_before_autodiff = true, .only_in_memory = true, .for_host = true},
                    "FusedElementwise and the operator that computes such a chain on its way in -> that operator", fuse_into_readers);
}

}  // namespace treadle::passes
