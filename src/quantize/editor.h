// Helps to edit a model in its ONNX form (onnx::ModelDef): finds constants and uses, and makes names and nodes.
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

  /// Returns the tensor of a constant: of an initializer that cannot be fed, or of a Constant node. Returns null for other names.
  const Tensor* constant(const std::string& name) const;
  bool is_output(const std::string& name) const { return outputs_.contains(name); }
  /// Returns how many uses a value has: by nodes, by subgraphs, and as outputs of the graph.
  int64_t num_uses(const std::string& name) const;
  /// Returns a name that does not occur in the model: `base`, with a suffix if necessary.
  std::string unique(const std::string& base);
  /// Adds an initializer.
  /// @return its name, which is unique(base).
  std::string add(const std::string& base, Tensor value);
  /// Removes initializers and Constant nodes that are not used, and declared types of values that no longer exist.
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
