// Divides a graph into subgraphs for a backend. Every node gets a depth: the number of times that the longest path to the node changes
// between nodes that the backend takes and others, or between devices. Adjacent nodes of equal depth that the backend takes form a
// subgraph. An edge between two subgraphs always leads to a greater depth, so replacing subgraphs creates no cycle. The work is linear in
// the size of the graph.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "graph/custom_ops.h"
#include "graph/rewriter.h"
#include "plugin/backend.h"
#include "plugin/host.h"
#include "plugin/registry.h"
#include "treadle/error.h"

namespace treadle::plugin {

class Compiled {
 public:
  Compiled(std::shared_ptr<const Backend> backend, void* state) : backend_(std::move(backend)), state_(state) {}
  ~Compiled() { backend_->callbacks.release(backend_->callbacks.user, state_); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  const treadle_backend& callbacks() const { return backend_->callbacks; }
  void* state() const { return state_; }
  size_t size_bytes() const { return callbacks().size_bytes ? callbacks().size_bytes(callbacks().user, state_) : 0; }

 private:
  std::shared_ptr<const Backend> backend_;
  void* state_;
};

namespace {

constexpr std::string_view kHandle = "handle";

// The compiled subgraphs, by handle. The node that replaces a subgraph stores the handle in its attributes.
struct Handles {
  std::mutex mutex;
  int64_t next = 1;
  std::unordered_map<int64_t, std::weak_ptr<const Compiled>> compiled;
};

Handles& handles() {
  static auto* instance = new Handles();  // never destroyed, as sessions may outlive static objects
  return *instance;
}

int64_t add_handle(const std::shared_ptr<const Compiled>& compiled) {
  Handles& all = handles();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.compiled, [](const auto& entry) { return entry.second.expired(); });
  all.compiled[all.next] = compiled;
  return all.next++;
}

std::shared_ptr<const Compiled> find_handle(int64_t handle) {
  Handles& all = handles();
  std::lock_guard lock(all.mutex);
  auto found = all.compiled.find(handle);
  return found == all.compiled.end() ? nullptr : found->second.lock();
}

struct SubgraphState final : PackedState {
  SubgraphState(const Node& its_node, std::shared_ptr<const Compiled> its_compiled) : node(its_node), compiled(std::move(its_compiled)) {}
  size_t size_bytes() const override { return compiled->size_bytes(); }
  const Node& node;
  std::shared_ptr<const Compiled> compiled;
};

struct SubgraphKernel {
  static constexpr bool allocates = true;
  static std::unique_ptr<PackedState> create(const CreateContext& context) {
    auto compiled = find_handle(context.attributes().get_int(kHandle));
    if (!compiled) throw Error(ErrorCode::internal, "the compiled subgraph is gone");
    return std::make_unique<SubgraphState>(context.node(), std::move(compiled));
  }
  static SubgraphKernel bind(BindContext&) { return {}; }
  void run(RunContext& context) const {
    const auto& state = context.packed<SubgraphState>();
    const treadle_backend& backend = state.compiled->callbacks();
    run_call(state.node, context, backend.run, backend.user, state.compiled->state());
  }
};

const OpDef& subgraph_op() {
  // The outputs already have types, so there is nothing to infer.
  static const OpDef* op = add_custom_op({.name = "Subgraph",
                                          .domain = "treadle.backend",
                                          .since = {1},
                                          .inputs = {{"inputs", kAllTensors, "", Presence::variadic}},
                                          .outputs = {{"outputs", kAllTensors, "", Presence::variadic}},
                                          .attributes = {{kAnyAttribute}},
                                          .infer = [](InferContext&) {},
                                          .kernels = {kernel<SubgraphKernel>("backend")},
                                          .deterministic = false});
  return *op;
}

/// Partitions one graph for one property (treadle_backend_property) of a backend, which selects nodes by device and operator.
class Partitioner {
 public:
  Partitioner(Rewriter& rewriter, std::shared_ptr<const Backend> backend, size_t property, const PartitionOptions& options)
      : rewriter_(rewriter),
        graph_(rewriter.graph()),
        backend_(std::move(backend)),
        property_(property),
        options_(options),
        depth_(graph_.node_capacity(), 0),
        leader_(graph_.node_capacity()),
        taken_on_(graph_.node_capacity()) {}

  std::vector<std::shared_ptr<const Compiled>> run() {
    const std::vector<NodeId> order = graph_.order();
    std::iota(leader_.begin(), leader_.end(), size_t{0});
    for (NodeId id : order) {
      if (takes(graph_.node(id))) taken_on_[index_of(id)] = device_of(graph_.node(id));
      visit(id);
    }
    std::map<size_t, std::vector<NodeId>> groups;  // nodes of each group, by the group's leader, in topological order
    for (NodeId id : order)
      if (!taken_on_[index_of(id)].empty()) groups[find(index_of(id))].push_back(id);
    std::vector<std::shared_ptr<const Compiled>> made;
    for (const auto& [leader, members] : groups)
      if (members.size() >= property().min_nodes && !rewriter_.is_at_limit()) compile(members, made);
    return made;
  }

 private:
  const Property& property() const { return backend_->properties[property_]; }

  size_t find(size_t i) {
    while (leader_[i] != i) i = leader_[i] = leader_[leader_[i]];
    return i;
  }

  std::string_view device_of(const Node& node) const { return options_.device_of ? options_.device_of(node) : "cpu"; }

  // A property for the device "sim" also applies to "sim:0".
  bool is_on_its_device(const Node& node) const {
    const std::string_view device = device_of(node);
    return property().device == device || property().device == device.substr(0, device.find(':'));
  }

  bool takes(const Node& node) {
    if (!node.bodies.empty() || !node.op || node.op == &subgraph_op() || node.op->barrier || !is_on_its_device(node)) return false;
    auto tensor = [&](ValueId id) { return id == kNoValue || graph_.type(id).is_tensor(); };
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), tensor) || !std::all_of(node.outputs.begin(), node.outputs.end(), tensor))
      return false;
    const auto& types = property().op_types;
    if (!property().every_type && std::find(types.begin(), types.end(), fmt::format("{}:{}", node.domain, node.op_type)) == types.end())
      return false;
    const treadle_backend& callbacks = backend_->callbacks;
    if (!callbacks.takes) return true;
    const treadle_node view = view_of(graph_, node);
    return callbacks.takes(callbacks.user, &host(), property_, &view) != 0;
  }

  void visit(NodeId id) {
    int64_t& depth = depth_[index_of(id)];
    const std::string_view taken_on = taken_on_[index_of(id)];
    for (ValueId input : graph_.node(id).inputs) {
      if (input == kNoValue || graph_.value(input).producer == kNoNode) continue;
      const size_t producer = index_of(graph_.value(input).producer);
      depth = std::max(depth, depth_[producer] + (taken_on_[producer] != taken_on ? 1 : 0));
    }
    if (taken_on.empty()) return;
    for (ValueId input : graph_.node(id).inputs) {
      if (input == kNoValue || graph_.value(input).producer == kNoNode) continue;
      const size_t producer = index_of(graph_.value(input).producer);
      if (taken_on_[producer] == taken_on && depth_[producer] == depth) leader_[find(index_of(id))] = find(producer);
    }
  }

  void compile(const std::vector<NodeId>& members, std::vector<std::shared_ptr<const Compiled>>& made) {
    std::vector<ValueId> inputs, outputs;
    find_border(members, inputs, outputs);
    treadle_subgraph subgraph;
    for (NodeId id : members) subgraph.nodes.push_back(view_of(graph_, graph_.node(id)));
    for (ValueId id : inputs) subgraph.inputs.push_back(graph_.value(id).name.c_str());
    for (ValueId id : outputs) subgraph.outputs.push_back(graph_.value(id).name.c_str());
    clear_failure();
    const treadle_backend& callbacks = backend_->callbacks;
    void* state = callbacks.compile(callbacks.user, &host(), property_, &subgraph);
    const std::string reason = take_failure();
    const std::string what = fmt::format("{} nodes from \"{}\" to \"{}\" ({})", members.size(), graph_.node(members.front()).name,
                                         graph_.node(members.back()).name, property().name);
    if (options_.log)
      options_.log(backend_->name, state ? "took " + what : fmt::format("refused {}{}{}", what, reason.empty() ? "" : ": ", reason));
    if (!state) return;
    made.push_back(std::make_shared<const Compiled>(backend_, state));
    const int64_t handle = add_handle(made.back());
    rewriter_.change(members, [&] { return replace(members, inputs, outputs, handle), true; });
  }

  void find_border(const std::vector<NodeId>& members, std::vector<ValueId>& inputs, std::vector<ValueId>& outputs) const {
    const std::unordered_set<size_t> inside = [&] {
      std::unordered_set<size_t> ids;
      for (NodeId id : members) ids.insert(index_of(id));
      return ids;
    }();
    std::unordered_set<size_t> seen;
    for (NodeId id : members) {
      for (ValueId input : graph_.node(id).inputs) {
        if (input == kNoValue || graph_.value(input).is_constant() || !seen.insert(index_of(input)).second) continue;
        const NodeId producer = graph_.value(input).producer;
        if (producer == kNoNode || !inside.contains(index_of(producer))) inputs.push_back(input);
      }
      for (ValueId output : graph_.node(id).outputs) {
        if (output == kNoValue) continue;
        const auto& uses = graph_.value(output).uses;
        const bool leaves = std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return !inside.contains(index_of(use.node)); });
        if (leaves || graph_.is_output(output)) outputs.push_back(output);
      }
    }
  }

  void replace(const std::vector<NodeId>& members, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
               int64_t handle) {
    NodeSpec spec{.op_type = std::string(subgraph_op().name),
                  .inputs = inputs,
                  .attributes = {{"backend", backend_->name}, {"property", property().name}, {std::string(kHandle), handle}},
                  .domain = std::string(subgraph_op().domain),
                  .name = fmt::format("{}_{}", backend_->name, graph_.node(members.front()).name),
                  .num_outputs = static_cast<int>(outputs.size())};
    // The new outputs get the names of the old ones, because graph outputs and fetches are found by name.
    for (ValueId output : outputs) {
      spec.output_names.push_back(graph_.value(output).name);
      graph_.rename_value(output, graph_.unique_name(spec.output_names.back()));
    }
    const NodeId id = graph_.add_node(std::move(spec));
    Node& node = graph_.node(id);
    node.version = 1;
    for (size_t i = 0; i < outputs.size(); ++i) {
      graph_.value(node.outputs[i]).type = graph_.type(outputs[i]);
      graph_.replace_uses(outputs[i], node.outputs[i]);
    }
    for (auto member = members.rbegin(); member != members.rend(); ++member) graph_.remove_node(*member);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  std::shared_ptr<const Backend> backend_;
  size_t property_;
  const PartitionOptions& options_;
  std::vector<int64_t> depth_;
  std::vector<size_t> leader_;
  std::vector<std::string_view> taken_on_;  // device of each node that the property takes; empty if it does not take it
};

// Sorts nodes topologically by depth-first search. Nodes that were in order before keep their order.
void sort_nodes(Graph& graph) {
  enum class State : uint8_t { unseen, open, done };
  std::vector<State> states(graph.node_capacity(), State::unseen);
  std::vector<NodeId> sorted, stack;
  for (NodeId root : graph.order()) {
    stack.push_back(root);
    while (!stack.empty()) {
      const NodeId id = stack.back();
      State& state = states[index_of(id)];
      if (state != State::unseen) {
        stack.pop_back();
        if (state == State::open) sorted.push_back(id);
        state = State::done;
        continue;
      }
      state = State::open;
      for (ValueId input : graph.node(id).inputs) {
        if (input == kNoValue) continue;
        const NodeId producer = graph.value(input).producer;
        if (producer != kNoNode && states[index_of(producer)] == State::unseen) stack.push_back(producer);
      }
    }
  }
  for (NodeId id : sorted) graph.move_before(id, kNoNode);
}

struct Request {
  std::shared_ptr<const Backend> backend;
  size_t property;
};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<Request> parse(const PartitionOptions& options) {
  std::vector<Request> requests;
  std::string_view rest = options.backends;
  while (!rest.empty()) {
    const std::string_view item = trimmed(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), rest.find(',') == std::string_view::npos ? rest.size() : rest.find(',') + 1));
    if (item.empty()) continue;
    if (item == "NONE") return {};
    const size_t dot = item.find('.');
    auto backend = find_backend(item.substr(0, dot));
    if (!backend)
      throw Error(ErrorCode::not_found,
                  fmt::format("there is no backend \"{}\"; registered: {}", item.substr(0, dot), fmt::join(list_backends(), ", ")));
    bool found = false;
    for (size_t i = 0; i < backend->properties.size(); ++i) {
      const Property& property = backend->properties[i];
      if (dot == std::string_view::npos ? !property.enabled : property.name != item.substr(dot + 1)) continue;
      found = true;
      if (!(property.inference_only && options.training)) requests.push_back({backend, i});
    }
    if (!found && dot != std::string_view::npos)
      throw Error(ErrorCode::not_found, fmt::format("the backend {} has no property \"{}\"", backend->name, item.substr(dot + 1)));
  }
  return requests;
}

}  // namespace

std::vector<std::shared_ptr<const Compiled>> partition(Graph& graph, const PartitionOptions& options, int64_t limit) {
  std::vector<std::shared_ptr<const Compiled>> made;
  Rewriter rewriter(graph, limit);
  for (const Request& request : parse(options)) {
    auto more = Partitioner(rewriter, request.backend, request.property, options).run();
    if (!more.empty()) sort_nodes(graph);
    made.insert(made.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return made;
}

}  // namespace treadle::plugin
