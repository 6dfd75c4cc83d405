// Tests that a limit that is lowered during a run slows the run down, but does not end it.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/session/faults.h"
#include "treadle/out_of_memory.h"

namespace treadle::testing {
namespace {

constexpr int64_t kElements = 24 * 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);
constexpr int kLinks = 8;

ModelBuilder& step(ModelBuilder& b, const std::string& op, const std::string& input, const std::string& output, int64_t id) {
  b.node(op, {input}, {output}, "", "test.fault");
  onnx::AttributeDef attribute;
  attribute.name = "id";
  attribute.type = onnx::AttributeType::i;
  attribute.i = id;
  b.last_node().attributes.push_back(std::move(attribute));
  return b;
}

// Makes v0 = x + 1, v1 …, in which every other value is cheap. Then all are added up in reverse order, and nodes with one element each
// follow. If `dynamic`, every third node is bound during the run.
Model there_and_back(bool dynamic) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {kElements}).output("y", {1});
  std::string last = "x";
  for (int i = 0; i < kLinks; ++i) {
    const std::string next = "v" + std::to_string(i);
    if (i % 2 == 1)
      b.node("Neg", {last}, {next});
    else
      step(b, dynamic && i % 3 == 0 ? "DynamicStep" : "Step", last, next, i);
    last = next;
  }
  for (int i = kLinks - 1; i-- > 0;) {
    const std::string next = "s" + std::to_string(i);
    b.node("Add", {last, "v" + std::to_string(i)}, {next});
    last = next;
  }
  b.node("ReduceSum", {last}, {"sum"});
  b.node("Reshape", {"sum", "one"}, {"t0"}).constant("one", Tensor::vector<int64_t>(std::vector<int64_t>{1}));
  for (int i = 0; i < 3; ++i) step(b, "Step", "t" + std::to_string(i), i == 2 ? "y" : "t" + std::to_string(i + 1), 100 + i);
  return b.model();
}

Tensor numbers() {
  Tensor x(DType::float32, Shape{kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = static_cast<float>(i % 100) - 50;
  return x;
}

// All numbers are whole, so float32 is exact.
float expected() {
  double sum = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    double v = static_cast<double>(i % 100) - 50, all = 0;
    for (int k = 0; k < kLinks; ++k) all += v = k % 2 == 1 ? -v : v + 1;
    sum += all;
  }
  return static_cast<float>(sum + 3);
}

SessionOptions with_limit(size_t values, bool own_allocator) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  options.memory_limit_bytes = values * kValueBytes;
  if (own_allocator) options.allocator = make_allocator("guard");
  return options;
}

const size_t kLimits[] = {1, kValueBytes, 5 * kValueBytes / 2, 4 * kValueBytes, 6 * kValueBytes, 9 * kValueBytes};

TEST(ShrinkingLimit, EndsNoRunWhereverItComes) {
  for (bool dynamic : {false, true})
    for (bool own_allocator : {false, true})
      for (size_t at_first : {size_t{7}, size_t{40}}) {
        const Model model = there_and_back(dynamic);
        size_t steps = 0;
        {
          const Session session(model, with_limit(at_first, own_allocator));
          PartialRun run = session.partial_run({{"x", numbers()}});
          steps = run.steps_left();
        }
        ASSERT_GE(steps, size_t{2 * kLinks});
        for (size_t limit : kLimits)
          for (size_t at = 0; at <= steps; ++at) {
            SCOPED_TRACE("from " + std::to_string(at_first) + " values to " + std::to_string(limit) + " bytes at " + std::to_string(at) +
                         (dynamic ? ", dynamic" : "") + (own_allocator ? ", own allocator" : ""));
            Session session(model, with_limit(at_first, own_allocator));
            PartialRun run = session.partial_run({{"x", numbers()}});
            run.advance_steps(at);
            session.set_memory_limit(limit);
            if (at % 3 == 1) {  // the limit is lowered, raised and lowered again
              run.advance_steps(1);
              session.set_memory_limit(at_first * kValueBytes);
              run.advance_steps(2);
              session.set_memory_limit(limit);
            }
            EXPECT_TRUE(run.advance());
            EXPECT_EQ(*run.outputs()[0].tensor().data<float>(), expected());
          }
      }
}

TEST(ShrinkingLimit, LeavesNoRoomForWhatHasBeen) {
  for (bool own_allocator : {false, true}) {
    Session session(there_and_back(/*dynamic=*/false), with_limit(40, own_allocator));
    PartialRun run = session.partial_run({{"x", numbers()}});
    run.advance_steps(run.steps_left() - 2);
    session.set_memory_limit(1);
    run.advance_steps(1);
    EXPECT_LT(session.memory_statistics()[MemoryClass::activations].bytes, kValueBytes) << "the tail has one element";
    EXPECT_TRUE(run.advance());
    EXPECT_EQ(*run.outputs()[0].tensor().data<float>(), expected());
  }
}

TEST(ShrinkingLimit, EndsNoRunThatIsWithinANode) {
  for (bool own_allocator : {false, true})
    for (size_t limit : kLimits)
      for (int at : {0, 2, 4, 6}) {
        SCOPED_TRACE(std::to_string(limit) + " bytes in node " + std::to_string(at));
        Session session(there_and_back(/*dynamic=*/true), with_limit(40, own_allocator));
        set_fault(at, [&] { session.set_memory_limit(limit); });
        EXPECT_EQ(*session.run({{"x", numbers()}})[0].tensor().data<float>(), expected());
        set_fault(-1, {});
      }
}

TEST(ShrinkingLimit, EndsNoRandomRun) {
  std::mt19937 random(7);
  int runs = 0;
  for (int k = 0; k < 40; ++k) {
    const RandomModel made(random, /*yields=*/false);
    std::vector<float> x(3000);
    for (float& value : x) value = static_cast<float>(random() % 16);
    const auto truth = made.expected(x);
    SessionOptions options = with_limit(4000, /*own_allocator=*/k % 2 == 1);
    options.execution_mode = k % 3 == 0 ? ExecutionMode::parallel : ExecutionMode::sequential;
    options.intra_op_num_threads = k % 3 == 0 ? 3 : 1;
    Session session(made.builder.model(), options);
    for (int64_t at = 0; at < made.num_steps; ++at)
      for (size_t limit : {size_t{1}, size_t{50'000}}) {
        SCOPED_TRACE("model " + std::to_string(k) + ", " + std::to_string(limit) + " bytes in node " + std::to_string(at));
        session.set_memory_limit(4000 * kValueBytes);
        set_fault(at, [&] { session.set_memory_limit(limit); });
        const std::vector<Datum> outputs = session.run({{"x", Tensor::vector<float>(x)}});
        set_fault(-1, {});
        for (size_t o = 0; o < outputs.size(); ++o) {
          const auto values = outputs[o].tensor().span<float>();
          EXPECT_EQ(std::vector<float>(values.begin(), values.end()), truth[o]);
        }
        ++runs;
      }
  }
  EXPECT_GT(runs, 100);
}

TEST(ShrinkingLimit, EndsNoneOfSeveralRuns) {
  Session session(there_and_back(/*dynamic=*/true), with_limit(40, /*own_allocator=*/false));
  std::atomic<int> right{0};
  std::atomic<bool> over{false};
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t)
    clients.emplace_back([&] {
      for (int i = 0; i < 30; ++i) right += *session.run({{"x", numbers()}})[0].tensor().data<float>() == expected();
    });
  std::thread changes([&] {
    for (size_t k = 0; !over; ++k) {
      session.set_memory_limit((k % 2 == 0 ? 40 : 9) * kValueBytes);
      std::this_thread::yield();
    }
  });
  for (std::thread& client : clients) client.join();
  over = true;
  changes.join();
  EXPECT_EQ(right, 90);
}

// A node needs more memory than the run's limit has ever allowed.
TEST(ShrinkingLimit, WhatCannotBeHadIsAnErrorWithTheBytes) {
  ModelBuilder b;
  b.input("x", {1}).input("shape", {1}, DType::int64).output("y", {-1}).node("Expand", {"x", "shape"}, {"y"});
  Session session(b.model(), with_limit(4, /*own_allocator=*/false));
  const auto run = [&](int64_t elements) {
    return session.run(
        {{"x", Tensor::vector<float>(std::vector<float>{3})}, {"shape", Tensor::vector<int64_t>(std::vector<int64_t>{elements})}})[0];
  };
  EXPECT_EQ(run(kElements).tensor().data<float>()[kElements - 1], 3);
  try {
    run(5 * kElements);
    FAIL() << "it has no room";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(5 * kValueBytes)), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace treadle::testing
