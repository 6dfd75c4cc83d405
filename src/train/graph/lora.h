// LoRA: adds low-rank adapters to a model's constant weights, and merges adapters into weights.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// The low-rank adapter of one weight W: the model computes with W + factor * B A instead of W. As in PEFT, A has the shape
/// [rank, inputs, ...], and B has the shape [outputs, rank, ...].
struct Adapter {
  std::string weight, a, b;  ///< names of W's initializer, and of the inputs A and B
  Shape a_shape, b_shape;
  bool transposed = false;  ///< W is [inputs, outputs] instead of [outputs, inputs, ...]
};

/// Returns true for a MatMul or Gemm node, whose second operand may be a weight.
bool is_product(const Node& node);

/// Returns the factor by which B A is multiplied: alpha / rank.
double factor_of(const LoraOptions& options);

/// Returns the initializers that MatMul and Gemm read as [inputs, outputs] instead of [outputs, inputs].
std::set<std::string> transposed_weights(const Graph& graph, std::span<const std::string> initializers);

/// Adds adapters to a graph in the newest opset: A and B as graph inputs, and the nodes that apply them.
/// @param initializers  names of the model's initializers, among which weights are searched
/// @throws Error(not_found) for a target that matches no weight; Error(invalid_argument) if no weight gets an adapter.
std::vector<Adapter> add_adapters(Graph& graph, std::span<const std::string> initializers, const LoraOptions& options);

/// Returns the adapters' initial values. A is uniform in [-b, b] with b = 1 / sqrt(inputs), like the weight of torch.nn.Linear. B is zero,
/// so that adapters do not change the model's results before training.
NamedTensors initial_adapters(std::span<const Adapter> adapters, uint64_t seed);

/// Returns trained weights for the model without adapters: each pair of A and B is replaced by W + factor * B A.
NamedTensors merge_adapters(const Model& model, std::span<const Adapter> adapters, double factor, const NamedTensors& parameters);

}  // namespace treadle::train
