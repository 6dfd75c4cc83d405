// Makes a model with every kind of node that packs its weights.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/session/models.h"

namespace treadle::testing {

inline Tensor numbers(const Shape& shape, int64_t seed) {
  Tensor w(DType::float32, shape);
  for (int64_t i = 0; i < w.num_elements(); ++i)
    w.data<float>()[i] =
        // These values cannot be represented in 8 bits, so no kernel treats them as 8-bit weights.
        static_cast<float>((i * 7 + seed * 13) % 31 - 15) / 16 + static_cast<float>(i % 5) * 0.00137F;
  return w;
}

// Makes the model: products, an LSTM, convolutions of all kinds for any batch size, folded constants, and a body.
inline ModelBuilder packing_model(int64_t seed = 1) {
  ModelBuilder b;
  b.input("image", {-1, 16, 12, 12}).input("x", {-1, 48}).input("steps", {5, 2, 8});
  b.output("y", {-1, 32, 12, 12}).output("p", {-1, 40}).output("h", {5, 1, 2, 16}).output("s", {3});
  b.constant("w3", numbers(Shape{32, 16, 3, 3}, seed)).constant("w1", numbers(Shape{32, 32, 1, 1}, seed + 1));
  b.constant("wd", numbers(Shape{32, 1, 3, 3}, seed + 2)).constant("bias", numbers(Shape{32}, seed + 3));
  auto with_pads = [&](int64_t group) {
    for (const auto& [name, values] : {std::pair{"pads", std::vector<int64_t>{1, 1, 1, 1}}, {"kernel_shape", {3, 3}}}) {
      onnx::AttributeDef attribute;
      attribute.name = name, attribute.type = onnx::AttributeType::ints, attribute.ints = values;
      b.last_node().attributes.push_back(std::move(attribute));
    }
    onnx::AttributeDef attribute;
    attribute.name = "group", attribute.type = onnx::AttributeType::i, attribute.i = group;
    b.last_node().attributes.push_back(std::move(attribute));
  };
  b.node("Conv", {"image", "w3", "bias"}, {"c3"}), with_pads(1);
  b.node("Relu", {"c3"}, {"r3"}).node("Conv", {"r3", "w1"}, {"c1"}).node("Relu", {"c1"}, {"r1"});
  b.node("Conv", {"r1", "wd"}, {"y"}), with_pads(32);
  b.constant("a", numbers(Shape{48, 64}, seed + 4)).constant("b", numbers(Shape{64, 40}, seed + 5));
  b.constant("c", numbers(Shape{64}, seed + 6)).constant("half", Tensor::scalar(0.5F));
  b.node("Mul", {"b", "half"}, {"folded"}).node("MatMul", {"x", "a"}, {"xa"}).node("Add", {"xa", "c"}, {"xac"});
  b.node("Tanh", {"xac"}, {"t"}).node("MatMul", {"t", "folded"}, {"p"});
  b.constant("W", numbers(Shape{1, 64, 8}, seed + 7)).constant("R", numbers(Shape{1, 64, 16}, seed + 8));
  b.node("LSTM", {"steps", "W", "R"}, {"h"});
  onnx::AttributeDef hidden;
  hidden.name = "hidden_size", hidden.type = onnx::AttributeType::i, hidden.i = 16;
  b.last_node().attributes.push_back(std::move(hidden));
  b.constant("three", Tensor::vector<float>(std::vector<float>{1, 2, 3})).node("Identity", {"three"}, {"s"});
  return b;
}

}  // namespace treadle::testing
