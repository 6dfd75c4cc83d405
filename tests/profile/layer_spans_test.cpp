#include "profile/analysis/layer_spans.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "profile/writers/chrome_trace.h"
#include "profile/writers/flame.h"

namespace treadle::profile {
namespace {

// Makes recordings with exact times, in which a tick is a nanosecond. Node i has the name i + 1; the name 0 is that of the run.
struct MadeUp {
  Recording recording;
  std::vector<ProfiledNode> nodes;
  std::unordered_map<uint32_t, int32_t> node_of;
  std::vector<std::vector<uint32_t>> layers;
  TraceView view{};

  explicit MadeUp(const std::vector<std::vector<std::string>>& layers_of_nodes, std::vector<Record> records,
                  const std::vector<int32_t>& parents = {}) {
    recording.names = {{"run", {}, {}}};
    for (size_t i = 0; i < layers_of_nodes.size(); ++i) {
      ProfiledNode& node = nodes.emplace_back();
      node.layers = layers_of_nodes[i];
      if (i < parents.size()) node.parent = parents[i];
      node_of.emplace(static_cast<uint32_t>(i + 1), static_cast<int32_t>(i));
      recording.names.push_back({"n" + std::to_string(i), {}, {}});
    }
    recording.threads.push_back({0, 77, "main", std::move(records)});
    layers = name_layers(nodes, recording);
    view = {.recording = &recording, .nodes = &nodes, .node_of = &node_of, .layers = &layers};
  }

  // Returns rows "name start-end"; an outer range comes before the inner ones.
  std::vector<std::string> rows() const {
    std::vector<std::string> lines;
    for (const TraceRow& row : rows_of(view)) {
      EXPECT_EQ(row.number, 0) << "all nests";
      for (const TraceSpan& span : row.spans)
        lines.push_back(view.name(*span.record) + " " + std::to_string(span.start_ns) + "-" + std::to_string(span.end_ns));
    }
    return lines;
  }
};

Record node_at(uint32_t node, uint64_t start, uint64_t end, uint16_t run = 1) {
  return {start, end, 0, 0, node + 1, RecordKind::node, run};
}
Record run_at(uint64_t start, uint64_t end, uint16_t run = 1) { return {start, end, 0, 0, 0, RecordKind::run, run}; }

using Lines = std::vector<std::string>;

TEST(LayerSpans, AreAroundNodesThatFollowEachOther) {
  const MadeUp made({{"a", "a.0"}, {"a", "a.0"}, {"a", "a.1"}, {"b"}},
                    {node_at(0, 10, 20), node_at(1, 20, 30), node_at(2, 31, 40), node_at(3, 40, 50), run_at(0, 60)});
  EXPECT_EQ(made.rows(),
            (Lines{"run 0-60", "a 10-40", "a.0 10-30", "n0 10-20", "n1 20-30", "a.1 31-40", "n2 31-40", "b 40-50", "n3 40-50"}));
}

TEST(LayerSpans, GoOnOverNodesOfNoLayerButNotOverRuns) {
  const MadeUp made({{"a"}, {}},
                    {node_at(0, 10, 20), node_at(1, 20, 30), node_at(0, 30, 40), run_at(0, 50), node_at(0, 60, 70, 2), run_at(55, 80, 2)});
  EXPECT_EQ(made.rows(), (Lines{"run 0-50", "a 10-40", "n0 10-20", "n1 20-30", "n0 30-40", "run 55-80", "a 60-70", "n0 60-70"}));
}

TEST(LayerSpans, OfABodyLieWithinItsNode) {
  const MadeUp made({{"a"}, {"a", "a.0"}, {"a", "a.1"}, {"a", "a.2"}},
                    {node_at(1, 11, 20), node_at(2, 20, 29), node_at(0, 10, 30), node_at(3, 30, 40), run_at(0, 50)}, {-1, 0, 0, -1});
  EXPECT_EQ(made.rows(),
            (Lines{"run 0-50", "a 10-40", "n0 10-30", "a.0 11-20", "n1 11-20", "a.1 20-29", "n2 20-29", "a.2 30-40", "n3 30-40"}));
}

TEST(LayerSpans, CrossNoEndOfWhatIsAroundThem) {
  Record user{15, 45, 0, 0, 0, RecordKind::user, 0};
  const MadeUp made({{"a"}, {"a"}, {"a"}}, {node_at(0, 0, 10), node_at(1, 20, 30), user, node_at(2, 50, 60)});
  EXPECT_EQ(made.rows(), (Lines{"a 0-60", "n0 0-10", "run 15-45", "a 20-30", "n1 20-30", "n2 50-60"}));
  Record busy{5, 45, 0, 0, 0, RecordKind::pool, 0};
  MadeUp helper({{"a"}, {"a"}}, {node_at(0, 10, 20), busy, node_at(1, 50, 60)});
  helper.view.pool_runs = true;
  EXPECT_EQ(helper.rows(), (Lines{"run 5-45", "a 10-20", "n0 10-20", "a 50-60", "n1 50-60"}));
}

TEST(LayerSpans, AreNotThereWithoutLayers) {
  const MadeUp made({{}, {}}, {node_at(0, 10, 20), node_at(1, 20, 30), run_at(0, 40)});
  EXPECT_TRUE(made.layers.empty());
  EXPECT_EQ(made.rows(), (Lines{"run 0-40", "n0 10-20", "n1 20-30"}));
}

TEST(LayerSpans, AreInFlameGraphsAndChromesTrace) {
  const MadeUp made({{"a"}, {"a"}}, {node_at(0, 10, 20), node_at(1, 25, 30), run_at(0, 40)});
  EXPECT_EQ(to_folded_stacks(made.view), "main 77;run 20\nmain 77;run;a 5\nmain 77;run;a;n0 10\nmain 77;run;a;n1 5\n");
  const nlohmann::json trace = nlohmann::json::parse(to_chrome_trace(made.view));
  int found = 0;
  for (const auto& event : trace["traceEvents"]) found += event["ph"] == "X" && event["cat"] == "layer" && event["name"] == "a";
  EXPECT_EQ(found, 1);
  EXPECT_NE(to_speedscope(made.view, "t").find(R"({"name":"a"})"), std::string::npos);
}

}  // namespace
}  // namespace treadle::profile
