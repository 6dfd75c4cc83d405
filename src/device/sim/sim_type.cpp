#include "device/sim/sim_type.h"

#include "core/devices/device_registry.h"
#include "device/sim/sim_device.h"
#include "sharing/quantities.h"

namespace treadle {
namespace {

// Returns the options that the session's config entries set. Uses the checker of the session's other simulated devices, if it has any, so
// that their events order work of this device.
SimOptions options_of(const DeviceRequest& request) {
  SimOptions sim;
  auto given = [&](const char* key) -> const std::string* {
    auto found = request.config.find(key);
    return found == request.config.end() ? nullptr : &found->second;
  };
  if (const std::string* text = given("treadle.sim.memory")) sim.memory_bytes = sharing::parse_bytes(*text);
  if (const std::string* text = given("treadle.sim.bus_per_second"))
    sim.bus_bytes_per_second = static_cast<double>(sharing::parse_bytes(*text));
  if (const std::string* text = given("treadle.sim.max_delay_us")) sim.max_delay_us = static_cast<int>(sharing::parse_bytes(*text));
  if (const std::string* text = given("treadle.sim.shared_engine")) sim.shared_engine = *text == "1" || *text == "true";
  if (const std::string* text = given("treadle.sim.engine_pace")) sim.engine_pace = static_cast<double>(sharing::parse_bytes(*text));
  for (const std::shared_ptr<Device>& device : request.beside)
    if (const auto* other = dynamic_cast<const SimDevice*>(device.get())) sim.checker = other->checker();
  return sim;
}

std::shared_ptr<Device> make(const DeviceRequest& request) {
  const size_t colon = request.name.find(':');
  if (colon == std::string::npos) return SimDevice::create(options_of(request));
  return SimDevice::shared(request.name.substr(colon + 1), options_of(request));
}

// Makes a simulated device that stands for the host, with asynchronous work and checks of every access.
std::shared_ptr<Device> make_host(const DeviceRequest& request) {
  SimOptions sim = options_of(request);
  sim.name = "cpu";
  sim.host_accessible = true;
  sim.shared_engine = false;
  sim.memory_bytes = SIZE_MAX;
  return SimDevice::create(sim);
}

}  // namespace

void register_sim_type() {
  static const bool once = [] {
    register_device_type({.name = "sim", .make = make, .make_host = make_host, .kernels = nullptr});
    return true;
  }();
  (void)once;
}

}  // namespace treadle
