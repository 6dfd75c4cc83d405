// Tests partial runs: they stop at a Yield or after a node, are interleaved, abandoned, or resumed elsewhere; and their caches save work.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/session/faults.h"
#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

using testing::floats;
using testing::ModelBuilder;
using testing::values_of;

// Makes the model a = x + x; b = Yield(a); c = b * x; d = Yield(c); y = d + a.
Model two_yields() {
  ModelBuilder b;
  b.input("x", {2}).output("y", {2});
  b.node("Add", {"x", "x"}, {"a"}, "doubling").node("Yield", {"a"}, {"b"}, "first", "treadle");
  b.node("Mul", {"b", "x"}, {"c"}, "product").node("Yield", {"c"}, {"d"}, "second", "treadle").node("Add", {"d", "a"}, {"y"}, "sum");
  return b.model();
}

std::vector<Datum> one(std::vector<float> values) { return {floats(std::move(values))}; }

TEST(PartialRun, StopsAtEachYieldAndGoesOnWithWhatIsHandedIn) {
  Session session(two_yields());
  PartialRun run = session.partial_run({{"x", floats({1, 2})}});
  EXPECT_FALSE(run.advance());
  ASSERT_EQ(run.yielded().size(), 1U);
  EXPECT_EQ(run.yielded()[0].first, "a");
  EXPECT_EQ(values_of(run.yielded()[0].second), (std::vector<float>{2, 4}));
  EXPECT_FALSE(run.resume(one({10, 10})));
  EXPECT_EQ(values_of(run.yielded()[0].second), (std::vector<float>{10, 20}));
  EXPECT_TRUE(run.resume(one({5, 5})));
  EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{7, 9}));
}

// Makes the model twice = x + x; sum = twice + w; y = sum * sum.
ModelBuilder two_inputs(std::vector<int64_t> shape_of_w) {
  ModelBuilder b;
  b.input("x", {-1}).input("w", std::move(shape_of_w)).output("twice", {-1}).output("y", {-1});
  b.node("Add", {"x", "x"}, {"twice"}).node("Add", {"twice", "w"}, {"sum"}).node("Mul", {"sum", "sum"}, {"y"});
  return b;
}

TEST(PartialRun, TakesFeedsAndGivesOutputsOnTheWay) {
  for (const int64_t extent : {int64_t{-1}, int64_t{2}}) {  // the symbol of x, or a constant
    for (const size_t limit : {size_t{0}, size_t{1} << 20}) {
      SessionOptions options;
      options.graph_optimization_level = GraphOptimizationLevel::disable_all;
      options.memory_limit_bytes = limit;
      Session session(two_inputs({extent}).model(), options);
      RunOptions run_options;
      run_options.targets = {"sum"};
      PartialRun run = session.partial_run({{"x", floats({1, 2})}}, nullptr, &run_options);
      EXPECT_EQ(run.steps_left(), 1U);
      EXPECT_THROW(run.fetch(std::vector<std::string>{"twice"}), Error);
      EXPECT_FALSE(run.advance());
      EXPECT_EQ(values_of(run.fetch(std::vector<std::string>{"twice"})[0]), (std::vector<float>{2, 4}));
      EXPECT_EQ(run.steps_left(), 0U);
      for (const auto& wrong : {std::function<void()>([&] { run.advance(); }), std::function<void()>([&] { run.outputs(); }),
                                std::function<void()>([&] { run.fetch(std::vector<std::string>{"y"}); }),
                                std::function<void()>([&] { run.fetch(std::vector<std::string>{"nothing"}); }), std::function<void()>([&] {
                                  run.feed("x", floats({1, 2}));
                                }),
                                std::function<void()>([&] {
                                  run.feed("nothing", floats({1, 2}));
                                }),
                                std::function<void()>([&] {
                                  run.feed("w", floats({1, 2, 3}));
                                }),
                                std::function<void()>([&] {
                                  run.feed("w", Tensor::vector<int64_t>(std::vector<int64_t>{1, 2}));
                                })}) {
        try {
          wrong();
          ADD_FAILURE();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
        }
      }
      const std::vector<Datum> sum = run.advance("sum_node", {{"w", floats({10, 20})}}, std::vector<std::string>{"sum", "twice"});
      EXPECT_EQ(values_of(sum[0]), (std::vector<float>{12, 24}));
      EXPECT_EQ(values_of(sum[1]), (std::vector<float>{2, 4}));
      EXPECT_FALSE(run.finished());
      EXPECT_THROW(run.feed("w", floats({10, 20})), Error);
      EXPECT_TRUE(run.advance());
      EXPECT_EQ(values_of(run.outputs()[1]), (std::vector<float>{144, 576}));
      EXPECT_EQ(values_of(sum[0]), (std::vector<float>{12, 24}));  // a fetched value belongs to the caller
    }
  }
}

// On devices, the other input is copied first. The answer must be the same.
TEST(PartialRun, SaysOnceThatItWaitsForAnInputWhereverItRuns) {
  ModelBuilder b;
  b.input("x", {2}).input("w", {2}).output("twice", {2}).output("y", {2});
  b.node("Add", {"x", "x"}, {"twice"}).node("Add", {"twice", "w"}, {"sum"}).node("Mul", {"sum", "sum"}, {"y"});
  for (const char* device : {"", "sim"}) {
    for (const char* missing : {"x", "w"}) {
      SessionOptions options;
      options.device = device;
      const Session session(b.model(), options);
      const std::string given = missing == std::string("x") ? "w" : "x";
      PartialRun run = session.partial_run({{given, floats({1, 2})}});
      EXPECT_FALSE(run.advance()) << device << missing;
      for (int again = 0; again < 2; ++again) {
        try {
          run.advance();
          ADD_FAILURE() << device << missing;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
          EXPECT_NE(std::string(error.what()).find("it has not been fed"), std::string::npos) << error.what();
        }
      }
      run.feed(missing, floats({1, 2}));
      EXPECT_TRUE(run.advance());
      EXPECT_EQ(values_of(run.outputs()[1]), (std::vector<float>{9, 36})) << device << missing;
    }
  }
}

TEST(PartialRun, TakesAnInputThatNothingReadsWhenItComes) {
  ModelBuilder b;
  b.input("x", {2}).input("unread", {-1}).output("y", {2}).node("Add", {"x", "x"}, {"y"});
  Session session(b.model());
  PartialRun run = session.partial_run({{"x", floats({1, 2})}});
  run.feed("unread", floats({1, 2, 3}));
  EXPECT_THROW(run.feed("unread", floats({1})), Error) << "it has been fed";
  EXPECT_TRUE(run.advance());
  EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{2, 4}));
}

TEST(PartialRun, RefusesToWaitForWhatItCannotPlanFor) {
  ModelBuilder b = two_inputs({-1});
  b.def().graph.inputs[1].type.shape->at(0).param = "m";  // w has a symbol of its own, whose value is not known before w is fed
  for (const char* device : {"", "sim"}) {
    SessionOptions options;
    options.device = device;
    const Session session(b.model(), options);
    try {
      session.partial_run({{"x", floats({1, 2})}});
      ADD_FAILURE() << device;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\"w\": it cannot be fed later"), std::string::npos) << error.what();
    }
  }
}

TEST(PartialRun, HooksAreCalledAroundEveryStep) {
  Session session(two_yields());
  int before = 0, after = 0;
  HookId pre = register_hook(HookPoint::pre_run, 0, [&](const HookedRun&) { ++before; });
  HookId post = register_hook(HookPoint::post_run, 0, [&](const HookedRun&) { ++after; });
  PartialRun run = session.partial_run({{"x", floats({1, 2})}});
  run.advance();
  run.resume(one({10, 10}));
  EXPECT_TRUE(run.resume(one({5, 5})));
  unregister_hook(pre);
  unregister_hook(post);
  EXPECT_EQ(before, 3);
  EXPECT_EQ(after, 3);
}

TEST(PartialRun, ADeadlineInTheFutureChangesNothing) {
  Session session(two_yields());
  RunOptions options;
  options.deadline_ms = 60'000;
  PartialRun run = session.partial_run({{"x", floats({1, 2})}}, nullptr, &options);
  EXPECT_FALSE(run.advance());
  EXPECT_FALSE(run.resume(one({10, 10})));
  EXPECT_TRUE(run.resume(one({5, 5})));
  EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{7, 9}));
}

TEST(PartialRun, RunsAreInterleavedAbandonedAndResumedFromOtherThreads) {
  Session session(two_yields());
  std::vector<PartialRun> runs;
  for (int i = 0; i < 8; ++i) runs.push_back(session.partial_run({{"x", floats({1, static_cast<float>(i)})}}));
  for (PartialRun& run : runs) run.advance();
  for (size_t i = runs.size(); i-- > 0;) std::thread([&] { runs[i].resume(one({static_cast<float>(i), 1})); }).join();
  runs.erase(runs.begin() + 2, runs.begin() + 5);
  for (size_t i = 0; i < runs.size(); ++i) {
    float x = static_cast<float>(i < 2 ? i : i + 3);
    EXPECT_EQ(values_of(runs[i].yielded()[0].second), (std::vector<float>{x, x}));
    EXPECT_TRUE(runs[i].resume(one({0, 0})));
    EXPECT_EQ(values_of(runs[i].outputs()[0]), (std::vector<float>{2, 2 * x}));
  }
}

TEST(PartialRun, AdvancesUntilANodeHasRun) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  Session session(testing::two_outputs().model(), options);
  PartialRun run = session.partial_run({{"x", floats({3})}});
  EXPECT_FALSE(run.advance_until("adding"));
  EXPECT_FALSE(run.at_yield());
  EXPECT_THROW(run.yielded(), Error);
  EXPECT_THROW(run.outputs(), Error);
  EXPECT_FALSE(run.advance_until("adding"));
  EXPECT_TRUE(run.advance_until("negating"));
  EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{12}));
  try {
    run.advance_until("no such node");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
  }
}

// The node total = x + x + x becomes two nodes; y = -total.
TEST(PartialRun, AdvancesToTheEndOfANodeThatBecameSeveral) {
  for (const char* device : {"", "sim"}) {
    SessionOptions options;
    options.device = device;
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    ModelBuilder b;
    b.input("x", {2}).output("total", {2}).output("y", {2});
    b.node("Sum", {"x", "x", "x"}, {"total"}, "summing").node("Neg", {"total"}, {"y"}, "negating");
    Session session(b.model(), options);
    PartialRun run = session.partial_run({{"x", floats({1, 2})}});
    EXPECT_GE(run.steps_left(), 3U);
    EXPECT_FALSE(run.advance_until("summing"));
    EXPECT_EQ(values_of(run.fetch(std::vector<std::string>{"total"})[0]), (std::vector<float>{3, 6}));
    EXPECT_THROW(run.fetch(std::vector<std::string>{"y"}), Error);
    EXPECT_TRUE(run.advance_until("negating"));
  }
}

// The optimiser fuses y = -relu(x + x) into one node. Waiting for a part of it means waiting for all of it.
TEST(PartialRun, AdvancesToTheEndOfTheNodeThatANodeIsPartOf) {
  ModelBuilder b;
  b.input("x", {2}).input("z", {2}).output("y", {2}).output("product", {2});
  b.node("Add", {"x", "x"}, {"doubled"}, "doubling")
      .node("Relu", {"doubled"}, {"kept"}, "keeping")
      .node("Neg", {"kept"}, {"y"}, "negating");
  b.node("Pow", {"y", "z"}, {"product"}, "last");
  Session session(b.model());
  for (const char* name : {"doubling", "keeping", "negating"}) {
    PartialRun run = session.partial_run({{"x", floats({1, -2})}, {"z", floats({2, 2})}});
    ASSERT_EQ(run.steps_left(), 2U);
    EXPECT_FALSE(run.advance_until(name)) << name;
    EXPECT_EQ(values_of(run.fetch(std::vector<std::string>{"y"})[0]), (std::vector<float>{-2, 0})) << name;
  }
  PartialRun run = session.partial_run({{"x", floats({1, -2})}, {"z", floats({2, 2})}});
  try {
    run.advance_until("keepin");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("keeping"), std::string::npos) << error.what();
  }
}

TEST(PartialRun, GoesNodeByNodeAndTellsHowManyAreLeft) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  ModelBuilder b;
  b.input("x", {2}).output("y", {2});
  b.node("Add", {"x", "x"}, {"a"}).node("Mul", {"a", "x"}, {"c"}).node("Yield", {"c"}, {"d"}, "stop", "treadle");
  b.node("Neg", {"d"}, {"e"}).node("Add", {"e", "a"}, {"y"});
  Session session(b.model(), options);
  PartialRun run = session.partial_run({{"x", floats({1, 2})}});
  EXPECT_EQ(run.steps_left(), 2U);
  EXPECT_EQ(run.advance_steps(), 1U);
  EXPECT_FALSE(run.at_yield());
  EXPECT_EQ(run.advance_steps(), 0U);
  EXPECT_TRUE(run.at_yield());
  EXPECT_EQ(run.advance_steps(), 0U);  // the run stops at the Yield
  EXPECT_EQ(values_of(run.yielded()[0].second), (std::vector<float>{2, 8}));
  EXPECT_TRUE(run.resume(one({1, 1})));
  EXPECT_EQ(run.advance_steps(7), 0U);
  EXPECT_EQ(values_of(run.outputs()[0]), (std::vector<float>{1, 3}));
}

TEST(PartialRun, AnyValueCanBeFed) {
  Session session(two_yields());
  PartialRun run = session.partial_run({{"x", floats({1, 2})}, {"a", floats({3, 3})}});
  EXPECT_FALSE(run.advance());
  EXPECT_EQ(values_of(run.yielded()[0].second), (std::vector<float>{3, 3}));
  EXPECT_THROW(session.partial_run({{"x", floats({1, 2})}, {"nothing", floats({1})}}), Error);
}

TEST(PartialRun, ACachedValueReplacesItsComputation) {
  Session session(two_yields());
  auto cache = std::make_shared<ValueCache>();
  (*cache)["a"] = Datum();  // this entry asks the run to store the value
  PartialRun first = session.partial_run({{"x", floats({1, 2})}}, cache);
  first.advance();
  EXPECT_EQ(values_of(cache->at("a")), (std::vector<float>{2, 4}));
  // A second run with another feed gets the value from the cache, not the sum of its own feed.
  PartialRun second = session.partial_run({{"x", floats({100, 100})}}, cache);
  second.advance();
  EXPECT_EQ(values_of(second.yielded()[0].second), (std::vector<float>{2, 4}));
  // The caller adds a value to the cache during the run.
  (*cache)["c"] = floats({7, 8});
  EXPECT_FALSE(second.resume(one({0, 0})));
  EXPECT_EQ(values_of(second.yielded()[0].second), (std::vector<float>{7, 8}));
  EXPECT_EQ(first.cache().get(), cache.get());
  (*cache)["c"] = floats({7, 8, 9});
  PartialRun third = session.partial_run({{"x", floats({1, 1})}}, cache);
  third.advance();
  EXPECT_THROW(third.resume(one({0, 0})), Error);
}

// The extents of `places` are only known in a run.
TEST(PartialRun, FetchesValuesToWhereTheOptionsWantThem) {
  ModelBuilder b;
  b.input("x", {-1}).output("y", {-1});
  b.def().graph.outputs.push_back(ModelBuilder::info("places", {1, -1}, DType::int64));
  b.def().graph.outputs.back().type.shape->back().param = "k";
  b.node("Neg", {"x"}, {"y"}, "negate").node("NonZero", {"y"}, {"places"}, "find").node("Neg", {"y"}, {"last"}).output("last", {-1});
  const std::vector<std::string> names{"y", "places"};
  for (const char* device : {"", "sim"}) {
    SessionOptions options;
    options.device = device;
    const Session session(b.model(), options);
    auto expect_right = [&](const std::vector<Datum>& fetched) {
      EXPECT_EQ(values_of(fetched[0].tensor().clone()), (std::vector<float>{-1, 0, -3}));
      const Tensor places = fetched[1].tensor().clone();
      EXPECT_EQ(std::vector<int64_t>(places.data<int64_t>(), places.data<int64_t>() + 2), (std::vector<int64_t>{0, 2}));
    };
    RunOptions placed;
    for (const std::string& name : names) placed.output_devices[name] = "sim";
    PartialRun on_device = session.partial_run({{"x", floats({1, 0, 3})}}, nullptr, &placed);
    const std::vector<Datum> there = on_device.advance("find", {}, names);
    expect_right(there);
    for (const Datum& value : there) EXPECT_EQ(device_of(value.tensor()), "sim");

    const auto allocator = std::make_shared<testing::FaultyAllocator>();
    RunOptions allocated;
    for (const std::string& name : names) allocated.output_allocators[name] = allocator;
    PartialRun own = session.partial_run({{"x", floats({1, 0, 3})}}, nullptr, &allocated);
    own.advance();
    std::vector<Datum> fetched = own.fetch(names);
    expect_right(fetched);
    EXPECT_EQ(allocator->live(), 2);
    expect_right(own.outputs());
  }
}

TEST(PartialRun, OutlivesItsSessionOnlyToBeCancelled) {
  auto session = std::make_unique<Session>(two_yields());
  PartialRun run = session->partial_run({{"x", floats({1, 2})}});
  run.advance();
  session.reset();
  try {
    run.resume(one({1, 1}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::cancelled);
  }
}

TEST(PartialRun, AYieldHandsOutTheBytesThemselves) {
  Session session(two_yields());
  PartialRun run = session.partial_run({{"x", floats({1, 2})}});
  run.advance();
  EXPECT_EQ(run.yielded()[0].second.tensor().raw(), run.yielded()[0].second.tensor().raw());
  EXPECT_FALSE(run.yielded()[0].second.tensor().storage()->lent());
}

}  // namespace
}  // namespace treadle
