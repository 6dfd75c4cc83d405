// The part of the C ABI that registers plugins.
#include "c_api/status.h"
#include "ort_api/api.h"
#include "plugin/backend.h"
#include "plugin/communicator.h"
#include "plugin/custom_operator.h"
#include "plugin/device.h"

using treadle::c_api::guarded;
using treadle::c_api::require;

extern "C" {

treadle_status* treadle_register_operator(const treadle_operator* op) {
  return guarded([&] { treadle::plugin::register_operator(require(op, "op")); });
}

treadle_status* treadle_register_backend(const treadle_backend* backend) {
  return guarded([&] { treadle::plugin::register_backend(require(backend, "backend")); });
}

treadle_status* treadle_register_device(const treadle_device* device) {
  return guarded([&] { treadle::plugin::register_device(require(device, "device")); });
}

treadle_status* treadle_register_communicator(const treadle_communicator_type* type) {
  return guarded([&] { treadle::plugin::register_communicator(require(type, "type")); });
}

treadle_status* treadle_load_plugin(const char* path) {
  return guarded([&] {
    if (!treadle::ort::load_operators(&require(path, "path"))) treadle::plugin::load_plugin(path);
  });
}

size_t treadle_num_backends(void) { return treadle::plugin::list_backends().size(); }
const char* treadle_backend_name(size_t index) {
  const auto names = treadle::plugin::list_backends();
  return index < names.size() ? names[index] : nullptr;
}

}  // extern "C"
