// LoRA: adds low-rank adapters to a model's constant weights, and merges adapters into weights.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// The adapter of one weight W, which is used as W + factor * B A. With PEFT's layout A is [rank, ...] over W's inputs, and B is [outputs,
/// rank, ...].
struct Adapter {
  std::string weight, a, b;  ///< names of W's initializer, and of the inputs A and B
  Shape a_shape, b_shape;
  bool transposed = false;  ///< W is [inputs, outputs] instead of [outputs, inputs, ...]
};

/// Returns true for a node that multiplies matrices, of which the second may be a weight.
bool is_product(const Node& node);

/// Returns the adapter's factor, alpha / rank.
double factor_of(const LoraOptions& options);

/// Returns the initializers that MatMul and Gemm read as [inputs, outputs] instead of [outputs, inputs].
std::set<std::string> transposed_weights(const Graph& graph, std::span<const std::string> initializers);

/// Adds adapters to an upgraded graph: A and B as inputs, and the nodes that apply them.
/// @param initializers  names of the model's initializers, among which the weights are
/// @throws Error(not_found) for a target that matches no weight; Error(invalid_argument) if no weight gets an adapter.
std::vector<Adapter> add_adapters(Graph& graph, std::span<const std::string> initializers, const LoraOptions& options);

/// Returns the initial values. A is uniform in [-b, b] with b = 1 / sqrt(inputs), like the weight of torch.nn.Linear. B is zero, so that
/// the model's results do not change.
NamedTensors initial_adapters(std::span<const Adapter> adapters, uint64_t seed);

/// Returns the parameters of the model without adapters: W + factor * B A replaces each A and B.
NamedTensors merge_adapters(const Model& model, std::span<const Adapter> adapters, double factor, const NamedTensors& parameters);

}  // namespace treadle::train
