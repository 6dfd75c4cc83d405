#include "device/cpu/cpu_device.h"

#include <cstring>

#include "treadle/error.h"

namespace treadle {
namespace {

class CpuEvent final : public Event {
 public:
  bool complete() const override { return true; }
  void synchronize() const override {}
};

class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Device& device() const override { return *device_; }
  void enqueue(Work work, std::string_view) override { work(); }  // runs at once, so an error reaches the caller directly
  void copy(void* dst, const void* src, size_t size_bytes, CopyKind) override {
    if (size_bytes > 0) std::memcpy(dst, src, size_bytes);
  }
  void record(Event& event) override {
    if (!dynamic_cast<CpuEvent*>(&event)) throw Error(ErrorCode::invalid_argument, "a cpu stream records events of the cpu only");
  }
  void wait(const std::shared_ptr<Event>& event) override { event->synchronize(); }
  void synchronize() override {}

 private:
  std::shared_ptr<Device> device_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice() : Device("cpu") {}
  std::shared_ptr<Storage> allocate(size_t size_bytes) override { return Storage::allocate(size_bytes); }
  std::unique_ptr<Stream> create_stream(std::string_view) override { return std::make_unique<CpuStream>(shared_from_this()); }
  std::shared_ptr<Event> create_event() override { return std::make_shared<CpuEvent>(); }
  bool host_accessible() const noexcept override { return true; }
  bool calls_work_at_once() const noexcept override { return true; }
};

}  // namespace

const std::shared_ptr<Device>& cpu_device() {
  static const std::shared_ptr<Device> device = std::make_shared<CpuDevice>();
  return device;
}

}  // namespace treadle
