// Tests that loading a hostile or broken model either works or gives an error that names the place, in little time and memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <random>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

Session load(const std::string& bytes) { return Session(Model::from_bytes(onnx::test::bytes_of(bytes))); }

struct Outcome {
  ErrorCode code{};
  std::string text;  // empty if the model was loaded
};

Outcome outcome_of(const std::string& bytes) {
  try {
    load(bytes);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

void expect_error(const std::string& bytes, ErrorCode code, const std::vector<std::string>& words) {
  Outcome outcome = outcome_of(bytes);
  ASSERT_FALSE(outcome.text.empty()) << "it loaded";
  EXPECT_EQ(outcome.code, code) << outcome.text;
  for (const std::string& word : words) EXPECT_NE(outcome.text.find(word), std::string::npos) << word << " in: " << outcome.text;
}

/// Returns the most memory that this process has ever had resident.
size_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

/// Loads bytes that may be valid or not, and checks the time and memory that it takes.
void expect_cheap(const std::string& bytes) {
  ASSERT_LT(bytes.size(), 4096U);
  size_t before = peak_bytes();
  outcome_of(bytes);
  EXPECT_LT(peak_bytes() - before, size_t{1500} << 20);
}

std::string affine() {
  return model(graph({.nodes = {node("Add", {"x", "w"}, {"a"}), node("Relu", {"a"}, {"y"})},
                      .initializers = {onnx::test::tensor_message(
                          {3}, kFloat,
                          [](Writer& w) {
                            w.add_bytes(9, onnx::test::raw_of({1.0F, 2.0F, 3.0F}));
                          },
                          "w")},
                      .inputs = {value_info("x", kFloat, {"n", 3})},
                      .outputs = {value_info("y", kFloat, {"n", 3})}}));
}

TEST(BadModel, TheModelThatTheOthersBreakIsGood) { EXPECT_EQ(outcome_of(affine()).text, ""); }

TEST(BadModel, EveryTruncationIsAnErrorOrAModel) {
  std::string whole = affine();
  for (size_t length = 0; length < whole.size(); ++length) outcome_of(whole.substr(0, length));
}

TEST(BadModel, EveryChangedByteIsAnErrorOrAModel) {
  std::string whole = affine();
  for (size_t at = 0; at < whole.size(); ++at)
    for (unsigned flip : {0x01U, 0x08U, 0x80U, 0xffU}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(static_cast<unsigned char>(changed[at]) ^ flip);
      outcome_of(changed);
    }
}

TEST(BadModel, RandomBytesAreRefused) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_NE(outcome_of(bytes).text, "") << i;
  }
}

TEST(BadModel, ACycleIsNamed) {
  expect_error(model(graph({.nodes = {node("Add", {"x", "b"}, {"a"}), node("Relu", {"a"}, {"b"})},
                            .inputs = {value_info("x", kFloat, {3})},
                            .outputs = {value_info("b", kFloat, {3})}})),
               ErrorCode::invalid_model, {"cycle", "make_a"});
  expect_error(model(graph({.nodes = {node("Relu", {"a"}, {"a"})}, .inputs = {}, .outputs = {value_info("a", kFloat, {3})}})),
               ErrorCode::invalid_model, {"cycle", "make_a"});
}

TEST(BadModel, ACycleThroughABodyIsNamed) {
  std::string branch = graph({.nodes = {node("Relu", {"y"}, {"t"})}, .outputs = {value_info("t", kFloat, {3})}}, "branch");
  expect_error(
      model(graph({.nodes = {node("If", {"c"}, {"y"}, {graph_attribute("then_branch", branch), graph_attribute("else_branch", branch)})},
                   .inputs = {value_info("c", kBool, {})},
                   .outputs = {value_info("y", kFloat, {3})}})),
      ErrorCode::invalid_model, {"cycle", "make_y"});
}

TEST(BadModel, OperatorsOfOlderOpsetsWithTooFewInputsAreRefused) {
  struct Case {
    const char* op;
    int opset;
    std::vector<std::string> inputs;
    std::vector<std::string> attributes = {};
  };
  for (const Case& c : {Case{"Tile", 1, {"x"}}, Case{"PRelu", 6, {"x"}}, Case{"Pad", 2, {}}, Case{"Softmax", 11, {}}, Case{"Clip", 6, {}},
                        Case{"GroupNormalization", 18, {"x"}}, Case{"Resize", 10, {"x"}}, Case{"Sum", 8, {}},
                        Case{"Add", 6, {"x"}, {int_attribute("broadcast", 1), int_attribute("axis", 1)}}})
    expect_error(model(graph({.nodes = {node(c.op, c.inputs, {"y"}, c.attributes)},
                              .inputs = {value_info("x", kFloat, {3, 3, 3})},
                              .outputs = {value_info("y", kFloat, {3, 3, 3})}}),
                       {}, c.opset),
                 ErrorCode::invalid_model, {c.op, "missing"});
}

TEST(BadModel, ADecomposedOperatorWithTooFewInputsIsRefused) {
  expect_error(model(graph({.nodes = {node("FlexAttention", {"", "x", "x"}, {"y"}, {}, "ai.onnx.preview")},
                            .inputs = {value_info("x", kFloat, {1, 2, 3, 4})},
                            .outputs = {value_info("y", kFloat, {1, 2, 3, 4})}})),
               ErrorCode::invalid_model, {"FlexAttention", "missing"});
}

TEST(BadModel, FunctionsThatCallThemselvesAreRefused) {
  expect_error(model(graph({.nodes = {node("F", {"x"}, {"y"}, {}, "local")},
                            .inputs = {value_info("x", kFloat, {3})},
                            .outputs = {value_info("y", kFloat, {3})}}),
                     {function("F", {"a"}, {"b"}, {node("F", {"a"}, {"b"}, {}, "local")})}),
               ErrorCode::invalid_model, {"deep", "F"});
}

TEST(BadModel, FunctionsThatUnfoldWithoutEndHaveALimit) {
  // The model has ten functions, each of which calls the function before ten times: 10^10 nodes in 4 kB.
  std::vector<std::string> functions = {function("F0", {"a"}, {"b"}, {node("Relu", {"a"}, {"b"})})};
  for (int i = 1; i <= 10; ++i) {
    std::vector<std::string> calls;
    for (int k = 0; k < 10; ++k)
      calls.push_back(node("F" + std::to_string(i - 1), {k == 0 ? "a" : "v" + std::to_string(k - 1)},
                           {k == 9 ? "b" : "v" + std::to_string(k)}, {}, "local"));
    functions.push_back(function("F" + std::to_string(i), {"a"}, {"b"}, calls));
  }
  std::string bytes = model(graph({.nodes = {node("F10", {"x"}, {"y"}, {}, "local")},
                                   .inputs = {value_info("x", kFloat, {3})},
                                   .outputs = {value_info("y", kFloat, {3})}}),
                            functions);
  size_t before = peak_bytes();
  expect_error(bytes, ErrorCode::resource_exhausted, {"unfold", "nodes"});
  EXPECT_LT(peak_bytes() - before, size_t{2} << 30);
}

TEST(BadModel, NamesThatAreDefinedTwiceAreNamed) {
  std::vector<std::string> x = {value_info("x", kFloat, {3})}, y = {value_info("y", kFloat, {3})};
  expect_error(model(graph({.nodes = {node("Relu", {"x"}, {"y"}), node("Neg", {"x"}, {"y"})}, .inputs = x, .outputs = y})),
               ErrorCode::invalid_model, {"\"y\"", "twice"});
  expect_error(model(graph({.nodes = {node("Relu", {"x"}, {"x"})}, .inputs = x, .outputs = x})), ErrorCode::invalid_model, {"make_x"});
  expect_error(model(graph({.nodes = {node("Relu", {"x"}, {"y"})}, .inputs = {x[0], x[0]}, .outputs = y})), ErrorCode::invalid_model,
               {"\"x\"", "twice"});
  expect_error(model(graph({.nodes = {node("Split", {"x"}, {"y", "y"}, {int_attribute("num_outputs", 2)})}, .inputs = x, .outputs = y})),
               ErrorCode::invalid_model, {"\"y\"", "twice"});
}

TEST(BadModel, ValuesThatNothingMakesAreNamed) {
  std::vector<std::string> x = {value_info("x", kFloat, {3})}, y = {value_info("y", kFloat, {3})};
  expect_error(model(graph({.nodes = {node("Add", {"x", "nowhere"}, {"y"})}, .inputs = x, .outputs = y})), ErrorCode::invalid_model,
               {"nowhere", "make_y"});
  expect_error(model(graph({.nodes = {node("Relu", {"x"}, {"z"})}, .inputs = x, .outputs = y})), ErrorCode::invalid_model, {"\"y\""});
}

TEST(BadModel, OperandsOfTheWrongTypeAreNamed) {
  expect_error(model(graph({.nodes = {node("Add", {"x", "i"}, {"y"})},
                            .inputs = {value_info("x", kFloat, {3}), value_info("i", kInt64, {3})},
                            .outputs = {value_info("y", kFloat, {3})}})),
               ErrorCode::invalid_model, {"make_y", "Add", "f32", "i64"});
  expect_error(model(graph({.nodes = {node("MatMul", {"x", "w"}, {"y"})},
                            .inputs = {value_info("x", kFloat, {2, 3}), value_info("w", kFloat, {4, 5})},
                            .outputs = {value_info("y", kFloat, {2, 5})}})),
               ErrorCode::invalid_argument, {"make_y", "MatMul", "3", "4"});
}

// The product of the extents exceeds 64 bits, or the memory.
TEST(BadModel, AbsurdExtentsOfInitializersAreRefused) {
  const int64_t huge = int64_t{1} << 62;
  for (std::vector<int64_t> dims : std::vector<std::vector<int64_t>>{{huge}, {huge, huge}, {int64_t{1} << 40}, {-1}, {0, huge, huge}}) {
    std::string tensor = message([&](Writer& w) {
      for (int64_t dim : dims) w.add_int64(1, dim);
      w.add_int32(2, kFloat);
      w.add_bytes(9, std::string("abcd"));
      w.add_string(8, "w");
    });
    Outcome outcome = outcome_of(
        model(graph({.nodes = {node("Relu", {"w"}, {"y"})}, .initializers = {tensor}, .outputs = {value_info("y", kFloat, {})}})));
    EXPECT_NE(outcome.text.find("\"w\""), std::string::npos) << outcome.text;
  }
}

TEST(BadModel, AbsurdExtentsOfInputsFailWhereTheyOverflow) {
  const int64_t huge = int64_t{1} << 62;
  // The declaration alone does no harm, since no feed can be so large.
  std::string bytes = model(graph({.nodes = {node("Add", {"x", "z"}, {"a"}), node("MatMul", {"a", "a"}, {"y"})},
                                   .inputs = {value_info("x", kFloat, {huge, huge}), value_info("z", kFloat, {1, 1})},
                                   .outputs = {value_info("y", kFloat, {huge, huge})}}));
  try {
    Session session = load(bytes);
    EXPECT_THROW(session.run({{"x", Tensor::scalar(1.0F)}, {"z", Tensor::scalar(1.0F)}}), Error);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(huge)), std::string::npos) << error.what();
  }
  expect_cheap(bytes);
}

// Returns the head of a message field of `length` bytes; the bytes themselves must follow.
std::string head(uint32_t field, size_t length) {
  std::string bytes = message([&](Writer& w) { w.add_bytes(field, std::string(length, ' ')); });
  return bytes.substr(0, bytes.size() - length);
}

TEST(BadModel, NestingTenThousandDeepIsRefused) {
  // Each message ends with the message that it contains, so the file is a sequence of headers: an If in an If in an If …
  std::vector<std::string> heads;
  size_t length = 0;
  auto wrap = [&](uint32_t field, const std::string& before) {
    heads.push_back(before + head(field, length));
    length += heads.back().size();
  };
  const std::string attribute = message([](Writer& w) {
    w.add_string(1, "then_branch");
    w.add_int32(20, 5);
  });
  for (int depth = 0; depth < 10'000; ++depth) {
    wrap(6, attribute);                 // the field AttributeProto.g
    wrap(5, node("If", {"c"}, {"t"}));  // the field NodeProto.attribute
    wrap(1, {});                        // the field GraphProto.node
  }
  wrap(7, message([](Writer& w) { w.add_int64(1, 10); }));  // the field ModelProto.graph
  std::string bytes;
  for (auto part = heads.rbegin(); part != heads.rend(); ++part) bytes += *part;
  expect_error(bytes, ErrorCode::invalid_model, {"deep"});
}

// Folding would make constants that are much larger than the file.
TEST(BadModel, ConstantsThatAreHugeStayUnfolded) {
  const int64_t large = int64_t{1} << 36;
  auto with = [](std::vector<std::string> nodes, std::vector<std::string> initializers) {
    return model(graph({.nodes = std::move(nodes), .initializers = std::move(initializers), .outputs = {value_info("y", kFloat, {})}}));
  };
  std::vector<std::string> cases = {
      with({node("ConstantOfShape", {"s"}, {"y"})}, {int64_tensor("s", {large})}),
      with({node("ConstantOfShape", {"s"}, {"c"}), node("ReduceSum", {"c"}, {"y"})}, {int64_tensor("s", {1 << 20, 1 << 20})}),
      with({node("ConstantOfShape", {"s"}, {"y"})}, {int64_tensor("s", {int64_t{1} << 62, 8})}),
      with({node("Expand", {"v", "s"}, {"y"})}, {int64_tensor("v", {1}), int64_tensor("s", {large})}),
      with({node("Tile", {"v", "s"}, {"y"})}, {int64_tensor("v", {1}), int64_tensor("s", {large})}),
      with({node("Range", {"a", "b", "d"}, {"y"})},
           {int64_tensor("a", {0}, true), int64_tensor("b", {INT64_MAX}, true), int64_tensor("d", {1}, true)}),
      with({node("OneHot", {"i", "n", "v"}, {"y"})}, {int64_tensor("i", {1}), int64_tensor("n", {large}, true), int64_tensor("v", {0, 1})}),
      with({node("Pad", {"v", "p"}, {"y"})}, {int64_tensor("v", {1}), int64_tensor("p", {0, large})}),
      with({node("EyeLike", {"c"}, {"y"}), node("ConstantOfShape", {"s"}, {"c"})}, {int64_tensor("s", {1 << 20, 1 << 20})}),
      with({node("Resize", {"f", "", "", "s"}, {"y"}), node("Cast", {"v"}, {"f"}, {int_attribute("to", kFloat)})},
           {int64_tensor("v", {1}), int64_tensor("s", {large})}),
      with({node("ConstantOfShape", {"s"}, {"c"}), node("NonZero", {"c"}, {"y"})}, {int64_tensor("s", {large})}),
      with({node("RandomUniform", {}, {"y"}, {message([&](Writer& w) {
                   w.add_string(1, "shape");
                   std::vector<int64_t> shape = {large};
                   w.add_packed_int64(8, shape.begin(), shape.end());
                   w.add_int32(20, 7);
                 })})},
           {}),
      with({node("HannWindow", {"n"}, {"y"})}, {int64_tensor("n", {large}, true)}),
      with({node("Expand", {"t", "s"}, {"e"}), node("Size", {"e"}, {"y"})}, {message([](Writer& w) {
                                                                               w.add_int64(1, 1);
                                                                               w.add_int32(2, kString);
                                                                               w.add_bytes(6, std::string("text"));
                                                                               w.add_string(8, "t");
                                                                             }),
                                                                             int64_tensor("s", {large})}),
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    expect_cheap(cases[i]);
  }
}

TEST(BadModel, FoldingManyConstantsHasALimitAltogether) {
  // The limit allows each of the 40 doublings, but not all of them together.
  std::vector<std::string> nodes = {node("ConstantOfShape", {"s"}, {"v0"})};
  for (int i = 0; i < 40; ++i)
    nodes.push_back(node("Add", {"v" + std::to_string(i), "v" + std::to_string(i)}, {"v" + std::to_string(i + 1)}));
  std::vector<std::string> outputs;
  for (int i = 0; i <= 40; ++i) outputs.push_back(value_info("v" + std::to_string(i), kFloat, {"n"}));
  std::string bytes = model(graph({.nodes = nodes, .initializers = {int64_tensor("s", {12 << 20})}, .outputs = outputs}));
  expect_cheap(bytes);
}

TEST(BadModel, ALoopOfManyRoundsIsNotRunAtLoad) {
  std::string body = graph({.nodes = {node("Identity", {"c"}, {"c2"}), node("Add", {"v", "v"}, {"v2"})},
                            .inputs = {value_info("i", kInt64, {}), value_info("c", kBool, {}), value_info("v", kInt64, {1})},
                            .outputs = {value_info("c2", kBool, {}), value_info("v2", kInt64, {1})}},
                           "body");
  std::string bytes = model(graph({.nodes = {node("Loop", {"m", "", "v0"}, {"y"}, {graph_attribute("body", body)})},
                                   .initializers = {int64_tensor("m", {INT64_MAX}, true), int64_tensor("v0", {1})},
                                   .outputs = {value_info("y", kInt64, {1})}}));
  Session session = load(bytes);
  RunOptions options;
  options.deadline_ms = 50;
  EXPECT_THROW(session.run({}, {}, &options), Error);
}

TEST(BadModel, ASparseInitializerMayNotGrowWithoutEnd) {
  auto sparse = [](int64_t extent, const std::string& name) {
    return message([&](Writer& w) {
      w.add_message(1, onnx::test::tensor_message(
                           {1}, kFloat, [](Writer& t) { t.add_bytes(9, onnx::test::raw_of({1.0F})); }, name));
      w.add_message(2, int64_tensor("", {3}));
      std::vector<int64_t> dims = {extent};
      w.add_packed_int64(3, dims.begin(), dims.end());
    });
  };
  auto with = [&](std::vector<std::string> tensors) {
    return model(graph({.nodes = {node("Identity", {"w0"}, {"y"})},
                        .outputs = {value_info("y", kFloat, {"n"})},
                        .sparse_initializers = std::move(tensors)}));
  };
  EXPECT_EQ(outcome_of(with({sparse(1000, "w0")})).text, "");
  expect_error(with({sparse(int64_t{1} << 33, "w0")}), ErrorCode::resource_exhausted, {"w0", "sparse"});
  std::vector<std::string> many;
  for (int i = 0; i < 40; ++i) many.push_back(sparse(20 << 20, "w" + std::to_string(i)));
  expect_error(with(many), ErrorCode::resource_exhausted, {"sparse"});
  expect_cheap(with(many));
}

TEST(BadModel, EveryMissingOperatorIsListedAtOnce) {
  expect_error(model(graph({.nodes = {node("Nope", {"x"}, {"a"}), node("Nada", {"a"}, {"y"})},
                            .inputs = {value_info("x", kFloat, {3})},
                            .outputs = {value_info("y", kFloat, {3})}})),
               ErrorCode::not_implemented, {"Nope", "Nada"});
}

}  // namespace
}  // namespace treadle::testing
