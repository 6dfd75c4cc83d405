// What the modes share: the nodes to take, and the model that they are taken from.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quantize/editor.h"
#include "quantize/histogram.h"
#include "treadle/quantize.h"

namespace treadle::quantization {

/// A node with constant float weights.
struct Candidate {
  size_t node = 0;    // its place in the graph
  size_t report = 0;  // its place in the report
};

struct Plan {
  Editor& editor;
  const QuantizeOptions& options;
  QuantizeReport& report;
  std::vector<Candidate> candidates;
  /// By place in the report: the value of the quantised model that is to agree with the node's output in the float model.
  std::map<size_t, std::pair<std::string, std::string>> compared;
};

/// Fills the report with every node of a kind that the mode can quantise, and the plan with those that are taken.
void select_nodes(Plan& plan);

/// The weights of a MatMul or Gemm, scaled by alpha: [K, N], or [N, K] if `outputs_first`.
Tensor product_weights(const Editor& editor, const onnx::NodeDef& node, bool outputs_first);
/// Where the weights come from: equal keys have equal weights.
std::string weights_key(const onnx::NodeDef& node);
/// Behind a product that is written anew: a Gemm's C is added to it. @return the name that the product must have.
std::string product_name(Editor& editor, const onnx::NodeDef& node);
void add_gemm_bias(Editor& editor, const onnx::NodeDef& node, const std::string& product, std::vector<onnx::NodeDef>& out);

void quantize_dynamic(Plan& plan);
void quantize_weights(Plan& plan);

/// Static quantisation: first the values whose ranges it needs, then the graph with these ranges.
class StaticPlan {
 public:
  explicit StaticPlan(Plan& plan);
  const std::vector<std::string>& values() const { return values_; }
  /// @param histograms  in the order of values().
  void apply(std::vector<Histogram> histograms);

 private:
  /// A value that is turned into codes.
  struct Coded {
    size_t parent = 0;        // values of a group share a scale; find() goes to its first
    bool replaces = false;    // all readers take the coded value: nobody wants the float one
    std::string dequantised;  // what readers take
    std::string scale, zero;
  };
  void take(const std::string& value);
  void follow_movers();
  /// The bound that a Relu or Clip sets, seen through movers; -infinity without one.
  double least_of(const std::string& value) const;
  void mark_replaced();
  size_t group_of(size_t value) const;
  void join(const std::string& a, const std::string& b);
  void add_weights(const onnx::NodeDef& node, size_t report, std::vector<onnx::NodeDef>& out, std::vector<std::string>& inputs);
  void add_code_nodes(const std::string& value, const std::string& source, std::vector<onnx::NodeDef>& out);
  bool reads_codes(size_t node, const std::string& value) const;
  const onnx::NodeDef& node(size_t index) const { return plan_.editor.model.graph.nodes[index]; }

  Plan& plan_;
  std::vector<std::string> values_;
  std::map<std::string, size_t> place_;  // in values_ and coded_
  std::vector<Coded> coded_;
  std::map<size_t, size_t> taken_;  // node -> place in the report
  std::map<std::string, size_t> producers_;
  std::map<std::string, std::vector<size_t>> readers_;
  std::set<size_t> movers_, dropped_;  // nodes that move codes; Relu and Clip that saturation replaces
  struct StoredBytes {
    std::string dequantised;
    Tensor scales;
    double sqnr_db = 0;
  };
  std::map<std::string, StoredBytes> weights_;  // by key
};

}  // namespace treadle::quantization
