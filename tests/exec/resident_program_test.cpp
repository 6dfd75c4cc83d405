// Tests programs on one device within memory limits: they run step by step, also with values that do not fit on the host.
#include <gtest/gtest.h>

#include <cmath>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "exec/placed/placed_program.h"
#include "exec/placed/placed_run.h"
#include "tests/exec/graphs.h"
#include "tests/exec/host_program.h"
#include "tests/exec/random_graphs.h"
#include "treadle/error.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

Tensor floats(const Shape& shape, float start) {
  Tensor tensor(DType::float32, shape);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) tensor.data<float>()[i] = start + static_cast<float>(i);
  return tensor;
}

// Makes the graph of y = (x + 1)^2 and of the places of x's elements that are not zero. The number of these places is only known in a run.
std::shared_ptr<Graph> graph() {
  GraphBuilder b;
  ValueId x = b.input("x", DType::float32, {b.symbol("n"), 2});
  ValueId sum = b.node("Add", {x, b.constant("one", Tensor::scalar(1.0F))});
  b.output(b.node("Mul", {sum, sum}), "y");
  b.output(b.node("NonZero", {x}), "places");
  return b.finish();
}

std::unique_ptr<exec::PlacedProgram> place(const exec::Program& program, const std::shared_ptr<Device>& device) {
  exec::StreamPlan plan = exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 2);
  return std::make_unique<exec::PlacedProgram>(program, std::vector<std::shared_ptr<Device>>{cpu_device(), device}, std::move(plan),
                                               std::make_shared<exec::DeviceMemory>(nullptr, /*limited=*/true));
}

class ResidentProgramTest : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<SimDevice> sim_ = SimDevice::create({.max_delay_us = 50});
  std::shared_ptr<Device> device_ = GetParam() ? sim_ : cpu_device();
};

TEST_P(ResidentProgramTest, GivesWhatTheHostGives) {
  exec::Program program(graph());
  const auto placed = place(program, device_);
  for (int64_t n : {3, 1, 0, 5}) {
    std::vector<Datum> feeds = {floats({n, 2}, -1)}, outputs(2);
    placed->run(feeds, outputs, {});
    const Tensor &y = outputs[0].tensor(), &places = outputs[1].tensor();
    ASSERT_EQ(y.shape(), (Shape{n, 2}));
    for (int64_t i = 0; i < y.num_elements(); ++i) EXPECT_EQ(y.data<float>()[i], static_cast<float>(i * i));
    // x is -1, 0, 1, 2 …, so it has one zero, at place 1.
    ASSERT_EQ(places.shape(), (Shape{2, std::max<int64_t>(2 * n - 1, 0)}));
    if (n > 1) {
      EXPECT_EQ(places.data<int64_t>()[1], 1);
    }
  }
}

TEST_P(ResidentProgramTest, BadFeedsAndErrorsOfKernelsLeaveItUsable) {
  GraphBuilder b;
  ValueId i = b.input("i", DType::int64, {1});
  b.output(b.node("Gather", {b.constant("table", floats({4}, 10)), i}), "y");
  exec::Program program(b.finish());
  const auto placed = place(program, device_);
  auto run = [&](const Tensor& feed) {
    std::vector<Datum> outputs(1);
    placed->run(std::vector<Datum>{feed}, outputs, {});
    return outputs[0].tensor().data<float>()[0];
  };
  auto at = [](int64_t value) { return Tensor::scalar(value).reshaped({1}); };
  EXPECT_EQ(run(at(2)), 12);
  EXPECT_THROW(run(floats({1}, 0)), Error);
  try {
    run(at(9));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Gather"), std::string::npos) << error.what();
  }
  EXPECT_EQ(run(at(3)), 13);
}

// The extents of x, which has no elements, are those of the other values. A run for which memory lacks may have freed an earlier run's
// arena.
TEST_P(ResidentProgramTest, ExtentsThatFitComeBackAfterSomeThatDoNot) {
  GraphBuilder b;
  ValueId x = b.input("x", DType::int64, {b.symbol("n"), 0});
  ValueId extents = b.node("Shape", {x}, {{"end", int64_t{1}}});
  ValueId twos = b.node("Expand", {b.constant("two", Tensor::scalar(2.0F)), extents});
  ValueId sines = b.node("Sin", {twos});
  b.output(b.node("ReduceSum", {b.node("Mul", {sines, twos})}, {{"keepdims", int64_t{0}}}), "y");
  const exec::Program program(b.finish());
  const auto placed = place(program, device_);
  const auto run = [&](int64_t n) {
    std::vector<Datum> outputs(1);
    placed->run(std::vector<Datum>{Tensor(DType::int64, Shape{n, 0})}, outputs, {});
    return outputs[0].tensor().data<float>()[0];
  };
  for (int round = 0; round < 3; ++round) {
    EXPECT_NEAR(run(100), 200 * std::sin(2.0F), 1e-3F);
    EXPECT_THROW(run(int64_t{1} << 44), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ResidentProgramTest, ::testing::Bool());

TEST(ResidentProgram, LeavesNothingButConstantsOnTheDevice) {
  exec::Program program(graph());
  auto sim = SimDevice::create();
  {
    const auto placed = place(program, sim);
    std::vector<Datum> outputs(2);
    placed->run(std::vector<Datum>{floats({100, 2}, 0)}, outputs, {});
    EXPECT_LE(sim->allocated_bytes(), Storage::kAlignment);
  }
  EXPECT_EQ(sim->allocated_bytes(), 0U);
}

// Moves run beside kernels. The checker finds those that nothing orders.
TEST(ResidentProgram, RandomGraphsWithinLimitsGiveTheHostsBits) {
  int64_t num_waits = 0;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    const std::shared_ptr<Graph> made = testing::random_graph(seed, /*data_dependent=*/false);
    const testing::HostProgram plain(made, exec::ProgramOptions{.reuse_memory = false});
    const exec::Program program(testing::random_graph(seed, /*data_dependent=*/false), {.parallel = true});
    const auto sim = SimDevice::create({.seed = seed, .max_delay_us = seed % 2 == 0 ? 0 : 40});
    const auto memory = std::make_shared<exec::DeviceMemory>(nullptr, /*limited=*/true);
    const int streams = 1 + static_cast<int>(seed % 3);
    exec::StreamPlan plan =
        exec::plan_streams(program, exec::place_instructions(program, {.default_device = 1}), 2, {.compute_streams = streams});
    exec::PlacedProgram placed(program, {cpu_device(), sim}, std::move(plan), memory);
    const std::vector<Datum> feeds = testing::random_feeds(seed);
    std::vector<Datum> expected(program.output_slots().size()), outputs(expected.size());
    plain.run(feeds, expected, {});
    constexpr size_t kImage = size_t{48} * 48 * 4, kLeast = 4 * kImage;
    for (const size_t limit : {kLeast, kLeast + kImage / 2, 8 * kImage, kLeast}) {
      memory->set_limit(limit);
      placed.run(feeds, outputs, {});
      testing::expect_same_bits(outputs, expected);
      EXPECT_LE(memory->account.bytes(), limit);
      EXPECT_LE(sim->allocated_bytes(), limit);
    }
    EXPECT_LE(sim->peak_bytes(), 8 * kImage);
    const exec::RunHandle next = placed.take();
    num_waits += dynamic_cast<const exec::PlacedRun&>(*next).residency()->num_waits();
  }
  EXPECT_GT(num_waits, 0);
}

TEST(ResidentProgram, TheHostDoesNotWaitForMemoryThatIsFree) {
  GraphBuilder b;
  ValueId last = b.input("x", DType::float32, {64, 64});
  for (int i = 0; i < 40; ++i) last = b.node("MatMul", {last, b.constant("w" + std::to_string(i), floats({64, 64}, 0))});
  b.output(last, "y");
  const exec::Program program(b.finish());
  const auto sim = SimDevice::create({.max_delay_us = 50});
  const auto placed = place(program, sim);  // without a number of bytes yet
  for (int run = 0; run < 3; ++run) {
    std::vector<Datum> outputs(1);
    placed->run(std::vector<Datum>{floats({64, 64}, 0)}, outputs, {});
  }
  const exec::RunHandle next = placed->take();
  EXPECT_EQ(dynamic_cast<const exec::PlacedRun&>(*next).residency()->num_waits(), 0);
}

// If a step lacks memory on its own device, the run may use memory on the other device.
TEST(ResidentProgram, ALimitCountsAllDevices) {
  constexpr int64_t kElements = 64;
  constexpr size_t kLimit = 3 * kElements * sizeof(float);  // the limit is the bytes that one step uses
  GraphBuilder b;
  std::vector<ValueId> values{b.input("x", DType::float32, {kElements})};
  Tensor twos(DType::float32, Shape{kElements});
  for (float& element : twos.span<float>()) element = 2;
  const ValueId two = b.constant("two", twos);
  for (int i = 0; i < 5; ++i) values.push_back(b.node("Mul", {values.back(), two}));
  ValueId sum = values.back();
  for (size_t i = values.size() - 1; i-- > 0;) sum = b.node("Add", {sum, values[i]});
  b.output(sum, "y");
  const exec::Program program(b.finish());
  exec::DevicePlacement placement = exec::place_instructions(program, {.default_device = 1});
  for (exec::InstructionId i : placement.of_instruction.ids()) placement.of_instruction[i] = 1 + static_cast<int>(index_of(i) % 2);
  const auto checker = std::make_shared<AccessChecker>();
  const auto memory = std::make_shared<exec::DeviceMemory>(nullptr, /*limited=*/true);
  std::vector<std::shared_ptr<Device>> devices{SimDevice::create({.name = "cpu", .host_accessible = true, .checker = checker})};
  for (int d = 0; d < 2; ++d) devices.push_back(SimDevice::create({.checker = checker}));
  exec::PlacedProgram placed(program, devices, exec::plan_streams(program, placement, 3), memory);
  memory->set_limit(kLimit);
  for (int run = 0; run < 2; ++run) {
    std::vector<Datum> feeds = {floats({kElements}, -9)}, outputs(1);
    placed.run(feeds, outputs, {});
    for (int64_t i = 0; i < kElements; ++i) EXPECT_EQ(outputs[0].tensor().data<float>()[i], 63 * static_cast<float>(i - 9));
  }
  EXPECT_EQ(memory->account.statistics().total.peak_bytes, kLimit);
}

}  // namespace
}  // namespace treadle
