// The registry finds types of devices by their names.
#include "core/devices/device_registry.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "device/sim/sim_type.h"
#include "treadle/error.h"

namespace treadle {
namespace {

bool is_listed(const std::string& name) {
  const std::vector<std::string> names = device_type_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

TEST(DeviceRegistry, FindsWhatWasRegisteredLast) {
  EXPECT_FALSE(find_device_type("registry-test"));
  int made = 0;
  for (int i = 1; i <= 2; ++i)
    register_device_type({.name = "registry-test", .make = [&made, i](const DeviceRequest&) { return made = i, cpu_device(); }});
  ASSERT_TRUE(is_listed("registry-test"));
  find_device_type("registry-test")->make({"registry-test", {}, {}});
  EXPECT_EQ(made, 2);
  const std::vector<std::string> names = device_type_names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "registry-test"), 1);
}

TEST(DeviceRegistry, RefusesNamesThatSessionsCouldNotWrite) {
  for (const char* name : {"", "cpu", "a:b", "a,b", "a b", "a=b", "a;b"}) EXPECT_THROW(register_device_type({.name = name}), Error) << name;
}

TEST(DeviceRegistry, SimulatedDevicesOfASessionShareTheirChecker) {
  register_sim_type();
  register_sim_type();
  ASSERT_TRUE(is_listed("sim"));
  const DeviceType sim = *find_device_type("sim");
  const std::map<std::string, std::string> config{{"treadle.sim.memory", "4096"}};
  const std::shared_ptr<Device> first = sim.make({"sim", config, {}});
  const std::shared_ptr<Device> second = sim.make({"sim", config, {&first, 1}}), host = sim.make_host({"cpu", config, {&first, 1}});
  const auto checker = [](const std::shared_ptr<Device>& device) { return dynamic_cast<SimDevice&>(*device).checker(); };
  EXPECT_EQ(checker(first), checker(second));
  EXPECT_EQ(checker(first), checker(host));
  EXPECT_THROW(first->allocate(8192), Error) << "more than the entry allows";
  EXPECT_TRUE(host->host_accessible());
  EXPECT_NO_THROW(host->allocate(8192));
}

}  // namespace
}  // namespace treadle
