// Implements Yield. At this node a run stops, gives the node's inputs to the caller, and gets the node's outputs from the caller.
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// An output has the type of the input with the same index: the input is an output of the model, the output its gradient.
void infer_yield(InferContext& c) {
  for (int i = 0; i < c.num_outputs() && i < c.num_inputs(); ++i) c.set_output(i, c.input(i));
}

// In a file, Yield becomes a node that passes on its inputs, since other runtimes cannot stop a run.
void write_yield(FunctionBody& b) {
  for (size_t i = 0; i < b.num_outputs(); ++i) {
    if (i >= b.num_inputs())
      throw Error(ErrorCode::not_implemented, "a Yield that takes more values back than it hands out cannot be written");
    b.give(i, b.in(i));
  }
}

}  // namespace

std::vector<OpDef> treadle_domain_ops() {
  // The executor handles Yield, so it has no kernel. Its outputs are unknown before the run, so it is never folded or merged.
  return {{.name = "Yield",
           .domain = "treadle",
           .since = {1},
           .inputs = {{"handed_out", kAnything, "", Presence::variadic}},
           .outputs = {{"handed_in", kAnything, "", Presence::variadic}},
           .infer = infer_yield,
           .deterministic = false,
           .in_files = true,
           .barrier = true,
           .write_function = write_yield}};
}

}  // namespace treadle::ops
