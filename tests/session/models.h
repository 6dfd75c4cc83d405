// Makes small models for tests of sessions, as files would contain them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "treadle/model.h"

namespace treadle::testing {

/// Collects nodes and makes a model of them.
class ModelBuilder {
 public:
  ModelBuilder() {
    def_.ir_version = 10;
    def_.opset_imports.push_back({"", 21});
    def_.opset_imports.push_back({"treadle", 1});
    def_.graph.name = "test";
  }

  /// @param shape  extents; a negative one means the symbol "n"
  ModelBuilder& input(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::float32) {
    def_.graph.inputs.push_back(info(name, shape, dtype));
    return *this;
  }
  ModelBuilder& output(const std::string& name, std::vector<int64_t> shape, DType dtype = DType::float32) {
    def_.graph.outputs.push_back(info(name, shape, dtype));
    return *this;
  }
  ModelBuilder& constant(const std::string& name, Tensor value) {
    onnx::TensorDef def;
    def.name = name;
    def.dtype = value.dtype();
    def.shape = value.shape();
    def.value = std::move(value);
    def_.graph.initializers.push_back(std::move(def));
    return *this;
  }
  ModelBuilder& node(const std::string& op, std::vector<std::string> inputs, std::vector<std::string> outputs, const std::string& name = {},
                     const std::string& domain = {}) {
    onnx::NodeDef def;
    def.op_type = op;
    def.domain = domain;
    def.name = name.empty() ? outputs[0] + "_node" : name;
    def.inputs = std::move(inputs);
    def.outputs = std::move(outputs);
    def_.graph.nodes.push_back(std::move(def));
    return *this;
  }
  onnx::NodeDef& last_node() { return def_.graph.nodes.back(); }

  Model model() const {
    std::string bytes = onnx::serialize_model(def_);
    return Model::from_bytes(std::as_bytes(std::span(bytes)));
  }
  onnx::ModelDef& def() { return def_; }

  static onnx::ValueInfoDef info(const std::string& name, const std::vector<int64_t>& shape, DType dtype) {
    onnx::ValueInfoDef made;
    made.name = name;
    made.type.kind = onnx::TypeDef::Kind::tensor;
    made.type.elem_type = dtype;
    made.type.shape.emplace();
    for (int64_t extent : shape) {
      onnx::DimDef dim;
      dim.kind = extent < 0 ? onnx::DimDef::Kind::param : onnx::DimDef::Kind::value;
      dim.value = extent;
      dim.param = "n";
      made.type.shape->push_back(dim);
    }
    return made;
  }

 private:
  onnx::ModelDef def_;
};

/// Makes y = (x + 1) * x, in which the sum is named "sum", and z = -x, for vectors of any length.
inline ModelBuilder two_outputs() {
  ModelBuilder b;
  b.input("x", {-1}).output("y", {-1}).output("z", {-1});
  b.constant("one", Tensor::scalar(1.0F));
  b.node("Add", {"x", "one"}, {"sum"}, "adding").node("Mul", {"sum", "x"}, {"y"}, "multiplying").node("Neg", {"x"}, {"z"}, "negating");
  return b;
}

/// Makes a loop of 2^62 iterations, so that a run only ends if it is stopped.
inline ModelBuilder endless_loop(bool with_nodes = true) {
  ModelBuilder b;
  b.input("start", {}, DType::int64).output("total", {}, DType::int64);
  b.constant("trips", Tensor::scalar(int64_t{1} << 62)).constant("one", Tensor::scalar<int64_t>(1));
  b.node("Loop", {"trips", "", "start"}, {"total"}, "counting");
  onnx::AttributeDef body;
  body.name = "body";
  body.type = onnx::AttributeType::graph;
  auto graph = std::make_unique<onnx::GraphDef>();
  graph->name = "body";
  graph->inputs.push_back(ModelBuilder::info("i", {}, DType::int64));
  graph->inputs.push_back(ModelBuilder::info("go", {}, DType::boolean));
  graph->inputs.push_back(ModelBuilder::info("count", {}, DType::int64));
  graph->outputs.push_back(ModelBuilder::info("go_on", {}, DType::boolean));
  graph->outputs.push_back(ModelBuilder::info("next", {}, DType::int64));
  onnx::NodeDef next, go;
  next.op_type = with_nodes ? "Add" : "Identity";
  next.inputs = {"count"};
  if (with_nodes) next.inputs.push_back("one");
  next.outputs = {"next"};
  go.op_type = "Identity";
  go.inputs = {"go"};
  go.outputs = {"go_on"};
  graph->nodes.push_back(std::move(next));
  graph->nodes.push_back(std::move(go));
  body.g = std::move(graph);
  b.last_node().attributes.push_back(std::move(body));
  return b;
}

inline Tensor floats(std::vector<float> values) { return Tensor::vector<float>(values); }
inline std::vector<float> values_of(const Datum& datum) {
  auto span = datum.tensor().span<float>();
  return {span.begin(), span.end()};
}

}  // namespace treadle::testing
