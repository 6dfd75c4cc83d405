#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "onnx/model_def.h"
#include "onnx/serialize.h"
#include "treadle/error.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

onnx::ValueInfoDef matrix(const std::string& name, const std::string& rows) {
  onnx::ValueInfoDef info;
  info.name = name;
  info.type.kind = onnx::TypeDef::Kind::tensor;
  info.type.elem_type = DType::float32;
  onnx::DimDef symbol, width;
  symbol.kind = onnx::DimDef::Kind::param;
  symbol.param = rows;
  width.kind = onnx::DimDef::Kind::value;
  width.value = 4;
  info.type.shape = std::vector<onnx::DimDef>{symbol, width};
  return info;
}

// Makes present = Concat(past, x) along the rows, and y = present + present.
Model cache() {
  onnx::ModelDef model;
  model.ir_version = 10;
  model.opset_imports.push_back({"", 21});
  model.graph.name = "cache";
  model.graph.inputs.push_back(matrix("past", "p"));
  model.graph.inputs.push_back(matrix("x", "n"));
  onnx::NodeDef concat, add;
  concat.op_type = "Concat";
  concat.inputs = {"past", "x"};
  concat.outputs = {"present"};
  onnx::AttributeDef axis;
  axis.name = "axis";
  axis.type = onnx::AttributeType::i;
  concat.attributes.push_back(std::move(axis));
  add.op_type = "Add";
  add.inputs = {"present", "present"};
  add.outputs = {"y"};
  model.graph.nodes.push_back(std::move(concat));
  model.graph.nodes.push_back(std::move(add));
  model.graph.outputs.push_back(matrix("present", "m"));
  model.graph.outputs.push_back(matrix("y", "m"));
  const std::string bytes = onnx::serialize_model(model);
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

Tensor rows(int64_t count, float first) {
  Tensor tensor(DType::float32, {count, 4});
  std::iota(tensor.span<float>().begin(), tensor.span<float>().end(), first);
  return tensor;
}

TEST(StatefulRun, AppendsToACacheInPlace) {
  const Session session(cache());
  StatefulRun runs(session, {{"past", "present"}}, {{"past", rows(2, 0)}});
  runs.run({{"x", rows(1, 8)}});  // this run moves the cache to memory that has room for more rows
  const std::byte* home = runs.state("past").tensor().raw();
  for (int step = 0; step < 5; ++step) {
    const std::vector<Datum> y = runs.run({{"x", rows(1, 12.0F + 4.0F * static_cast<float>(step))}});
    const Tensor state = runs.state("past").tensor();
    EXPECT_EQ(state.raw(), home);
    ASSERT_EQ(state.shape(), (Shape{4 + step, 4}));
    for (int64_t i = 0; i < state.num_elements(); ++i) {
      ASSERT_EQ(state.data<float>()[i], static_cast<float>(i));
      ASSERT_EQ(y[0].tensor().data<float>()[i], 2 * static_cast<float>(i));
    }
  }
}

TEST(StatefulRun, AStateThatGrowsSeldomMoves) {
  const Session session(cache());
  StatefulRun runs(session, {{"past", "present"}}, {{"past", rows(0, 0)}});
  int moves = 0;
  const std::byte* home = nullptr;
  for (int step = 0; step < 1000; ++step) {
    runs.run({{"x", rows(1, 4.0F * static_cast<float>(step))}});
    const std::byte* now = runs.state("past").tensor().raw();
    moves += std::exchange(home, now) != now;
  }
  EXPECT_LE(moves, 4) << "from 16 bytes to 16,000";
}

TEST(StatefulRun, NeverWritesBehindAStateThatSomebodyHolds) {
  const Session session(cache());
  StatefulRun runs(session, {{"past", "present"}}, {{"past", rows(0, 0)}});
  runs.run({{"x", rows(2, 0)}});
  const Datum held = runs.state("past");
  runs.run({{"x", rows(1, 100)}});
  EXPECT_NE(runs.state("past").tensor().raw(), held.tensor().raw());
  runs.set_state("past", held);
  runs.run({{"x", rows(1, 8)}});
  const Tensor state = runs.state("past").tensor();
  for (int64_t i = 0; i < state.num_elements(); ++i) ASSERT_EQ(state.data<float>()[i], static_cast<float>(i));
}

TEST(StatefulRun, AStateWithoutAFixedShapeNeedsAnInitialValue) {
  const Session session(cache());
  try {
    StatefulRun runs(session, {{"past", "present"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("the state \"past\" has no fixed shape"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace treadle
