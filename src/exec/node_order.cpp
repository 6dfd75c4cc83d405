#include "exec/node_order.h"

#include <span>

#include "core/checked.h"
#include "graph/op_def.h"
#include "memory/order.h"
#include "treadle/tensor.h"

namespace treadle::exec {
namespace {

// The graph as the planner of orders sees it: views are their input's value, results and inputs have bytes elsewhere.
class Description {
 public:
  explicit Description(const Graph& graph, const std::vector<NodeId>& order) : graph_(graph) {
    root_.resize(graph.num_values());
    for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<int32_t>(v);
    bytes_.assign(root_.size(), 0);
    for (NodeId id : order) add(graph.node(id));
    for (ValueId output : graph.outputs) bytes_[static_cast<size_t>(root_of(output))] = 0;
  }

  bool is_known() const { return known_; }
  const std::vector<memory::Step>& steps() const { return steps_; }
  const std::vector<size_t>& bytes() const { return bytes_; }

 private:
  int32_t root_of(ValueId id) const { return root_[index_of(id)]; }

  size_t size_of(ValueId id) {
    const Type& type = graph_.type(id);
    if (!type.is_tensor() || !type.is_static() || type.dtype == DType::undefined || type.dtype == DType::string) {
      // Small integers that shapes determine never cost bytes worth moving a node for.
      known_ &= graph_.value(id).known.has_value();
      return 0;
    }
    return align_up(size_bytes(type.dtype, type.static_shape().num_elements()), Storage::kAlignment);
  }

  void add(const Node& node) {
    const auto index = static_cast<int32_t>(steps_.size());
    const std::span<const Alias> aliases = node.op ? std::span<const Alias>(node.op->alias) : std::span<const Alias>();
    memory::Step step;
    for (ValueId input : node.inputs) {
      if (input == kNoValue) continue;
      step.reads.push_back(static_cast<int32_t>(index_of(input)));
      if (root_of(input) != step.reads.back()) step.reads.push_back(root_of(input));  // a view keeps what it views alive
    }
    for (ValueId output : node.outputs) {
      if (output == kNoValue) continue;
      step.writes.push_back(static_cast<int32_t>(index_of(output)));
      bytes_[index_of(output)] = size_of(output);
    }
    for (const Alias& alias : aliases) {
      auto in = static_cast<size_t>(alias.input), out = static_cast<size_t>(alias.output);
      if (alias.kind != Alias::Kind::view || !node.has_input(in) || !node.has_output(out)) continue;
      root_[index_of(node.outputs[out])] = root_of(node.inputs[in]);
      bytes_[index_of(node.outputs[out])] = 0;
    }
    for (const Alias& alias : aliases) {
      auto in = static_cast<size_t>(alias.input), out = static_cast<size_t>(alias.output);
      if (alias.kind != Alias::Kind::reuse || !node.has_input(in) || !node.has_output(out)) continue;
      int32_t read = root_of(node.inputs[in]), written = static_cast<int32_t>(index_of(node.outputs[out]));
      if (bytes_[static_cast<size_t>(read)] == bytes_[static_cast<size_t>(written)]) step.reuses.emplace_back(written, read);
    }
    if (barrier_ >= 0) step.after.push_back(barrier_);
    if (node.is("Yield", "treadle")) {
      for (int32_t s = barrier_ + 1; s < index; ++s) step.after.push_back(s);
      barrier_ = index;
    }
    // An optimiser's results may be bound to the memory of what it reads: whoever else reads that, or computes it anew, comes before.
    is_update_.push_back(node.op && node.op->domain == "ai.onnx.preview.training");
    if (is_update_.back())
      for (int32_t s = 0; s < index; ++s)
        if (!is_update_[static_cast<size_t>(s)]) step.after.push_back(s);
    steps_.push_back(std::move(step));
  }

  const Graph& graph_;
  bool known_ = true;
  int32_t barrier_ = -1;
  std::vector<int32_t> root_;
  std::vector<size_t> bytes_;
  std::vector<memory::Step> steps_;
  std::vector<bool> is_update_;  // per step
};

}  // namespace

std::vector<NodeId> choose_order(const Graph& graph) {
  std::vector<NodeId> order = graph.order();
  if (order.size() > kMaxReordered) return order;
  const Description description(graph, order);
  if (!description.is_known()) return order;
  std::vector<NodeId> chosen;
  for (int32_t s : memory::order_for_peak(description.steps(), description.bytes())) chosen.push_back(order[static_cast<size_t>(s)]);
  return chosen;
}

}  // namespace treadle::exec
