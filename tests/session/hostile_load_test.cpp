// Tests small files that declare huge values, or would compute some. Each is loaded or refused within the memory that the documentation
// states.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/sanitizers.h"
#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

constexpr size_t kMostMemory = 64U << 20U;  // the limit that docs/fuzzing.md states
constexpr int64_t kDeclared = 1'000'000'007;

/// Returns a field of this process's status, in bytes.
size_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field + ":", 0) == 0) return std::stoul(line.substr(field.size() + 1)) * 1024;
  return 0;
}

struct Load {
  bool ended = false;   // false if the process was killed
  size_t memory = 0;    // the peak minus the memory at the start, in bytes
  std::string refusal;  // the message of the error; empty if the file was loaded
};

/// Loads the bytes in a child process, and measures the child's peak.
Load load(const std::string& bytes) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const size_t before = status_bytes("VmRSS");
    std::string refusal;
    try {
      Session session(Model::from_bytes(onnx::test::bytes_of(bytes)));
    } catch (const Error& error) {
      refusal = error.what();
    }
    const size_t peak = status_bytes("VmHWM"), memory = peak > before ? peak - before : 0;
    const std::string answer = std::to_string(memory) + " " + refusal.substr(0, 3000);
    const bool told = write(ends[1], answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
    _exit(told ? 0 : 1);
  }
  close(ends[1]);
  std::string answer(4096, '\0');
  const ssize_t length = read(ends[0], answer.data(), answer.size());
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  Load result;
  result.ended = WIFEXITED(status) && WEXITSTATUS(status) == 0 && length > 0;
  if (!result.ended) return result;
  answer.resize(static_cast<size_t>(length));
  result.memory = std::stoul(answer);
  result.refusal = answer.substr(answer.find(' ') + 1);
  return result;
}

void expect_small(const std::string& bytes) {
  ASSERT_LE(bytes.size(), 100'000U);
  const Load made = load(bytes);
  EXPECT_TRUE(made.ended);
  if (!test::kSanitized) {
    EXPECT_LE(made.memory, kMostMemory) << made.refusal;
  }
}

void expect_refused(const std::string& bytes, const std::string& word) {
  expect_small(bytes);
  const std::string refusal = load(bytes).refusal;
  EXPECT_NE(refusal.find(word), std::string::npos) << (refusal.empty() ? "it loaded" : refusal);
}

std::string one_node(const std::string& op, const std::vector<std::string>& inputs, int element = kFloat) {
  std::vector<std::string> names{"x"};
  for (size_t i = 1; i <= inputs.size(); ++i) names.push_back("i" + std::to_string(i));
  std::vector<std::string> infos = inputs;
  infos.insert(infos.begin(), value_info("x", element, {"a", "b"}));
  return model(graph({.nodes = {node(op, names, {"y"})}, .inputs = infos, .outputs = {value_info("y", element, {"n"})}}));
}

TEST(HostileLoad, AShapeOfADeclaredLengthIsNotMade) {
  const std::string extents = value_info("i1", kInt64, {kDeclared});
  for (const char* op : {"Reshape", "Expand", "Unsqueeze"}) expect_refused(one_node(op, {extents}), "at most 12");
  for (const char* op : {"Tile", "Squeeze", "Pad", "ReduceSum", "CenterCropPad", "Split", "AffineGrid"})
    expect_small(one_node(op, {extents}));
  expect_refused(one_node("Slice", {extents, value_info("i2", kInt64, {kDeclared})}), "at most 12");
  expect_refused(model(graph({.nodes = {node("ConstantOfShape", {"s"}, {"y"})},
                              .inputs = {value_info("s", kInt64, {kDeclared})},
                              .outputs = {value_info("y", kFloat, {"n"})}})),
                 "at most 12");
  expect_refused(
      model(graph({.nodes = {node("Col2Im", {"x", "s", "b"}, {"y"})},
                   .inputs = {value_info("x", kFloat, {1, 10, 12}), value_info("s", kInt64, {kDeclared}), value_info("b", kInt64, {3})},
                   .outputs = {value_info("y", kFloat, {"n"})}})),
      "at most 12");
}

TEST(HostileLoad, ADeclaredRankHasALimit) {
  const std::vector<DimText> many(10'000, "d");
  expect_refused(model(graph({.nodes = {node("Shape", {"x"}, {"y"})},
                              .inputs = {value_info("x", kFloat, many)},
                              .outputs = {value_info("y", kInt64, {"n"})}})),
                 "at most 12");
  // Axes that nodes add count against the limit as well.
  std::vector<std::string> nodes{node("Unsqueeze", {"x", "axes"}, {"y0"})};
  for (int i = 0; i < 11; ++i) nodes.push_back(node("Unsqueeze", {"y" + std::to_string(i), "axes"}, {"y" + std::to_string(i + 1)}));
  auto with = [&](size_t count) {
    return model(graph({.nodes = {nodes.begin(), nodes.begin() + static_cast<int64_t>(count)},
                        .initializers = {int64_tensor("axes", {0})},
                        .inputs = {value_info("x", kFloat, {"n"})},
                        .outputs = {value_info("y" + std::to_string(count - 1), kFloat, {})}}));
  };
  EXPECT_EQ(load(with(11)).refusal, "");
  expect_refused(with(12), "rank 13");
}

std::string text_tensor(const std::string& name, const std::vector<std::string>& texts) {
  return message([&](Writer& w) {
    w.add_int64(1, static_cast<int64_t>(texts.size()));
    w.add_int32(2, kString);
    for (const std::string& text : texts) w.add_bytes(6, text);
    w.add_string(8, name);
  });
}

TEST(HostileLoad, TextsThatDoubleAreNotFoldedWithoutEnd) {
  std::vector<std::string> nodes;
  for (int i = 0; i < 40; ++i) {
    const std::string last = "v" + std::to_string(i);
    nodes.push_back(node("StringConcat", {last, last}, {"v" + std::to_string(i + 1)}));
  }
  expect_small(model(graph({.nodes = nodes,
                            .initializers = {text_tensor("v0", {"a text of some twenty bytes"})},
                            .outputs = {value_info("v40", kString, {1})}})));
}

TEST(HostileLoad, ALongTextIsNotRepeatedWithoutEnd) {
  expect_small(model(graph({.nodes = {node("Expand", {"x", "s"}, {"e"}), node("Identity", {"e"}, {"y"})},
                            .initializers = {text_tensor("x", {std::string(50'000, 'x')}), int64_tensor("s", {30'000})},
                            .outputs = {value_info("y", kString, {"n"})}})));
}

TEST(HostileLoad, SumsOfManyExtentsStaySmall) {
  std::vector<std::string> names, inputs;
  for (int i = 0; i < 2000; ++i) {
    names.push_back("x" + std::to_string(i));
    inputs.push_back(value_info(names.back(), kFloat, {"n" + std::to_string(i)}));
  }
  expect_small(model(graph({.nodes = {node("Concat", names, {"y"}, {int_attribute("axis", 0)})},
                            .inputs = inputs,
                            .outputs = {value_info("y", kFloat, {"n"})}})));
}

// The value that a loop carries grows in every iteration, so inference must give up its extent, whatever the model declares.
TEST(HostileLoad, NestsOfLoopsAreInferredInLittleTime) {
  for (const bool declares : {false, true}) {
    std::string inner = node("Concat", {"a24", "a24"}, {"r25"}, {int_attribute("axis", 0)});
    for (int level = 24; level >= 0; --level) {
      const std::string n = std::to_string(level), carried = "a" + n;
      const std::string body =
          graph({.nodes = {inner, node("Identity", {"c" + n}, {"d" + n})},
                 .inputs = {value_info("i" + n, kInt64, {}), value_info("c" + n, kBool, {}),
                            declares ? value_info(carried, kFloat, {3}) : value_info(carried, kFloat, {"e" + n})},
                 .outputs = {value_info("d" + n, kBool, {}), value_info("r" + std::to_string(level + 1), kFloat, {"f" + n})}},
                "body" + n);
      inner = node("Loop", {"m", "", level == 0 ? "x" : "a" + std::to_string(level - 1)}, {"r" + n}, {graph_attribute("body", body)});
    }
    expect_small(model(graph({.nodes = {inner},
                              .initializers = {int64_tensor("m", {5}, true)},
                              .inputs = {value_info("x", kFloat, {3})},
                              .outputs = {value_info("r0", kFloat, {"n"})}})));
  }
}

TEST(HostileLoad, WhatFunctionsCopyCounts) {
  const std::string long_list = message([](Writer& w) {
    w.add_string(1, "value_ints");
    const std::vector<int64_t> ones(10'000, 1);
    w.add_packed_int64(8, ones.begin(), ones.end());
    w.add_int32(20, 7);
  });
  std::vector<std::string> functions{
      function("F0", {"a"}, {"b"}, {node("Constant", {}, {"c"}, {long_list}), node("Reshape", {"a", "c"}, {"b"})})};
  for (int i = 1; i <= 3; ++i) {
    std::vector<std::string> calls;
    for (int k = 0; k < 20; ++k)
      calls.push_back(node("F" + std::to_string(i - 1), {k == 0 ? "a" : "v" + std::to_string(k - 1)},
                           {k == 19 ? "b" : "v" + std::to_string(k)}, {}, "local"));
    functions.push_back(function("F" + std::to_string(i), {"a"}, {"b"}, calls));
  }
  expect_refused(model(graph({.nodes = {node("F3", {"x"}, {"y"}, {}, "local")},
                              .inputs = {value_info("x", kFloat, {"n"})},
                              .outputs = {value_info("y", kFloat, {"n"})}}),
                       functions),
                 "unfold");
}

}  // namespace
}  // namespace treadle::testing
