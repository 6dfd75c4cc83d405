// Makes a model that consists of a chain of elementwise nodes, which compute vectors of 8 floats.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "treadle/treadle.hpp"

namespace treadle::bench {

/// @param dynamic  true: the extent of the values is the symbol "n" instead of 8
/// @param yields  true: every second node is a Yield node, at which a partial run stops
inline Model chain(int num_nodes, bool dynamic, bool yields = false) {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports.push_back({"", 21});
  if (yields) model.opset_imports.push_back({"treadle", 1});
  auto value = [&](const std::string& name) {
    onnx::ValueInfoDef info;
    info.name = name;
    info.type.kind = onnx::TypeDef::Kind::tensor;
    info.type.elem_type = DType::float32;
    onnx::DimDef dim;
    dim.kind = dynamic ? onnx::DimDef::Kind::param : onnx::DimDef::Kind::value;
    dim.value = 8;
    dim.param = "n";
    info.type.shape = std::vector<onnx::DimDef>{dim};
    return info;
  };
  model.graph.name = "chain";
  model.graph.inputs.push_back(value("v0"));
  onnx::TensorDef one;
  one.name = "one";
  one.dtype = DType::float32;
  one.value = Tensor::scalar(1.0F);
  model.graph.initializers.push_back(std::move(one));
  for (int i = 0; i < num_nodes; ++i) {
    onnx::NodeDef node;
    node.op_type = i % 2 ? "Mul" : "Add";
    node.inputs = {"v" + std::to_string(i), "one"};
    node.outputs = {"v" + std::to_string(i + 1)};
    if (yields && i % 2) {
      node.op_type = "Yield";
      node.domain = "treadle";
      node.inputs.pop_back();
    }
    model.graph.nodes.push_back(std::move(node));
  }
  model.graph.outputs.push_back(value("v" + std::to_string(num_nodes)));
  std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

}  // namespace treadle::bench
