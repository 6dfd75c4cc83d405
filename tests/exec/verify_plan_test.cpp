// Tests the verifier of plans: it must accept correct plans, and reject deliberately broken ones with a message that names the fault.
#include "exec/verify/verify_plan.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "exec/program/verify_switch.h"
#include "exec/run/frame.h"
#include "tests/exec/broken_plans.h"
#include "tests/exec/host_program.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using exec::DescribedPlan;
using Program = testing::HostProgram;
using exec::ProgramOptions;
using exec::Stretch;
using testing::BreakablePlan;
using Act = DescribedPlan::Act;
using Home = DescribedPlan::Home;

// All programs that this test and its child processes make verify their plans.
[[maybe_unused]] const bool kOn = [] {
  setenv("TREADLE_VERIFY_PLANS", "1", 0);
  exec::set_verifies_plans(std::string_view(std::getenv("TREADLE_VERIFY_PLANS")) != "0");
  return true;
}();

struct Break {
  const char* what;
  std::function<void(BreakablePlan&)> how;
  const char* said;  ///< text that one of the reported faults must contain
};

void expect_found(const std::function<BreakablePlan()>& make, const std::vector<Break>& breaks) {
  EXPECT_EQ(exec::find_faults(make().plan), std::vector<std::string>()) << "as it was planned";
  for (const Break& way : breaks) {
    BreakablePlan broken = make();
    way.how(broken);
    const std::vector<std::string> faults = exec::find_faults(broken.plan);
    const bool found =
        std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) { return fault.find(way.said) != std::string::npos; });
    EXPECT_TRUE(found) << way.what << ": \"" << way.said << "\" is not among " << faults.size() << " faults"
                       << (faults.empty() ? "" : ", the first of which is: " + faults[0]);
  }
}

void erase_step(DescribedPlan& plan, size_t step) { plan.steps.erase(plan.steps.begin() + static_cast<ptrdiff_t>(step)); }

TEST(VerifyPlan, StretchesMeetWhereRowsDo) {
  std::mt19937 random(7);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (int i = 0; i < 20'000; ++i) {
    Stretch parts[2];
    for (Stretch& part : parts) {
      part = {.begin = below(40), .row_bytes = below(6), .step_bytes = 0, .rows = below(5)};
      part.step_bytes = part.row_bytes + below(8);
    }
    if (below(2) == 0) parts[1].step_bytes = parts[0].step_bytes = std::max(parts[0].step_bytes, parts[1].row_bytes);
    std::set<size_t> bytes;
    bool met = false;
    for (int k : {0, 1})
      for (size_t r = 0; r < parts[k].rows; ++r)
        for (size_t c = 0; c < parts[k].row_bytes; ++c) {
          const size_t at = parts[k].begin + r * parts[k].step_bytes + c;
          met |= k == 1 && bytes.contains(at);
          if (k == 0) bytes.insert(at);
        }
    ASSERT_EQ(exec::overlap(parts[0], parts[1]), met);
    ASSERT_EQ(exec::overlap(parts[1], parts[0]), met);
  }
}

TEST(VerifyPlan, WhatIsWrongInAnArenaIsFound) {
  expect_found(
      [] { return testing::chain(); },
      {{"an offset is moved by a byte", [](auto& b) { b.move_place("product_out", b.place_of("product_out").offset + 1); },
        "is not a multiple of"},
       {"an operand is looked for elsewhere", [](auto& b) { b.operand("again", 1).at += 64; }, "it is at byte"},
       {"an output is written elsewhere", [](auto& b) { b.output("product").at += 64; }, "its place is byte"},
       {"two operands are swapped", [](auto& b) { std::swap(b.operand("last", 0).at, b.operand("last", 1).at); }, "it is at byte"},
       {"two buffers are at one offset", [](auto& b) { b.move_place("again_out", b.place_of("first_out").offset); }, "was written over by"},
       {"a buffer is too small", [](auto& b) { b.place_of("product_out").size_bytes -= 4; }, "the memory that it is in has"},
       {"the arena is too small", [](auto& b) { b.plan.memories[0] = 64; }, "the arena has 64 bytes"},
       {"scratch lies over an operand",
        [](auto& b) {
          auto& step = b.plan.steps[b.step("again")];
          b.plan.places[step.scratch].size_bytes = 64;
          step.scratch_at = b.operand("again", 1).at;
        },
        "was written over by bytes"},
       {"scratch lies over an output",
        [](auto& b) {
          auto& step = b.plan.steps[b.step("product")];
          b.plan.places[step.scratch].size_bytes = 64;
          step.scratch_at = b.output("product").at;
        },
        "it uses its scratch"},
       {"the root is another one", [](auto& b) { b.value_of("again_out").root = b.value("first_out"); }, "it has those of \"first_out\""},
       {"a value that is read again is written over in place", [](auto& b) { b.put_into("sum_out", "first_out"); },
        "was written over by step"},
       {"a product is written over its operand", [](auto& b) { b.put_into("product_out", "first_out"); }, "over input 0 \"first_out\""},
       {"a view is one of something else", [](auto& b) { b.value_of("view2_out").viewed = b.value("product_out"); },
        "is to be a view of \"product_out\""},
       {"a view is of nothing", [](auto& b) { b.value_of("view2_out").viewed = exec::kNoSlot; }, "which no step has written"},
       {"a view has more bytes", [](auto& b) { b.value_of("view3_out").bytes.row_bytes += 4; }, "is to be a view of"},
       {"a step is left out", [](auto& b) { erase_step(b.plan, b.step("product")); }, "nothing has been written to"},
       {"a step is done twice", [](auto& b) { b.plan.steps.push_back(b.plan.steps[b.step("first")]); }, "once more"},
       {"a reader comes first", [](auto& b) { std::swap(b.plan.steps[b.step("first")], b.plan.steps[b.step("product")]); },
        "nothing has been written to"},
       {"an output is in the arena", [](auto& b) { b.place_of("last_out").home = Home::planned; }, "is in the arena"},
       {"an output is a feed's memory",
        [](auto& b) {
          b.value_of("last_out").root = b.value("x");
          b.plan.outputs[0].place = b.output("last").place = b.place("x");
        },
        "has the bytes of the feed"},
       {"a feed is written to",
        [](auto& b) {
          b.value_of("last_out").root = b.value("x");
          b.output("last").place = b.place("x");
        },
        "of the feed \"x\""},
       {"an operand is not pointed at its feed", [](auto& b) { b.operand("first", 0).at = DescribedPlan::kNowhere; },
        "is pointed at nothing"},
       {"an output has no memory", [](auto& b) { b.place_of("last_out").ready = false; }, "nobody has made memory"},
       {"a feed is shorter", [](auto& b) { b.place_of("x").size_bytes -= 1; }, "the memory that it is in has 1023 bytes"}});
}

TEST(VerifyPlan, WhatIsWrongInLettingGoIsFound) {
  auto of = [](BreakablePlan& b, const char* node) -> DescribedPlan::Step& { return b.plan.steps[b.step(node)]; };
  expect_found([] { return testing::held(); },
               {{"never", [&](auto& b) { of(b, "numbers").num_releases = 0; }, "is never let go of"},
                {"twice", [&](auto& b) { of(b, "last").first_release = of(b, "numbers").first_release, of(b, "last").num_releases = 1; },
                 "was let go of before"},
                {"too early",
                 [&](auto& b) {
                   of(b, "places").first_release = of(b, "numbers").first_release;
                   std::swap(of(b, "places").num_releases, of(b, "numbers").num_releases);
                 },
                 "which was let go of before"},
                {"what is handed out",
                 [&](auto& b) {
                   b.plan.releases.push_back(b.place("last_out"));
                   of(b, "last").first_release = static_cast<uint32_t>(b.plan.releases.size()) - 1, of(b, "last").num_releases = 1;
                 },
                 "which is handed out"}});
}

TEST(VerifyPlan, WhatIsWrongWithPiecesIsFound) {
  auto shift = [](BreakablePlan& b, const char* name, ptrdiff_t bytes) {
    const exec::SlotId value = b.value(name);
    b.value_of(name).bytes.begin += static_cast<size_t>(bytes);
    for (auto& operand : b.plan.operands)
      if (operand.value == value) operand.at += static_cast<size_t>(bytes);
  };
  expect_found([] { return testing::pieces(); },
               {{"a piece lies elsewhere", [&](auto& b) { shift(b, "right_out", -64); }, "was written over by"},
                {"what precedes a piece is lost", [&](auto& b) { shift(b, "right_out", -1024); }, "was written over by"},
                {"a piece is written late",
                 [](auto& b) {
                   auto step = b.plan.steps[b.step("right")];
                   erase_step(b.plan, b.step("right"));
                   b.plan.steps.insert(b.plan.steps.begin() + static_cast<ptrdiff_t>(b.step("join")) + 1, step);
                 },
                 "which no step has written"},
                {"a piece is shorter", [](auto& b) { b.value_of("right_out").bytes.row_bytes -= 64; }, "bytes a row"},
                {"a piece is beyond the whole", [&](auto& b) { shift(b, "right_out", 64); }, "the memory that it is in has"},
                {"the whole is copied over its pieces", [](auto& b) { b.output("join").at += 64; }, "its place is byte"}});
  expect_found([] { return testing::rows(); },
               {{"a step is lost", [](auto& b) { b.output("left").told_step_bytes = 0; }, "is told of rows every 0 bytes"},
                {"a step is doubled", [](auto& b) { b.output("right").told_step_bytes *= 2; }, "is told of rows every 256 bytes"},
                {"a reader's step is lost", [](auto& b) { b.operand("after", 0).told_step_bytes = 0; }, "is told of rows every 0 bytes"},
                {"a kernel does not ask", [](auto& b) { b.output("right").takes_steps = false; }, "takes its rows one behind the other"},
                {"a Concat along another axis has rows", [](auto& b) { b.plan.steps[b.step("join")].along_rows = false; },
                 "takes its rows one behind the other"},
                {"rows lie over others' rows", [&](auto& b) { shift(b, "right_out", -32); }, "was written over by"},
                {"rows are closer", [](auto& b) { b.value_of("left_out").bytes.step_bytes = 64, b.output("left").told_step_bytes = 64; },
                 "was written over by"}});
}

TEST(VerifyPlan, WhatIsWrongInTheOrderByReadinessIsFound) {
  auto remove_edge = [](DescribedPlan& plan, size_t from, size_t to, bool counted) {
    auto& ready = plan.readiness;
    for (uint32_t k = ready.first_successor[from]; k < ready.first_successor[from + 1]; ++k) {
      if (index_of(ready.successors[k]) != to) continue;
      ready.successors.erase(ready.successors.begin() + k);
      for (size_t s = from + 1; s < ready.first_successor.size(); ++s) --ready.first_successor[s];
      if (counted) --ready.counters[to];
      return;
    }
  };
  expect_found(
      [] { return testing::by_readiness(); },
      {{"a count is too low", [](auto& b) { --b.plan.readiness.counters[b.step("both")]; }, "counts down from 1, it comes after 2 steps"},
       {"a count is too high", [](auto& b) { ++b.plan.readiness.counters[b.step("both")]; }, "counts down from 3"},
       {"an edge is lost", [&](auto& b) { remove_edge(b.plan, b.step("left2"), b.step("both"), false); },
        "counts down from 2, it comes after 1 steps"},
       {"nobody waits", [&](auto& b) { remove_edge(b.plan, b.step("left2"), b.step("both"), true); }, "is not ordered after"},
       {"a step is not begun", [](auto& b) { ++b.plan.readiness.counters[b.step("left")]; }, "counts down from 1, it comes after 0 steps"},
       {"branches share bytes", [](auto& b) { b.move_place("right_out", b.place_of("left_out").offset); }, "is not ordered after"},
       {"branches share some bytes", [](auto& b) { b.move_place("right2_out", b.place_of("left2_out").offset + 960); },
        "is not ordered after"}});
  auto held = [] {
    BreakablePlan made = testing::held();
    made.plan = exec::describe_parallel_plan(*made.binding);
    return made;
  };
  expect_found(held, {{"a step does not count",
                       [](auto& b) {
                         auto& touches = b.plan.readiness.touches;
                         touches.pop_back();
                         for (uint32_t& first : b.plan.readiness.first_touch)
                           first = std::min<uint32_t>(first, static_cast<uint32_t>(touches.size()));
                       },
                       "may be let go of before it has ended"},
                      {"a step counts twice",
                       [](auto& b) {
                         auto& ready = b.plan.readiness;
                         ready.touches.push_back(ready.touches.back());
                         for (uint32_t& first : ready.first_touch)
                           if (first + 1 == ready.touches.size()) ++first;
                       },
                       "counts twice"},
                      {"held memory goes too early",
                       [](auto& b) { --b.plan.readiness.counters[static_cast<size_t>(b.plan.readiness.touches[0].counter)]; }, "steps, "}});
}

TEST(VerifyPlan, WhatIsWrongOnStreamsIsFound) {
  auto copy_of = [](BreakablePlan& b) {
    return static_cast<size_t>(
        std::find_if(b.plan.steps.begin(), b.plan.steps.end(), [](const auto& step) { return step.act == Act::copy; }) -
        b.plan.steps.begin());
  };
  expect_found([] { return testing::on_streams(); },
               {{"a copy is left out",
                 [&](auto& b) {
                   const size_t copy = copy_of(b);
                   erase_step(b.plan, copy);
                   b.plan.issues.erase(b.plan.issues.begin() + static_cast<ptrdiff_t>(copy));
                   for (auto& issue : b.plan.issues) issue.waits.clear();
                 },
                 "nothing has been written to"},
                {"no event is recorded",
                 [](auto& b) {
                   for (auto& issue : b.plan.issues) issue.records = false;
                 },
                 "records no event"},
                {"what waits is issued with what does not",
                 [](auto& b) {
                   for (auto& issue : b.plan.issues) issue.leads = false;
                 },
                 "is issued with the step before it"},
                {"memory goes too early",
                 [](auto& b) {
                   for (auto& place : b.plan.places) place.uses -= place.uses > 0;
                 },
                 "steps have touched it"},
                {"values of a device share bytes",
                 [](auto& b) {
                   for (auto& place : b.plan.places)
                     if (place.root != exec::kNoSlot && place.home == Home::planned) {
                       const size_t before = place.offset;
                       place.offset = 0;
                       for (auto& operand : b.plan.operands)
                         if (operand.place != exec::kNoPlace && &b.plan.places[operand.place] == &place) operand.at -= before;
                     }
                 },
                 "was written over by"},
                {"a copy goes elsewhere", [&](auto& b) { b.plan.steps[copy_of(b)].target = b.plan.steps[copy_of(b)].place; },
                 "nothing has been written to"}});
  const BreakablePlan made = testing::on_streams();
  int fences = 0;
  for (size_t s = 0; s < made.plan.issues.size(); ++s) {
    for (size_t w = 0; w < made.plan.issues[s].waits.size(); ++w, ++fences) {
      DescribedPlan broken = made.plan;
      broken.issues[s].waits.erase(broken.issues[s].waits.begin() + static_cast<ptrdiff_t>(w));
      const std::vector<std::string> faults = exec::find_faults(broken);
      ASSERT_FALSE(faults.empty()) << "step " << s << " need not wait for step " << made.plan.issues[s].waits[w];
      EXPECT_NE(faults[0].find("is not ordered after"), std::string::npos) << faults[0];
    }
  }
  EXPECT_GT(fences, 3);
}

// The value has two users: a copy to the host, and a kernel that is issued last.
TEST(VerifyPlan, MemoryOfADeviceStaysForAllThatUseIt) {
  auto make = [] {
    testing::GraphBuilder b;
    ValueId first = b.node("Tanh", {b.input("x", DType::float32, {4, 4})}, {}, "left");
    b.output(first);
    b.output(b.node("Exp", {first}, {}, "left2"));
    return testing::on_streams(b.finish());
  };
  expect_found(make, {{"nobody holds it",
                       [](auto& b) {
                         for (auto& step : b.plan.steps) step.on_loan |= step.act == Act::copy;
                       },
                       "does not hold \"left_out\", which goes with"}});
}

TEST(VerifyPlan, WhatIsWrongUnderABudgetIsFound) {
  auto first = [](BreakablePlan& b, Act act) {
    return static_cast<size_t>(std::find_if(b.plan.steps.begin(), b.plan.steps.end(), [&](const auto& step) { return step.act == act; }) -
                               b.plan.steps.begin());
  };
  expect_found([] { return testing::under_budget(Act::load); },
               {{"a value is not brought back", [&](auto& b) { erase_step(b.plan, first(b, Act::load)); }, "was not brought back"},
                {"a value is not written out", [&](auto& b) { erase_step(b.plan, first(b, Act::spill)); }, "where it is not"},
                {"other bytes are written out", [&](auto& b) { b.plan.steps[first(b, Act::spill)].offset += 64; },
                 "is written to the file from byte"},
                {"it comes back elsewhere", [&](auto& b) { b.plan.steps[first(b, Act::load)].offset += 64; }, "it is at byte"},
                {"it comes back over live bytes",
                 [&](auto& b) {
                   const size_t load = first(b, Act::load);
                   size_t reader = load;
                   while (b.plan.steps[reader].act != Act::compute) ++reader;
                   for (size_t k = 0; k < b.plan.steps[reader].num_inputs; ++k) {
                     const auto& operand = b.plan.operands[b.plan.steps[reader].first_operand + k];
                     if (operand.value != exec::kNoSlot && operand.place != b.plan.steps[load].place &&
                         b.plan.places[operand.place].home == Home::planned)
                       b.plan.steps[load].offset = operand.at;
                   }
                   b.plan.steps[load].offset += b.plan.steps[load].offset == 0 ? 64 : 0;
                 },
                 "byte"},
                {"values share the file", [&](auto& b) { std::fill(b.plan.file_offsets.begin(), b.plan.file_offsets.end(), size_t{0}); },
                 "share bytes of the file"},
                {"the order is another one", [&](auto& b) { std::reverse(b.plan.steps.begin(), b.plan.steps.end()); },
                 "nothing has been written to"}});
  expect_found([] { return testing::under_budget(Act::replay); },
               {{"a value is not made anew", [&](auto& b) { erase_step(b.plan, first(b, Act::replay)); }, ""},
                {"it is made anew elsewhere",
                 [&](auto& b) {
                   auto& step = b.plan.steps[first(b, Act::replay)];
                   for (size_t k = step.num_inputs; k < static_cast<size_t>(step.num_inputs) + step.num_outputs; ++k)
                     b.plan.operands[step.first_operand + k].at += 64;
                 },
                 "byte"},
                {"another one is made anew",
                 [&](auto& b) {
                   auto& step = b.plan.steps[first(b, Act::replay)];
                   for (size_t s = b.plan.steps.size(); s-- > 0;)
                     if (b.plan.steps[s].act == Act::compute) step.first_operand = b.plan.steps[s].first_operand;
                 },
                 ""}});
}

TEST(VerifyPlan, WhatIsWrongWithGrowingStatesIsFound) {
  auto grown = [](int64_t distance) {
    BreakablePlan made = testing::growing();
    exec::lay_over(made.plan, made.value("past"), made.value("present_out"), distance);
    return exec::find_faults(made.plan);
  };
  EXPECT_EQ(grown(3 * 1 * 4 * 4), std::vector<std::string>());
  for (int64_t distance : {0, 16, -16}) {  // at these distances, moved rows overwrite rows that are still to be moved
    const auto faults = grown(distance);
    ASSERT_FALSE(faults.empty()) << distance;
    EXPECT_NE(faults[0].find("over what it has yet to read"), std::string::npos) << faults[0];
  }
}

// The lengths of the caches are known before the run. They need no memory when the node runs only for the positions.
TEST(VerifyPlan, AKnownOutputOfANodeThatRunsIsLetGoOf) {
  testing::GraphBuilder b;
  const ValueId query = b.input("query", DType::float32, {b.symbol("batch"), b.symbol("length"), 2});
  const ValueId past = b.constant("past", Tensor(DType::float32, {1, 4, 5, 16}));
  const ValueId lengths = b.graph().add_input("lengths", Type::tensor(DType::int32));  // this output makes the run bind the node
  const ValueId total = b.constant("total", Tensor::scalar<int32_t>(3));
  for (ValueId output : b.nodes("CachePositions", {query, past, lengths, total}, 4, {}, {}, "treadle")) b.output(output);
  const testing::HostProgram program(b.finish(), {.verify_plans = true});
  std::vector<Datum> outputs(4);
  program.run(std::vector<Datum>{Tensor(DType::float32, {1, 3, 2}), Tensor::vector<int32_t>(std::vector<int32_t>{2})}, outputs, {});
  EXPECT_EQ(*outputs[3].tensor().data<int64_t>(), 5);
}

TEST(VerifyPlan, WhatASequenceKeepsIsNotWrittenOver) {
  auto kept = [] {
    testing::GraphBuilder b;
    ValueId x = b.input("x", DType::float32, {4, 4});
    ValueId copy = b.node("Tanh", {x}, {}, "kept");
    ValueId all = b.node("SequenceConstruct", {copy}, {}, "all");
    b.output(b.node("Concat", {b.node("Neg", {copy}, {}, "later"), b.node("Exp", {x}, {}, "beside")}, {{"axis", int64_t{0}}}, "joined"));
    b.output(all);
    return BreakablePlan(b.finish(), {.reuse_memory = false});
  };
  expect_found(kept, {{"in place",
                       [](auto& b) {
                         b.operand("all", 0).by_reference = true;
                         b.put_into("later_out", "kept_out");
                       },
                       "may have kept"}});
}

// Measures what the verification costs. Runs only with --gtest_also_run_disabled_tests.
TEST(VerifyPlan, DISABLED_CostBesideBinding) {
  auto time = [](auto&& body) {
    constexpr int kTimes = 50;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) body();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kTimes;
  };
  for (bool parallel : {false, true}) {
    exec::set_verifies_plans(false);
    Program program(testing::random_graph(1, false), {.parallel = parallel, .pieces_in_place = true});
    exec::set_verifies_plans(true);
    const double bind = time([&] { exec::Binding(program.plans()).bind({}, 1, false, nullptr); });
    exec::Binding binding(program.plans());
    binding.bind({}, 1, false, nullptr);
    const double verify = time([&] { exec::verify_binding(binding); });
    std::printf("%zu instructions%s: binding %.0f us, verifying %.0f us\n", program.instructions().size(), parallel ? ", by readiness" : "",
                bind, verify);
  }
}

TEST(VerifyPlan, AFaultEndsABindingWithAnErrorThatNamesTheNode) {
  BreakablePlan broken = testing::chain();
  broken.put_into("sum_out", "first_out");
  try {
    exec::verify_plan(broken.plan);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    const std::string text = error.what();
    EXPECT_NE(text.find("the plan (in order) is wrong:"), std::string::npos) << text;
    EXPECT_NE(text.find("MatMul \"again\": it reads \"first_out\": bytes ["), std::string::npos) << text;
    EXPECT_NE(text.find("Add \"sum\""), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace treadle
