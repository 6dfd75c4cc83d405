// From a Graph back to the structs of a file.
#pragma once

#include "graph/graph.h"
#include "onnx/model_def.h"

namespace treadle::onnx {

/// ExportOptions::opset: the lowest version of ai.onnx in which every node can be written as it is, but never below 13.
inline constexpr int kLowestOpset = 0;
inline constexpr int kNewestOpset = -1;

struct ExportOptions {
  int opset = kLowestOpset;
  bool value_info = true;  ///< write the inferred types of intermediate values
  /// Operators of the domain "treadle" stay what they are, at the newest opsets: a file for this library alone, which imports it as the
  /// same nodes. What the graph says of random nodes besides is kept in their metadata.
  bool own_operators = false;
};

/// Writes an upgraded graph: captures vanish again, constants become initializers, and the IR version is the oldest that the opset allows.
/// Names are kept, except where a body's name hides one of the graphs around it. Operators of the domain "treadle" are written as local
/// functions with a body of standard operators.
/// @param original  the model that the graph was read from: metadata and documentation are taken over. May be null.
/// @throws Error(invalid_argument) naming the first node that needs a newer opset than the chosen one; Error(not_implemented) for what ONNX
///   cannot express (a constant that is not a dense tensor).
ModelDef export_model(const Graph& graph, const ModelDef* original = nullptr, const ExportOptions& options = {});

/// An attribute as a node holds it. @throws Error(not_implemented) for what ONNX cannot express.
AttributeDef attribute_def(const std::string& name, const Attribute& value);

/// The since-version of the node's operator whose schema the node follows with the same meaning: the lowest such opset of its domain.
/// Nodes must be of the newest version (upgraded).
int lowest_opset(const Graph& graph, const Node& node);

}  // namespace treadle::onnx
