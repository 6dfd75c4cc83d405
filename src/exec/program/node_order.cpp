#include "exec/program/node_order.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <span>

#include "core/base/checked.h"
#include "graph/dim_bounds.h"
#include "graph/op_def.h"
#include "memory/order.h"
#include "treadle/tensor.h"

namespace treadle::exec {
namespace {

constexpr int64_t kSomeExtent = 64;               // value assumed for every symbol while choosing an order
constexpr int64_t kOtherExtents[] = {1, 8, 512};  // other values; the chosen order must not be worse for them

// Returns the inputs whose memory the update's results may be bound to.
std::vector<ValueId> written_over(const Node& update) {
  std::vector<ValueId> values;
  for (size_t output = 0; output < update.outputs.size(); ++output)
    if (update.has_output(output))
      values.push_back(update.inputs[static_cast<size_t>(update.op->updated_input(update, static_cast<int>(output)))]);
  return values;
}

// Describes the graph to the order planner (memory/order). A view shares its input's bytes. Inputs and outputs of the graph count as 0
// bytes, because they are not in the arena.
class Description {
 public:
  /// @param extent  the value assumed for every symbol
  /// @param early   updates that need not come last
  Description(const Graph& graph, const std::vector<NodeId>& order, int64_t extent, const std::set<NodeId>& early)
      : graph_(graph), early_(early), values_(graph.symbols().size(), extent), bounds_(values_) {
    root_.resize(graph.num_values());
    for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<int32_t>(v);
    bytes_.assign(root_.size(), 0);
    for (NodeId id : order) add(id, graph.node(id));
    for (ValueId output : graph.outputs) bytes_[static_cast<size_t>(root_of(output))] = 0;
  }

  bool is_known() const { return known_; }
  const std::vector<memory::Step>& steps() const { return steps_; }
  const std::vector<size_t>& bytes() const { return bytes_; }

 private:
  int32_t root_of(ValueId id) const { return root_[index_of(id)]; }

  size_t size_of(ValueId id) {
    const Type& type = graph_.type(id);
    // Values with known elements are small tensors of integers. They count as 0 bytes.
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

  void add(NodeId id, const Node& node) {
    const auto index = static_cast<int32_t>(steps_.size());
    const std::span<const Alias> aliases = node.op ? std::span<const Alias>(node.op->alias) : std::span<const Alias>();
    memory::Step step;
    for (ValueId input : node.inputs) {
      if (input == kNoValue) continue;
      step.reads.push_back(static_cast<int32_t>(index_of(input)));
      if (root_of(input) != step.reads.back()) step.reads.push_back(root_of(input));  // a view keeps the viewed value alive
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
    if (early_.contains(id)) {
      for (ValueId value : written_over(node))
        for (int32_t s = 0; s < index; ++s)
          if (std::ranges::count(steps_[static_cast<size_t>(s)].reads, root_of(value)) > 0) step.after.push_back(s);
    } else if (is_update_.back()) {
      for (int32_t s = 0; s < index; ++s)
        if (!is_update_[static_cast<size_t>(s)]) step.after.push_back(s);
    }
    steps_.push_back(std::move(step));
  }

  static constexpr double kMuch = 1e14;  // upper bound of a value's estimated bytes; a double adds many such values exactly
  const Graph& graph_;
  const std::set<NodeId>& early_;
  const std::vector<int64_t> values_;  // value of each symbol: the assumed extent
  UpperBounds bounds_;
  bool known_ = true;
  int32_t barrier_ = -1;
  std::vector<int32_t> root_;
  std::vector<size_t> bytes_;
  std::vector<memory::Step> steps_;
  std::vector<bool> is_update_;  // for each step: true if it is an update
};

// Returns the updates (as of an optimizer) whose results only other updates read. An update that another node reads keeps its place.
std::set<NodeId> updates_of(const Graph& graph) {
  const std::vector<NodeId> order = graph.order();
  std::set<NodeId> last;
  auto is_read_by_last = [&](ValueId output) {
    if (output == kNoValue) return true;
    const auto& uses = graph.value(output).uses;
    return std::all_of(uses.begin(), uses.end(), [&](const Use& use) { return last.contains(use.node); });
  };
  for (NodeId id : order | std::views::reverse)
    if (const Node& node = graph.node(id); is_update(node) && std::all_of(node.outputs.begin(), node.outputs.end(), is_read_by_last))
      last.insert(id);
  return last;
}

// Places each early update right after the nodes that make its inputs and the nodes that read the memory it overwrites. All other updates
// come last.
std::vector<NodeId> with_updates_placed(const Graph& graph, const std::set<NodeId>& updates, const std::set<NodeId>& early) {
  const std::vector<NodeId> own = graph.order();
  std::vector<size_t> made_at(graph.num_values(), 0), read_at(graph.num_values(), 0), root(graph.num_values());
  std::iota(root.begin(), root.end(), size_t{0});
  std::vector<std::vector<NodeId>> placed(own.size() + 1);
  auto place = [&](NodeId id, size_t at) {
    const Node& node = graph.node(id);
    placed[at].push_back(id);
    for (ValueId output : node.outputs)
      if (output != kNoValue) made_at[index_of(output)] = at;
    for (ValueId input : node.inputs)
      if (input != kNoValue) read_at[root[index_of(input)]] = std::max(read_at[root[index_of(input)]], at);
  };
  for (size_t i = 0; i < own.size(); ++i) {
    if (early.contains(own[i])) continue;
    const Node& node = graph.node(own[i]);
    for (const Alias& alias : node.op ? std::span<const Alias>(node.op->alias) : std::span<const Alias>()) {
      const auto in = static_cast<size_t>(alias.input), out = static_cast<size_t>(alias.output);
      if (alias.kind == Alias::Kind::view && node.has_input(in) && node.has_output(out))
        root[index_of(node.outputs[out])] = root[index_of(node.inputs[in])];
    }
    place(own[i], updates.contains(own[i]) ? own.size() : i);
  }
  for (NodeId id : own) {
    if (!early.contains(id)) continue;
    size_t at = 0;
    for (ValueId input : graph.node(id).inputs)
      if (input != kNoValue) at = std::max(at, made_at[index_of(input)]);
    for (ValueId value : written_over(graph.node(id))) at = std::max(at, read_at[root[index_of(value)]]);
    place(id, at);
  }
  std::vector<NodeId> order;
  for (const auto& ids : placed) order.insert(order.end(), ids.begin(), ids.end());
  return order;
}

// Returns true if each node reads a result of the node before it. Then there is no other order.
bool is_chain(const Graph& graph, std::span<const NodeId> order) {
  for (size_t i = 1; i < order.size(); ++i)
    if (std::ranges::none_of(graph.node(order[i]).inputs,
                             [&](ValueId input) { return input != kNoValue && graph.value(input).producer == order[i - 1]; }))
      return false;
  return true;
}

}  // namespace

bool is_update(const Node& node) { return node.op && node.op->updated_input; }

bool is_behind(const Graph& graph, const Node& update, const std::unordered_set<const Node*>& forward) {
  return std::any_of(update.inputs.begin(), update.inputs.end(), [&](ValueId input) {
    if (input == kNoValue) return false;
    const NodeId producer = graph.value(input).producer;
    return producer != kNoNode && !forward.contains(&graph.node(producer));
  });
}

std::vector<NodeId> choose_order(const Graph& graph, bool saves_memory, const std::unordered_set<const Node*>* forward) {
  const std::set<NodeId> updates = updates_of(graph);
  std::set<NodeId> early;
  for (NodeId id : updates)
    if (forward && is_behind(graph, graph.node(id), *forward)) early.insert(id);
  std::vector<NodeId> order = with_updates_placed(graph, updates, early);
  if (!saves_memory || order.size() > kMaxReordered || is_chain(graph, order)) return order;
  const Description description(graph, order, kSomeExtent, early);
  if (!description.is_known()) return order;
  std::vector<int32_t> as_it_is(order.size());
  std::iota(as_it_is.begin(), as_it_is.end(), 0);
  const std::vector<int32_t> best = memory::order_for_peak(description.steps(), description.bytes());
  if (best == as_it_is) return order;
  for (int64_t extent : graph.symbols().size() == 0 ? std::span<const int64_t>() : std::span<const int64_t>(kOtherExtents)) {
    const Description other(graph, order, extent, early);
    if (!other.is_known() ||
        memory::peak_of_order(other.steps(), other.bytes(), best) > memory::peak_of_order(other.steps(), other.bytes(), as_it_is))
      return order;
  }
  std::vector<NodeId> chosen;
  for (int32_t s : best) chosen.push_back(order[static_cast<size_t>(s)]);
  return chosen;
}

}  // namespace treadle::exec
