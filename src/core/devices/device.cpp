#include "core/devices/device.h"

#include "treadle/error.h"

namespace treadle {

std::shared_ptr<Storage> Device::allocate_somewhere(size_t size_bytes) {
  try {
    return allocate(size_bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::resource_exhausted || !bus()) throw;
    std::shared_ptr<Storage> storage = bus()->allocate_anywhere(size_bytes);
    if (size_bytes > 0) bus()->reach(storage->data(), size_bytes);
    return storage;
  }
}

}  // namespace treadle
