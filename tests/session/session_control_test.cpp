// Tests cancelling, closing, hooks, monitors, feeds and fetches of any value, stored values, checks, dumps and metadata.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include "core/base/logging.h"
#include "core/base/pattern.h"
#include "onnx/parse.h"
#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using testing::endless_loop;
using testing::floats;
using testing::ModelBuilder;
using testing::two_outputs;
using testing::values_of;

using Feeds = std::map<std::string, Datum>;

ErrorCode code_of(const std::function<void()>& action, std::string* message = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (message) *message = error.what();
    return error.code();
  }
  return ErrorCode::ok;
}

std::vector<Datum> fetch(const Session& session, const Feeds& feeds, std::vector<std::string> outputs,
                         const RunOptions* options = nullptr) {
  return session.run(feeds, outputs, options);
}

const Feeds kCount{{"start", Tensor::scalar<int64_t>(0)}};

// Returns options without optimisation, because the optimiser would remove a loop without nodes.
SessionOptions as_written() {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  return options;
}

TEST(SessionControl, ATokenEndsRunsInsideLoopsWithAndWithoutNodes) {
  for (bool with_nodes : {true, false}) {
    Session session(endless_loop(with_nodes).model(), as_written());
    RunOptions options;
    options.cancel_token.emplace();
    CancelToken token = *options.cancel_token;
    std::atomic<bool> ended{false};
    std::thread canceller([&] {
      while (session.runs_in_flight() == 0 && !ended) std::this_thread::yield();
      token.cancel();
    });
    std::string message;
    EXPECT_EQ(code_of([&] { session.run(kCount, {}, &options); }, &message), ErrorCode::cancelled);
    ended = true;
    EXPECT_NE(message.find("by its token"), std::string::npos) << message;
    // The message must name the loop, or the next node of its body.
    EXPECT_NE(message.find(" node \""), std::string::npos) << message;
    canceller.join();
  }
}

TEST(SessionControl, ADeadlineEndsALoopWithItsOwnCode) {
  Session session(endless_loop(/*with_nodes=*/false).model(), as_written());
  RunOptions options;
  options.deadline_ms = 5;
  EXPECT_EQ(code_of([&] { session.run(kCount, {}, &options); }), ErrorCode::timed_out);
}

TEST(SessionControl, TheSessionsDeadlineHoldsForRunsWithoutOneOfTheirOwn) {
  SessionOptions with_deadline = as_written();
  with_deadline.deadline_ms = 5;
  Session session(endless_loop(/*with_nodes=*/false).model(), with_deadline);
  EXPECT_EQ(code_of([&] { session.run(kCount); }), ErrorCode::timed_out);
  RunOptions none;
  EXPECT_EQ(code_of([&] { session.run(kCount, {}, &none); }), ErrorCode::timed_out);
  EXPECT_EQ(code_of([&] { session.partial_run(kCount).advance(); }), ErrorCode::timed_out);
  IoBinding binding(session);
  for (const auto& [name, value] : kCount) binding.bind_input(name, value);
  for (const ValueInfo& output : session.outputs()) binding.bind_output(output.name);
  EXPECT_EQ(code_of([&] { session.run(binding); }), ErrorCode::timed_out);
  RunOptions own;
  own.deadline_ms = 60'000;
  own.cancel_token.emplace();
  CancelToken token = *own.cancel_token;
  std::thread canceller([&] {
    while (session.runs_in_flight() == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    token.cancel();
  });
  EXPECT_EQ(code_of([&] { session.run(kCount, {}, &own); }), ErrorCode::cancelled);  // not the session's 5 ms
  canceller.join();
}

TEST(SessionControl, DeadlinesBeyondTheClockAreNone) {
  Session session(two_outputs().model());
  std::map<std::string, Datum> feeds;
  for (const ValueInfo& input : session.inputs()) feeds.emplace(input.name, Tensor::of<float>({2}, std::vector<float>{1, 2}));
  RunOptions options;
  options.deadline_ms = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(session.run(feeds, {}, &options).size(), session.outputs().size());
}

TEST(SessionControl, ClosingCancelsTheRunsInFlightAndRefusesLaterOnes) {
  Session session(endless_loop().model());
  std::vector<ErrorCode> codes(3);
  std::vector<std::thread> clients;
  for (ErrorCode& code : codes) clients.emplace_back([&] { code = code_of([&] { session.run(kCount); }); });
  while (session.runs_in_flight() < 3) std::this_thread::yield();
  EXPECT_FALSE(session.closed());
  EXPECT_TRUE(session.close().empty());
  EXPECT_TRUE(session.closed());
  EXPECT_EQ(session.runs_in_flight(), 0U);
  for (std::thread& client : clients) client.join();
  for (ErrorCode code : codes) EXPECT_EQ(code, ErrorCode::cancelled);
  std::string message;
  EXPECT_EQ(code_of([&] { session.run(kCount); }, &message), ErrorCode::cancelled);
  EXPECT_EQ(message, "the session is closed");
}

TEST(SessionControl, ClosingReportsARunThatDoesNotEnd) {
  Session session(two_outputs().model());
  std::atomic<bool> inside{false}, go_on{false};
  session.set_monitor({[&](const MonitorEvent&) {
                         inside = true;
                         while (!go_on) std::this_thread::yield();
                       },
                       "sum"});
  RunOptions options;
  options.tag = "stuck";
  ErrorCode code = ErrorCode::ok;
  std::thread client([&] { code = code_of([&] { session.run({{"x", floats({1})}}, {}, &options); }); });
  while (!inside) std::this_thread::yield();
  std::vector<UnfinishedRun> unfinished = session.close(/*timeout_ms=*/1);
  ASSERT_EQ(unfinished.size(), 1U);
  EXPECT_EQ(unfinished[0].tag, "stuck");
  go_on = true;
  client.join();
  EXPECT_EQ(code, ErrorCode::cancelled);
  EXPECT_TRUE(session.close().empty());
}

TEST(SessionControl, ARunMayCloseItsOwnSession) {
  Session session(two_outputs().model());
  size_t unfinished = 0;
  session.set_monitor({[&](const MonitorEvent&) { unfinished = session.close().size(); }, "sum"});
  EXPECT_EQ(code_of([&] { session.run({{"x", floats({1})}}); }), ErrorCode::cancelled);
  EXPECT_EQ(unfinished, 1U);
}

TEST(SessionControl, AnyValueCanBeFetched) {
  Session session(two_outputs().model());
  Feeds feeds{{"x", floats({1, 2})}};
  std::vector<Datum> results = fetch(session, feeds, {"sum", "y", "x", "one", "sum"});
  ASSERT_EQ(results.size(), 5U);
  EXPECT_EQ(values_of(results[0]), (std::vector<float>{2, 3}));
  EXPECT_EQ(values_of(results[1]), (std::vector<float>{2, 6}));
  EXPECT_EQ(values_of(results[2]), (std::vector<float>{1, 2}));
  EXPECT_EQ(values_of(results[3]), (std::vector<float>{1}));
  EXPECT_EQ(values_of(results[4]), (std::vector<float>{2, 3}));
  EXPECT_EQ(code_of([&] { fetch(session, feeds, {"no such value"}); }), ErrorCode::invalid_argument);
}

TEST(SessionControl, AnyValueCanBeFedAndWhatItReplacesIsNotComputed) {
  Session session(two_outputs().model());
  Tensor x = floats({1, 2}), sum = floats({10, 20});
  EXPECT_EQ(values_of(fetch(session, {{"x", x}, {"sum", sum}}, {"y"})[0]), (std::vector<float>{10, 40}));
  // A value that is both fed and fetched is the feed itself, and no other input is needed.
  EXPECT_EQ(values_of(fetch(session, {{"sum", sum}}, {"sum"})[0]), (std::vector<float>{10, 20}));
  std::string message;
  EXPECT_EQ(code_of([&] { fetch(session, {{"sum", sum}}, {"y"}); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("\"x\" is missing"), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { fetch(session, {{"x", x}, {"sun", sum}}, {"y"}); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("there is no input \"sun\""), std::string::npos) << message;
  EXPECT_EQ(code_of([&] { fetch(session, {{"x", x}, {"sum", Tensor(DType::int64, {2})}}, {"y"}); }), ErrorCode::invalid_argument);
}

// The reader replaces Mean of a single value by that value. The value must still be feedable under its name, with its dtype: a kernel
// chosen without it could be one for the bytes of the other branch.
TEST(SessionControl, AFedValueHasItsTypeThoughItsNodeIsRewrittenWhenTheModelIsRead) {
  ModelBuilder b;
  b.input("x", {3}).output("y", {3}).output("q", {3}, DType::uint8);
  b.constant("scale", Tensor::scalar(0.5F)).constant("zero", Tensor::scalar<uint8_t>(0));
  for (const auto& [name, value] : {std::pair{"first", 0}, {"last", 9}, {"whole", 3}})
    b.constant(name, Tensor::vector<int64_t>(std::vector<int64_t>{value}));
  b.node("Mean", {"x"}, {"m"}).node("Split", {"m", "whole"}, {"part"}).node("Slice", {"part", "first", "last", "first"}, {"y"});
  b.node("QuantizeLinear", {"x", "scale", "zero"}, {"q"});
  Session session(b.model());
  const Tensor y = fetch(session, {{"x", floats({1, 2, 3})}, {"m", floats({-4, 5, -6})}}, {"y"})[0].tensor();
  EXPECT_EQ(y.dtype(), DType::float32);
  EXPECT_EQ(values_of(y), (std::vector<float>{-4, 5, -6}));
  EXPECT_EQ(values_of(fetch(session, {{"m", floats({7, 8, 9})}}, {"part"})[0]), (std::vector<float>{7, 8, 9}));
}

TEST(SessionControl, TargetsRunWithoutAFetchAndNothingElseDoes) {
  Session session(two_outputs().model(), as_written());
  std::set<std::string> ran;
  RunOptions options;
  options.targets = {"adding"};
  options.on_metadata = [&](const RunMetadata& metadata) {
    for (const NodeStatistics& node : metadata.nodes) ran.insert(node.name);
  };
  EXPECT_TRUE(session.run({{"x", floats({1})}}, {}, &options).empty());
  EXPECT_EQ(ran, (std::set<std::string>{"adding"}));
  ran.clear();
  EXPECT_EQ(fetch(session, {{"x", floats({1})}}, {"z"}, &options).size(), 1U);
  EXPECT_EQ(ran, (std::set<std::string>{"adding", "negating"}));
  options.targets = {"nothing"};
  EXPECT_EQ(code_of([&] { session.run({{"x", floats({1})}}, {}, &options); }), ErrorCode::invalid_argument);
}

TEST(SessionControl, ProgramsAreCompiledOncePerSetOfNames) {
  Session session(two_outputs().model());
  Feeds feeds{{"x", floats({1})}};
  EXPECT_EQ(session.cache_statistics().size, 1);
  session.run(feeds);
  for (int i = 0; i < 3; ++i) fetch(session, feeds, {"sum"});
  for (int i = 0; i < 2; ++i) fetch(session, {{"sum", floats({1})}, {"x", floats({1})}}, {"y"});
  CacheStatistics statistics = session.cache_statistics();
  EXPECT_EQ(statistics.misses, 2);
  EXPECT_EQ(statistics.hits, 1 + 2 + 1);
  EXPECT_EQ(statistics.size, 3);
  EXPECT_EQ(statistics.evictions, 0);
  for (const char* target : {"adding", "multiplying", "negating", "sum", "y", "z", "x", "one"}) {
    RunOptions options;
    options.targets = {target};
    session.run(feeds, {}, &options);
  }
  EXPECT_EQ(session.cache_statistics().evictions, 2);
  EXPECT_EQ(session.cache_statistics().size, 9);
}

// Programs are cached by sets of names, so the order of a caller's names does not matter.
TEST(SessionCache, TheOrderOfNamesNeedsNoOtherProgram) {
  Session session(testing::two_outputs().model());
  const std::map<std::string, Datum> feeds{{"x", Tensor::vector<float>(std::vector<float>{2, 5})}};
  const std::vector<std::string> names[] = {{"y", "z"}, {"z", "y"}, {"sum", "z", "y"}, {"y", "z", "sum"}, {"z", "z", "sum", "y", "y"}};
  const std::map<std::string, float> first{{"y", 6.0F}, {"z", -2.0F}, {"sum", 3.0F}};
  for (const auto& wanted : names) {
    const std::vector<Datum> results = session.run(feeds, wanted);
    IoBinding binding(session);
    binding.bind_input("x", feeds.at("x"));
    for (const std::string& name : wanted) binding.bind_output(name);
    session.run(binding);
    const std::vector<Datum> bound = binding.outputs();
    const std::vector<std::string> bound_names = binding.output_names();
    ASSERT_EQ(results.size(), wanted.size());
    ASSERT_EQ(bound.size(), bound_names.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(results[i].tensor().data<float>()[0], first.at(wanted[i]));
    for (size_t i = 0; i < bound.size(); ++i) EXPECT_EQ(bound[i].tensor().data<float>()[0], first.at(bound_names[i]));
  }
  EXPECT_EQ(session.cache_statistics().misses, 1);  // one miss: the program that fetches the inner value
  PartialRun partial = session.partial_run(feeds);
  partial.advance();
  EXPECT_EQ(partial.outputs()[1].tensor().data<float>()[0], -2.0F);
}

// Callers that need the same program wait until one of them has made it. Other callers do not wait.
TEST(SessionCache, IsAskedByManyThreadsAtOnce) {
  Session session(testing::two_outputs().model());
  const std::map<std::string, Datum> feeds{{"x", Tensor::vector<float>(std::vector<float>{2, 5})}};
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::vector<std::string> wanted = (t + i) % 2 == 0 ? std::vector<std::string>{"sum"} : std::vector<std::string>{"z", "sum"};
        wrong += session.run(feeds, wanted).back().tensor().data<float>()[0] != 3.0F;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(session.cache_statistics().misses, 2);
}

TEST(SessionControl, AMonitorSeesValuesThatTheOptimizerWouldRemove) {
  ModelBuilder b;
  b.input("x", {2, 3}).output("y", {6});
  b.constant("one", Tensor::scalar(1.0F)).constant("two", Tensor::scalar(2.0F)).constant("flat", Tensor::vector<int64_t>({{6}}));
  b.node("Identity", {"x"}, {"same"}).node("Mul", {"two", "two"}, {"four"}).node("Add", {"same", "four"}, {"sum"});
  b.node("Reshape", {"sum", "flat"}, {"y"}, "flattening");
  Session session(b.model());
  std::map<std::string, std::vector<float>> seen;
  std::map<std::string, std::string> nodes;
  session.set_monitor({[&](const MonitorEvent& event) {
    seen[std::string(event.value)] = values_of(event.datum);
    nodes[std::string(event.value)] = event.node;
  }});
  Tensor x(DType::float32, {2, 3});
  for (int i = 0; i < 6; ++i) x.data<float>()[i] = static_cast<float>(i);
  EXPECT_EQ(session.run({{"x", x}}).size(), 1U);
  std::vector<float> plain{0, 1, 2, 3, 4, 5}, plus_four{4, 5, 6, 7, 8, 9};
  EXPECT_EQ(seen["x"], plain);
  EXPECT_EQ(seen["same"], plain);
  EXPECT_EQ(seen["four"], (std::vector<float>{4}));
  EXPECT_EQ(seen["sum"], plus_four);
  EXPECT_EQ(seen["y"], plus_four);
  EXPECT_EQ(nodes["y"], "flattening");
  seen.clear();
  session.set_monitor({});
  session.run({{"x", x}});
  EXPECT_TRUE(seen.empty());
}

TEST(SessionControl, AMonitorSeesInputsByPatternAndMayFailTheRun) {
  Session session(two_outputs().model());
  std::vector<std::string> seen;
  session.set_monitor({[&](const MonitorEvent& event) {
                         seen.push_back(std::string(event.is_input ? "in " : "out ") + std::string(event.value) + " " +
                                        std::string(event.node));
                       },
                       "s?m", /*inputs=*/true});
  session.run({{"x", floats({1})}});
  EXPECT_EQ(seen, (std::vector<std::string>{"out sum adding", "in sum multiplying"}));
  session.set_monitor({[](const MonitorEvent&) { throw Error(ErrorCode::invalid_argument, "enough"); }, "sum"});
  std::string message;
  EXPECT_EQ(code_of([&] { session.run({{"x", floats({1})}}); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("enough"), std::string::npos);
  session.set_monitor({});
  EXPECT_EQ(session.run({{"x", floats({1})}}).size(), 2U);
}

TEST(SessionControl, BoundRunsAreMonitoredToo) {
  Session session(two_outputs().model());
  IoBinding binding(session);
  binding.bind_input("x", floats({1, 2}));
  binding.bind_output("z");
  session.run(binding);
  int calls = 0;
  session.set_monitor({[&](const MonitorEvent&) { ++calls; }, "sum"});
  session.run(binding);
  EXPECT_EQ(calls, 1);
  ASSERT_EQ(binding.outputs().size(), 1U);
  EXPECT_EQ(values_of(binding.outputs()[0]), (std::vector<float>{-1, -2}));
}

class HookGuard {
 public:
  HookGuard(HookPoint point, int group, Hook hook) : id_(register_hook(point, group, std::move(hook))) {}
  ~HookGuard() { unregister_hook(id_); }

 private:
  HookId id_;
};

TEST(SessionControl, HooksRunInTheOrderOfTheirGroupsAndLearnHowTheRunEnded) {
  Session session(two_outputs().model());
  std::vector<std::string> calls;
  std::vector<HookedRun> runs;
  std::string error;
  auto note = [&](const char* name) { return [&calls, name](const HookedRun&) { calls.push_back(name); }; };
  HookGuard late(HookPoint::pre_run, 7, note("late")), early(HookPoint::pre_run, -1, note("early")),
      middle(HookPoint::pre_run, 0, note("middle"));
  HookGuard post(HookPoint::post_run, 0, [&](const HookedRun& run) {
    calls.push_back("post");
    runs.push_back(run);
    error = run.error;
  });
  session.run({{"x", floats({1})}});
  EXPECT_EQ(calls, (std::vector<std::string>{"early", "middle", "late", "post"}));
  EXPECT_EQ(error, "");
  EXPECT_GT(runs[0].duration_ns, 0);
  EXPECT_EQ(code_of([&] { session.run({{"x", Tensor(DType::int64, {1})}}); }), ErrorCode::invalid_argument);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_NE(error.find("another dtype"), std::string::npos);
  EXPECT_EQ(runs[0].graph_id, runs[1].graph_id);
  EXPECT_NE(runs[0].run_id, runs[1].run_id);
  fetch(session, {{"x", floats({1})}}, {"z"});
  EXPECT_NE(runs[2].graph_id, runs[0].graph_id);
}

TEST(SessionControl, HooksMayFailARun) {
  Session session(two_outputs().model());
  int later = 0;
  {
    HookGuard failing(HookPoint::pre_run, 0, [](const HookedRun&) { throw Error(ErrorCode::resource_exhausted, "no quota"); });
    HookGuard next(HookPoint::pre_run, 1, [&](const HookedRun&) { ++later; });
    EXPECT_EQ(code_of([&] { session.run({{"x", floats({1})}}); }), ErrorCode::resource_exhausted);
    EXPECT_EQ(later, 0);
  }
  {
    HookGuard failing(HookPoint::post_run, 0, [](const HookedRun&) { throw Error(ErrorCode::io_error, "no disk"); });
    EXPECT_EQ(code_of([&] { session.run({{"x", floats({1})}}); }), ErrorCode::io_error);
  }
  EXPECT_EQ(session.run({{"x", floats({1})}}).size(), 2U);
  EXPECT_FALSE(unregister_hook(12345678));
  EXPECT_EQ(code_of([] { register_hook(HookPoint::pre_run, 0, {}); }), ErrorCode::invalid_argument);
}

TEST(SessionControl, StoredValuesAreFedByHandleAndDeleted) {
  Session session(two_outputs().model());
  ValueHandle handle = session.store(session.run({{"x", floats({3})}})[1]);
  EXPECT_EQ(session.num_stored(), 1U);
  EXPECT_EQ(values_of(session.run({{"x", session.stored(handle)}})[1]), (std::vector<float>{3}));
  EXPECT_EQ(session.stored(handle).tensor().raw(), session.stored(handle).tensor().raw());
  session.erase(handle);
  EXPECT_EQ(code_of([&] { session.stored(handle); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { session.erase(handle); }), ErrorCode::not_found);
}

TEST(SessionControl, TheFirstNodeWithAValueThatIsNotFiniteIsNamed) {
  ModelBuilder b;
  b.input("x", {2, 2}).output("y", {2, 2});
  b.node("Log", {"x"}, {"logs"}, "taking logs").node("Mul", {"logs", "x"}, {"y"}, "scaling");
  Session session(b.model(), as_written());  // makes each operator a node; otherwise the optimiser would fuse them
  Tensor x(DType::float32, {2, 2});
  auto set = [&](float value) {
    std::fill_n(x.data<float>(), 4, 1.0F);
    x.data<float>()[2] = value;
  };
  RunOptions options;
  std::string message;
  options.check_finite = FiniteCheck::nan;
  set(0);  // log 0 = -inf, and -inf * 0 = NaN
  EXPECT_EQ(code_of([&] { session.run({{"x", x}}, {}, &options); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("\"scaling\""), std::string::npos) << message;
  EXPECT_NE(message.find("is NaN at [1,0]"), std::string::npos) << message;
  options.check_finite = FiniteCheck::nan_and_infinity;
  EXPECT_EQ(code_of([&] { session.run({{"x", x}}, {}, &options); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("\"taking logs\""), std::string::npos) << message;
  EXPECT_NE(message.find("is infinite at [1,0]"), std::string::npos) << message;
  set(-1);
  options.check_finite = FiniteCheck::nan;
  EXPECT_EQ(code_of([&] { session.run({{"x", x}}, {}, &options); }, &message), ErrorCode::invalid_argument);
  EXPECT_NE(message.find("\"taking logs\""), std::string::npos) << message;
  set(2);
  EXPECT_EQ(code_of([&] { session.run({{"x", x}}, {}, &options); }), ErrorCode::ok);
}

TEST(SessionControl, DumpsHoldTheInputsAndOutputsOfMatchingNodes) {
  Session session(two_outputs().model(), as_written());
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "treadle_dumps";
  std::filesystem::remove_all(folder);
  RunOptions options;
  options.dump_folder = folder.string();
  options.dump_pattern = "add*";
  session.run({{"x", floats({1, 2})}}, {}, &options);
  std::map<std::string, std::vector<float>> dumps;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    dumps[entry.path().filename().string()] = values_of(onnx::parse_tensor_bytes(std::as_bytes(std::span(bytes))).value);
  }
  ASSERT_EQ(dumps.size(), 3U);
  EXPECT_EQ(dumps["000000_adding_in0.pb"], (std::vector<float>{1, 2}));
  EXPECT_EQ(dumps["000000_adding_in1.pb"], (std::vector<float>{1}));
  EXPECT_EQ(dumps["000000_adding_out0.pb"], (std::vector<float>{2, 3}));
  std::filesystem::remove_all(folder);
}

// Makes y = x (w + w) and z = |y|: the optimiser folds w + w, and the product packs the sum.
ModelBuilder folded_weights() {
  ModelBuilder b;
  b.input("x", {2, 3}).output("y", {2, 2}).output("z", {2, 2});
  b.constant("w", Tensor::of<float>(Shape{3, 2}, std::vector<float>{1, 2, 3, 4, 5, 6}));
  b.node("Add", {"w", "w"}, {"weights"}, "folding").node("MatMul", {"x", "weights"}, {"y"}, "product").node("Abs", {"y"}, {"z"}, "after");
  return b;
}

TEST(SessionControl, ProgramsForOtherOutputsHaveTheWeightsThatTheMainOneHasPacked) {
  Session session(folded_weights().model());
  const Feeds feeds{{"x", Tensor::of<float>(Shape{2, 3}, std::vector<float>{1, 0, 0, 0, -1, 2})}};
  const std::vector<float> y{2, 4, 14, 16};
  EXPECT_NE(session.to_text("optimized").find("f32[3,2] {packed}"), std::string::npos) << session.to_text("optimized");
  EXPECT_EQ(session.memory().weight_bytes, 24U);
  EXPECT_EQ(values_of(session.run(feeds).at(0)), y);
  EXPECT_EQ(values_of(fetch(session, feeds, {"z"}).at(0)), y);
  EXPECT_EQ(values_of(fetch(session, feeds, {"z", "y"}).at(1)), y);
  EXPECT_EQ(values_of(fetch(session, feeds, {"weights"}).at(0)), (std::vector<float>{2, 4, 6, 8, 10, 12}));
}

TEST(SessionControl, DumpsHoldWeightsThatAreInMemoryAsPackedCopiesOnly) {
  Session session(folded_weights().model());
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "treadle_weight_dumps";
  std::filesystem::remove_all(folder);
  const Feeds feeds{{"x", Tensor::of<float>(Shape{2, 3}, std::vector<float>{1, 0, 0, 0, -1, 2})}};
  session.run(feeds);
  RunOptions options;
  options.dump_folder = folder.string();
  options.dump_pattern = "product*";
  session.run(feeds, {}, &options);
  bool found = false;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename().string().find("_in1") == std::string::npos) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(values_of(onnx::parse_tensor_bytes(std::as_bytes(std::span(bytes))).value), (std::vector<float>{2, 4, 6, 8, 10, 12}));
    found = true;
  }
  EXPECT_TRUE(found);
  std::filesystem::remove_all(folder);
}

TEST(SessionControl, MetadataCountsNodesOfBodiesOncePerIteration) {
  ModelBuilder b = endless_loop();
  b.def().graph.initializers[0].value = Tensor::scalar<int64_t>(5);
  Session session(b.model(), as_written());
  RunOptions options;
  RunMetadata metadata;
  options.on_metadata = [&](const RunMetadata& given) { metadata = given; };
  session.run(kCount, {}, &options);
  std::map<std::string, int> count;
  for (const NodeStatistics& node : metadata.nodes) {
    ++count[node.op_type];
    EXPECT_LE(node.scheduled_ns, node.start_ns);
    EXPECT_LE(node.start_ns, node.end_ns);
    EXPECT_LE(node.end_ns, metadata.duration_ns);
  }
  EXPECT_EQ(count["Loop"], 1);
  EXPECT_EQ(count["Add"], 5);
  EXPECT_TRUE(metadata.cached);
  EXPECT_EQ(metadata.nodes.back().output_bytes, 8U);
}

TEST(SessionControl, LogMessagesGoToACallback) {
  std::vector<std::string> messages;
  set_log_callback([&](LogSeverity severity,
                       std::string_view message) { messages.push_back(std::to_string(static_cast<int>(severity)) + std::string(message)); },
                   LogSeverity::verbose);
  TREADLE_LOG(info, "a {}", "message");
  set_log_callback({});
  EXPECT_EQ(messages, (std::vector<std::string>{"1a message"}));
}

TEST(Pattern, StarsAndQuestionMarksStandForBytes) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("layer*/conv?", "layer1/block/conv2"));
  EXPECT_FALSE(matches("layer*/conv?", "layer1/block/conv"));
  EXPECT_TRUE(matches("*a*b", "aaab"));
  EXPECT_FALSE(matches("*a*b", "aaabc"));
  EXPECT_FALSE(matches("", "x"));
}

}  // namespace
}  // namespace treadle
