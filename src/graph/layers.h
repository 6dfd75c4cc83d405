// The layers of the model that contain a node.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Returns the names of the layers that contain a node, outermost first, each as a full path. PyTorch's exporter records modules ("layer1",
/// "layer1.0", "layer1.0.conv1"). In other models, node names are paths: "/encoder/dense/MatMul" is in "encoder" and "encoder/dense". A
/// node that stands for several nodes of the model is in the layers of the first of them.
std::vector<std::string> layers_of(const Node& node);

/// Puts `to` into the layers of `from`, unless `to` already has layers.
void copy_layers(const Node& from, Node& to);

}  // namespace treadle
