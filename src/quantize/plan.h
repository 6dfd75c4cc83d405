// The data that all quantisation modes share: the selected nodes, and the model being edited.
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

/// A node with constant float weights that will be quantised.
struct Candidate {
  size_t node = 0;    // index in the graph
  size_t report = 0;  // index in the report
};

struct Plan {
  Editor& editor;
  const QuantizeOptions& options;
  QuantizeReport& report;
  std::vector<Candidate> candidates;
  /// For each index in the report: the name of the node's output in the float model, and of the value in the quantised model that should
  /// agree with it.
  std::map<size_t, std::pair<std::string, std::string>> compared;
};

/// Adds every node that the mode can quantise to the report, and the selected ones among them to the plan.
void select_nodes(Plan& plan);

/// Returns the weights of a MatMul or Gemm, multiplied by alpha: [K, N], or [N, K] if `outputs_first`.
Tensor product_weights(const Editor& editor, const onnx::NodeDef& node, bool outputs_first);
/// Returns a key for a node's weights: nodes with equal keys have equal weights.
std::string weights_key(const onnx::NodeDef& node);
/// Returns the name for the product that replaces a node. If the node is a Gemm with a C, this is a new name, and add_gemm_bias() adds C
/// afterwards.
std::string product_name(Editor& editor, const onnx::NodeDef& node);
void add_gemm_bias(Editor& editor, const onnx::NodeDef& node, const std::string& product, std::vector<onnx::NodeDef>& out);

void quantize_dynamic(Plan& plan);
void quantize_weights(Plan& plan);

/// Static quantisation: first collects the values whose ranges are needed, then rewrites the graph with these ranges.
class StaticPlan {
 public:
  explicit StaticPlan(Plan& plan);
  const std::vector<std::string>& values() const { return values_; }
  /// Rewrites the graph. @param histograms  one for each of values(), in this order.
  void apply(std::vector<Histogram> histograms);

 private:
  /// A value that is quantised.
  struct Coded {
    size_t parent = 0;        // values of one group share a scale; group_of() follows the parents to the group's first value
    bool replaces = false;    // all readers use the dequantised value, so the float value is not needed
    std::string dequantized;  // name of the value that readers use
    std::string scale, zero;
  };
  void take(const std::string& value);
  void follow_movers();
  /// Returns the lower bound that a Relu or Clip gives the value, possibly through nodes that only move elements; -infinity if there is
  /// none.
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
  std::map<std::string, size_t> place_;  // index of each value in values_ and coded_
  std::vector<Coded> coded_;
  std::map<size_t, size_t> taken_;  // maps the index of a node to its index in the report
  std::map<std::string, size_t> producers_;
  std::map<std::string, std::vector<size_t>> readers_;
  std::set<size_t> movers_, dropped_;  // movers_: nodes that move codes; dropped_: Relu and Clip nodes whose effect saturation has
  struct StoredBytes {
    std::string dequantized;
    Tensor scales;
    double sqnr_db = 0;
  };
  std::map<std::string, StoredBytes> weights_;  // codes of weights, by weights_key()
};

}  // namespace treadle::quantization
