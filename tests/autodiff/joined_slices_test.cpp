#include "autodiff/joined_slices.h"

#include "tests/autodiff/gradient_check.h"
#include "tests/exec/host_program.h"

namespace treadle::testing {
namespace {

struct Cut {
  int64_t begin, end;
};

// Builds y, the Concat along `axis` of the slices of x that the cuts describe. The gradient of y is `flow`. @return the gradient of x, and
// the type of the operator that computes it
std::pair<Tensor, std::string> gradient_of(const std::vector<Cut>& cuts, int64_t axis, const Tensor& x, const Tensor& flow,
                                           bool plus_itself = false) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  const ValueId input = graph->add_input("x", Type::tensor(x.dtype(), x.shape()));
  const ValueId head = graph->add_input("flow", Type::tensor(flow.dtype(), flow.shape()));
  std::vector<ValueId> ys, heads{head};
  auto ints = [&](const std::string& name, int64_t value) { return graph->add_constant(name, indices({1}, {value})); };
  auto add = [&](NodeSpec spec) {
    const NodeId id = graph->add_node(std::move(spec));
    infer_node(*graph, id);
    return graph->node(id).outputs[0];
  };
  std::vector<ValueId> parts;
  for (const Cut& cut : cuts)
    parts.push_back(add({.op_type = "Slice", .inputs = {input, ints("begin", cut.begin), ints("end", cut.end), ints("axis", axis)}}));
  ys.push_back(add({.op_type = "Concat", .inputs = parts, .attributes = {{"axis", axis}}}));
  if (plus_itself) {
    ys.push_back(add({.op_type = "Neg", .inputs = {input}}));
    heads.push_back(graph->add_input("ones", Type::tensor(x.dtype(), x.shape())));
  }
  const std::vector<ValueId> xs{input}, grads = autodiff::add_gradients(*graph, ys, heads, xs);
  graph->outputs = grads, graph->output_names = {"dx"};
  verify(*graph);
  std::vector<Datum> feeds{x, flow}, results(1);
  if (plus_itself) {
    Tensor ones(DType::float64, x.shape());
    std::ranges::fill(ones.span<double>(), 1.0);
    feeds.emplace_back(ones);
  }
  const std::string maker = graph->node(graph->value(grads[0]).producer).op_type;
  testing::HostProgram(graph).run(feeds, results, {});
  return {results[0].tensor(), maker};
}

TEST(JoinedSlices, PartsThatShareOutAValueAreConcatenated) {
  const Tensor x = doubles({8, 3}, 1), flow = doubles({8, 3}, 2);
  const auto [gradient, maker] = gradient_of({{0, 2}, {-2, 8}, {2, 6}}, 0, x, flow);
  EXPECT_EQ(maker, "Concat");
  const int64_t from[] = {0, 1, 4, 5, 6, 7, 2, 3};  // for each row of x, the row of `flow` that is its gradient
  for (int64_t i = 0; i < 8; ++i)
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(gradient.data<double>()[i * 3 + j], flow.data<double>()[from[i] * 3 + j]);
  const auto [columns, made_by] = gradient_of({{2, 3}, {0, 2}}, -1, x, flow);
  EXPECT_EQ(made_by, "Concat");
  const int64_t column[] = {1, 2, 0};
  for (int64_t i = 0; i < 8; ++i)
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(columns.data<double>()[i * 3 + j], flow.data<double>()[i * 3 + column[j]]);
}

TEST(JoinedSlices, OthersAreSummed) {
  const Tensor x = doubles({6, 2}, 1), flow = doubles({6, 2}, 2);
  auto expect = [&](const std::vector<Cut>& cuts, bool plus_itself) {
    const auto [gradient, maker] = gradient_of(cuts, 0, x, flow, plus_itself);
    EXPECT_NE(maker, "Concat");
    std::vector<double> sums(12, plus_itself ? -1.0 : 0.0);
    int64_t row = 0;
    for (const Cut& cut : cuts)
      for (int64_t i = cut.begin; i < cut.end; ++i, ++row)
        for (int64_t j = 0; j < 2; ++j) sums[static_cast<size_t>(i * 2 + j)] += flow.data<double>()[row * 2 + j];
    for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(gradient.data<double>()[i], sums[static_cast<size_t>(i)], 1e-15) << i;
  };
  expect({{0, 4}, {2, 4}}, false);         // rows 2 and 3 are read twice
  expect({{0, 1}, {1, 2}, {2, 6}}, true);  // a Neg reads x as well
  expect({{0, 3}, {0, 3}}, false);         // the cuts take the same slice twice
}

TEST(JoinedSlices, PartsThatLeaveRowsOutAreSummed) {
  const Tensor x = doubles({6, 2}, 1), flow = doubles({5, 2}, 2);
  const auto [gradient, maker] = gradient_of({{0, 2}, {3, 6}}, 0, x, flow);
  EXPECT_NE(maker, "Concat");
  const int64_t from[] = {0, 1, -1, 2, 3, 4};
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 2; ++j) EXPECT_EQ(gradient.data<double>()[i * 2 + j], from[i] < 0 ? 0 : flow.data<double>()[from[i] * 2 + j]);
}

}  // namespace
}  // namespace treadle::testing
