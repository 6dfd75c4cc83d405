#include "cli/provenance.h"

namespace treadle::cli {
namespace {

const char* name_of(passes::NodeChange::What what) {
  switch (what) {
    case passes::NodeChange::What::made: return "made";
    case passes::NodeChange::What::changed: return "changed";
    case passes::NodeChange::What::folded: return "folded";
    case passes::NodeChange::What::removed: break;
  }
  return "removed";
}

}  // namespace

nlohmann::ordered_json passes_json(const passes::PassTrace& trace) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const passes::PassStep& step : trace.steps()) {
    Json changes = Json::array();
    for (const passes::NodeChange& change : step.changes) {
      changes.push_back({{"what", name_of(change.what)}, {"op", change.op_type}, {"name", change.name}, {"sources", change.sources}});
      if (!change.took.empty()) changes.back()["took"] = change.took;
    }
    list.push_back({{"pass", step.pass},
                    {"nodes_before", step.nodes_before},
                    {"nodes_after", step.nodes_after},
                    {"elapsed_us", step.elapsed_us},
                    {"changes", std::move(changes)}});
  }
  return list;
}

}  // namespace treadle::cli
