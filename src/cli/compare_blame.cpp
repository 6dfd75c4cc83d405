#include "cli/compare_blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "graph/graph.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

constexpr size_t kMostNodes = 200;  // nodes that are run alone; each needs a program of its own

// Returns the reference's values of a node's inputs. @return false if one is missing, because the reference did not keep it
bool take_inputs(const Graph& graph, const Node& node, const std::map<std::string, Datum>& feeds,
                 const std::map<std::string, Tensor>& reference, std::map<std::string, Datum>& taken) {
  const auto take = [&](ValueId id) {
    const Value& value = graph.value(id);
    if (value.is_constant()) return true;
    if (const auto fed = feeds.find(value.name); fed != feeds.end()) return taken.insert(*fed), true;
    const auto made = reference.find(value.name);
    return made != reference.end() && (taken.emplace(value.name, made->second), true);
  };
  bool complete = node.bodies.empty();  // bodies read outer values, too
  for (const ValueId id : node.inputs) complete = complete && (id == kNoValue || take(id));
  return complete;
}

}  // namespace

std::string blamed_node(const Model& model, const std::map<std::string, Datum>& feeds, const std::map<std::string, Tensor>& reference,
                        const std::vector<std::string>& differing,
                        const std::function<bool(const std::string& name, const Tensor& ours, const Tensor& theirs)>& within) {
  const std::unique_ptr<Graph> graph = model.impl().import();
  SessionOptions as_written;
  as_written.graph_optimization_level = GraphOptimizationLevel::disable_all;
  const Session session(model, as_written);
  std::set<NodeId> seen;
  size_t num_untested = 0;
  for (const std::string& name : differing) {
    const ValueId id = graph->find_value(name);
    const NodeId producer = id == kNoValue ? kNoNode : graph->value(id).producer;
    if (producer == kNoNode || !seen.insert(producer).second) continue;
    if (seen.size() > kMostNodes) break;
    const Node& node = graph->node(producer);
    std::map<std::string, Datum> inputs;
    if (!take_inputs(*graph, node, feeds, reference, inputs)) {
      ++num_untested;
      continue;
    }
    try {
      const std::vector<std::string> fetched{name};
      const std::vector<Datum> alone = session.run(inputs, fetched);
      if (alone[0].is_tensor() && !within(name, alone[0].tensor(), reference.at(name)))
        return fmt::format("wrong by itself: {}. On the inputs that the other side had, its output \"{}\" differs, too", describe(node),
                           name);
    } catch (const Error&) {
      ++num_untested;  // such as a node whose inputs the optimiser needs as constants
    }
  }
  const std::string untested = num_untested > 0 ? fmt::format(" ({} could not be run alone)", num_untested) : "";
  return fmt::format("no node is wrong by itself{}: on the inputs that the other side had, all agree; small differences add up", untested);
}

std::string blamed_pass(const Model& model, const SessionOptions& options, const std::map<std::string, Datum>& feeds,
                        const std::string& value, const std::function<bool(const Tensor& optimized)>& within) {
  using Changes = std::vector<std::pair<std::string, std::string>>;
  Changes changes;
  const auto differs = [&](int64_t patches) {
    SessionOptions limited = options;
    limited.max_patches = patches;
    changes.clear();
    limited.on_pass = [&](std::string_view name, const std::string& what, int64_t) { changes.emplace_back(name, what); };
    const std::vector<std::string> fetched{value};
    const Datum result = Session(model, limited).run(feeds, fetched)[0];
    return result.is_tensor() && !within(result.tensor());
  };
  int64_t most = options.max_patches == INT64_MAX ? int64_t{1} << 20 : options.max_patches;
  if (differs(0) || !differs(most)) return "";
  int64_t good = 0, bad = 1;
  while (bad < most && !differs(bad)) good = bad, bad = std::min(2 * bad, most);
  while (good + 1 < bad) {
    const int64_t middle = good + (bad - good) / 2;
    (differs(middle) ? bad : good) = middle;
  }
  differs(good);
  const Changes before = std::exchange(changes, {});
  differs(bad);
  const auto first = std::mismatch(changes.begin(), changes.end(), before.begin(), before.end()).first;
  if (first == changes.end()) return "";
  return fmt::format("the first change that makes \"{}\" differ: number {}, of the pass {}: {}. --skip-pass {} leaves it out", value, bad,
                     first->first, first->second, first->first);
}

}  // namespace treadle::cli
