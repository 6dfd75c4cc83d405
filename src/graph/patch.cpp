#include "graph/patch.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "graph/infer.h"
#include "treadle/error.h"

namespace treadle {

ValueId Patch::add(NodeSpec spec) {
  uint32_t first = num_pending_values_;
  num_pending_values_ += static_cast<uint32_t>(spec.num_outputs);
  pending_.push_back({false, std::move(spec), {}, {}, first});
  return ValueId{kPendingBit | first};
}

ValueId Patch::constant(std::string name, Tensor content) {
  uint32_t first = num_pending_values_++;
  pending_.push_back({true, {}, std::move(name), std::move(content), first});
  return ValueId{kPendingBit | first};
}

namespace {

bool is_unused(const Graph& graph, const Node& node) {
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
    return output == kNoValue || (graph.value(output).uses.empty() && !graph.is_output(output));
  });
}

}  // namespace

/// Applies patches to one graph and keeps the list of nodes to look at again.
class PatchDriver {
 public:
  PatchDriver(Graph& graph, std::span<const std::unique_ptr<Rule>> rules, const PatchOptions& options) : graph_(graph), rules_(rules), options_(options) {}

  int64_t run() {
    for (NodeId id : graph_.order()) {
      for (Body& body : graph_.node(id).bodies) count_ += apply_rules(*body.graph, rules_, options_);
      enqueue(id);
    }
    while (!queue_.empty() && count_ < options_.max_patches) {
      NodeId id = queue_.front();
      queue_.pop_front();
      queued_[index_of(id)] = false;
      if (graph_.is_alive(id)) visit(id);
    }
    return count_;
  }

 private:
  void enqueue(NodeId id) {
    if (id == kNoNode) return;
    if (queued_.size() <= index_of(id)) queued_.resize(index_of(id) + 1, false);
    if (queued_[index_of(id)]) return;
    queued_[index_of(id)] = true;
    queue_.push_back(id);
  }

  void visit(NodeId id) {
    for (const auto& rule : rules_) {
      if (options_.training && rule->inference_only()) continue;
      if (std::find(options_.skip.begin(), options_.skip.end(), rule->name()) != options_.skip.end()) continue;
      std::optional<Patch> patch = rule->match(graph_, graph_.node(id));
      if (!patch) continue;
      if (options_.log) options_.log(rule->name(), graph_.node(id));
      apply(*rule, *patch, id);
      ++count_;
      return;
    }
  }

  void apply(const Rule& rule, Patch& patch, NodeId matched) {
    std::vector<ValueId> made(patch.num_pending_values_, kNoValue);
    auto resolve = [&](ValueId id) { return id != kNoValue && (static_cast<uint32_t>(id) & Patch::kPendingBit) ? made[static_cast<uint32_t>(id) & ~Patch::kPendingBit] : id; };
    std::vector<std::string> sources = sources_of(patch, matched);
    for (Patch::Pending& pending : patch.pending_) {
      if (pending.is_constant) {
        made[pending.first_output] = graph_.add_constant(pending.name, std::move(pending.content));
        continue;
      }
      for (ValueId& input : pending.spec.inputs) input = resolve(input);
      NodeId id = graph_.add_node(std::move(pending.spec), matched);
      graph_.node(id).sources = sources;
      infer_node(graph_, id);
      for (size_t i = 0; i < graph_.node(id).outputs.size(); ++i) made[pending.first_output + i] = graph_.node(id).outputs[i];
      enqueue(id);
    }
    for (auto [old_value, with] : patch.replacements_) replace(rule, old_value, resolve(with));
  }

  // The names of the model's nodes that the patch's replaced values came from.
  std::vector<std::string> sources_of(const Patch& patch, NodeId matched) const {
    std::vector<std::string> sources = graph_.node(matched).sources;
    for (auto [old_value, with] : patch.replacements_) {
      NodeId producer = graph_.value(old_value).producer;
      if (producer == kNoNode || producer == matched) continue;
      for (const std::string& name : graph_.node(producer).sources)
        if (std::find(sources.begin(), sources.end(), name) == sources.end()) sources.push_back(name);
    }
    return sources;
  }

  void replace(const Rule& rule, ValueId old_value, ValueId with) {
    const Type &was = graph_.type(old_value), &is = graph_.type(with);
    bool contradiction = false;
    Type merged = merge(is, was, &contradiction);
    if (contradiction)
      throw Error(ErrorCode::internal, fmt::format("the rule {} replaces \"{}\" of type {} by one of type {}", rule.name(), graph_.value(old_value).name,
                                                   to_string(was), to_string(is)));
    graph_.value(with).type = std::move(merged);
    if (!graph_.value(with).known) graph_.value(with).known = graph_.value(old_value).known;
    for (const Use& use : graph_.value(old_value).uses) enqueue(use.node);
    NodeId producer = graph_.value(old_value).producer;
    graph_.replace_uses(old_value, with);
    if (producer != kNoNode) remove_if_dead(producer);
    enqueue(graph_.value(with).producer);
  }

  void remove_if_dead(NodeId id) {
    std::vector<NodeId> stack{id};
    while (!stack.empty()) {
      NodeId candidate = stack.back();
      stack.pop_back();
      if (!graph_.is_alive(candidate) || !is_unused(graph_, graph_.node(candidate))) continue;
      for (ValueId input : graph_.node(candidate).inputs) {
        if (input == kNoValue || graph_.value(input).producer == kNoNode) continue;
        stack.push_back(graph_.value(input).producer);
        enqueue(graph_.value(input).producer);  // it may have one use less, which lets another rule match
      }
      graph_.remove_node(candidate);
    }
  }

  Graph& graph_;
  std::span<const std::unique_ptr<Rule>> rules_;
  const PatchOptions& options_;
  std::deque<NodeId> queue_;
  std::vector<bool> queued_;
  int64_t count_ = 0;
};

int64_t apply_rules(Graph& graph, std::span<const std::unique_ptr<Rule>> rules, const PatchOptions& options) {
  return PatchDriver(graph, rules, options).run();
}

int64_t remove_dead_nodes(Graph& graph) {
  int64_t removed = 0;
  std::vector<NodeId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (is_unused(graph, graph.node(*it))) {
      graph.remove_node(*it);
      ++removed;
      continue;
    }
    for (Body& body : graph.node(*it).bodies) removed += remove_dead_nodes(*body.graph);
  }
  return removed;
}

}  // namespace treadle
