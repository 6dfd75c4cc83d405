// A simple interpreter of ONNX graphs, whose results are the truth that the runtime is compared with. It shares only the file's structs and
// number formats with the runtime. Each operator computes its own output shapes, values share no memory, and loops are scalar.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnx/model_def.h"
#include "tests/graphs/array.h"

namespace treadle::graphs {

/// Values by name, including those of the outer graph.
class Scope {
 public:
  explicit Scope(const Scope* outer = nullptr) : outer_(outer) {}
  /// @throws Invalid if there is no such value
  const Value& get(const std::string& name) const { return get(name, /*second=*/false); }
  /// Returns the result of a second computation of the value (Noise::recomputes), if there was one; otherwise that of the first.
  const Value& get_second(const std::string& name) const { return get(name, /*second=*/true); }
  void set(const std::string& name, Value value) { values_[name].first = std::make_shared<const Value>(std::move(value)); }
  void set_second(const std::string& name, Value value) { values_[name].second = std::make_shared<const Value>(std::move(value)); }
  /// Makes `name` a copy of `from`.
  void copy(const std::string& name, const std::string& from) { values_[name] = values_.at(from); }

 private:
  struct Results {
    std::shared_ptr<const Value> first, second;
  };
  const Value& get(const std::string& name, bool second) const;

  const Scope* outer_;
  std::map<std::string, Results> values_;
};

/// One node that is being interpreted, with its operands and attributes.
class Call {
 public:
  Call(const onnx::NodeDef& node, const Scope& scope, Noise& noise);

  bool has(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return node_.outputs.size(); }
  bool wants(size_t output) const { return output < node_.outputs.size() && !node_.outputs[output].empty(); }
  const Value& value(size_t i) const;
  const Array& in(size_t i) const;
  /// Returns the elements of an int64 input.
  const std::vector<int64_t>& ints_in(size_t i) const;
  /// Returns true if the operand is an initializer.
  bool is_stored(size_t i) const { return value(i).is_stored; }

  const std::string& op() const { return node_.op_type; }
  const onnx::AttributeDef* attribute(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  double real(std::string_view name, double otherwise) const;
  std::string text(std::string_view name, const char* otherwise) const;
  std::vector<int64_t> integers(std::string_view name, std::vector<int64_t> otherwise = {}) const;
  const onnx::GraphDef& body(std::string_view name) const;
  /// Runs a body, whose graph can read this node's scope, and returns its outputs.
  std::vector<Value> run_body(const onnx::GraphDef& body, std::vector<Value> inputs);

  Noise& noise() { return noise_; }

 private:
  const onnx::NodeDef& node_;
  const Scope& scope_;
  Noise& noise_;
  std::vector<const Value*> inputs_;
  std::vector<std::unique_ptr<const Value>> unrounded_;
};

using Operator = std::vector<Value> (*)(Call&);
using OperatorTable = std::map<std::string, Operator, std::less<>>;

// Each of these tables is defined in a file of its own. A new operator is a function and a line in one of the tables.
const OperatorTable& elementwise_operators();
const OperatorTable& movement_operators();
const OperatorTable& reduction_operators();
const OperatorTable& neural_operators();
const OperatorTable& quantized_operators();
const OperatorTable& control_operators();
const OperatorTable& recurrent_operators();
const OperatorTable& image_operators();
const OperatorTable& indexed_operators();

/// Computes a node, and adds its outputs to the scope. @throws Invalid if the node breaks ONNX's rules
void interpret(const onnx::NodeDef& node, Scope& scope, Noise& noise);
/// Computes a graph, and returns its outputs. @param scope  contains the inputs @throws Invalid if a node breaks ONNX's rules
std::vector<Value> interpret(const onnx::GraphDef& graph, Scope& scope, Noise& noise);

}  // namespace treadle::graphs
