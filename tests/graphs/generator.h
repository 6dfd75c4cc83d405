// Generates random valid graphs. Each new node is interpreted for all sets of feeds, and removed if it is invalid or its numbers grow too
// large. So the generator needs no shape inference.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/graphs/case.h"
#include "tests/graphs/interpreter.h"

namespace treadle::graphs {

class Generator {
 public:
  explicit Generator(uint32_t seed);
  /// Generates a body, whose nodes can read the outer graph's values.
  explicit Generator(Generator& outer);

  /// Generates the whole case.
  Case generate();

  // Random choices.
  int64_t below(int64_t n) { return n <= 0 ? 0 : static_cast<int64_t>((*random_)() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  template <typename T>
  const T& one_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

  // Values of the graph so far.
  const Value& value(const std::string& name, size_t set = 0) const { return scopes_[set].get(name); }
  const Array& array(const std::string& name) const { return value(name).array; }
  size_t num_sets() const { return scopes_.size(); }
  using Condition = std::function<bool(const Array&)>;
  /// Picks a tensor that satisfies the condition, and prefers new ones; returns "" if there is none.
  std::string pick(const Condition& condition);
  std::string pick_sequence();
  std::string pick_optional();
  /// With true, pick() returns only strings; with false, it returns none.
  void want_texts(bool want) { wants_texts_ = want; }
  bool wants_texts() const { return wants_texts_; }
  std::string constant(Array value);
  std::string constant_ints(std::vector<int64_t> values) { return constant(Array::ints(std::move(values))); }
  /// Returns random elements, of a distribution that keeps numbers small.
  Array random_array(DType dtype, Dims dims);

  /// Adds a node if it is valid for all sets of feeds, and returns the names of its outputs. Otherwise returns no names.
  std::vector<std::string> add(const std::string& op, std::vector<std::string> inputs, std::vector<onnx::AttributeDef> attributes = {},
                               size_t num_outputs = 1);
  /// Like add(), for a node with one output. Returns "" if the node is not valid.
  std::string add_one(const std::string& op, std::vector<std::string> inputs, std::vector<onnx::AttributeDef> attributes = {});

  // Functions for bodies.
  std::string add_formal(const std::vector<Value>& example_per_set);
  void grow(int num_nodes);
  void add_output(const std::string& name, bool in_body = true);
  /// Picks a value that was made within the body and satisfies the condition; returns "" if there is none.
  std::string pick_own(const Condition& condition);
  int depth() const { return depth_; }
  onnx::GraphDef take_graph() { return std::move(graph_); }

 private:
  void add_inputs();
  void choose_outputs();
  bool tame(const Value& value) const;
  size_t most_elements() const;

  std::shared_ptr<std::mt19937> random_;
  std::shared_ptr<int> next_name_;
  int depth_ = 0;
  bool is_large_ = false;
  onnx::GraphDef graph_;
  std::vector<Feeds> feeds_;
  std::vector<Scope> scopes_;       // one for each set of feeds
  std::vector<std::string> names_;  // names of the values that nodes may read, outer ones first
  size_t first_own_ = 0;
  std::vector<int> weights_;  // relative probabilities of the kinds of nodes
  bool wants_texts_ = false;
};

template <typename... A>
std::vector<onnx::AttributeDef> attributes(A... list) {
  std::vector<onnx::AttributeDef> result;
  (result.push_back(std::move(list)), ...);
  return result;
}

/// A kind of nodes, with a function that adds some to a graph. The function returns false if it could not add any.
struct Kind {
  const char* name;
  int weight;
  bool (*make)(Generator&);
};
const std::vector<Kind>& movement_kinds();
const std::vector<Kind>& shape_kinds();
const std::vector<Kind>& compute_kinds();
const std::vector<Kind>& neural_kinds();
const std::vector<Kind>& control_kinds();
const std::vector<Kind>& recurrent_kinds();
const std::vector<Kind>& text_kinds();
const std::vector<Kind>& indexed_kinds();

}  // namespace treadle::graphs
