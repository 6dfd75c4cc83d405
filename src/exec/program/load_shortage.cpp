#include "exec/program/load_shortage.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "core/values/allocation.h"
#include "core/values/held_memory.h"
#include "exec/memory/shortage.h"
#include "graph/layers.h"

namespace treadle::exec {
namespace {

bool stands_for_others(const Node& node) { return node.sources.size() > 1 || (node.sources.size() == 1 && node.sources[0] != node.name); }

}  // namespace

std::string short_name(const Node& node) {
  return fmt::format("{} \"{}\"{}", node.op_type, node.name, stands_for_others(node) ? fmt::format(" ({})", quoted(node.sources)) : "");
}

std::string describe_origin(const Node& node) {
  std::string text = stands_for_others(node) ? fmt::format("the node stands for {} of the model\n", quoted(node.sources)) : "";
  if (const std::vector<std::string> layers = layers_of(node); !layers.empty())
    text += fmt::format("it is in the layer {}\n", layers.back());
  return text;
}

std::string layer_of(const Node& node) {
  const std::vector<std::string> layers = layers_of(node);
  return layers.empty() ? std::string() : layers[layers.size() - std::min<size_t>(layers.size(), 2)];
}

namespace {

std::string layer_around(const Graph& graph, const Value& value) {
  return value.uses.empty() ? std::string() : layer_of(graph.node(value.uses.front().node));
}

// Adds the constants that nodes read, including nodes of bodies. Constants that share memory are listed once.
void add_constants(const Graph& graph, const MemoryAccount* account, std::unordered_set<const void*>& seen, std::vector<LiveBytes>& live) {
  for (size_t i = 0; i < graph.num_values(); ++i) {
    const ValueId id{static_cast<uint32_t>(i)};
    const Value& value = graph.value(id);
    const Tensor* constant = value.uses.empty() ? nullptr : graph.stored_tensor(id);
    if (!constant || constant->size_bytes() == 0 || !seen.insert(constant->raw()).second) continue;
    const bool is_own = !account || account_of(constant->storage()) == account;
    live.push_back({fmt::format("\"{}\" ({}{})", value.name, memory_class_name(MemoryClass::weights), is_own ? "" : ", the model's"),
                    constant->size_bytes(), layer_around(graph, value)});
  }
  for (NodeId id = graph.first(); id != kNoNode; id = graph.next(id))
    for (const Body& body : graph.node(id).bodies) add_constants(*body.graph, account, seen, live);
}

// Returns suggestions for using less memory, with the bytes that each would save where these are known before a run.
std::string remedies_at_load(std::span<const PackedWeights> nodes, const MemoryAccount* account) {
  size_t float_bytes = 0, beyond = 0, rest = 0;
  for (const PackedWeights& node : nodes) {
    float_bytes += node.float_bytes;
    if (node.packed_bytes == 0) rest += node.weight_bytes;
    // A packed copy more than twice as large as the weights is a transformed form (Winograd). Reordering alone only adds padding.
    if (node.packed_bytes > 2 * node.weight_bytes) beyond += node.packed_bytes - node.weight_bytes;
  }
  std::vector<std::string> list;
  const MemoryAccount* limited = account;
  while (limited && limited->limit_bytes() == 0) limited = limited->parent().get();
  if (limited && rest > 0)
    list.push_back(
        fmt::format("{} needs a limit of about {} bytes for what is still to be packed", limited->name(), limited->bytes() + rest));
  if (beyond > 0) list.push_back(fmt::format("with max_weight_expansion=1, {} bytes of transformed weights are not made", beyond));
  if (float_bytes > 0)
    list.push_back(fmt::format("with precision=bfloat16, packed weights take about {} bytes in place of {}", float_bytes / 2, float_bytes));
  std::string text;
  for (const std::string& remedy : list) text += (text.empty() ? "to need less: " : "; ") + remedy;
  return text.empty() ? text : text + "\n";
}

std::string no_arena(const HeldMemory* held) {
  std::string text = "there is no arena yet";
  if (held)
    if (const MemoryStatistics& own = held->accounts.front().statistics; own.limit_bytes > 0)
      text += fmt::format("; {} bytes of the limit are free", own.limit_bytes - std::min(own.limit_bytes, own.total.bytes));
  return text + "\n";
}

// Prefers the record of memory made when the allocation was refused, because memory may have been freed since then.
std::shared_ptr<const HeldMemory> held_at(const OutOfMemory& error, const MemoryAccount* account) {
  return error.held() ? error.held() : held_memory(account);
}

}  // namespace

std::string describe_making(const OutOfMemory& error, const MemoryAccount* account) {
  const std::shared_ptr<const HeldMemory> held = held_at(error, account);
  return (held ? describe_account(*held) : std::string()) + no_arena(held.get());
}

namespace {

std::string describe_graph(const OutOfMemory& error, const Graph& graph) {
  const AllocationContext* context = AllocationScope::current();
  const MemoryAccount* account = context ? context->account.get() : nullptr;
  std::unordered_set<const void*> seen;
  std::vector<LiveBytes> live;
  add_constants(graph, account, seen, live);
  return describe_making(error, account) + describe_largest(std::move(live)) +
         (error.remedy().empty() ? "" : "to need less: " + error.remedy() + "\n");
}

}  // namespace

void rethrow_with_graph(const Graph& graph, std::string_view where) {
  rethrow_with_memory([&](const OutOfMemory& error) { return describe_graph(error, graph); }, where);
}

std::string describe_packing(const Graph* graph, std::span<const PackedWeights> nodes, const MemoryAccount* account, const Node* failed) {
  std::string text = (failed ? describe_origin(*failed) : std::string()) + describe_account(account);
  size_t num_packed = 0, packed_bytes = 0, rest = 0;
  std::vector<LiveBytes> live;
  for (const PackedWeights& node : nodes) {
    if (node.packed_bytes == 0) {
      rest += node.weight_bytes;
      continue;
    }
    ++num_packed, packed_bytes += node.packed_bytes;
    live.push_back(
        {fmt::format("\"{}\" ({})", node.node->name, memory_class_name(MemoryClass::packed)), node.packed_bytes, layer_of(*node.node)});
  }
  if (!nodes.empty())
    text += fmt::format("packed: {} of {} nodes, {} bytes; the others have {} bytes of weights\n", num_packed, nodes.size(), packed_bytes,
                        rest);
  text += no_arena(held_memory(account).get());
  std::unordered_set<const void*> seen;
  if (graph) add_constants(*graph, account, seen, live);
  return text + describe_largest(std::move(live)) + remedies_at_load(nodes, account);
}

}  // namespace treadle::exec
