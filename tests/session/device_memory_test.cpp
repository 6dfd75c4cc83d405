// Tests the allocator of a device's memory, and the copies of a device's values on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

#include "core/devices/device.h"
#include "session/devices.h"
#include "tests/session/faults.h"
#include "tests/session/models.h"

namespace treadle::testing {
namespace {

constexpr int64_t kElements = 16 * 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);
constexpr int kLinks = 6;

// Makes v0 = x + 1, v1 = v0 + 1, …, and y, the sum of them all.
Model links() {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  std::string last = "x";
  for (int i = 0; i < kLinks; ++i) {
    b.node("Step", {last}, {"v" + std::to_string(i)}, "", "test.fault");
    onnx::AttributeDef id;
    id.name = "id";
    id.type = onnx::AttributeType::i;
    id.i = i;
    b.last_node().attributes.push_back(std::move(id));
    last = "v" + std::to_string(i);
  }
  for (int i = kLinks - 1; i-- > 0;) {
    const std::string next = i == 0 ? "y" : "s" + std::to_string(i);
    b.node("Add", {last, "v" + std::to_string(i)}, {next});
    last = next;
  }
  return b.model();
}

SessionOptions options_for(const std::string& device) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  options.device = device;
  return options;
}

void expect_right(const Session& session) {
  Tensor x(DType::float32, Shape{kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = static_cast<float>(i % 64);
  const Datum y = session.run({{"x", x}})[0];
  for (int64_t i = 0; i < kElements; ++i) {
    float sum = 0;
    for (int k = 1; k <= kLinks; ++k) sum += static_cast<float>(i % 64 + k);
    ASSERT_EQ(y.tensor().data<float>()[i], sum) << i;
  }
}

/// An allocator that counts the bytes that it has allocated.
class WatchedAllocator final : public Allocator {
 public:
  std::string_view name() const noexcept override { return "watched"; }
  void* allocate(size_t size_bytes, MemoryClass memory_class) override {
    std::lock_guard lock(mutex_);
    allocated_ += size_bytes;
    live_ += size_bytes;
    return plain_allocator()->allocate(size_bytes, memory_class);
  }
  void free(void* data, size_t size_bytes, MemoryClass memory_class) noexcept override {
    std::lock_guard lock(mutex_);
    live_ -= size_bytes;
    plain_allocator()->free(data, size_bytes, memory_class);
  }
  void renew(void* data, size_t size_bytes) noexcept override {
    std::lock_guard lock(mutex_);
    renewed_ += size_bytes;
    std::memset(data, 0xFF, size_bytes);  // the bits are those of a NaN
  }
  size_t allocated() const { return allocated_; }
  size_t renewed() const { return renewed_; }
  size_t live() const { return live_; }

 private:
  std::mutex mutex_;
  size_t allocated_ = 0, renewed_ = 0, live_ = 0;
};

TEST(DeviceMemory, ComesFromTheSessionsAllocator) {
  for (const char* device : {"", "sim"}) {
    SCOPED_TRACE(device);
    auto allocator = std::make_shared<WatchedAllocator>();
    {
      SessionOptions options = options_for(device);
      options.allocator = allocator;
      const Session session(links(), options);
      expect_right(session);
      EXPECT_GE(allocator->allocated(), (kLinks + 1) * kValueBytes);
      for (int again = 0; again < 2; ++again) {
        const size_t before = allocator->renewed();
        expect_right(session);
        EXPECT_GE(allocator->renewed() - before, size_t{2} * (kLinks - 1) * kValueBytes)
            << "the arena, and each value before it is written";
      }
    }
    EXPECT_EQ(allocator->live(), 0U);
  }
}

TEST(DeviceMemory, AllocatorsByNameServeADevice) {
  for (const char* name : {"arena", "guard", "nan", "pattern", "nan+guard", "recording"}) {
    SessionOptions options = options_for("sim");
    options.allocator = make_allocator(name);
    const Session session(links(), options);
    for (int again = 0; again < 2; ++again) expect_right(session);
  }
}

TEST(DeviceMemory, AGuardFindsAKernelThatWritesTooFar) {
  for (const char* device : {"", "sim"}) {
    SessionOptions options = options_for(device);
    options.allocator = make_allocator("guard");
    Session session(links(), options);
    expect_right(session);
    std::byte* end = nullptr;
    size_t largest = 0;
    options.allocator->visit_regions([&](const MemoryRegion& region) {
      if (!region.used || region.size_bytes < largest) return;
      largest = region.size_bytes;
      end = static_cast<std::byte*>(const_cast<void*>(region.data)) + region.size_bytes;
    });
    ASSERT_GE(largest, 2 * kValueBytes) << device;
    set_fault(0, [&] { *end = std::byte{1}; });
    try {
      expect_right(session);
      FAIL() << device;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("memory behind a block was written"), std::string::npos) << error.what();
    }
    expect_right(session);
  }
}

TEST(DeviceMemory, TheHostHasNoArenaForWhatADeviceComputes) {
  Session on_host(links(), options_for("")), on_device(links(), options_for("sim"));
  expect_right(on_host);
  expect_right(on_device);
  EXPECT_GE(on_host.memory_statistics()[MemoryClass::activations].peak_bytes, (kLinks - 1) * kValueBytes);
  EXPECT_LT(on_device.memory_statistics()[MemoryClass::activations].peak_bytes, kValueBytes);
  // The values that a monitor gets are on the host.
  std::vector<float> seen;
  on_device.set_monitor({.callback =
                             [&](const MonitorEvent& event) {
                               if (!event.is_input) seen.push_back(event.datum.tensor().data<float>()[3]);
                             },
                         .pattern = "v2"});
  expect_right(on_device);
  EXPECT_EQ(seen, std::vector<float>{6});
  on_device.set_monitor({});
  expect_right(on_device);
}

// Later runs submit what an earlier one has recorded. A recorded kernel reads a feed at the address in the memory where the feed was.
TEST(DeviceMemory, AFeedIsFoundWhereItHasMoved) {
  ModelBuilder b;
  b.input("x", {kElements}).output("y", {kElements});
  b.node("Tanh", {"x"}, {"t"}).node("Softmax", {"t"}, {"s"}).node("Mul", {"s", "x"}, {"y"});
  for (const char* name : {"sim", "gpu:0"}) {
    SCOPED_TRACE(name);
    std::optional<Session> session;
    try {
      session.emplace(b.model(), options_for(name));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::not_implemented) throw;
      GTEST_SKIP() << error.what();  // no GPU
    }
    const Session host(b.model(), options_for(""));
    const std::shared_ptr<Device> device = device_named(name);
    Bus& bus = *device->bus();
    constexpr size_t kBytes = size_t{20} << 20;  // large enough for a buffer of its own, so that moves do not change the output's address
    const std::shared_ptr<Storage> block = bus.allocate_anywhere(kBytes);
    bus.reach(block->data(), kBytes);
    bus.keep_on_host(block->data(), kBytes);
    Tensor x(DType::float32, Shape{kElements}, block);
    const auto stream = device->create_stream("moves");
    Tensor values(DType::float32, Shape{kElements});
    for (int round = 0; round < 9; ++round) {
      if (round % 3 == 2) {
        const bool to_device = round % 2 == 0;
        if (to_device) {
          ASSERT_TRUE(bus.reserve(block->data(), kBytes));
        }
        bus.move(*stream, block->data(), kBytes, to_device ? Bus::Move::to_device : Bus::Move::to_host);
        stream->synchronize();
        if (!to_device) bus.unreserve(block->data(), kBytes);
      }
      for (int64_t i = 0; i < kElements; ++i) values.data<float>()[i] = std::sin(static_cast<float>(i * (round + 1)));
      x.copy_from(values);
      const Datum y = session->run({{"x", x}})[0], expected = host.run({{"x", values}})[0];
      for (int64_t i = 0; i < kElements; ++i)
        ASSERT_NEAR(y.tensor().data<float>()[i], expected.tensor().data<float>()[i], 1e-8F) << "round " << round << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace treadle::testing
