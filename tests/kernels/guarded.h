// Arrays that end directly before an inaccessible page: a kernel that accesses elements beyond them crashes, even without sanitizers.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace treadle::test {

/// Holds `count` elements directly before an inaccessible page, so that reads beyond the end crash. Their alignment is only that of the
/// type.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t count) : count_(static_cast<size_t>(count)) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (count_ * sizeof(T) + page - 1) / page * page;
    mapped_bytes_ = inside + page;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(static_cast<std::byte*>(mapped_) + inside, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(mapped_) + inside - count_ * sizeof(T));
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(static_cast<int64_t>(values.size())) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  ~Guarded() { munmap(mapped_, mapped_bytes_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  size_t count_, mapped_bytes_ = 0;
  void* mapped_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace treadle::test
