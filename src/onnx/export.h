// Exports a Graph to the structs of an ONNX file.
#pragma once

#include "graph/graph.h"
#include "onnx/model_def.h"

namespace treadle::onnx {

/// Value for ExportOptions::opset. Selects the lowest version of ai.onnx, at least 13, in which every node can be written unchanged.
inline constexpr int kLowestOpset = 0;
inline constexpr int kNewestOpset = -1;
/// Value for ExportOptions::opset. Selects the versions of all domains that the original model imports, each raised to what its nodes need;
/// ai.onnx is at least 11.
inline constexpr int kModelsOpset = -2;

struct ExportOptions {
  int opset = kLowestOpset;
  bool value_info = true;  ///< write the inferred types of intermediate values
  /// Keeps operators of the treadle domain, and uses the newest opsets, for files that only this library reads. Importing such a file gives
  /// the same nodes. Additional properties of random nodes are stored in the nodes' metadata.
  bool own_operators = false;
};

/// Exports an upgraded graph. Bodies read captured values by name again, constants become initializers, and the IR version is the oldest
/// that the opset allows. Names are kept, unless a name in a body would hide one of a surrounding graph. Operators of the treadle domain
/// become local functions with a body of standard operators.
/// @param original  the model that the graph was read from, whose metadata and documentation are copied; may be null
/// @throws Error(invalid_argument) naming the first node that needs a newer opset than the chosen one; Error(not_implemented) for values
///   that ONNX cannot express (a constant that is not a dense tensor)
ModelDef export_model(const Graph& graph, const ModelDef* original = nullptr, const ExportOptions& options = {});

/// Converts a node's attribute. @throws Error(not_implemented) if ONNX cannot express it
AttributeDef attribute_def(const std::string& name, const Attribute& value);

/// Returns the lowest opset version in which the operator's schema accepts the node with the same meaning. @pre the node is upgraded to the
/// newest version
int lowest_opset(const Graph& graph, const Node& node);

}  // namespace treadle::onnx
