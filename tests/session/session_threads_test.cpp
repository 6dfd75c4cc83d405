// Uses one session on many threads, for the thread sanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

constexpr int kThreads = 4, kRuns = 40;

/// Makes y, the sum over rows of relu(x + 1), and the indices of x's nonzero elements.
std::string rows_model() {
  return model(
      graph({.nodes = {node("Add", {"x", "one"}, {"a"}), node("Relu", {"a"}, {"r"}),
                       node("ReduceSum", {"r", "axes"}, {"y"}, {int_attribute("keepdims", 0)}), node("NonZero", {"x"}, {"places"})},
             .initializers = {onnx::test::tensor_message(
                                  {}, kFloat, [](Writer& w) { w.add_bytes(9, onnx::test::raw_of({1.0F})); }, "one"),
                              int64_tensor("axes", {1})},
             .inputs = {value_info("x", kFloat, {"n", 64})},
             .outputs = {value_info("y", kFloat, {"n"}), value_info("places", kInt64, {2, "k"})}}));
}

Tensor filled(int64_t rows, float value) {
  Tensor x(DType::float32, {rows, 64});
  for (float& element : x.span<float>()) element = value;
  return x;
}

Session make_session(int threads) {
  SessionOptions options;
  options.intra_op_num_threads = threads;
  return Session(Model::from_bytes(onnx::test::bytes_of(rows_model())), options);
}

/// Calls `body(thread, run)` on all threads at the same time. An exception fails the test.
void in_threads(const std::function<void(int, int)>& body) {
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      try {
        for (int i = 0; i < kRuns; ++i) body(t, i);
      } catch (...) {
        ++failures;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

void expect_rows(const std::vector<Datum>& outputs, int64_t rows, float value) {
  ASSERT_EQ(outputs[0].tensor().shape(), (Shape{rows}));
  for (float element : outputs[0].tensor().span<float>()) EXPECT_EQ(element, 64 * (value + 1));
  EXPECT_EQ(outputs[1].tensor().shape(), (Shape{2, value == 0 ? 0 : rows * 64}));
}

TEST(SessionThreads, RunsOfDifferentShapesAtOnceDoNotMix) {
  for (int pool : {1, 2}) {
    Session session = make_session(pool);
    in_threads([&](int t, int i) {
      const int64_t rows = 1 + (t * 7 + i) % 23;  // there are more shapes than the binding cache holds
      const auto value = static_cast<float>(t);
      expect_rows(session.run({{"x", filled(rows, value)}}), rows, value);
    });
  }
}

TEST(SessionThreads, OtherOutputsAndProfilesAtOnceDoNotMix) {
  Session session = make_session(2);
  session.start_profiling();
  in_threads([&](int t, int i) {
    std::vector<std::string> wanted = {(t + i) % 2 ? "y" : "places"};
    auto outputs = session.run({{"x", filled(3, 1)}}, wanted);
    EXPECT_EQ(outputs[0].tensor().num_elements(), (t + i) % 2 ? 3 : 2 * 3 * 64);
  });
}

TEST(SessionThreads, FailedAndCancelledRunsLeaveTheOthersAlone) {
  Session session = make_session(2);
  in_threads([&](int t, int i) {
    if (t == 0) {
      EXPECT_THROW(session.run({{"x", Tensor(DType::float32, {2, 63})}}), Error);
    } else if (t == 1) {
      RunOptions options;
      options.terminate = true;
      EXPECT_THROW(session.run({{"x", filled(2, 1)}}, {}, &options), Error);
    } else {
      expect_rows(session.run({{"x", filled(1 + i % 3, 2)}}), 1 + i % 3, 2);
    }
  });
}

TEST(SessionThreads, SessionsMayBeMadeWhileOthersRun) {
  Session session = make_session(0);
  in_threads([&](int t, int i) {
    if (t == 0 && i % 8 == 0)
      expect_rows(make_session(i % 16 ? 2 : 0).run({{"x", filled(5, 1)}}), 5, 1);
    else
      expect_rows(session.run({{"x", filled(4, 3)}}), 4, 3);
  });
}

TEST(SessionThreads, RunsInTheBackgroundGiveTheSame) {
  Session session = make_session(2);
  std::vector<std::future<std::vector<Datum>>> runs;
  for (int i = 0; i < 8; ++i) runs.push_back(session.run_async({{"x", filled(1 + i, static_cast<float>(i))}}));
  for (int i = 0; i < 8; ++i) expect_rows(runs[static_cast<size_t>(i)].get(), 1 + i, static_cast<float>(i));
}

}  // namespace
}  // namespace treadle::testing
