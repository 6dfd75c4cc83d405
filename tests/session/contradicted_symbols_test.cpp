// Tests feeds that contradict the model: it gives two extents the same symbol, and the extents of the feeds differ.
#include <gtest/gtest.h>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

Tensor counted(const Shape& shape) {
  Tensor tensor(DType::float32, shape);
  float next = 1;
  for (float& value : tensor.span<float>()) value = next++;
  return tensor;
}

/// Makes the model y[N, N] = relu(a[N] * b[N, 1]), z = a + 1, and the extent of a. It declares that y is square, and that a and b have the
/// same extent.
std::string outer_product() {
  return model(graph(
      {.nodes = {node("Mul", {"a", "b"}, {"product"}), node("Relu", {"product"}, {"y"}), node("Shape", {"a"}, {"extent"}),
                 node("Add", {"a", "a"}, {"z"})},
       .inputs = {value_info("a", kFloat, {"None"}), value_info("b", kFloat, {"None", 1})},
       .outputs = {value_info("y", kFloat, {"None", "None"}), value_info("extent", kInt64, {1}), value_info("z", kFloat, {"None"})}}));
}

void expect_outer_product(const std::vector<Datum>& outputs, int64_t columns, int64_t rows) {
  const Tensor &y = outputs[0].tensor(), &z = outputs[2].tensor();
  ASSERT_EQ(y.shape(), (Shape{rows, columns}));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) ASSERT_EQ(y.data<float>()[i * columns + j], static_cast<float>((i + 1) * (j + 1)));
  ASSERT_EQ(outputs[1].tensor().data<int64_t>()[0], columns);
  ASSERT_EQ(z.shape(), (Shape{columns}));
  for (int64_t j = 0; j < columns; ++j) ASSERT_EQ(z.data<float>()[j], static_cast<float>(2 * (j + 1)));
}

std::map<std::string, Datum> feeds(int64_t columns, int64_t rows) { return {{"a", counted({columns})}, {"b", counted({rows, 1})}}; }

class ContradictedSymbols : public ::testing::Test {
 protected:
  Session session(SessionOptions options = {}) {
    options.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    return Session(Model::from_bytes(onnx::test::bytes_of(outer_product())), options);
  }
  /// Runs with extents that agree, then with extents that differ in two ways, and then again with extents that agree.
  template <typename Run>
  void expect_all(Run&& run) {
    for (const auto& [columns, rows] : std::vector<std::pair<int64_t, int64_t>>{{3, 3}, {2, 5}, {4, 1}, {3, 3}, {0, 2}})
      expect_outer_product(run(columns, rows), columns, rows);
    ASSERT_EQ(warnings_.size(), 1u);
    for (const char* word : {"\"a\" (2)", "\"b\" (5)", "None"}) EXPECT_NE(warnings_[0].find(word), std::string::npos) << warnings_[0];
  }

  std::vector<std::string> warnings_;
};

TEST_F(ContradictedSymbols, WholeRuns) {
  for (const char* device : {"", "sim"}) {
    warnings_.clear();
    SessionOptions options;
    if (*device) options.config["treadle.device"] = device;
    const Session made = session(options);
    expect_all([&](int64_t columns, int64_t rows) { return made.run(feeds(columns, rows)); });
  }
}

TEST_F(ContradictedSymbols, ParallelRunsWithoutTheOptimizer) {
  SessionOptions options;
  options.execution_mode = ExecutionMode::parallel;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  const Session made = session(options);
  expect_all([&](int64_t columns, int64_t rows) { return made.run(feeds(columns, rows)); });
}

TEST_F(ContradictedSymbols, RunsForSomeOutputs) {
  const Session made = session();
  const std::vector<std::string> names = {"z", "y", "extent"};
  expect_all([&](int64_t columns, int64_t rows) {
    std::vector<Datum> found = made.run(feeds(columns, rows), names);
    return std::vector<Datum>{found[1], found[2], found[0]};
  });
}

TEST_F(ContradictedSymbols, BoundRuns) {
  const Session made = session();
  IoBinding binding(made);
  for (const char* name : {"y", "extent", "z"}) binding.bind_output(name);
  expect_all([&](int64_t columns, int64_t rows) {
    for (auto& [name, value] : feeds(columns, rows)) binding.bind_input(name, value);
    made.run(binding);
    return binding.outputs();
  });
}

TEST_F(ContradictedSymbols, PartialRuns) {
  const Session made = session();
  expect_all([&](int64_t columns, int64_t rows) {
    PartialRun run = made.partial_run(feeds(columns, rows));
    while (!run.advance()) continue;
    return run.outputs();
  });
  // A feed that comes later must fit to the program that was chosen without it.
  PartialRun run = made.partial_run({{"a", counted({2})}});
  EXPECT_THROW(run.feed("b", counted({5, 1})), Error);
}

TEST_F(ContradictedSymbols, StatefulRuns) {
  const Session made = session();
  expect_all([&](int64_t columns, int64_t rows) {
    StatefulRun run(made, {{.input = "a", .output = "z"}}, {{"a", counted({columns})}});
    const std::vector<std::string> names = {"y", "extent"};
    std::vector<Datum> found = run.run({{"b", counted({rows, 1})}}, names);
    found.push_back(run.state("a"));
    return found;
  });
}

TEST_F(ContradictedSymbols, MonitorsSeeTheValues) {
  Session made = session();
  std::vector<Shape> seen;
  made.set_monitor({.callback = [&](const MonitorEvent& event) { seen.push_back(event.datum.tensor().shape()); }, .pattern = "product"});
  expect_outer_product(made.run(feeds(2, 5)), 2, 5);
  EXPECT_EQ(seen, (std::vector<Shape>{{5, 2}}));
}

}  // namespace
}  // namespace treadle::testing
