// Tests which steps of a program use which memory of a device, and the next use after each.
#include "exec/placed/device_uses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "tests/exec/graphs.h"

namespace treadle {
namespace {

using exec::DeviceUses;
using exec::StreamPlan;
using exec::UnitId;

// The program computes y = -(x + w) + w on the device. A copy brings x to the device, another one brings y to the host, and w is a constant
// on the device.
class DeviceUsesTest : public ::testing::Test {
 protected:
  static std::shared_ptr<Graph> graph() {
    testing::GraphBuilder b;
    const ValueId x = b.input("x", DType::float32, {4}), w = b.constant("w", Tensor::scalar(2.0F));
    b.output(b.node("Add", {b.node("Neg", {b.node("Add", {x, w}, {}, "first")}, {}, "second"), w}, {}, "third"), "y");
    return b.finish();
  }
  // Returns the position of the node's kernel among the steps.
  size_t position_of(const std::string& node) const {
    for (size_t p = 0; p < steps_.size(); ++p)
      if (const StreamPlan::Step& step = steps_[steps_.at(p)]; !step.is_copy() && steps_.instruction(step).node->name == node) return p;
    return steps_.size();
  }

  const exec::Program program_{graph(), {}};
  const StreamPlan plan_ = exec::plan_streams(program_, exec::place_instructions(program_, {.default_device = 1}), 2);
  const std::vector<std::shared_ptr<Device>> devices_{cpu_device(), SimDevice::create()};
  const exec::PlacedSteps steps_{program_, plan_, devices_};
  const DeviceUses uses_{steps_, 1};
};

TEST_F(DeviceUsesTest, AConstantIsUsedAgainByTheNextRun) {
  const auto is_w = [](const StreamPlan::Location& location) {
    return location.device == 1 && location.memory == StreamPlan::Location::Memory::constant;
  };
  const auto w = std::find_if(plan_.locations.begin(), plan_.locations.end(), is_w);
  ASSERT_NE(w, plan_.locations.end());
  const UnitId unit = DeviceUses::unit_of(plan_.locations.id_of(*w));
  const size_t first = position_of("first"), third = position_of("third");
  EXPECT_FALSE(uses_.is_packed(unit));
  EXPECT_EQ(uses_.next_use(unit, first, /*lasting=*/true), static_cast<int64_t>(third));
  EXPECT_EQ(uses_.next_use(unit, third, /*lasting=*/true), static_cast<int64_t>(steps_.size() + first));
  EXPECT_EQ(uses_.next_use(unit, third, /*lasting=*/false), INT64_MAX);
}

TEST_F(DeviceUsesTest, AStepUsesTheLocationsThatItTouchesOnTheDevice) {
  for (size_t p = 0; p < steps_.size(); ++p) {
    const StreamPlan::Step& step = steps_[steps_.at(p)];
    std::vector<exec::LocationId> touched;
    if (step.is_copy()) {
      touched = {step.source, step.target};
    } else {
      const auto operands = steps_.operands(step);
      touched.assign(operands.begin(), operands.end());
      touched.push_back(step.scratch);
    }
    std::erase_if(touched, [&](exec::LocationId l) { return l == exec::kNoLocation || steps_.location(l).device != 1; });
    for (const exec::LocationId l : touched) EXPECT_TRUE(uses_.is_used_at(p, DeviceUses::unit_of(l))) << "step " << p;
    std::sort(touched.begin(), touched.end());
    touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
    EXPECT_EQ(uses_.at(p).size(), touched.size()) << "step " << p;
  }
}

}  // namespace
}  // namespace treadle
