// Low-rank adapters beside a model's constant weights, and the weights that have taken them in.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "treadle/train.h"

namespace treadle::train {

/// Of one weight W, which then counts as W + factor B A. A is [rank, ...] over W's inputs, B [outputs, rank, ...], as PEFT has them.
struct Adapter {
  std::string weight, a, b;  ///< names: of the initializer, and of the inputs that A and B are
  Shape a_shape, b_shape;
  bool transposed = false;  ///< W is [inputs, outputs], not [outputs, inputs, ...]
};

/// alpha / rank
double factor_of(const LoraOptions& options);

/// Those of the initializers that MatMul and Gemm read as [inputs, outputs], not as [outputs, inputs].
std::set<std::string> transposed_weights(const Graph& graph, std::span<const std::string> initializers);

/// Adds what the options say to a graph that is upgraded: A and B as inputs, and the nodes that read them.
/// @param initializers  names of the model's, which weights are of
/// @throws Error(not_found) for a target that fits no weight; Error(invalid_argument) if there is none at all.
std::vector<Adapter> add_adapters(Graph& graph, std::span<const std::string> initializers, const LoraOptions& options);

/// A uniform within 1 / sqrt(inputs), as torch.nn.Linear's weight begins, and B of zeros: the model computes what it did.
NamedTensors initial_adapters(std::span<const Adapter> adapters, uint64_t seed);

/// Parameters as a model without adapters has them: W + factor B A in place of A and B.
NamedTensors merge_adapters(const Model& model, std::span<const Adapter> adapters, double factor, const NamedTensors& parameters);

}  // namespace treadle::train
