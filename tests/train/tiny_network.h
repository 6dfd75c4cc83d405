// Makes a small model to train, and batches for it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "onnx/serialize.h"
#include "treadle/model.h"
#include "treadle/tensor.h"
#include "treadle/train.h"

namespace treadle::train::tiny {

inline onnx::AttributeDef ints(const char* name, std::vector<int64_t> values) {
  onnx::AttributeDef made;
  made.name = name;
  made.type = onnx::AttributeType::ints;
  made.ints = std::move(values);
  return made;
}

inline onnx::NodeDef node(const char* type, std::vector<std::string> inputs, const char* output,
                          std::vector<onnx::AttributeDef> attributes = {}) {
  onnx::NodeDef made;
  made.op_type = type;
  made.name = std::string(output) + "_node";
  made.inputs = std::move(inputs);
  made.outputs = {output};
  made.attributes = std::move(attributes);
  return made;
}

inline void add_tensor(onnx::GraphDef& graph, const char* name, const Shape& shape, float low, float high) {
  std::mt19937 generator(static_cast<uint32_t>(graph.initializers.size()) + 1);
  std::uniform_real_distribution<float> uniform(low, high);
  onnx::TensorDef made;
  made.name = name;
  made.dtype = DType::float32;
  made.shape = shape;
  made.value = Tensor(DType::float32, shape);
  for (float& x : made.value.span<float>()) x = uniform(generator);
  graph.initializers.push_back(std::move(made));
}

inline onnx::ValueInfoDef tensor_info(const char* name, std::vector<int64_t> extents) {
  onnx::ValueInfoDef info;
  info.name = name;
  info.type.kind = onnx::TypeDef::Kind::tensor;
  info.type.elem_type = DType::float32;
  info.type.shape.emplace();
  for (int64_t extent : extents) {
    onnx::DimDef dim;
    dim.kind = extent < 0 ? onnx::DimDef::Kind::param : onnx::DimDef::Kind::value;
    if (extent < 0)
      dim.param = "batch";
    else
      dim.value = extent;
    info.type.shape->push_back(dim);
  }
  return info;
}

// The model classifies images by their bright half, the left or the right one.
using Edit = std::function<void(onnx::GraphDef&)>;
inline Model tiny_network(int64_t batch = -1, const Edit& edit = {}) {
  onnx::ModelDef model;
  model.ir_version = 8;
  model.opset_imports.push_back({"", 17});
  onnx::GraphDef& graph = model.graph;
  graph.name = "tiny";
  graph.inputs.push_back(tensor_info("image", {batch, 1, 6, 6}));
  graph.outputs.push_back(tensor_info("scores", {batch, 2}));
  add_tensor(graph, "conv.weight", {4, 1, 3, 3}, -0.5F, 0.5F);
  add_tensor(graph, "conv.bias", {4}, -0.1F, 0.1F);
  add_tensor(graph, "bn.scale", {4}, 0.9F, 1.1F);
  add_tensor(graph, "bn.bias", {4}, -0.1F, 0.1F);
  add_tensor(graph, "bn.mean", {4}, 0, 0);
  add_tensor(graph, "bn.var", {4}, 1, 1);
  add_tensor(graph, "fc.weight", {36, 2}, -0.2F, 0.2F);
  add_tensor(graph, "fc.bias", {2}, -0.1F, 0.1F);
  graph.nodes.push_back([] {
    std::vector<onnx::AttributeDef> attributes;
    attributes.push_back(ints("pads", {1, 1, 1, 1}));
    return node("Conv", {"image", "conv.weight", "conv.bias"}, "conv", std::move(attributes));
  }());
  graph.nodes.push_back(node("BatchNormalization", {"conv", "bn.scale", "bn.bias", "bn.mean", "bn.var"}, "normal"));
  graph.nodes.push_back(node("Relu", {"normal"}, "active"));
  graph.nodes.push_back([] {
    std::vector<onnx::AttributeDef> attributes;
    attributes.push_back(ints("kernel_shape", {2, 2}));
    attributes.push_back(ints("strides", {2, 2}));
    return node("MaxPool", {"active"}, "pooled", std::move(attributes));
  }());
  graph.nodes.push_back(node("Flatten", {"pooled"}, "flat"));
  graph.nodes.push_back(node("Gemm", {"flat", "fc.weight", "fc.bias"}, "scores"));
  if (edit) edit(graph);
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

struct Batch {
  Feeds feeds;
  Tensor labels;
};
inline Batch make_batch(int64_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> noise(0, 0.5F);
  Tensor images(DType::float32, {n, 1, 6, 6}), labels(DType::int64, {n});
  for (int64_t i = 0; i < n; ++i) {
    labels.data<int64_t>()[i] = i % 2;
    for (int64_t k = 0; k < 36; ++k) images.data<float>()[i * 36 + k] = noise(generator) + ((k % 6 < 3) == (i % 2 == 0) ? 1.0F : 0.0F);
  }
  return {{{"image", images}}, labels};
}

}  // namespace treadle::train::tiny
