// The layers of the model that a node is in.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace treadle {

/// Names of the layers around a node, outer ones first, each a whole path. PyTorch's exporter notes the modules ("layer1", "layer1.0",
/// "layer1.0.conv1"). Of other models, the names of nodes are paths: "/encoder/dense/MatMul" is in "encoder" and "encoder/dense". A node
/// that stands for several of the model is in the layers of the first.
std::vector<std::string> layers_of(const Node& node);

/// `to` is in the same layers.
void copy_layers(const Node& from, Node& to);

}  // namespace treadle
