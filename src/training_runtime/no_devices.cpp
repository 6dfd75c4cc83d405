// Replaces the files for devices and plugins in a reduced library. Its sessions run on the host only.
#include "device/sim/sim_type.h"
#include "gpu/gpu_type.h"
#include "session/device_rows.h"
#include "session/devices.h"
#include "treadle/error.h"

namespace treadle {
namespace {

[[noreturn]] void throw_no_devices() {
  throw Error(ErrorCode::not_implemented, "devices: this is a build for training from artifacts, which has the host alone");
}

}  // namespace

void register_sim_type() {}
void gpu::register_gpu_type() {}

std::unique_ptr<exec::Executor> SessionDevices::place(const exec::Program&, bool) const { throw_no_devices(); }
std::string field_of(std::string_view name) { return std::string(name); }
void add_device_rows(const exec::Executor&, profile::ProfilePlan&) {}
std::string SessionDevices::describe(const exec::Program&) const { throw_no_devices(); }
std::string SessionDevices::list_nodes(const exec::Program&) const { throw_no_devices(); }

}  // namespace treadle
