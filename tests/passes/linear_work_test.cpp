// Tests that the optimiser's work grows linearly: for four times the nodes, it may take four times the work. bench/optimizer.cpp measures
// the time.
#include "passes/pipeline.h"
#include "tests/passes/large_graphs.h"
#include "tests/passes/pass_test.h"

namespace treadle {
namespace {

using testing::LargeGraph;

struct Work {
  int64_t nodes = 0, visits = 0, searched = 0;
};

Work work_for(const LargeGraph::Kind& kind, int64_t nodes) {
  std::unique_ptr<Graph> graph = LargeGraph::make(kind, nodes);
  Work work{.nodes = static_cast<int64_t>(graph->num_nodes())};
  const int64_t before = graph->num_searched();
  passes::optimize(*graph, {.num_visits = &work.visits});
  work.searched = graph->num_searched() - before;
  return work;
}

TEST(LinearWork, FourTimesTheNodesTakeFourTimesTheWork) {
  for (const LargeGraph::Kind& kind : LargeGraph::kinds()) {
    SCOPED_TRACE(kind.name);
    const Work small = work_for(kind, 800), large = work_for(kind, 3200);
    const double factor = static_cast<double>(large.nodes) / static_cast<double>(small.nodes);
    EXPECT_GT(factor, 3.5);
    EXPECT_GT(small.visits, small.nodes);
    EXPECT_LE(static_cast<double>(large.visits), 1.2 * factor * static_cast<double>(small.visits));
    EXPECT_LE(static_cast<double>(large.searched), 1.2 * factor * static_cast<double>(small.searched) + 1000);
  }
}

TEST(LinearWork, LargeGraphsComputeTheSameAfterwards) {
  for (const LargeGraph::Kind& kind : LargeGraph::kinds()) {
    SCOPED_TRACE(kind.name);
    std::unique_ptr<Graph> graph = LargeGraph::make(kind, 120), original = graph->clone();
    passes::optimize(*graph, {.verify = true});
    const std::vector<Datum> feeds = testing::random_feeds(*original), before = testing::run_graph(*original, feeds),
                             after = testing::run_graph(*graph, feeds);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_LE(testing::relative_difference(after[i], before[i]), 1e-4) << "output " << i;
  }
}

}  // namespace
}  // namespace treadle
