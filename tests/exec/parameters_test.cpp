// Tests parameters, which change between runs. A run reads the version that is current when it begins. Each version is packed once,
// whatever the schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "device/sim/sim_device.h"
#include "exec/placed/placed_program.h"
#include "exec/placed/placed_run.h"
#include "exec/program/variables.h"
#include "exec/run/frame.h"
#include "tests/exec/broken_plans.h"
#include "tests/exec/host_program.h"

namespace treadle {
namespace {

using Program = testing::HostProgram;
using exec::ProgramOptions;
using exec::Variables;
using testing::GraphBuilder;

constexpr int64_t kRows = 3, kInner = 40, kColumns = 24;

Tensor filled(const Shape& shape, float first, float step) {
  Tensor made(DType::float32, shape);
  for (float& x : made.span<float>()) x = first += step;
  return made;
}

Tensor weights(int version) { return filled({kColumns, kInner}, static_cast<float>(version), 0.01F); }
Tensor bias(int version) { return filled({kColumns}, static_cast<float>(-version), 0.5F); }

/// Computes tanh(x) Wᵀ + b, where a node transposes W, and x b' with a slice b' of b.
std::shared_ptr<Graph> make_graph(const Tensor& w, const Tensor& b, bool as_parameters) {
  GraphBuilder builder;
  auto add = [&](const char* name, const Tensor& tensor) {
    const ValueId id = builder.constant(name, tensor);
    if (as_parameters) builder.graph().value(id).kind = Value::Kind::parameter;
    return id;
  };
  const ValueId x = builder.input("x", DType::float32, {kRows, kInner}), stored_w = add("w", w), stored_b = add("b", b);
  const ValueId turned = builder.node("Transpose", {stored_w}, {{"perm", std::vector<int64_t>{1, 0}}}, "turned");
  const ValueId product = builder.node("MatMul", {builder.node("Tanh", {x}, {}, "tanh"), turned}, {}, "product");
  const ValueId line = builder.node("Reshape", {stored_b, builder.ints("line", {1, kColumns})}, {}, "line_of_b");
  builder.output(builder.node("Add", {product, line}, {}, "sum"));
  return builder.finish();
}

Tensor input() { return filled({kRows, kInner}, -1, 0.015F); }

Tensor run(const Program& program, const exec::RunControl& control = {}) {
  std::vector<Datum> outputs(1);
  program.run(std::vector<Datum>{input()}, outputs, control);
  return outputs[0].tensor();
}

/// Returns the output of a program in which these weights are constants.
Tensor expected(int w, int b) { return run(Program(make_graph(weights(w), bias(b), false))); }

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.size_bytes() == b.size_bytes() && std::memcmp(a.raw(), b.raw(), a.size_bytes()) == 0;
}

struct Made {
  Tensor w = weights(1), b = bias(1);
  std::shared_ptr<Variables> variables = std::make_shared<Variables>();
  size_t place_of_w = variables->add("w", w), place_of_b = variables->add("b", b);
  std::unique_ptr<Program> program;

  explicit Made(ProgramOptions options = {}) {
    options.variables = variables;
    program = std::make_unique<Program>(make_graph(w, b, true), options);
  }
  const exec::Instruction& product() const {
    for (const exec::Instruction& instruction : program->instructions())
      if (instruction.node->name == "product") return instruction;
    throw std::out_of_range("product");
  }
};

TEST(Parameters, AreReadAsOfTheRunsBegin) {
  Made made;
  EXPECT_TRUE(same_bits(run(*made.program), expected(1, 1)));
  made.w.copy_from(weights(2));
  made.variables->note_changed(made.place_of_w);
  EXPECT_TRUE(same_bits(run(*made.program), expected(2, 1)));
  made.variables->set(made.place_of_b, bias(5));
  EXPECT_TRUE(same_bits(run(*made.program), expected(2, 5)));
}

TEST(Parameters, ArePackedOnceAVersion) {
  Made made;
  run(*made.program);
  const auto first = made.program->plans().latest_packed(made.product());
  ASSERT_NE(first, nullptr);
  run(*made.program);
  EXPECT_EQ(made.program->plans().latest_packed(made.product()), first);
  made.variables->set(made.place_of_b, bias(2));  // a parameter that the product does not read
  run(*made.program);
  EXPECT_EQ(made.program->plans().latest_packed(made.product()), first);
  made.variables->note_changed(made.place_of_w);
  run(*made.program);
  EXPECT_NE(made.program->plans().latest_packed(made.product()), first);
  EXPECT_EQ(first.use_count(), 1) << "an outdated copy is held";
}

TEST(Parameters, WhatFollowsFromThemAloneIsNoInstruction) {
  const Made made;
  EXPECT_EQ(made.program->instructions().size(), 3U);
}

TEST(Parameters, RunsInFlightKeepWhatTheyBeganWith) {
  const Made made;
  exec::Frame early(made.program->frames()), late(made.program->frames());
  const std::vector<Datum> feeds{input()};
  early.start(feeds, {}, {}, {});
  early.advance(1);
  made.variables->set(made.place_of_w, weights(2));
  made.variables->set(made.place_of_b, bias(3));
  late.start(feeds, {}, {}, {});
  std::vector<Datum> outputs(1);
  ASSERT_TRUE(late.advance());
  late.take_outputs(outputs);
  EXPECT_TRUE(same_bits(outputs[0].tensor(), expected(2, 3)));
  ASSERT_TRUE(early.advance());
  early.take_outputs(outputs);
  EXPECT_TRUE(same_bits(outputs[0].tensor(), expected(1, 1)));
}

TEST(Parameters, UnseenWritesAreFoundWhereTheyAreWatched) {
  Made made;
  run(*made.program);
  made.variables->watch(true);
  run(*made.program);
  const auto packed = made.program->plans().latest_packed(made.product());
  run(*made.program);
  EXPECT_EQ(made.program->plans().latest_packed(made.product()), packed) << "nothing was written";
  made.w.data<float>()[kInner] = 77;  // a write without a call of note_changed()
  Tensor w = weights(1);
  w.data<float>()[kInner] = 77;
  EXPECT_TRUE(same_bits(run(*made.program), run(Program(make_graph(w, bias(1), false)))));
  made.variables->watch(false);
  made.w.data<float>()[kInner] = 0;
  made.variables->note_changed();
  w.data<float>()[kInner] = 0;
  EXPECT_TRUE(same_bits(run(*made.program), run(Program(make_graph(w, bias(1), false)))));
}

TEST(Parameters, ExtentsThatDifferHaveTheSameVersion) {
  GraphBuilder b;
  const ValueId x = b.input("x", DType::float32, {b.symbol("n"), kInner});
  const ValueId w = b.constant("w", filled({kInner, kColumns}, 0, 0.01F));
  b.graph().value(w).kind = Value::Kind::parameter;
  b.output(b.node("MatMul", {x, w}, {}, "product"));
  auto variables = std::make_shared<Variables>();
  const size_t place = variables->add("w", filled({kInner, kColumns}, 0, 0.01F));
  const Program program(b.finish(), {.variables = variables});
  for (int version = 0; version < 3; ++version) {
    const Tensor elements = filled({kInner, kColumns}, static_cast<float>(version), 0.01F);
    variables->set(place, elements);
    for (int64_t n : {1, 5, 1, 9, 5, 40}) {
      const Tensor rows = filled({n, kInner}, 1, 0.5F);
      std::vector<Datum> outputs(1);
      program.run(std::vector<Datum>{rows}, outputs, {});
      double sum = 0;
      for (int64_t k = 0; k < kInner; ++k)
        sum += double{rows.data<float>()[(n - 1) * kInner + k]} * double{elements.data<float>()[k * kColumns + 7]};
      EXPECT_NEAR(outputs[0].tensor().data<float>()[(n - 1) * kColumns + 7], sum, 1e-5 * std::abs(sum));
    }
  }
}

TEST(Parameters, ChangeOnEverySchedule) {
  ThreadPool pool(2);
  Made parallel({.parallel = true, .always_parallel = true});
  Made placed({.parallel = true});
  auto checker = std::make_shared<AccessChecker>();
  SimOptions options{.name = "cpu", .seed = 3, .max_delay_us = 20, .host_accessible = true, .checker = checker};
  std::vector<std::shared_ptr<Device>> devices{SimDevice::create(options)};
  options.name = "sim", options.host_accessible = false;
  devices.push_back(SimDevice::create(options));
  exec::DevicePlacement placement;
  placement.of_instruction.assign(placed.program->instructions().size(), 1);
  exec::PlacedProgram on_device(*placed.program, devices, exec::plan_streams(*placed.program, placement, devices.size()));
  for (int version = 1; version < 5; ++version) {
    for (Made* made : {&parallel, &placed}) {
      made->variables->set(made->place_of_w, weights(version));
      made->variables->set(made->place_of_b, bias(version + 1));
    }
    for (int again = 0; again < 2; ++again) {
      EXPECT_TRUE(same_bits(run(*parallel.program, {.threads = {.pool = &pool}}), expected(version, version + 1)));
      std::vector<Datum> outputs(1);
      on_device.run(std::vector<Datum>{input()}, outputs, {});
      EXPECT_TRUE(same_bits(outputs[0].tensor(), expected(version, version + 1)));
    }
  }
}

TEST(Parameters, ChangeBesideRuns) {
  constexpr int kVersions = 40;
  const Made made;
  std::vector<Tensor> all;
  for (int version = 1; version <= kVersions; ++version) all.push_back(expected(version, 1));
  std::atomic<bool> over{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t)
    readers.emplace_back([&] {
      while (!over)
        if (const Tensor got = run(*made.program);
            std::none_of(all.begin(), all.end(), [&](const Tensor& each) { return same_bits(got, each); }))
          ++wrong;
    });
  for (int version = 2; version <= kVersions; ++version) {
    made.variables->set(made.place_of_w, weights(version));
    wrong += !same_bits(run(*made.program), all[static_cast<size_t>(version - 1)]);
  }
  over = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Parameters, ACopyThatIsOutdatedIsAFault) {
  const Made made;
  testing::BreakablePlan plan(make_graph(made.w, made.b, true), {.variables = made.variables});
  EXPECT_EQ(exec::find_faults(plan.plan), std::vector<std::string>());
  --plan.operand("product", 1).packed_version;
  const std::vector<std::string> faults = exec::find_faults(plan.plan);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_NE(faults[0].find("\"turned_out\" is packed as of version"), std::string::npos) << faults[0];
}

}  // namespace
}  // namespace treadle
