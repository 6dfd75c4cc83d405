// The part of the C ABI that registers plugins.
#include "c_api/arguments.h"
#include "c_api/status.h"
#include "ort_api/api.h"
#include "plugin/backend.h"
#include "plugin/communicator.h"
#include "plugin/custom_operator.h"
#include "plugin/device.h"

using namespace treadle::c_api;

extern "C" {

treadle_status* treadle_register_operator(const treadle_operator* op) {
  return call(__func__, {needed(op, "op")}, [&] { treadle::plugin::register_operator(*op); });
}

treadle_status* treadle_register_backend(const treadle_backend* backend) {
  return call(__func__, {needed(backend, "backend")}, [&] { treadle::plugin::register_backend(*backend); });
}

treadle_status* treadle_register_device(const treadle_device* device) {
  return call(__func__, {needed(device, "device")}, [&] { treadle::plugin::register_device(*device); });
}

treadle_status* treadle_register_communicator(const treadle_communicator_type* type) {
  return call(__func__, {needed(type, "type")}, [&] { treadle::plugin::register_communicator(*type); });
}

treadle_status* treadle_load_plugin(const char* path) {
  return call(__func__, {needed(path, "path")}, [&] {
    if (!treadle::ort::load_operators(path)) treadle::plugin::load_plugin(path);
  });
}

size_t treadle_num_backends(void) { return treadle::plugin::list_backends().size(); }
const char* treadle_backend_name(size_t index) {
  const auto names = treadle::plugin::list_backends();
  return index < names.size() ? names[index] : nullptr;
}

}  // extern "C"
