// The data that all quantization modes share: the model that is being edited, and the nodes that are selected.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quantize/editor.h"
#include "quantize/histogram.h"
#include "treadle/quantize.h"

namespace treadle::quantization {

/// A node with constant float weights that is going to be quantized.
struct Candidate {
  size_t node = 0;    // the node's index in the graph
  size_t report = 0;  // index of the node's entry in the report
};

struct Plan {
  Editor& editor;
  const QuantizeOptions& options;
  QuantizeReport& report;
  std::vector<Candidate> candidates;
  /// For each index in the report, two names: of the node's output in the float model, and of the value in the quantized model that
  /// corresponds to it.
  std::map<size_t, std::pair<std::string, std::string>> compared;
};

/// Adds every node that the mode can quantize to the report. Those nodes that the options select become candidates of the plan.
void select_nodes(Plan& plan);

/// Replaces the plan's nodes, whose outputs are compared afterwards, and copies the others.
/// @param replace  called for each of the plan's nodes, with its entry in the report, to append nodes to `out`
void replace_nodes(Plan& plan,
                   const std::function<void(const onnx::NodeDef& node, QuantizedNode& entry, std::vector<onnx::NodeDef>& out)>& replace);
/// Returns the weights of a MatMul or Gemm, multiplied by Gemm's alpha, as [K, N] or, if `outputs_first`, as [N, K].
Tensor product_weights(const Editor& editor, const onnx::NodeDef& node, bool outputs_first);
/// Returns a key for a node's weights. Nodes with equal keys have equal weights, which are quantized once.
std::string weights_key(const onnx::NodeDef& node);
/// Returns the name of the product that replaces a node: the name of the node's output. For a Gemm with an operand C it is a new name,
/// since add_gemm_bias() then adds C to the product.
std::string product_name(Editor& editor, const onnx::NodeDef& node);
void add_gemm_bias(Editor& editor, const onnx::NodeDef& node, const std::string& product, std::vector<onnx::NodeDef>& out);

void quantize_dynamic(Plan& plan);
void quantize_weights(Plan& plan);

/// Static quantization. The constructor determines the values whose ranges are needed; apply() then rewrites the graph with these ranges.
class StaticPlan {
 public:
  explicit StaticPlan(Plan& plan);
  const std::vector<std::string>& values() const { return values_; }
  /// Rewrites the graph. @param histograms  one for each of values(), in the same order.
  void apply(std::vector<Histogram> histograms);

 private:
  /// A value that is quantized.
  struct Coded {
    size_t parent = 0;        // index in its group, whose values share a scale (union-find; see group_of())
    bool replaces = false;    // the dequantized value gets the value's name, so that all readers use it
    std::string dequantized;  // name of the dequantized value
    std::string scale, zero;
  };
  void take(const std::string& value);
  void follow_movers();
  /// Returns the lower bound of the value's elements, if it comes from a Relu or Clip, possibly through nodes that only move elements;
  /// otherwise -infinity.
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
  std::map<std::string, size_t> place_;  // index of each value in values_ and coded_, by name
  std::vector<Coded> coded_;
  std::map<size_t, size_t> taken_;  // maps indices of quantized nodes to indices in the report
  std::map<std::string, size_t> producers_;
  std::map<std::string, std::vector<size_t>> readers_;
  std::set<size_t> movers_, dropped_;  // movers_: nodes that only move elements; dropped_: redundant Relu and Clip nodes
  struct StoredBytes {
    std::string dequantized;
    Tensor scales;
    double sqnr_db = 0;
  };
  std::map<std::string, StoredBytes> weights_;  // quantized weights, by weights_key()
};

}  // namespace treadle::quantization
