// The library's side of treadle/plugin.h: nodes, subgraphs and calls as a plugin sees them.
#pragma once

#include <string>
#include <vector>

#include "graph/infer.h"
#include "graph/kernel.h"
#include "treadle/plugin.h"

/// A node with the types of its operands.
struct treadle_node {
  const treadle::Node* node = nullptr;
  std::vector<const char*> input_names, output_names;  // empty where the context knows no names
  std::vector<treadle::Type> input_types, output_types;
  std::vector<const treadle::Tensor*> constants;  // per input; null where it is none
};

struct treadle_subgraph {
  std::vector<treadle_node> nodes;
  std::vector<const char*> inputs, outputs;
};

struct treadle_call {
  treadle::RunContext* context = nullptr;
  int num_inputs = 0, num_outputs = 0;
  mutable std::vector<treadle::Tensor> inputs;  // contiguous; made when asked for
  std::vector<treadle::Tensor> outputs;
};

namespace treadle::plugin {

const treadle_host& host();

treadle_node view_of(const Graph& graph, const Node& node);
treadle_node view_of(const CreateContext& context);
treadle_node view_of(const InferContext& context);

/// Forgets the text that an earlier callback of this thread left.
void clear_failure();
/// The text of the failure that a callback of this thread reported; empty without one.
std::string take_failure();

/// Calls a plugin's `run` for the operands of `context`. @throws Error(internal) with the plugin's text, or for an output that it did not
/// make.
void run_call(const Node& node, RunContext& context, int (*run)(void* user, void* state, const treadle_host*, treadle_call*), void* user,
              void* state);

}  // namespace treadle::plugin
