#include "exec/memory/governor.h"

namespace treadle::exec {

void Governor::add(const std::function<void()>& trim) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(trims_mutex_);
  trims.push_back(&trim);
}

void Governor::remove(const std::function<void()>& trim) {
  std::lock_guard lock(mutex);
  std::lock_guard whole(trims_mutex_);
  trims.remove(&trim);
}

Governor::Turn::Turn(Governor& governor, const RunControl& control) : governor_(governor) {
  std::unique_lock lock(governor.mutex);
  governor.wait(lock, control, [&] { return !governor.alone; });
  governor.alone = true;
}

Governor::Turn::~Turn() {
  std::lock_guard lock(governor_.mutex);
  governor_.alone = false;
  governor_.left.notify_all();
}

}  // namespace treadle::exec
