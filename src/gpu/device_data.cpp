#include "gpu/device_data.h"

#include <cstring>

#include "gpu/launch.h"

namespace treadle::gpu {

size_t DeviceData::add(const void* values, size_t size_bytes) {
  constexpr size_t kAlignment = 16;
  const size_t offset = (host_.size() + kAlignment - 1) / kAlignment * kAlignment;
  host_.resize(offset + std::max(size_bytes, kAlignment));  // an empty array gets an address, too
  if (size_bytes > 0) std::memcpy(host_.data() + offset, values, size_bytes);
  return offset;
}

const std::byte* DeviceData::here() const {
  vulkan::VulkanStream& on = stream();
  std::lock_guard lock(mutex_);
  Copy& copy = copies_[&on.device()];
  if (!copy.storage) {
    std::shared_ptr<Storage> made = on.device().allocate_somewhere(host_.size());
    auto* const data = static_cast<std::byte*>(on.device().bus()->reach(made->data(), host_.size()));
    std::shared_ptr<Event> copied = on.device().create_event();
    on.copy(data, host_.data(), host_.size(), CopyKind::host_to_device);
    on.record(*copied);
    copy = {std::move(made), std::move(copied), data};
  } else if (!copy.copied->complete()) {
    on.wait(copy.copied);  // another stream may still be copying
  }
  return copy.data;
}

}  // namespace treadle::gpu
