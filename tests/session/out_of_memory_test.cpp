// Tests the text of an error when memory is exhausted: the request, the values that are alive, and the changes that would need less.
#include "treadle/out_of_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <new>
#include <regex>
#include <set>

#include "core/values/float_types.h"
#include "tests/session/faults.h"
#include "treadle/train.h"

namespace treadle::testing {
namespace {

constexpr int64_t kElements = 4096;
constexpr size_t kValueBytes = kElements * sizeof(float);

void add_step(ModelBuilder& b, const std::string& input, const std::string& output, int64_t id, const std::string& op = "Step") {
  b.node(op, {input}, {output}, "", "test.fault");
  onnx::AttributeDef attribute;
  attribute.name = "id";
  attribute.type = onnx::AttributeType::i;
  attribute.i = id;
  b.last_node().attributes.push_back(std::move(attribute));
}

// Makes v0 = x + 1, v1 = v0 + 1, …, and then y = v3 + v2 + v1 + v0: at node i the values v0 to vi are alive.
ModelBuilder stack_of_values() {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  for (int i = 0; i < 4; ++i) add_step(b, i == 0 ? "x" : "v" + std::to_string(i - 1), "v" + std::to_string(i), i);
  b.node("Add", {"v3", "v2"}, {"s2"}).node("Add", {"s2", "v1"}, {"s1"}).node("Add", {"s1", "v0"}, {"y"});
  return b;
}

SessionOptions as_written() {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  return options;
}

Tensor numbers() {
  Tensor x(DType::float32, Shape{kElements});
  std::fill_n(x.data<float>(), kElements, 1.0F);
  return x;
}

template <typename Run>
std::string failure(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "it did not fail";
  return {};
}

std::string failure_at(int64_t id, const Session& session) {
  set_fault(id, [] { throw std::bad_alloc(); });
  return failure([&] { session.run({{"x", numbers()}}); });
}

// Parses the list of values in the error: for each name, its kind and its bytes.
std::map<std::string, std::pair<std::string, size_t>> listed(const std::string& text) {
  std::map<std::string, std::pair<std::string, size_t>> values;
  static const std::regex kItem("\"([^\"]+)\" \\((\\w+)[^\\n]*?\\) (\\d+) bytes");
  const std::string line = text.substr(std::min(text.size(), text.find("largest alive: ")));
  for (std::sregex_iterator found(line.begin(), line.end(), kItem), end; found != end; ++found)
    values[(*found)[1]] = {(*found)[2], std::stoull((*found)[3])};
  return values;
}

size_t number_before(const std::string& text, const std::string& what) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(text, match, std::regex("(\\d+) " + what))) << text;
  return match.empty() ? 0 : std::stoull(match[1]);
}

size_t number_behind(const std::string& text, const std::string& what) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(text, match, std::regex(what + " (\\d+)"))) << text;
  return match.empty() ? 0 : std::stoull(match[1]);
}

TEST(OutOfMemory, TheErrorListsWhatIsAliveAtTheNode) {
  const Session session(stack_of_values().model(), as_written());
  for (int64_t at = 0; at < 4; ++at) {
    const std::string text = failure_at(at, session);
    SCOPED_TRACE(text);
    EXPECT_NE(text.find("Step node \"v" + std::to_string(at) + "_node\""), std::string::npos);
    std::map<std::string, std::pair<std::string, size_t>> alive{{"x", {"fed", kValueBytes}}, {"y", {"output", kValueBytes}}};
    for (int64_t i = 0; i <= at; ++i) alive["v" + std::to_string(i)] = {"activations", kValueBytes};
    EXPECT_EQ(listed(text), alive);
    EXPECT_EQ(number_before(text, "in use at this node"), static_cast<size_t>(at + 1) * kValueBytes);
    EXPECT_EQ(number_before(text, "planned"), session.memory().arena_bytes);
    EXPECT_EQ(number_behind(text, "the bound of any plan is"), session.memory().arena_lower_bound_bytes);
    EXPECT_EQ(number_behind(text, "largest free block"), session.memory().arena_bytes - static_cast<size_t>(at + 1) * kValueBytes);
  }
  EXPECT_EQ(values_of(session.run({{"x", numbers()}})[0])[0], 2 + 3 + 4 + 5) << "the session runs on";
}

TEST(OutOfMemory, TheErrorHasTheAccountsBytesByClass) {
  SessionOptions options = as_written();
  ModelBuilder b = stack_of_values();
  Tensor weights(DType::float32, Shape{kElements});
  std::fill_n(weights.data<float>(), kElements, 2.0F);
  b.constant("w", weights).node("Mul", {"y", "w"}, {"z"}).output("z", {-1});
  const Session session(b.model(), options);
  const std::string text = failure_at(0, session);
  const size_t arena = session.memory_statistics()[MemoryClass::activations].bytes;
  EXPECT_NE(text.find("the session has "), std::string::npos) << text;
  EXPECT_EQ(number_behind(text, "activations"), arena);
  EXPECT_EQ(number_behind(text, "io"), 2 * kValueBytes);
  EXPECT_EQ(number_behind(text, "weights"), session.memory_statistics()[MemoryClass::weights].bytes);
  EXPECT_EQ(listed(text).at("w"), (std::pair<std::string, size_t>{"weights", kValueBytes}));
}

TEST(OutOfMemory, TheErrorNamesTheRequestAndWhatTheNodeStandsFor) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1, 64}).output("y", {-1, 64});
  Tensor w(DType::float32, Shape{64, 64});
  std::fill_n(w.data<float>(), w.num_elements(), 0.01F);
  b.constant("w", w).node("MatMul", {"x", "w"}, {"product"}, "dense").node("Relu", {"product"}, {"positive"}, "relu");
  add_step(b, "positive", "y", 0, "DynamicStep");
  SessionOptions options;
  options.intra_op_num_threads = 1;
  const auto allocator = std::make_shared<FaultyAllocator>();
  options.allocator = allocator;
  const Session session(b.model(), options);
  set_fault(0, [&] { allocator->fail(0, /*all=*/true); });
  const std::string text = failure([&] { session.run({{"x", numbers().reshaped({64, 64})}}); });
  allocator->work();
  EXPECT_NE(text.find("cannot allocate 16384 bytes"), std::string::npos) << text;
  EXPECT_TRUE(std::regex_search(
      text, std::regex("\"positive\" \\(activations, of FusedMatMul \"[^\"]+\" \\(\"dense\", \"relu\"\\)\\) 16384 bytes")))
      << text;
}

TEST(OutOfMemory, RemediesHaveTheirBytes) {
  const Session session(stack_of_values().model(), as_written());
  const std::string text = failure_at(3, session);
  const size_t least_arena = number_behind(text, "idle values move to a file: an arena of");
  SessionOptions options = as_written();
  options.memory_limit_bytes = 64;
  const std::string refusal = failure([&] { Session(stack_of_values().model(), options).run({{"x", numbers()}}); });
  const size_t possible = number_behind(refusal, "activations and scratch");
  EXPECT_GE(possible, least_arena);
  EXPECT_LE(possible, least_arena + kValueBytes) << refusal;
  EXPECT_LT(least_arena, session.memory().arena_bytes);
}

// Returns the size of the arena of a session that runs such a batch. The error must state this number.
size_t arena_of(const ModelBuilder& b, int64_t elements) {
  const Session session(b.model(), as_written());
  Tensor x(DType::float32, Shape{elements});
  std::fill_n(x.data<float>(), elements, 1.0F);
  session.run({{"x", x}});
  return session.memory().arena_bytes;
}

TEST(OutOfMemory, ASmallerBatchIsARemedyWithItsBytes) {
  const Session session(stack_of_values().model(), as_written());
  const std::string text = failure_at(3, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find(fmt::format("with {} in place of {} as the first extent of \"x\"", kElements / 2, kElements)), std::string::npos);
  EXPECT_EQ(number_behind(text, "the arena takes at most"), arena_of(stack_of_values(), kElements / 2));
}

TEST(OutOfMemory, UnderALimitTheBatchIsHalvedUntilTheArenaFits) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = kValueBytes;
  const std::string text = failure([&] { Session(stack_of_values().model(), options).run({{"x", numbers()}}); });
  SCOPED_TRACE(text);
  const auto batch = static_cast<int64_t>(number_behind(text, "to need less: with"));
  EXPECT_EQ(number_behind(text, "the arena takes at most"), arena_of(stack_of_values(), batch));
  EXPECT_LE(arena_of(stack_of_values(), batch), options.memory_limit_bytes);
  EXPECT_GT(arena_of(stack_of_values(), 2 * batch), options.memory_limit_bytes);
}

TEST(OutOfMemory, AFixedBatchIsNoRemedy) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {kElements}).output("y", {kElements});
  add_step(b, "x", "v0", 0);
  add_step(b, "v0", "v1", 1);
  b.node("Add", {"v0", "v1"}, {"y"});
  const Session session(b.model(), as_written());
  EXPECT_EQ(failure_at(1, session).find("as the first extent"), std::string::npos);
}

TEST(OutOfMemory, ARefusedRunSaysWhichNodeNeedsMost) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 64;
  const std::string text = failure([&] { Session(stack_of_values().model(), options).run({{"x", numbers()}}); });
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("before the first node of a run"), std::string::npos);
  EXPECT_NE(text.find("most memory is needed at step"), std::string::npos);
  EXPECT_NE(text.find("of a limit of 64"), std::string::npos);
  EXPECT_EQ(number_before(text, "in use at this node"), number_behind(text, "activations and scratch"));
  EXPECT_GE(listed(text).size(), 2U);
}

TEST(OutOfMemory, UnderALimitOnlyWhatIsInTheArenaIsListed) {
  SessionOptions options = as_written();
  options.memory_limit_bytes = 4 * kValueBytes;
  const Session session(stack_of_values().model(), options);
  const std::string text = failure_at(3, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("by a plan that moves idle values"), std::string::npos);
  size_t in_arena = 0;
  for (const auto& [name, value] : listed(text)) in_arena += value.first == "activations" ? value.second : 0;
  EXPECT_EQ(in_arena, number_before(text, "in use at this node"));
  EXPECT_LE(in_arena, 3 * kValueBytes);
  EXPECT_TRUE(listed(text).contains("v3"));
}

TEST(OutOfMemory, ByReadinessAllThatMayBeAliveIsListed) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  for (int branch = 0; branch < 2; ++branch) {
    const std::string name(1, static_cast<char>('a' + branch));
    add_step(b, "x", name + "0", 2 * branch);
    add_step(b, name + "0", name + "1", 2 * branch + 1);
  }
  b.node("Add", {"a1", "b1"}, {"sum"});
  add_step(b, "sum", "y", 4);
  SessionOptions options = as_written();
  options.execution_mode = ExecutionMode::parallel;
  options.intra_op_num_threads = options.inter_op_num_threads = 2;
  const Session session(b.model(), options);
  const std::string text = failure_at(1, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("\"a1_node\""), std::string::npos);
  std::set<std::string> names;
  for (const auto& [name, value] : listed(text)) names.insert(name);
  // Values of the other branch may be alive at any time; the sum has not begun.
  EXPECT_EQ(names, (std::set<std::string>{"a0", "a1", "b0", "b1", "x", "y"}));
  EXPECT_EQ(number_before(text, "may be in use at this node"), 4 * kValueBytes);
}

TEST(OutOfMemory, OnADeviceItsMemoryIsListed) {
  SessionOptions options = as_written();
  options.device = "sim";
  const Session session(stack_of_values().model(), options);
  const std::string text = failure_at(2, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("\"v2_node\""), std::string::npos);
  EXPECT_NE(text.find("sim: arena "), std::string::npos);
  EXPECT_GE(number_before(text.substr(text.find("sim: arena ")), "may be in use at this node"), 3 * kValueBytes);
  for (const char* name : {"v0", "v1", "v2"})
    EXPECT_EQ(listed(text)[name], (std::pair<std::string, size_t>{"activations", kValueBytes})) << name;
}

// Makes a Loop with a failing node in its body. @param extent  extent of the loop's state; -1: a symbol
ModelBuilder failing_loop(int64_t extent, int64_t fault) {
  register_fault_operators();
  ModelBuilder b;
  b.input("x", {extent}).output("y", {extent}).constant("trips", Tensor::scalar<int64_t>(3));
  b.node("Neg", {"x"}, {"first"}).node("Loop", {"trips", "", "first"}, {"last"}, "counting");
  auto graph = std::make_unique<onnx::GraphDef>();
  graph->name = "body";
  graph->inputs.push_back(ModelBuilder::info("i", {}, DType::int64));
  graph->inputs.push_back(ModelBuilder::info("go", {}, DType::boolean));
  graph->inputs.push_back(ModelBuilder::info("value", {extent}, DType::float32));
  graph->outputs.push_back(ModelBuilder::info("go_on", {}, DType::boolean));
  graph->outputs.push_back(ModelBuilder::info("next", {extent}, DType::float32));
  ModelBuilder body;
  body.node("Identity", {"go"}, {"go_on"});
  add_step(body, "value", "inside", fault);
  body.node("Neg", {"inside"}, {"next"});
  graph->nodes = std::move(body.def().graph.nodes);
  onnx::AttributeDef attribute;
  attribute.name = "body";
  attribute.type = onnx::AttributeType::graph;
  attribute.g = std::move(graph);
  b.last_node().attributes.push_back(std::move(attribute));
  b.node("Add", {"last", "first"}, {"y"});
  return b;
}

TEST(OutOfMemory, OfABodyBothRunsAreListed) {
  const Session session(failing_loop(kElements, 7).model(), as_written());
  const std::string text = failure_at(7, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("\"inside_node\""), std::string::npos);
  EXPECT_NE(text.find("body's arena: "), std::string::npos);
  EXPECT_NE(text.find("\"inside\" (activations, of Step \"inside_node\") 16384 bytes"), std::string::npos);
  EXPECT_NE(text.find("\"first\" (activations, of Neg \"first_node\") 16384 bytes"), std::string::npos);
  EXPECT_NE(text.find("the session has "), std::string::npos);
}

TEST(OutOfMemory, OfABodyASmallerBatchIsARemedy) {
  const Session session(failing_loop(-1, 8).model(), as_written());
  const std::string text = failure_at(8, session);
  SCOPED_TRACE(text);
  // The arena of the body contains two values at the same time, each with half of the elements.
  EXPECT_NE(text.find(fmt::format("with {} in place of {} as the first extent of", kElements / 2, kElements)), std::string::npos);
  EXPECT_EQ(number_behind(text, "the body's arena takes at most"),
            number_before(text.substr(text.find("body's arena: ")), "planned, the bound of any plan is") / 2);
}

TEST(OutOfMemory, OnADeviceASmallerBatchIsARemedy) {
  SessionOptions options = as_written();
  options.device = "sim";
  const Session session(stack_of_values().model(), options);
  const std::string text = failure_at(2, session);
  SCOPED_TRACE(text);
  EXPECT_NE(text.find(fmt::format("with {} in place of {} as the first extent of \"x\"", kElements / 2, kElements)), std::string::npos);
  const size_t half = number_behind(text, "the arena of sim takes at most");
  // The device's arena is that of half of the batch.
  Tensor x(DType::float32, {kElements / 2});
  for (float& value : x.span<float>()) value = 1;
  set_fault(2, [] { throw std::bad_alloc(); });
  const std::string smaller = failure([&] { Session(stack_of_values().model(), options).run({{"x", x}}); });
  EXPECT_EQ(number_behind(smaller.substr(smaller.find("sim: ")), "sim: arena"), half) << smaller;
}

TEST(OutOfMemory, InTrainingGradientsAreListed) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1, 64}).output("y", {-1, 64});
  Tensor w(DType::float32, Shape{64});
  std::fill_n(w.data<float>(), 64, 0.5F);
  b.constant("w", w).node("Mul", {"x", "w"}, {"product"});
  add_step(b, "product", "y", 0);
  train::Trainer trainer(b.model(), {.loss = train::Loss::mean_squared_error, .session = as_written()});
  const Tensor x = numbers().reshaped({64, 64});
  for (const int64_t at : {0, 1}) {  // a failure in the forward pass, and one in the backward pass
    set_fault(at, [] { throw std::bad_alloc(); });
    const std::string text = failure([&] { trainer.step({{"x", x}}, x); });
    SCOPED_TRACE(text);
    EXPECT_NE(text.find("the trainer has "), std::string::npos);
    EXPECT_EQ(listed(text)["x"], (std::pair<std::string, size_t>{"fed", kValueBytes}));
    std::set<std::string> classes;
    for (const auto& [name, value] : listed(text)) classes.insert(value.first);
    EXPECT_TRUE(classes.contains(at == 0 ? "activations" : "gradients"));
  }
  trainer.step({{"x", x}}, x);
}

// Makes y = relu(x w0) w1 …, in the layers "body" and "body/dense<i>".
ModelBuilder products(int count) {
  ModelBuilder b;
  b.input("x", {-1, 64}).output("y", {-1, 64});
  std::string last = "x";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i), product = i + 1 == count ? "y" : "p" + n;
    Tensor w(DType::float32, Shape{64, 64});
    // These values cannot be represented in 8 bits, so no kernel treats them as 8-bit weights.
    for (int64_t k = 0; k < w.num_elements(); ++k) w.data<float>()[k] = 0.01F * static_cast<float>(k * (i + 1) % 977);
    b.constant("w" + n, w).node("MatMul", {last, "w" + n}, {product}, "/body/dense" + n + "/MatMul");
    last = product;
  }
  return b;
}
constexpr size_t kWeightBytes = 64 * 64 * sizeof(float);

// Fails each allocation in turn, until there are no more. @return the messages of the errors
template <typename Make>
std::vector<std::string> failures_of(FaultyAllocator& allocator, const Make& make) {
  std::vector<std::string> texts;
  for (int64_t k = 0; k < 500; ++k) {
    allocator.fail(k, /*all=*/false);
    try {
      make();
      allocator.work();
      return texts;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
      texts.emplace_back(error.what());
    }
    allocator.work();
  }
  ADD_FAILURE() << "it never succeeds";
  return texts;
}

TEST(OutOfMemory, WhileASessionIsMadeTheErrorListsWhatIsThere) {
  const Model model = products(3).model();
  const auto allocator = std::make_shared<FaultyAllocator>();
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.allocator = allocator;
  int num_packing = 0;
  const std::vector<std::string> texts = failures_of(*allocator, [&] { Session(model, options); });
  ASSERT_FALSE(texts.empty());
  for (const std::string& text : texts) {
    SCOPED_TRACE(text);
    EXPECT_NE(text.find("the session has "), std::string::npos);
    EXPECT_NE(text.find("there is no arena yet"), std::string::npos);
    EXPECT_NE(text.find("cannot allocate "), std::string::npos);
    if (text.find("while weights were packed") == std::string::npos) continue;
    ++num_packing;
    EXPECT_NE(text.find("MatMul node \"/body/dense"), std::string::npos);
    EXPECT_NE(text.find("it is in the layer body/dense"), std::string::npos);
    EXPECT_EQ(number_behind(text, "the session has \\d+ bytes: packed"), number_before(text, "bytes; the others have"));
    EXPECT_EQ(number_before(text, "of 3 nodes"), 2U) << "the others go on";
    EXPECT_EQ(number_before(text, "bytes of weights"), kWeightBytes);
    EXPECT_EQ(number_behind(text, "by layer: body"), number_before(text, "bytes; the others have") + kWeightBytes);
  }
  EXPECT_EQ(num_packing, 3);
}

TEST(OutOfMemory, WithinAPassTheErrorListsWhatWasHeldThen) {
  ModelBuilder b;
  b.input("x", {-1, 64}, DType::float16).output("y", {-1, 64}, DType::float16);
  for (int i = 0; i < 3; ++i) {
    const std::string n = std::to_string(i);
    Tensor w(DType::float16, Shape{64, 64});
    for (int64_t k = 0; k < w.num_elements(); ++k) w.data<Float16>()[k] = Float16(0.01F * static_cast<float>(k * (i + 1) % 977));
    b.constant("w" + n, w)
        .node("MatMul", {i == 0 ? "x" : "p" + std::to_string(i - 1), "w" + n}, {i == 2 ? "y" : "p" + n}, "/body/dense" + n + "/MatMul");
  }
  const Model model = b.model();
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.memory_limit_bytes = 2 * kWeightBytes + kWeightBytes / 2;  // two of the weights fit in float32
  const std::string text = failure([&] { Session(model, options); });
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("while the pass compute-in-float32 ran"), std::string::npos);
  EXPECT_NE(text.find(fmt::format("the session has {} bytes of a limit of {}: weights {}", 2 * kWeightBytes, options.memory_limit_bytes,
                                  2 * kWeightBytes)),
            std::string::npos);
  EXPECT_EQ(number_before(text, "bytes of the limit are free"), kWeightBytes / 2);
  std::multiset<size_t> sizes;
  for (const auto& [name, value] : listed(text)) sizes.insert(value.second);
  EXPECT_EQ(sizes, (std::multiset<size_t>{kWeightBytes / 2, kWeightBytes, kWeightBytes}));
  EXPECT_NE(text.find(fmt::format("\"w2\" (weights, the model's) {} bytes", kWeightBytes / 2)), std::string::npos) << "not converted yet";
  EXPECT_EQ(number_behind(text, "by layer: body"), 2 * kWeightBytes + kWeightBytes / 2);
  EXPECT_NE(text.find(fmt::format("with disabled_passes=compute-in-float32, the {} bytes are not made", 2 * kWeightBytes)),
            std::string::npos);
  const train::TrainerOptions of_trainer{.loss = train::Loss::mean_squared_error, .session = options};
  for (const std::string& of_others :
       {failure([&] { train::Trainer(products(3).model(), of_trainer); }), failure([&] {
          SessionOptions further = options;
          further.memory_limit_bytes = 4 * kWeightBytes;
          Session(model, further).run({{"x", Tensor(DType::float16, {1, 64})}}, std::vector<std::string>{"p0"});
        })})
    EXPECT_NE(of_others.find(" bytes of a limit of "), std::string::npos) << of_others;
  options.disabled_passes = {"compute-in-float32"};
  options.memory_limit_bytes = 0;
  EXPECT_EQ(Session(model, options).memory().weight_bytes, 3 * kWeightBytes / 2);
}

TEST(OutOfMemory, IsAClassOfErrors) {
  const auto of = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
      return dynamic_cast<const OutOfMemory*>(&error) != nullptr;
    }
    ADD_FAILURE() << "it did not fail";
    return false;
  };
  SessionOptions options = as_written();
  options.memory_limit_bytes = kWeightBytes;
  EXPECT_TRUE(of([&] { Session(products(3).model(), options); }));
  const Session session(stack_of_values().model(), as_written());
  set_fault(2, [] { throw std::bad_alloc(); });
  EXPECT_TRUE(of([&] { session.run({{"x", numbers()}}); }));
  // The text mentions bytes and memory, but memory was not exhausted.
  set_fault(2, [] { throw Error(ErrorCode::resource_exhausted, "a pattern of more bytes than its memory has states"); });
  EXPECT_FALSE(of([&] { session.run({{"x", numbers()}}); }));
  MemoryAccount account("a test", 10);
  EXPECT_TRUE(of([&] { account.charge(MemoryClass::io, 11); }));
  EXPECT_TRUE(of([&] { Storage::allocate(SIZE_MAX); }));
}

TEST(OutOfMemory, APackedWeightBeyondTheLimitHasItsRemedies) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.memory_limit_bytes = kWeightBytes + kWeightBytes / 2;
  const Model model = products(3).model();
  options.share_weights = false;
  const std::string text = failure([&] { Session(model, options); });
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("while weights were packed"), std::string::npos);
  EXPECT_EQ(number_behind(text, "in place of"), 3 * kWeightBytes);
  options.share_weights = true;  // weights are packed once for all sessions, and counted at the end
  const std::string shared = failure([&] { Session(model, options); });
  EXPECT_NE(shared.find("while weights were packed"), std::string::npos) << shared;
  EXPECT_EQ(number_before(shared, "of 3 nodes"), 3U);
  EXPECT_EQ(number_before(text, "bytes of the limit are free"), options.memory_limit_bytes - number_behind(text, "the session has"));
  const size_t needed = number_behind(text, "the session needs a limit of about");
  options.memory_limit_bytes = needed + 4096;
  Session(model, options);
}

TEST(OutOfMemory, WhileATrainerOrAModuleIsMadeTheErrorListsWhatIsThere) {
  const auto allocator = std::make_shared<FaultyAllocator>();
  SessionOptions options = as_written();
  options.allocator = allocator;
  const Model model = products(2).model();
  auto is_told = [](const std::vector<std::string>& texts, const std::string& owner) {
    EXPECT_FALSE(texts.empty());
    for (const std::string& text : texts) EXPECT_NE(text.find(owner + " has "), std::string::npos) << text;
  };
  const train::TrainerOptions trainer_options{.loss = train::Loss::mean_squared_error, .session = options};
  is_told(failures_of(*allocator, [&] { train::Trainer(model, trainer_options); }), "the trainer");
  is_told(failures_of(*allocator, [&] { train::JointModule(model, {.session = options}); }), "the module");
  train::Trainer trainer(model, trainer_options);
  const Tensor x = numbers().reshaped({64, 64});
  trainer.step({{"x", x}}, x);
  is_told(failures_of(*allocator, [&] { trainer.predict({{"x", x}}); }), "the trainer");
}

TEST(OutOfMemory, OtherLimitsSayNothingOfMemory) {
  ModelBuilder b;
  b.def().opset_imports[0].version = 20;
  b.input("x", {-1}, DType::string).output("y", {-1}, DType::boolean).node("RegexFullMatch", {"x"}, {"y"});
  onnx::AttributeDef pattern;
  pattern.name = "pattern";
  pattern.type = onnx::AttributeType::s;
  pattern.s = "((a{900}){900}){9}";
  b.last_node().attributes.push_back(std::move(pattern));
  const std::string text = failure([&] { Session(b.model(), as_written()); });
  EXPECT_NE(text.find("states"), std::string::npos) << text;
  EXPECT_EQ(text.find("the session has "), std::string::npos) << text;
}

TEST(OutOfMemory, LiveBytesAreSummedByLayer) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  const auto allocator = std::make_shared<FaultyAllocator>();
  options.allocator = allocator;
  const Session session(products(3).model(), options);
  allocator->fail(0, /*all=*/true);
  const std::string text = failure([&] { session.run({{"x", numbers().reshaped({64, 64})}}); });
  allocator->work();
  SCOPED_TRACE(text);
  EXPECT_NE(text.find("it is in the layer body/dense"), std::string::npos);
  size_t of_layers = 0;
  for (const auto& [name, value] : listed(text))
    if (value.first != "fed" && value.first != "output") of_layers += value.second;
  EXPECT_EQ(number_behind(text, "by layer: body"), of_layers);
}

TEST(OutOfMemory, WhileTheExtentsOfARunAreBoundTheErrorListsWhatIsThere) {
  const auto allocator = std::make_shared<FaultyAllocator>();
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.allocator = allocator;
  const Model model = products(3).model();
  std::optional<Session> session;
  int64_t rows = 1;
  const std::vector<std::string> texts = failures_of(*allocator, [&] {
    allocator->work();
    session.emplace(model, options);
    allocator->fail(rows - 1, /*all=*/false);
    Tensor x(DType::float32, Shape{rows++, 64});
    std::fill_n(x.data<float>(), x.num_elements(), 1.0F);
    session->run({{"x", x}});
  });
  ASSERT_FALSE(texts.empty());
  for (const std::string& text : texts) EXPECT_NE(text.find("the session has "), std::string::npos) << text;
}

}  // namespace
}  // namespace treadle::testing
