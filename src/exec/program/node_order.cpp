#include "exec/program/node_order.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <span>

#include "core/checked.h"
#include "graph/dim_bounds.h"
#include "graph/op_def.h"
#include "memory/order.h"
#include "treadle/tensor.h"

namespace treadle::exec {
namespace {

constexpr int64_t kSomeExtent = 64;               // for symbols
constexpr int64_t kOtherExtents[] = {1, 8, 512};  // for which an order chosen for the first one may not be worse

// The graph as the planner of orders sees it: views are their input's value, results and inputs have bytes elsewhere.
class Description {
 public:
  /// @param extent  of every symbol.
  Description(const Graph& graph, const std::vector<NodeId>& order, int64_t extent)
      : graph_(graph), values_(graph.symbols().size(), extent), bounds_(values_) {
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
    // Small integers that shapes determine never cost bytes worth moving a node for.
    if (graph_.value(id).known) return 0;
    const bool is_plain = type.is_tensor() && type.shape && type.dtype != DType::undefined && type.dtype != DType::string;
    double bytes = is_plain ? static_cast<double>(bits_of(type.dtype)) / 8 : 0;
    for (size_t axis = 0; is_plain && axis < type.shape->size(); ++axis) {
      const auto extent = bounds_.of((*type.shape)[axis]);
      known_ &= extent.has_value();
      bytes *= static_cast<double>(std::max<int64_t>(extent.value_or(0), 0));
    }
    known_ &= is_plain && bytes < kMuch;
    return align_up(static_cast<size_t>(std::min(bytes, kMuch)), Storage::kAlignment);
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
    if (node.op && node.op->barrier) {
      for (int32_t s = barrier_ + 1; s < index; ++s) step.after.push_back(s);
      barrier_ = index;
    }
    is_update_.push_back(is_update(node));
    if (is_update_.back())
      for (int32_t s = 0; s < index; ++s)
        if (!is_update_[static_cast<size_t>(s)]) step.after.push_back(s);
    steps_.push_back(std::move(step));
  }

  static constexpr double kMuch = 1e14;  // sums of many such still are integers
  const Graph& graph_;
  const std::vector<int64_t> values_;  // of symbols
  UpperBounds bounds_;
  bool known_ = true;
  int32_t barrier_ = -1;
  std::vector<int32_t> root_;
  std::vector<size_t> bytes_;
  std::vector<memory::Step> steps_;
  std::vector<bool> is_update_;  // per step
};

// Updates that something else reads stay where they are.
std::vector<NodeId> with_updates_last(const Graph& graph) {
  std::vector<NodeId> order = graph.order();
  std::set<NodeId> last;
  auto is_read_by_last = [&](ValueId output) {
    if (output == kNoValue) return true;
    const auto& uses = graph.value(output).uses;
    return std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return last.contains(use.node); });
  };
  for (NodeId id : order | std::views::reverse)
    if (const Node& node = graph.node(id); is_update(node) && std::all_of(node.outputs.begin(), node.outputs.end(), is_read_by_last))
      last.insert(id);
  std::stable_partition(order.begin(), order.end(), [&](NodeId id) { return !last.contains(id); });
  return order;
}

}  // namespace

bool is_update(const Node& node) { return node.op && node.op->updated_input; }

std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory) {
  std::vector<NodeId> order = with_updates_last(graph);
  if (!saves_memory || order.size() > kMaxReordered) return order;
  const Description description(graph, order, kSomeExtent);
  if (!description.is_known()) return order;
  std::vector<int32_t> as_it_is(order.size());
  std::iota(as_it_is.begin(), as_it_is.end(), 0);
  const std::vector<int32_t> best = memory::order_for_peak(description.steps(), description.bytes());
  if (best == as_it_is) return order;
  for (int64_t extent : graph.symbols().size() == 0 ? std::span<const int64_t>() : std::span<const int64_t>(kOtherExtents)) {
    const Description other(graph, order, extent);
    if (!other.is_known() ||
        memory::peak_of_order(other.steps(), other.bytes(), best) > memory::peak_of_order(other.steps(), other.bytes(), as_it_is))
      return order;
  }
  std::vector<NodeId> chosen;
  for (int32_t s : best) chosen.push_back(order[static_cast<size_t>(s)]);
  return chosen;
}

}  // namespace treadle::exec
