// Tests nodes that omit an output before one that they have. All rules of the optimiser get such nodes.
#include <gtest/gtest.h>

#include "tests/session/model_bytes.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

TEST(AbsentOutput, MayComeFirst) {
  auto zeros = [](std::initializer_list<int64_t> dims, size_t count, const std::string& name) {
    return onnx::test::tensor_message(
        dims, kFloat, [&](Writer& w) { w.add_bytes(9, std::string(count * sizeof(float), '\0')); }, name);
  };
  std::string bytes = model(graph({.nodes = {node("GRU", {"x", "w", "r"}, {"", "h"}, {int_attribute("hidden_size", 1)})},
                                   .initializers = {zeros({1, 3, 2}, 6, "w"), zeros({1, 3, 1}, 3, "r")},
                                   .inputs = {value_info("x", kFloat, {"n", 1, 2})},
                                   .outputs = {value_info("h", kFloat, {1, 1, 1})}}));
  Session session(Model::from_bytes(onnx::test::bytes_of(bytes)));
  Tensor x(DType::float32, {4, 1, 2});
  for (float& value : x.span<float>()) value = 1;
  EXPECT_EQ(session.run({{"x", x}})[0].tensor().data<float>()[0], 0);  // the value is tanh(0), and each step keeps half of it
}

}  // namespace
}  // namespace treadle::testing
