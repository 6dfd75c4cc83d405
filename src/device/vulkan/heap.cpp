#include "device/vulkan/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "treadle/error.h"
#include "treadle/out_of_memory.h"

namespace treadle::vulkan {
namespace {

constexpr size_t kLargestSlabBytes = size_t{32} << 20;
constexpr size_t kSlabsInMemory = 64;  // a slab (a buffer that blocks share) is at most 1/64 of the memory

size_t rounded(size_t size_bytes) { return (std::max<size_t>(size_bytes, 1) + Heap::kAlignment - 1) / Heap::kAlignment * Heap::kAlignment; }

}  // namespace

Buffer::Buffer(const Connection& connection, size_t size_bytes, For use) : connection_(connection), size_bytes_(size_bytes) {
  const bool is_device = use == For::device, is_addressed = is_device || use == For::shared || use == For::host;
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = size_bytes;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  if (is_addressed) info.usage |= VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
  try {
    connection.check(connection->CreateBuffer(connection.handle(), &info, nullptr, &handle_), "make a buffer");
    VkMemoryRequirements needs;
    connection->GetBufferMemoryRequirements(connection.handle(), handle_, &needs);
    VkMemoryAllocateFlagsInfo flags{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, nullptr, VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT, 0};
    VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, is_addressed ? &flags : nullptr, needs.size, 0};
    constexpr VkMemoryPropertyFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    if (is_device)
      allocate.memoryTypeIndex = connection.memory_type(needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    else
      allocate.memoryTypeIndex = connection.memory_type(needs.memoryTypeBits, kMapped,
                                                        use == For::download || use == For::host ? VK_MEMORY_PROPERTY_HOST_CACHED_BIT : 0);
    connection.check(connection->AllocateMemory(connection.handle(), &allocate, nullptr, &memory_), "allocate memory");
    connection.check(connection->BindBufferMemory(connection.handle(), handle_, memory_, 0), "bind memory");
    if (is_addressed) {
      const VkBufferDeviceAddressInfo of{VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, nullptr, handle_};
      address_ = connection->GetBufferDeviceAddress(connection.handle(), &of);
      if (address_ % Heap::kAlignment != 0)
        throw Error(ErrorCode::internal, fmt::format("memory of {} is not aligned to {} bytes", connection.name(), Heap::kAlignment));
    }
    if (!is_device) {
      void* mapped = nullptr;
      connection.check(connection->MapMemory(connection.handle(), memory_, 0, VK_WHOLE_SIZE, 0, &mapped), "map memory");
      mapped_ = static_cast<std::byte*>(mapped);
    }
  } catch (...) {
    release();
    throw;
  }
}

Buffer::~Buffer() { release(); }

uint64_t Buffer::next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void Buffer::release() noexcept {
  if (!connection_.is_of_this_process()) return;
  if (handle_) connection_->DestroyBuffer(connection_.handle(), handle_, nullptr);
  if (memory_) connection_->FreeMemory(connection_.handle(), memory_, nullptr);
}

Heap::Heap(const Connection& connection, Buffer::For use)
    : connection_(connection),
      use_(use),
      slab_bytes_(std::min<uint64_t>(kLargestSlabBytes, rounded(connection.memory_bytes() / kSlabsInMemory))) {}

Heap::~Heap() = default;

uint64_t Heap::take(Slab& slab, size_t size_bytes) {
  const auto found = std::find_if(slab.free.begin(), slab.free.end(), [&](const auto& range) { return range.second >= size_bytes; });
  if (found == slab.free.end()) return 0;
  const auto [offset, bytes] = *found;
  slab.free.erase(found);
  if (bytes > size_bytes) slab.free.emplace(offset + size_bytes, bytes - size_bytes);
  return slab.buffer->address() + offset;
}

size_t Heap::buffer_bytes() const {
  size_t bytes = 0;
  for (const auto& [address, slab] : slabs_) bytes += slab.buffer->size_bytes();
  return bytes;
}

size_t Heap::unused_bytes() const {
  size_t unused = 0;
  for (const auto& [address, slab] : slabs_)
    for (const auto& [offset, bytes] : slab.free) unused += bytes;
  return unused;
}

std::string Heap::held() const {
  return fmt::format("{} bytes in {} buffers are held for values {}, {} of them unused", buffer_bytes(), slabs_.size(),
                     use_ == Buffer::For::device ? "here" : "in the host's memory", unused_bytes());
}

size_t Heap::room_bytes() const {
  std::lock_guard lock(mutex_);
  const uint64_t own = connection_.memory_bytes(), held = buffer_bytes();
  return std::min<uint64_t>(connection_.free_bytes(), own > held ? own - held : 0) + unused_bytes();
}

size_t Heap::used_bytes() const {
  std::lock_guard lock(mutex_);
  return buffer_bytes() - unused_bytes();
}

uint64_t Heap::allocate(size_t size_bytes) {
  connection_.check_process();
  std::lock_guard lock(mutex_);
  const bool is_device = use_ == Buffer::For::device;
  if (size_bytes > (is_device ? connection_.memory_bytes() : SIZE_MAX / 2))
    throw OutOfMemory(fmt::format("cannot allocate {} bytes on {}, which has {}; {}", size_bytes, connection_.name(),
                                  connection_.memory_bytes(), held()));
  const size_t needed = rounded(size_bytes);
  const size_t shared_bytes = slab_bytes_ / 4;  // larger blocks get their own buffers
  if (needed <= shared_bytes)
    for (auto& [address, slab] : slabs_)
      if (const uint64_t taken = take(slab, needed)) return taken;
  const size_t slab_bytes = needed <= shared_bytes ? slab_bytes_ : needed;
  const uint64_t left_bytes = connection_.memory_bytes() - std::min<uint64_t>(connection_.memory_bytes(), buffer_bytes());
  if (const uint64_t free_bytes = std::min(connection_.free_bytes(), left_bytes); is_device && slab_bytes > free_bytes)
    throw OutOfMemory(fmt::format("cannot allocate {} bytes on {}: of its {} bytes the driver leaves this process {}; {}", size_bytes,
                                  connection_.name(), connection_.memory_bytes(), free_bytes, held()));
  std::unique_ptr<Buffer> buffer;
  try {
    buffer = std::make_unique<Buffer>(connection_, slab_bytes, use_);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(fmt::format("cannot allocate {} bytes: {}; {}", size_bytes, error.message(), held()));
  }
  const uint64_t base = buffer->address();
  Slab& made = slabs_.emplace(base, Slab{std::move(buffer), {{0, slab_bytes}}}).first->second;
  return take(made, needed);
}

void Heap::free(uint64_t address, size_t size_bytes) noexcept {
  if (!connection_.is_of_this_process()) return;  // in a forked child, the mutex may be locked forever
  std::lock_guard lock(mutex_);
  const auto at = std::prev(slabs_.upper_bound(address));
  Slab& slab = at->second;
  auto range = slab.free.emplace(address - at->first, rounded(size_bytes)).first;
  if (range != slab.free.begin()) {
    const auto before = std::prev(range);
    if (before->first + before->second == range->first) {
      before->second += range->second;
      slab.free.erase(range);
      range = before;
    }
  }
  const auto behind = std::next(range);
  if (behind != slab.free.end() && range->first + range->second == behind->first) {
    range->second += behind->second;
    slab.free.erase(behind);
  }
  if (range->second == slab.buffer->size_bytes()) slabs_.erase(at);
}

std::optional<Heap::Place> Heap::find(uint64_t address, size_t size_bytes) const {
  std::lock_guard lock(mutex_);
  auto at = slabs_.upper_bound(address);
  if (at != slabs_.begin()) {
    --at;
    const uint64_t offset = address - at->first;
    if (offset < at->second.buffer->size_bytes() && size_bytes <= at->second.buffer->size_bytes() - offset)
      return Place{at->second.buffer->handle(), offset, at->second.buffer->id()};
  }
  return std::nullopt;
}

bool Heap::is_in(uint64_t address, uint64_t buffer_id) const {
  std::lock_guard lock(mutex_);
  const auto behind = slabs_.upper_bound(address);
  if (behind == slabs_.begin()) return false;
  const Buffer& buffer = *std::prev(behind)->second.buffer;
  return buffer.id() == buffer_id && address - buffer.address() < buffer.size_bytes();
}

}  // namespace treadle::vulkan
