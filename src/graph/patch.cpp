#include "graph/patch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/short_vector.h"
#include "graph/dead_nodes.h"
#include "graph/infer.h"
#include "graph/op_def.h"
#include "graph/rewriter.h"
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

/// Nodes to visit again. One queue is reused for a graph and all its bodies, because a model may have hundreds of small bodies.
struct PatchQueue {
  std::vector<NodeId> nodes;
  std::vector<bool> holds;  // for each node: true if it is in the unprocessed part of the queue
};

/// Applies patches to one graph.
class PatchDriver {
 public:
  PatchDriver(Rewriter& rewriter, std::span<const Rule* const> rules, const PatchOptions& options, PatchQueue& queue)
      : rewriter_(rewriter), graph_(rewriter.graph()), rules_(rules), options_(options), queue_(queue.nodes), queued_(queue.holds) {}

  void run() {
    queue_.clear();
    queue_.reserve(static_cast<size_t>(graph_.num_nodes()));
    for (NodeId id = graph_.first(); id != kNoNode; id = graph_.next(id)) queue_.push_back(id);
    queued_.assign(graph_.node_capacity(), true);
    // Each rule should bring the graph closer to a form that no rule matches. More patches than this mean that two rules undo each other.
    const int64_t limit = rewriter_.count() + 1000 + 50 * static_cast<int64_t>(graph_.num_nodes());
    for (size_t next = 0; next < queue_.size() && !rewriter_.is_at_limit(); ++next) {
      if (rewriter_.count() > limit)
        throw Error(ErrorCode::internal, fmt::format("the rewrite rules do not come to an end; the last was {}", last_rule_));
      const NodeId id = queue_[next];
      queued_[index_of(id)] = false;
      if (graph_.is_alive(id)) visit(id);
    }
  }

 private:
  void enqueue(NodeId id) {
    if (id == kNoNode) return;
    if (queued_.size() <= index_of(id)) queued_.resize(2 * index_of(id) + 64, false);
    if (queued_[index_of(id)]) return;
    queued_[index_of(id)] = true;
    queue_.push_back(id);
  }

  void visit(NodeId id) {
    if (options_.num_visits) ++*options_.num_visits;
    for (const Rule* rule : rules_) {
      std::optional<Patch> patch = rule->match(graph_, graph_.node(id));
      if (!patch) continue;
      if (options_.log) options_.log(rule->name(), graph_.node(id));
      last_rule_ = rule->name();
      // apply() sets the sources itself: the remaining readers tell it which nodes the new nodes replace.
      rewriter_.change([&] { return apply(*rule, *patch, id), true; });
      return;
    }
  }

  void apply(const Rule& rule, Patch& patch, NodeId matched) {
    std::vector<ValueId> made(patch.num_pending_values_, kNoValue);
    auto resolve = [&](ValueId id) {
      return id != kNoValue && (static_cast<uint32_t>(id) & Patch::kPendingBit) ? made[static_cast<uint32_t>(id) & ~Patch::kPendingBit]
                                                                                : id;
    };
    removed_sources_.clear();
    removed_metadata_.clear();
    std::vector<NodeId> made_nodes;
    for (Patch::Pending& pending : patch.pending_) {
      if (pending.is_constant) {
        made[pending.first_output] = graph_.add_constant(pending.name, std::move(pending.content));
        continue;
      }
      for (ValueId& input : pending.spec.inputs) input = resolve(input);
      NodeId id = graph_.add_node(std::move(pending.spec), matched);
      infer_node(graph_, id);
      for (size_t i = 0; i < graph_.node(id).outputs.size(); ++i) made[pending.first_output + i] = graph_.node(id).outputs[i];
      made_nodes.push_back(id);
      enqueue(id);
    }
    for (auto [old_value, with] : patch.replacements_) {
      ValueId replacement = resolve(with);
      replace(rule, old_value, replacement);
      if (with != replacement) take_name(old_value, replacement);
    }
    // The new nodes stand for the matched node and for all nodes that the patch makes dead (listed from last to first). Lists are moved and
    // extended rather than copied, because they grow when a chain is merged node by node.
    std::vector<std::string> sources;
    if (graph_.is_alive(matched)) sources = graph_.node(matched).sources;
    for (auto it = removed_sources_.rbegin(); it != removed_sources_.rend(); ++it) {
      if (sources.empty())
        sources = std::move(*it);
      else
        sources.insert(sources.end(), std::make_move_iterator(it->begin()), std::make_move_iterator(it->end()));
    }
    Provenance stands_for;
    if (graph_.is_alive(matched)) stands_for.metadata = graph_.node(matched).metadata;
    for (auto it = removed_metadata_.rbegin(); it != removed_metadata_.rend(); ++it) stands_for.merge_metadata(*it);
    if (made_nodes.empty()) return;
    for (NodeId made_node : std::span(made_nodes).first(made_nodes.size() - 1)) {
      graph_.node(made_node).sources = sources;
      graph_.node(made_node).metadata = stands_for.metadata;
    }
    graph_.node(made_nodes.back()).sources = std::move(sources);
    graph_.node(made_nodes.back()).metadata = std::move(stands_for.metadata);
  }

  // Gives the new value the name of the old one, because users look for that name.
  void take_name(ValueId old_value, ValueId replacement) {
    if (graph_.value(old_value).producer != kNoNode) return;
    std::string name = graph_.value(old_value).name;
    graph_.rename_value(old_value, name + "/replaced");
    graph_.rename_value(replacement, name);
  }

  void replace(const Rule& rule, ValueId old_value, ValueId with) {
    const Type &was = graph_.type(old_value), &is = graph_.type(with);
    bool contradiction = false;
    Type merged = merge(is, was, &contradiction);
    if (contradiction)
      throw Error(ErrorCode::internal, fmt::format("the rule {} replaces \"{}\" of type {} by one of type {}", rule.name(),
                                                   graph_.value(old_value).name, to_string(was), to_string(is)));
    // The type of an input must not be narrowed by a declared type, because every feed would be checked against it.
    if (graph_.value(with).kind != Value::Kind::input) graph_.value(with).type = std::move(merged);
    if (!graph_.value(with).known && !graph_.value(with).is_constant()) graph_.value(with).known = graph_.value(old_value).known;
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
      if (!graph_.is_alive(candidate) || !is_dead(graph_, graph_.node(candidate))) continue;
      removed_sources_.push_back(std::move(graph_.node(candidate).sources));
      if (!graph_.node(candidate).metadata.empty()) removed_metadata_.push_back(std::move(graph_.node(candidate).metadata));
      for (ValueId input : graph_.node(candidate).inputs) {
        if (input == kNoValue || graph_.value(input).producer == kNoNode) continue;
        stack.push_back(graph_.value(input).producer);
        enqueue(graph_.value(input).producer);  // its output has one use less, so another rule may match
      }
      graph_.remove_node(candidate);
    }
  }

  Rewriter& rewriter_;
  Graph& graph_;
  std::span<const Rule* const> rules_;
  const PatchOptions& options_;
  std::string_view last_rule_;
  std::vector<std::vector<std::string>> removed_sources_;  // sources of the nodes that the current patch has removed
  std::vector<Properties> removed_metadata_;               // metadata of these nodes
  std::vector<NodeId>& queue_;
  std::vector<bool>& queued_;
};

int64_t apply_rules(Graph& graph, std::span<const std::unique_ptr<Rule>> rules, const PatchOptions& options) {
  ShortVector<const Rule*> active;
  active.reserve(rules.size());
  for (const auto& rule : rules) {
    bool skipped = std::find(options.skip.begin(), options.skip.end(), rule->name()) != options.skip.end();
    if (!skipped) active.push_back(rule.get());
  }
  PatchQueue queue;
  return Rewriter(graph, options.max_patches).for_each_graph_inside_out([&](Rewriter& inside) {
    PatchDriver(inside, active, options, queue).run();
  });
}

}  // namespace treadle
