// Sessions on a device.
#include <gtest/gtest.h>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

/// y = x * x if c, else x + x.
std::string branches() {
  auto branch = [](const char* op) {
    return graph({.nodes = {node(op, {"x", "x"}, {"t"})}, .outputs = {value_info("t", kFloat, {"n"})}}, op);
  };
  return model(graph(
      {.nodes = {node("If", {"c"}, {"y"}, {graph_attribute("then_branch", branch("Mul")), graph_attribute("else_branch", branch("Add"))}),
                 node("Neg", {"y"}, {"z"})},
       .inputs = {value_info("c", kBool, {}), value_info("x", kFloat, {"n"})},
       .outputs = {value_info("y", kFloat, {"n"}), value_info("z", kFloat, {"n"})}}));
}

Session make_session(const std::string& device) {
  SessionOptions options;
  options.config["treadle.device"] = device;
  return Session(Model::from_bytes(onnx::test::bytes_of(branches())), options);
}

TEST(PlacedSession, GivesWhatTheHostGives) {
  for (const char* device : {"cpu", "sim"}) {
    Session session = make_session(device);
    for (bool c : {true, false})
      for (int64_t n : {1, 3, 4}) {
        Tensor x(DType::float32, {n});
        for (float& value : x.span<float>()) value = 3;
        auto outputs = session.run({{"c", Tensor::scalar(c)}, {"x", x}});
        ASSERT_EQ(outputs[0].tensor().shape(), (Shape{n}));
        for (float value : outputs[0].tensor().span<float>()) EXPECT_EQ(value, c ? 9 : 6);
        for (float value : outputs[1].tensor().span<float>()) EXPECT_EQ(value, c ? -9 : -6);
      }
    EXPECT_THROW(session.run({{"c", Tensor::scalar(true)}}), Error);
  }
}

TEST(PlacedSession, WritesBoundOutputs) {
  Session session = make_session("sim");
  Tensor x = Tensor::scalar(3.0F).reshaped({1}), y(DType::float32, {1});
  IoBinding binding(session);
  binding.bind_input("c", Tensor::scalar(true));
  binding.bind_input("x", x);
  binding.bind_output("y", y);
  session.run(binding);
  EXPECT_EQ(y.data<float>()[0], 9);
}

TEST(PlacedSession, ADeviceThatIsNotThereIsNamed) {
  try {
    make_session("abacus");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("abacus"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("sim"), std::string::npos);
  }
}

}  // namespace
}  // namespace treadle::testing
