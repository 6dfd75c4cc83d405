// Where the memory of a device comes from, and what the host keeps beside it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "tests/session/faults.h"
#include "tests/session/models.h"

namespace treadle::testing {
namespace {

constexpr int64_t kElements = 16 * 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);
constexpr int kLinks = 6;

// v0 = x + 1, v1 = v0 + 1, …; y is the sum of them all.
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

TEST(DeviceMemory, TheHostHasNoArenaForWhatADeviceComputes) {
  Session on_host(links(), options_for("")), on_device(links(), options_for("sim"));
  expect_right(on_host);
  expect_right(on_device);
  EXPECT_GE(on_host.memory_statistics()[MemoryClass::activations].peak_bytes, (kLinks - 1) * kValueBytes);
  EXPECT_LT(on_device.memory_statistics()[MemoryClass::activations].peak_bytes, kValueBytes);
  // Who watches values sees them on the host.
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

}  // namespace
}  // namespace treadle::testing
