// Edits a model's structs: constants, names, nodes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "onnx/model_def.h"

namespace treadle::quantization {

onnx::NodeDef make_node(std::string op_type, std::vector<std::string> inputs, std::vector<std::string> outputs, std::string name,
                        std::string domain = {});
void set_attribute(onnx::NodeDef& node, std::string name, int64_t value);
int64_t int_attribute(const onnx::NodeDef& node, std::string_view name, int64_t otherwise);
float float_attribute(const onnx::NodeDef& node, std::string_view name, float otherwise);

class Editor {
 public:
  explicit Editor(onnx::ModelDef& model);

  /// The value of an initializer that nobody can feed, or of a Constant; null for others.
  const Tensor* constant(const std::string& name) const;
  bool is_output(const std::string& name) const { return outputs_.contains(name); }
  /// Of nodes' operands, outputs of the graph and captures of bodies.
  int64_t num_uses(const std::string& name) const;
  /// A name that nothing has yet.
  std::string unique(const std::string& base);
  /// @return the initializer's name.
  std::string add(const std::string& base, Tensor value);
  /// Takes away initializers, Constants and types of values that nothing reads or makes any more.
  void remove_unused();
  void require_opset(const std::string& domain, int64_t version);
  int64_t opset(std::string_view domain) const;

  onnx::ModelDef& model;

 private:
  void count_uses();

  std::unordered_set<std::string> names_, outputs_;
  std::unordered_map<std::string, Tensor> constants_;
  std::unordered_map<std::string, int64_t> uses_;
};

}  // namespace treadle::quantization
