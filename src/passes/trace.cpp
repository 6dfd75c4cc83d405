#include "passes/trace.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "graph/op_def.h"

namespace treadle::passes {
namespace {

bool is_constant_now(const Graph& graph, const std::string& value) {
  const ValueId id = value.empty() ? kNoValue : graph.find_value(value);
  return id != kNoValue && graph.value(id).is_constant();
}

}  // namespace

std::string found(const Graph& graph, ValueId value) {
  if (value == kNoValue) return "nothing";
  const Value& v = graph.value(value);
  const std::string type = v.type.kind == Type::Kind::unknown ? "a value of unknown type" : to_string(v.type);
  return v.is_constant() ? "constant " + type : type;
}

thread_local constinit PassTrace* PassTrace::current_ = nullptr;

void PassTrace::look(const Graph& graph, Snapshot& snapshot) {
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id)) {
    const Node& node = graph.node(id);
    const std::string output = node.outputs.empty() || node.outputs[0] == kNoValue ? "" : graph.value(node.outputs[0]).name;
    snapshot.emplace(std::pair(&graph, id),
                     Seen{node.op_type, node.name, output, node.sources, node.attributes, node.op && node.op->moves != Moves::no});
    for (const Body& body : node.bodies) look(*body.graph, snapshot);
  }
}

void PassTrace::begin(std::string_view pass, const Graph& graph) {
  pass_ = pass;
  // The graph is usually recorded already, after the previous pass. It is recorded anew if it is another graph or has a new backward pass.
  const auto known = std::count_if(before_.begin(), before_.end(), [&](const auto& seen) { return seen.first.first == &graph; });
  if (static_cast<size_t>(known) != graph.num_nodes()) {
    before_.clear();
    look(graph, before_);
  }
  nodes_before_ = before_.size();  // including nodes in the subgraphs of If, Loop and Scan
}

void PassTrace::end(const Graph& graph, int64_t num_changes, int64_t elapsed_us) {
  if (num_changes == 0) return;
  Snapshot after;
  look(graph, after);
  PassStep step{pass_, num_changes, elapsed_us, nodes_before_, after.size(), {}};
  std::unordered_map<std::string, std::vector<const Seen*>> gone;  // removed nodes, by the node of the original model for which they stand
  std::set<const Seen*> left;
  for (const auto& [key, seen] : before_) {
    if (after.contains(key)) continue;
    left.insert(&seen);
    for (const std::string& source : seen.sources) gone[source].push_back(&seen);
  }
  auto add = [&](const auto& key, const Seen& seen) {
    const auto was = before_.find(key);
    const bool is_new = was == before_.end();
    if (!is_new && was->second.op_type == seen.op_type && was->second.sources == seen.sources && was->second.attributes == seen.attributes)
      return;
    NodeChange change{is_new ? NodeChange::What::made : NodeChange::What::changed, seen.op_type, seen.name, seen.sources, {}};
    for (const std::string& source : seen.sources) {
      const auto found = gone.find(source);
      if (found == gone.end()) continue;
      for (const Seen* took : found->second)
        if (left.erase(took) > 0) change.took.push_back(took->op_type + " " + took->name);
    }
    step.changes.push_back(std::move(change));
  };
  // New nodes that stand for the same model node take over its removed nodes: first those that compute, then Transposes around them.
  for (const bool moves : {false, true})
    for (const auto& [key, seen] : after)
      if (seen.moves == moves) add(key, seen);
  for (const auto& [key, seen] : before_)
    if (left.contains(&seen))
      step.changes.push_back({is_constant_now(graph, seen.output) ? NodeChange::What::folded : NodeChange::What::removed,
                              seen.op_type,
                              seen.name,
                              seen.sources,
                              {}});
  steps_.push_back(std::move(step));
  before_ = std::move(after);
}

void PassTrace::refuse(const Node& node, std::string_view reason, const Node* other, std::string_view rest) {
  std::string text(reason);
  if (other) text += " " + other->op_type + " " + other->name + std::string(rest);
  std::vector<Refusal>& of_node = refusals_[node.name];
  std::erase_if(of_node, [&](const Refusal& refusal) { return refusal.pass == pass_; });
  of_node.push_back({pass_, std::move(text)});
}

std::vector<Refusal> PassTrace::refusals(const std::string& node) const {
  const auto found = refusals_.find(node);
  return found == refusals_.end() ? std::vector<Refusal>() : found->second;
}

std::vector<NodeChange> PassTrace::result() const {
  std::vector<NodeChange> nodes;
  for (const auto& [key, seen] : before_) nodes.push_back({NodeChange::What::made, seen.op_type, seen.name, seen.sources, {}});
  return nodes;
}

std::vector<std::string> PassTrace::passes_of(const std::vector<std::string>& sources) const {
  std::vector<std::string> passes;
  for (const PassStep& step : steps_)
    for (const NodeChange& change : step.changes) {
      const bool concerns = std::any_of(change.sources.begin(), change.sources.end(), [&](const std::string& source) {
        return std::find(sources.begin(), sources.end(), source) != sources.end();
      });
      if (concerns && std::find(passes.begin(), passes.end(), step.pass) == passes.end()) passes.push_back(step.pass);
    }
  return passes;
}

}  // namespace treadle::passes
