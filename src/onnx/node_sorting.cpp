#include "onnx/node_sorting.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "treadle/error.h"

namespace treadle::onnx {
namespace {

using Names = std::unordered_set<std::string_view>;  // views of names that the definitions own

// Collects the names of the values that a node reads from its graph, including values outside the node's bodies that the bodies read.
void collect_reads(const NodeDef& def, Names& reads) {
  for (const std::string& input : def.inputs)
    if (!input.empty()) reads.insert(input);
  auto body = [&](const GraphDef& graph) {
    Names inner;
    for (const NodeDef& node : graph.nodes) collect_reads(node, inner);
    for (const ValueInfoDef& output : graph.outputs) inner.insert(output.name);
    for (const NodeDef& node : graph.nodes)
      for (const std::string& output : node.outputs) inner.erase(output);
    for (const ValueInfoDef& input : graph.inputs) inner.erase(input.name);
    for (const TensorDef& initializer : graph.initializers) inner.erase(initializer.name);
    reads.merge(inner);
  };
  for (const AttributeDef& attribute : def.attributes) {
    if (attribute.g) body(*attribute.g);
    for (const GraphDef& graph : attribute.graphs) body(graph);
  }
}

using Producers = std::unordered_map<std::string_view, size_t>;  // maps a value's name to the index of the node that computes it

// Returns true if all values read by a node and its bodies are computed by nodes before index `i`. The check is cheap, and true for nearly
// every file. It may be wrongly false if a value of a body has the name of a later node's output.
bool reads_only_before(const NodeDef& def, size_t i, const Producers& producers) {
  auto is_before = [&](const std::string& name) {
    auto found = producers.find(name);
    return found == producers.end() || found->second < i;
  };
  auto body = [&](const GraphDef& graph) {
    return std::ranges::all_of(graph.nodes, [&](const NodeDef& node) { return reads_only_before(node, i, producers); }) &&
           std::ranges::all_of(graph.outputs, [&](const ValueInfoDef& output) { return is_before(output.name); });
  };
  return std::ranges::all_of(def.inputs, is_before) && std::ranges::all_of(def.attributes, [&](const AttributeDef& attribute) {
           return (!attribute.g || body(*attribute.g)) && std::ranges::all_of(attribute.graphs, body);
         });
}

}  // namespace

std::string describe_def(const NodeDef& def) {
  return fmt::format("{} node \"{}\" ({})", def.op_type, def.name.empty() && !def.outputs.empty() ? def.outputs[0] : def.name,
                     def.domain.empty() ? "ai.onnx" : def.domain);
}

std::vector<const NodeDef*> in_order(std::vector<const NodeDef*> nodes) {
  Producers producer;
  producer.reserve(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    for (const std::string& output : nodes[i]->outputs)
      if (!output.empty()) producer.emplace(output, i);
  bool is_in_order = true;
  for (size_t i = 0; i < nodes.size() && is_in_order; ++i) is_in_order = reads_only_before(*nodes[i], i, producer);
  if (is_in_order) return nodes;
  std::vector<std::pair<size_t, size_t>> reads;  // (reader, producer), sorted by reader
  Names names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    names.clear();
    collect_reads(*nodes[i], names);
    for (std::string_view name : names)
      if (auto found = producer.find(name); found != producer.end()) reads.emplace_back(i, found->second);
  }
  std::vector<const NodeDef*> order;
  order.reserve(nodes.size());
  std::vector<std::vector<size_t>> readers(nodes.size());
  std::vector<size_t> missing(nodes.size(), 0);
  for (auto [reader, made_by] : reads) {
    readers[made_by].push_back(reader);
    ++missing[reader];
  }
  std::set<size_t> ready;  // indices of nodes in the file; the smallest comes first, which keeps the file's order if possible
  for (size_t i = 0; i < nodes.size(); ++i)
    if (missing[i] == 0) ready.insert(i);
  while (!ready.empty()) {
    size_t i = *ready.begin();
    ready.erase(ready.begin());
    order.push_back(nodes[i]);
    for (size_t reader : readers[i])
      if (--missing[reader] == 0) ready.insert(reader);
  }
  if (order.size() != nodes.size()) {
    for (size_t i = 0; i < nodes.size(); ++i)
      if (missing[i] > 0)
        throw Error(ErrorCode::invalid_model, fmt::format("the graph has a cycle through the {}", describe_def(*nodes[i])));
  }
  return order;
}

}  // namespace treadle::onnx
