#include "treadle/tensor.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/checked.h"
#include "core/base/cpu_info.h"
#include "core/devices/device.h"
#include "core/trace/memory_events.h"
#include "core/values/allocation.h"
#include "core/values/content_bytes.h"
#include "core/values/held_memory.h"
#include "core/values/writable.h"

namespace treadle {

namespace {

/// Frees a block by its allocator and credits its account. It is a shared_ptr's deleter, so std::get_deleter finds it without the block.
struct Accounted {
  std::shared_ptr<Allocator> allocator;
  std::shared_ptr<MemoryAccount> account;
  /// False after the memory was handed over. Moving needs no atomic operation, because other threads cannot see the block before it is in a
  /// shared_ptr.
  mutable std::atomic<bool> charged{false};
  size_t size_bytes = 0;
  MemoryClass memory_class = MemoryClass::other;
  std::byte* data = nullptr;
  BlockRecord record;
  // Number of bytes that the texts of a string tensor use. Only one thread at a time writes it.
  mutable std::atomic<size_t> text_bytes{0};
  mutable BlockRecord text_record;

  Accounted() = default;
  Accounted(Accounted&& other) noexcept
      : allocator(std::move(other.allocator)),
        account(std::move(other.account)),
        charged(other.charged.load(std::memory_order_relaxed)),
        size_bytes(other.size_bytes),
        memory_class(other.memory_class),
        data(std::exchange(other.data, nullptr)),
        record(other.record),
        text_bytes(other.text_bytes.load(std::memory_order_relaxed)),
        text_record(other.text_record) {
    other.charged.store(false, std::memory_order_relaxed);
    other.text_bytes.store(0, std::memory_order_relaxed);
  }

  void charge(const AllocationContext& context) {
    if (!context.account) return;
    context.charge(memory_class, size_bytes);
    account = context.account;
    charged.store(true, std::memory_order_relaxed);
    record.taken(account.get(), memory_class, size_bytes);
  }
  void discharge() const noexcept {
    if (!charged.exchange(false)) return;
    account->discharge(memory_class, size_bytes);
    record.given_back(account.get(), memory_class, size_bytes);
    const size_t texts = text_bytes.load(std::memory_order_relaxed);
    if (texts == 0) return;
    text_bytes.store(0, std::memory_order_relaxed);
    account->discharge(memory_class, texts);
    text_record.given_back(account.get(), memory_class, texts);
  }
  void charge_texts(size_t bytes) const {
    const size_t before = text_bytes.load();
    if (!charged.load() || bytes == before) return;
    if (bytes < before) {
      account->discharge(memory_class, before - bytes);
    } else if (const AllocationContext* context = AllocationScope::current(); context && context->account == account) {
      context->charge(memory_class, bytes - before);
    } else {
      account->charge(memory_class, bytes - before);
    }
    if (before > 0) text_record.given_back(account.get(), memory_class, before);
    if (bytes > 0) text_record.taken(account.get(), memory_class, bytes);
    text_bytes.store(bytes);
  }
  void operator()(Storage* storage) const noexcept {
    delete storage;
    if (data) allocator->free(data, size_bytes, memory_class);
    discharge();
  }
};

}  // namespace

std::shared_ptr<Storage> Storage::allocate(size_t size_bytes) {
  if (size_t limit = cpu_info().memory_limit_bytes; limit > 0 && size_bytes > limit)
    throw OutOfMemory("a tensor of " + std::to_string(size_bytes) + " bytes; the machine or its cgroup allows " + std::to_string(limit));
  const size_t rounded = align_up(size_bytes ? size_bytes : 1, kAlignment);
  const AllocationContext* context = AllocationScope::current();
  auto exhausted = [&] {
    return OutOfMemory("cannot allocate " + std::to_string(size_bytes) + " bytes", held_memory(context ? context->account.get() : nullptr));
  };
  if (rounded < size_bytes) throw exhausted();
  if (!context) {
    auto storage = std::shared_ptr<Storage>(new Storage);
    storage->data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (!storage->data_) throw exhausted();
    storage->size_bytes_ = size_bytes;
    storage->owned_ = true;
    return storage;
  }
  Accounted block;
  block.allocator = context->allocator ? context->allocator : plain_allocator();
  block.size_bytes = rounded;
  block.memory_class = AllocationScope::current_class();
  Storage* made = nullptr;
  try {
    block.charge(*context);
    block.data = static_cast<std::byte*>(block.allocator->allocate(rounded, block.memory_class));
    if (!block.data) {
      block.discharge();  // the block was refused, so the account must not count it
      BlockRecord::refused(context->account.get(), block.memory_class, rounded);
      throw exhausted();
    }
    made = new Storage;
  } catch (...) {
    block(nullptr);
    throw;
  }
  AllocationScope::count_allocation(rounded);
  made->data_ = block.data;
  made->size_bytes_ = size_bytes;
  return std::shared_ptr<Storage>(made, std::move(block));  // frees both if allocating the reference count fails
}

void hand_over(const std::shared_ptr<Storage>& storage) noexcept {
  if (const auto* block = std::get_deleter<Accounted>(storage)) block->discharge();
}

void charge_texts(const Tensor& tensor) {
  if (!tensor.defined() || tensor.dtype() != DType::string) return;
  const auto* block = std::get_deleter<Accounted>(tensor.storage());
  if (!block || !block->charged.load()) return;
  const auto* strings = reinterpret_cast<const std::string*>(tensor.storage()->data());
  size_t bytes = 0;
  for (size_t i = 0; i < tensor.storage()->size_bytes() / sizeof(std::string); ++i) bytes += text_bytes(strings[i]);
  block->charge_texts(bytes);
}

const Allocator* allocator_of(const std::shared_ptr<Storage>& storage) noexcept {
  const auto* block = std::get_deleter<Accounted>(storage);
  return block ? block->allocator.get() : nullptr;
}

const MemoryAccount* account_of(const std::shared_ptr<Storage>& storage) noexcept {
  const auto* block = std::get_deleter<Accounted>(storage);
  return block && block->charged.load() ? block->account.get() : nullptr;
}

std::shared_ptr<Storage> Storage::allocate_strings(size_t count) {
  auto storage = allocate(treadle::size_bytes(DType::string, static_cast<int64_t>(count)));
  auto* strings = reinterpret_cast<std::string*>(storage->data_);
  for (size_t i = 0; i < count; ++i) new (strings + i) std::string();
  storage->num_strings_ = count;
  return storage;
}

std::shared_ptr<Storage> Storage::borrow(void* data, size_t size_bytes, std::function<void()> release) {
  auto storage = std::shared_ptr<Storage>(new Storage);
  storage->data_ = static_cast<std::byte*>(data);
  storage->size_bytes_ = size_bytes;
  storage->release_ = std::move(release);
  return storage;
}

std::shared_ptr<Storage> Storage::borrow_read_only(const void* data, size_t size_bytes, std::function<void()> release) {
  auto storage = borrow(const_cast<void*>(data), size_bytes, std::move(release));
  storage->writable_ = false;
  return storage;
}

std::shared_ptr<Storage> Storage::of_device(std::shared_ptr<Device> device, void* data, size_t size_bytes, std::function<void()> release) {
  auto storage = borrow(data, size_bytes, std::move(release));
  storage->device_ = std::move(device);
  return storage;
}

std::shared_ptr<Storage> Storage::lend(void* data, size_t size_bytes) {
  auto storage = borrow(data, size_bytes, {});
  storage->lent_ = true;
  return storage;
}

Storage::~Storage() {
  auto* strings = reinterpret_cast<std::string*>(data_);
  for (size_t i = 0; i < num_strings_; ++i) strings[i].~basic_string();
  if (owned_) std::free(data_);
  if (release_) release_();
}

namespace {

Shape contiguous_strides(const Shape& shape) {
  Shape strides;
  strides.resize(shape.rank());
  int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= shape[axis] > 0 ? shape[axis] : 1;
  }
  return strides;
}

bool strides_are_contiguous(const Shape& shape, std::span<const int64_t> strides) {
  int64_t step = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1 && strides[static_cast<size_t>(axis)] != step) return false;
    step *= shape[axis];
  }
  return true;
}

template <typename T>
void copy_strided(T* dst, std::span<const int64_t> dst_strides, const T* src, std::span<const int64_t> src_strides, const Shape& shape,
                  int axis = 0) {
  if (axis == shape.rank()) {
    *dst = *src;
    return;
  }
  const auto a = static_cast<size_t>(axis);
  for (int64_t i = 0; i < shape[axis]; ++i)
    copy_strided(dst + i * dst_strides[a], dst_strides, src + i * src_strides[a], src_strides, shape, axis + 1);
}

// Returns the tensor's device if the host cannot access the memory; otherwise null.
Device* beyond_reach(const Tensor& tensor) {
  Device* device = tensor.storage()->device().get();
  return device && !device->memory_is_hosts() ? device : nullptr;
}

void copy_by(Device& device, const Tensor& to, const Tensor& from, CopyKind kind) {
  const std::unique_ptr<Stream> stream = device.create_stream("copy");
  stream->copy(to.raw(), from.raw(), to.size_bytes(), kind);
  stream->synchronize();
}

}  // namespace

Tensor::Tensor(DType dtype, const Shape& shape)
    : dtype_(dtype), shape_(shape), strides_(contiguous_strides(shape)), num_elements_(shape.num_elements()) {
  storage_ = dtype == DType::string ? Storage::allocate_strings(static_cast<size_t>(num_elements_))
                                    : Storage::allocate(treadle::size_bytes(dtype, num_elements_));
  data_ = storage_->data();
}

Tensor::Tensor(DType dtype, const Shape& shape, std::shared_ptr<Storage> storage, size_t offset_bytes)
    : dtype_(dtype), shape_(shape), strides_(contiguous_strides(shape)), num_elements_(shape.num_elements()), storage_(std::move(storage)) {
  size_t needed = treadle::size_bytes(dtype, num_elements_);
  if (offset_bytes > storage_->size_bytes() || needed > storage_->size_bytes() - offset_bytes)
    throw Error(ErrorCode::invalid_argument, describe(*this) + " needs " + std::to_string(needed) + " bytes at offset " +
                                                 std::to_string(offset_bytes) + " of a storage of " +
                                                 std::to_string(storage_->size_bytes()));
  data_ = storage_->data() + offset_bytes;
}

Tensor::Tensor(DType dtype, const Shape& shape, std::span<const int64_t> strides, std::shared_ptr<Storage> storage, size_t offset_bytes)
    : dtype_(dtype), shape_(shape), strides_(strides), num_elements_(shape.num_elements()), storage_(std::move(storage)) {
  if (strides_.rank() != shape.rank())
    throw Error(ErrorCode::invalid_argument, "as many strides as axes are needed: " + to_string(strides_) + " for " + to_string(shape));
  if (is_sub_byte(dtype)) throw Error(ErrorCode::invalid_argument, "packed sub-byte types have no strides");
  contiguous_ = strides_are_contiguous(shape, strides);
  int64_t lowest = 0, highest = 0;  // positions in elements, relative to the offset
  for (int axis = 0; num_elements_ > 0 && axis < shape.rank(); ++axis) {
    int64_t reach = checked_mul(shape[axis] - 1, strides_[axis]);
    (reach < 0 ? lowest : highest) = checked_add(reach < 0 ? lowest : highest, reach);
  }
  auto element = static_cast<int64_t>(bits_of(dtype) / 8);
  auto offset = static_cast<int64_t>(offset_bytes);
  int64_t first = checked_add(offset, checked_mul(lowest, element));
  int64_t last = checked_add(offset, checked_mul(num_elements_ > 0 ? highest + 1 : 0, element));
  if (first < 0 || last > static_cast<int64_t>(storage_->size_bytes()))
    throw Error(ErrorCode::invalid_argument, "a strided view reaches bytes " + std::to_string(first) + " to " + std::to_string(last) +
                                                 " of a storage of " + std::to_string(storage_->size_bytes()));
  data_ = storage_->data() + offset_bytes;
}

Tensor Tensor::strings(const Shape& shape, std::span<const std::string> values) { return of<std::string>(shape, values); }

size_t Tensor::size_bytes() const { return treadle::size_bytes(dtype_, num_elements_); }

Tensor Tensor::contiguous() const { return contiguous_ ? *this : clone(); }

Tensor Tensor::clone() const {
  if (!defined()) return {};
  Tensor result(dtype_, shape_);
  result.copy_from(*this);
  charge_texts(result);
  return result;
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (!contiguous_ || shape.num_elements() != num_elements_)
    throw Error(ErrorCode::invalid_argument, describe(*this) + " cannot be viewed as " + to_string(shape));
  return Tensor(dtype_, shape, storage_, static_cast<size_t>(data_ - storage_->data()));
}

void Tensor::copy_from(const Tensor& other) {
  if (other.dtype_ != dtype_ || other.num_elements_ != num_elements_ || (!contiguous_ && other.shape_ != shape_))
    throw Error(ErrorCode::invalid_argument, "cannot copy " + describe(other) + " into " + describe(*this));
  if (num_elements_ == 0) return;
  expect_writable(*this, "what a tensor is copied into");
  Device *to = beyond_reach(*this), *from = beyond_reach(other);
  if (to || from) {
    if (!contiguous_ || (from && !other.contiguous_))
      throw Error(ErrorCode::invalid_argument, "a copy between devices of " + describe(other) + ", whose elements are not contiguous");
    if (to && from && to->reaches(*from)) return copy_by(*to, *this, other, CopyKind::device_to_device);
    if (to && from) return copy_from(other.clone());
    return to ? copy_by(*to, *this, other.contiguous(), CopyKind::host_to_device) : copy_by(*from, *this, other, CopyKind::device_to_host);
  }
  if (contiguous_ && other.contiguous_ && dtype_ != DType::string) {
    std::memcpy(data_, other.data_, size_bytes());
    return;
  }
  // Both tensors have the same order of elements, so a contiguous destination may have any shape.
  const Shape strides = contiguous_ ? contiguous_strides(other.shape_) : strides_;
  auto copy = [&]<typename T>(T) {
    copy_strided(reinterpret_cast<T*>(data_), strides.dims(), reinterpret_cast<const T*>(other.data_), other.strides(), other.shape_);
  };
  if (dtype_ == DType::string) return copy(std::string());
  switch (bits_of(dtype_)) {
    case 8: return copy(uint8_t{});
    case 16: return copy(uint16_t{});
    case 32: return copy(uint32_t{});
    case 64: return copy(uint64_t{});
    default: return copy(std::complex<double>{});
  }
}

std::string describe(const Tensor& tensor) {
  return tensor.defined() ? std::string(short_name_of(tensor.dtype())) + to_string(tensor.shape()) : "undefined";
}

void detail::throw_wrong_dtype(DType have, DType want) {
  if (have == want) throw Error(ErrorCode::invalid_argument, "the number of values is not the number of elements of the shape");
  throw Error(ErrorCode::invalid_argument, "a tensor of " + std::string(name_of(have)) + " was read as " + std::string(name_of(want)));
}

}  // namespace treadle
