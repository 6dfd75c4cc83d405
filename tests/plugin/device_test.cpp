// Devices of plugins, through treadle/plugin.h alone: what each callback is given. examples/device/tin.cpp, which
// tests/python/test_device_plugin.py runs, computes.
#include "plugin/device.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "onnx/export.h"
#include "onnx/serialize.h"
#include "tests/exec/graphs.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

/// A device whose work is done when it is enqueued. Each of its callbacks notes which device it was called for.
struct Probe {
  struct Made {
    Probe& of;
    std::string name;
    std::map<std::string, std::string> entries;
  };
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> calls;  // by device
  std::map<std::string, std::map<std::string, std::string>> entries;
  std::string refused;
  int alive = 0;

  static int note(void* device, const char* call) {
    auto& made = *static_cast<Made*>(device);
    std::lock_guard lock(made.of.mutex);
    made.of.calls[made.name].insert(call);
    return 1;
  }

  static void* create(void* user, const treadle_host* host, const char* name, const treadle_config_entry* entries, size_t num_entries) {
    auto& self = *static_cast<Probe*>(user);
    if (self.refused == name) return host->fail("it is not plugged in"), nullptr;
    auto* made = new Made{self, name, {}};
    for (size_t i = 0; i < num_entries; ++i) made->entries[entries[i].key] = entries[i].value;
    self.entries[name] = made->entries;
    ++self.alive;
    return made;
  }
  static void destroy(void* user, void* device) {
    --static_cast<Probe*>(user)->alive;
    delete static_cast<Made*>(device);
  }

  static int launch_relu(void* user, void*, const treadle_host*, const treadle_device_call* call) {
    note(user, "launch");
    int64_t count = 1;
    for (int axis = 0; axis < call->inputs[0].rank; ++axis) count *= call->inputs[0].dims[axis];
    const auto* x = static_cast<const float*>(call->inputs[0].data);
    auto* y = static_cast<float*>(const_cast<void*>(call->outputs[0].data));
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] > 0 ? x[i] : 0;
    return 1;
  }

  treadle_device description(const char* name) {
    static const treadle_device_kernel kernels[] = {
        {.op_type = "Relu", .domain = "", .dtype = TREADLE_FLOAT32, .takes = nullptr, .launch = launch_relu}};
    return {.size = sizeof(treadle_device),
            .name = name,
            .user = this,
            .allocate = [](void* user, size_t bytes) { return note(user, "allocate"), std::aligned_alloc(64, (bytes + 63) / 64 * 64); },
            .free = [](void* user, void* memory, size_t) { note(user, "free"), std::free(memory); },
            .create_stream = [](void* user) -> void* { return note(user, "create_stream"), user; },
            .destroy_stream = [](void* user, void*) { note(user, "destroy_stream"); },
            .copy = [](void* user, void*, void* to, const void* from, size_t bytes,
                       int32_t) { return std::memcpy(to, from, bytes), note(user, "copy"); },
            .synchronize = [](void* user, void*) { return note(user, "synchronize"); },
            .create_event = [](void* user) -> void* { return note(user, "create_event"), user; },
            .destroy_event = [](void* user, void*) { note(user, "destroy_event"); },
            .record_event = [](void* user, void*, void*) { return note(user, "record_event"); },
            .stream_wait = [](void* user, void*, void*) { return note(user, "stream_wait"); },
            .event_complete = [](void*, void*) { return 1; },
            .wait_event = [](void*, void*) {},
            .kernels = kernels,
            .num_kernels = 1,
            .create_device = create,
            .destroy_device = destroy};
  }
};

Model two_groups() {
  GraphBuilder builder;
  ValueId x = builder.input("x", DType::float32, {Dim(3)});
  for (const char* group : {"left", "right"}) {
    x = builder.node("Relu", {x});
    builder.graph().node(builder.graph().value(x).producer).metadata = {{"ctx_group", group}};
    x = builder.node("Neg", {x});
  }
  builder.output(x, "y");
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

TEST(PluginDevice, CallbacksAreGivenTheDeviceThatTheSessionNames) {
  Probe probe;
  plugin::register_device(probe.description("probe"));
  {
    SessionOptions options;
    options.group2ctx = {{"left", "probe:0"}, {"right", "probe:1"}};
    options.config["probe.color"] = "red";
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    const Session session(two_groups(), options);
    EXPECT_EQ(probe.alive, 2);
    const Datum y = session.run({{"x", Tensor::of<float>(Shape{3}, std::vector<float>{1, -2, 3})}})[0];
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.tensor().data<float>()[i], 0);
  }
  EXPECT_EQ(probe.alive, 0);
  for (const char* name : {"probe:0", "probe:1"}) {
    EXPECT_EQ(probe.entries[name]["probe.color"], "red") << name;
    for (const char* call : {"allocate", "free", "create_stream", "destroy_stream", "copy", "launch", "synchronize"})
      EXPECT_TRUE(probe.calls[name].contains(call)) << name << " " << call;
  }
  EXPECT_EQ(probe.calls.size(), 2U);
}

TEST(PluginDevice, OneThatIsNotThereIsAnErrorWithThePluginsText) {
  Probe probe;
  probe.refused = "absent:7";
  plugin::register_device(probe.description("absent"));
  SessionOptions options;
  options.device = "absent:7";
  try {
    const Session session(two_groups(), options);
    FAIL() << "there is none";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "there is no device absent:7: it is not plugged in");
  }
  EXPECT_EQ(probe.alive, 0);
}

// A plugin that was built against an earlier version gives a smaller struct, and has one device.
TEST(PluginDevice, OlderPluginsRegister) {
  Probe probe;
  Probe::Made only{probe, "only", {}};
  treadle_device device = probe.description("older");
  device.size = offsetof(treadle_device, create_device);
  device.user = &only;
  plugin::register_device(device);
  SessionOptions options;
  options.device = "older:3";
  const Session session(two_groups(), options);
  const Datum y = session.run({{"x", Tensor::of<float>(Shape{3}, std::vector<float>{1, -2, 3})}})[0];
  EXPECT_EQ(y.tensor().data<float>()[0], 0);
  EXPECT_TRUE(probe.calls["only"].contains("launch"));
  EXPECT_EQ(probe.alive, 0);
}

TEST(PluginDevice, SizesOfNoVersionAndHalfADeviceAreErrors) {
  Probe probe;
  treadle_device device = probe.description("wrong");
  for (const size_t size : {size_t{8}, offsetof(treadle_device, create_device) - 8, sizeof(treadle_device) + 8}) {
    device.size = static_cast<uint32_t>(size);
    EXPECT_THROW(plugin::register_device(device), Error) << size;
  }
  device.size = sizeof(treadle_device);
  device.destroy_device = nullptr;
  EXPECT_THROW(plugin::register_device(device), Error);
}

}  // namespace
}  // namespace treadle
