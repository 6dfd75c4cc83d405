// Yield, where a run stops and hands values out.
#include "graph/function_body.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "ops/list.h"
#include "treadle/error.h"

namespace treadle::ops {
namespace {

// What is handed in for an output has the type of what was handed out as that input; the gradient of a loss has the type of the outputs.
void infer_yield(InferContext& c) {
  for (int i = 0; i < c.num_outputs() && i < c.num_inputs(); ++i) c.set_output(i, c.input(i));
}

// A Yield hands its inputs to whoever runs the graph and takes values back; where nobody does, the values pass through.
void write_yield(FunctionBody& b) {
  for (size_t i = 0; i < b.num_outputs(); ++i) {
    if (i >= b.num_inputs())
      throw Error(ErrorCode::not_implemented, "a Yield that takes more values back than it hands out cannot be written");
    b.give(i, b.in(i));
  }
}

}  // namespace

std::vector<OpDef> treadle_domain_ops() {
  // The executor stops at a Yield, so there is no kernel. Nothing about it may be folded or merged.
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
