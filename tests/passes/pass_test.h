// Functions for all tests of passes: they compare the text of a graph before and after a pass, and the results of both graphs on the same
// random data.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/infer.h"
#include "passes/list.h"
#include "passes/whole_graph.h"
#include "tests/graph/graph_builder.h"
#include "tests/passes/provenance.h"

namespace treadle::testing {

/// Returns the largest difference divided by the largest magnitude of two float tensors; infinite if dtype or shape differ, or if only one
/// is NaN. For other dtypes: 0 if equal.
inline double relative_difference(const Datum& a, const Datum& b) {
  const Tensor &x = a.tensor(), &y = b.tensor();
  if (x.dtype() != y.dtype() || x.shape() != y.shape()) return INFINITY;
  if (x.dtype() != DType::float32) return equal(x, y) ? 0 : INFINITY;
  double difference = 0, magnitude = 1e-30;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    if (std::isnan(x.data<float>()[i]) != std::isnan(y.data<float>()[i])) return INFINITY;
    if (std::isnan(x.data<float>()[i])) continue;
    difference = std::max(difference, std::fabs(double{x.data<float>()[i]} - double{y.data<float>()[i]}));
    magnitude = std::max(magnitude, std::fabs(double{y.data<float>()[i]}));
  }
  return difference / magnitude;
}

/// Checks that the graph after `change` is consistent, has the inferred types, and gives the same results up to `tolerance`, and that its
/// nodes keep their sources and marks.
/// @param count  how many changes are expected. @return the graph's text
inline std::string changed(Graph& graph, const std::function<int64_t(Graph&)>& change, int64_t count, double tolerance = 0) {
  verify(graph);
  std::unique_ptr<Graph> original = graph.clone();
  mark_all(graph);
  EXPECT_EQ(change(graph), count);
  verify(graph);
  EXPECT_EQ(first_loss(graph), "");
  std::string text = print(graph);
  infer(graph);
  EXPECT_EQ(print(graph), text) << "inference finds other types";
  std::vector<Datum> feeds = random_feeds(*original), before = run_graph(*original, feeds), after = run_graph(graph, feeds);
  EXPECT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size() && i < after.size(); ++i)
    EXPECT_LE(relative_difference(after[i], before[i]), tolerance) << "output " << i;
  return text;
}

/// Returns a function that applies the pass.
inline std::function<int64_t(Graph&)> pass(passes::Pass (*make)(), const passes::PipelineOptions& options = {}) {
  return [=](Graph& graph) {
    passes::PassContext context{options, {}};
    return passes::apply(make(), graph, context, INT64_MAX);
  };
}

/// Applies the rule, and checks that it does not change the graph.
inline void expect_unchanged(Graph& graph, const std::function<int64_t(Graph&)>& change) {
  std::string before = print(graph);
  EXPECT_EQ(change(graph), 0);
  EXPECT_EQ(print(graph), before);
}

}  // namespace treadle::testing
