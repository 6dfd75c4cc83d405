#include "exec/placed/device_memory.h"

#include <mutex>
#include <utility>

namespace treadle::exec {

DeviceMemory::DeviceMemory(std::shared_ptr<JobMemory> of_job, bool limited, std::string in_folder)
    : job(std::move(of_job)),
      has_limit(limited),
      spill_folder(std::move(in_folder)),
      account("the session on its devices", 0, job ? job->on_devices() : nullptr) {}

void DeviceMemory::set_limit(size_t limit_bytes) {
  std::lock_guard lock(governor().mutex);
  governor().set_limit(account, limit_bytes);
  governor().keep_limit(account);
}

}  // namespace treadle::exec
