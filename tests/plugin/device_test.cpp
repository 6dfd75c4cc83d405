// Tests what each callback of a plugin's device gets, using only treadle/plugin.h. A device that computes is tested by
// tests/python/test_device_plugin.py, with examples/device/tin.cpp.
#include "plugin/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "onnx/export.h"
#include "onnx/serialize.h"
#include "tests/exec/graphs.h"
#include "treadle/error.h"
#include "treadle/profile.h"
#include "treadle/profile_report.h"
#include "treadle/session.h"
#include "treadle/sharing.h"

namespace treadle {
namespace {

using testing::GraphBuilder;

/// A device that does its work as soon as the work is enqueued. Each callback records the device for which it was called.
struct Probe {
  struct Made {
    Probe& of;
    std::string name;
    std::map<std::string, std::string> entries;
  };
  std::mutex mutex;
  std::map<std::string, std::set<std::string>> calls;  // names of the callbacks that were called, by device
  std::map<std::string, std::map<std::string, std::string>> entries;
  std::string refused;
  const treadle_host* host = nullptr;
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
    self.host = host;
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

/// A device that reads the host's clock when an event is recorded.
struct ClockProbe {
  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  static treadle_device description(Probe& probe, const char* name) {
    treadle_device device = probe.description(name);
    device.create_event = [](void*) -> void* { return new int64_t(0); };
    device.destroy_event = [](void*, void* event) { delete static_cast<int64_t*>(event); };
    device.record_event = [](void*, void*, void* event) {
      *static_cast<int64_t*>(event) = now_ns();
      return 1;
    };
    device.event_time = [](void*, void* event) { return *static_cast<int64_t*>(event); };
    return device;
  }
  static Profile profile_on(const char* name) {
    SessionOptions options;
    options.device = name;
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    Session session(two_groups(), options);
    session.start_profiling();
    session.run({{"x", Tensor::of<float>(Shape{3}, std::vector<float>{1, -2, 3})}});
    return session.profile();
  }
  static size_t rows_of(const Profile& profile, std::string_view device, bool of_launches) {
    return static_cast<size_t>(std::count_if(profile.threads.begin(), profile.threads.end(), [&](const std::string& row) {
      return row.starts_with(std::string(device) + " compute ") && row.ends_with("(times of launches)") == of_launches;
    }));
  }
};

TEST(PluginDevice, ProfilesHaveTheTimesThatItTells) {
  Probe probe;
  plugin::register_device(ClockProbe::description(probe, "clock"));
  const Profile profile = ClockProbe::profile_on("clock");
  EXPECT_EQ(ClockProbe::rows_of(profile, "clock", false), 1U);
  EXPECT_EQ(ClockProbe::rows_of(profile, "clock", true), 0U);
  for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, 1) << node.name;
}

// A plugin of an earlier version still works, and the rows of a profile say that its times are those of launches.
TEST(PluginDevice, ProfilesSayThatTimesAreThoseOfLaunches) {
  Probe probe;
  treadle_device device = ClockProbe::description(probe, "earlier");
  device.size = offsetof(treadle_device, event_time);
  plugin::register_device(device);
  const Profile profile = ClockProbe::profile_on("earlier");
  EXPECT_EQ(ClockProbe::rows_of(profile, "earlier", true), 1U);
  EXPECT_EQ(ClockProbe::rows_of(profile, "earlier", false), 0U);
  EXPECT_NE(profile_to_table(report_profile(profile)).find("earlier compute 1 (times of launches): the device does not tell its own"),
            std::string::npos);
}

/// A device that counts copies to the host. Its kernel for Flatten copies the bytes of the operand.
struct CopyingProbe {
  static inline int copies_to_host = 0;
  static int repeat(void*, void*, const treadle_host*, const treadle_device_call* call) {
    std::memcpy(const_cast<void*>(call->outputs[0].data), call->inputs[0].data, 6 * sizeof(float));
    return 1;
  }
  static treadle_device description(Probe& probe) {
    static const treadle_device_kernel kernels[] = {
        {.op_type = "Relu", .domain = "", .dtype = TREADLE_FLOAT32, .takes = nullptr, .launch = Probe::launch_relu},
        {.op_type = "Flatten", .domain = "", .dtype = TREADLE_FLOAT32, .takes = nullptr, .launch = repeat}};
    treadle_device device = probe.description("copying");
    device.copy = [](void*, void*, void* to, const void* from, size_t bytes, int32_t kind) {
      if (kind == 1) ++copies_to_host;
      std::memcpy(to, from, bytes);
      return 1;
    };
    device.kernels = kernels;
    device.num_kernels = 2;
    return device;
  }
};

// Makes a model with an output, and two further outputs that are views of it.
Model with_views() {
  GraphBuilder builder;
  const ValueId y = builder.node("Relu", {builder.input("x", DType::float32, {Dim(3), Dim(2)})});
  const ValueId row = builder.node("Flatten", {y}), flat = builder.node("Flatten", {row});
  builder.output(y, "y");
  builder.output(row, "row");
  builder.output(flat, "flat");
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

TEST(PluginDevice, BytesOfSeveralOutputsCrossOnce) {
  Probe probe;
  plugin::register_device(CopyingProbe::description(probe));
  SessionOptions options;
  options.device = "copying";
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  const Session session(with_views(), options);
  for (int run = 0; run < 2; ++run) {
    CopyingProbe::copies_to_host = 0;
    const float sign = run == 0 ? 1 : -1;
    const auto outputs = session.run({{"x", Tensor::of<float>(Shape{3, 2}, std::vector<float>{sign, -2, 3, 4, -5, 6})}});
    EXPECT_EQ(CopyingProbe::copies_to_host, 1);
    const std::vector<float> expected{run == 0 ? 1.0F : 0.0F, 0, 3, 4, 0, 6};
    for (const Datum& output : outputs) {
      const auto* y = output.tensor().data<float>();
      EXPECT_EQ(std::vector<float>(y, y + 6), expected);
    }
    EXPECT_NE(outputs[0].tensor().raw(), outputs[1].tensor().raw()) << "each is the caller's own";
    EXPECT_NE(outputs[1].tensor().raw(), outputs[2].tensor().raw());
  }
}

// A device whose work can reach the host's memory. It checks that the addresses that it gets are of memory that it has allocated.
struct UnifiedProbe : Probe {
  size_t room = 0, reserved = 0, peak = 0, discarded = 0;
  size_t moved[3] = {0, 0, 0};
  int moves_left = INT_MAX;
  std::map<std::byte*, size_t> blocks;
  std::string problem;

  static UnifiedProbe& of(void* device) { return static_cast<UnifiedProbe&>(static_cast<Made*>(device)->of); }

  void expect_in_blocks(const char* what, void* data, size_t size_bytes) {
    auto* const begin = static_cast<std::byte*>(data);
    const auto after = blocks.upper_bound(begin);
    const bool is_in = after != blocks.begin() && begin + size_bytes <= std::prev(after)->first + std::prev(after)->second;
    if (!is_in) problem = std::string(what) + " of memory that is not there";
  }
  static void* take_addresses(void* device, size_t size_bytes) {
    void* memory = std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    std::lock_guard lock(of(device).mutex);
    of(device).blocks[static_cast<std::byte*>(memory)] = size_bytes;
    return memory;
  }
  static void give_addresses(void* device, void* memory, size_t size_bytes) {
    std::lock_guard lock(of(device).mutex);
    const auto found = of(device).blocks.find(static_cast<std::byte*>(memory));
    if (found == of(device).blocks.end() || found->second != size_bytes) return void(of(device).problem = "a block that is not there");
    of(device).blocks.erase(found);
    std::free(memory);
  }
  static int take_room(void* device, size_t size_bytes) {
    UnifiedProbe& self = of(device);
    std::lock_guard lock(self.mutex);
    if (size_bytes > self.room - self.reserved) return 0;
    self.reserved += size_bytes;
    self.peak = std::max(self.peak, self.reserved);
    return 1;
  }
  static void give_room(void* device, size_t size_bytes) {
    std::lock_guard lock(of(device).mutex);
    if (size_bytes > of(device).reserved) of(device).problem = "more given back than was taken";
    of(device).reserved -= size_bytes;
  }

  treadle_device description(const char* name) {
    static const treadle_device_kernel kernels[] = {
        {.op_type = "Add", .domain = "", .dtype = TREADLE_FLOAT32, .takes = nullptr, .launch = launch_add}};
    treadle_device device = Probe::description(name);
    device.kernels = kernels;
    device.allocate = [](void* user, size_t bytes) { return take_room(user, bytes) ? take_addresses(user, bytes) : nullptr; };
    device.free = [](void* user, void* memory, size_t bytes) { give_room(user, bytes), give_addresses(user, memory, bytes); };
    device.allocate_anywhere = take_addresses;
    device.free_anywhere = give_addresses;
    device.reserve = take_room;
    device.unreserve = give_room;
    device.discard = [](void* user, void* data, size_t bytes) {
      UnifiedProbe& self = of(user);
      std::lock_guard lock(self.mutex);
      self.expect_in_blocks("a discard", data, bytes);
      self.discarded += bytes;
      std::memset(data, 0xFF, bytes);
    };
    device.move = [](void* user, void*, void* data, size_t bytes, int32_t kind) {
      UnifiedProbe& self = of(user);
      std::lock_guard lock(self.mutex);
      if (self.moves_left-- <= 0) return self.host->fail("the bus is down"), 0;
      self.expect_in_blocks("a move", data, bytes);
      self.moved[kind] += bytes;
      return 1;
    };
    return device;
  }

  static int launch_add(void* user, void*, const treadle_host*, const treadle_device_call* call) {
    note(user, "launch");
    const auto *a = static_cast<const float*>(call->inputs[0].data), *b = static_cast<const float*>(call->inputs[1].data);
    auto* y = static_cast<float*>(const_cast<void*>(call->outputs[0].data));
    for (int64_t i = 0; i < call->outputs[0].dims[0]; ++i) y[i] = a[i] + b[call->inputs[1].dims[0] == 1 ? 0 : i];
    return 1;
  }
};

constexpr int64_t kElements = 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);
constexpr int kLinks = 6;

Tensor counted(float from) {
  Tensor x(DType::float32, Shape{kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = from + static_cast<float>(i % 64);
  return x;
}

// Makes v0 = x + 1, v1 = v0 + 1, …, and y, the sum of all these and of a constant, added from the last to the first.
Model there_and_back() {
  GraphBuilder builder;
  ValueId last = builder.input("x", DType::float32, {Dim(kElements)});
  const ValueId one = builder.constant("one", Tensor::of<float>(Shape{1}, std::vector<float>{1}));
  const ValueId weights = builder.constant("weights", counted(0));
  std::vector<ValueId> links;
  for (int i = 0; i < kLinks; ++i) links.push_back(last = builder.node("Add", {last, one}));
  for (int i = kLinks - 1; i-- > 0;) last = builder.node("Add", {last, links[static_cast<size_t>(i)]});
  builder.output(builder.node("Add", {last, weights}), "y");
  const std::string bytes = onnx::serialize_model(onnx::export_model(*builder.finish()));
  return Model::from_bytes(std::as_bytes(std::span(bytes)));
}

// All numbers are whole, so float32 is exact.
float expected_of(const Tensor& x, int64_t i) {
  return static_cast<float>(kLinks) * x.data<float>()[i] + static_cast<float>(kLinks * (kLinks + 1) / 2) + counted(0).data<float>()[i];
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

struct Case {
  size_t room_values;   // the size of the device's memory, as a number of values
  size_t limit_values;  // the session's limit, as a number of values; 0: no limit
  size_t job_values;    // the job's limit for its devices, as a number of values; 0: no job
  bool in_files;        // true if the job's limit for host memory is nearly 0, so that values are written to files
};

// Makes a chain of values, which later nodes read again in reverse order.
TEST(PluginDevice, ABusIsToldWhatMovesAndItsMemoryIsNeverOverfull) {
  for (const Case& c : {Case{1000, 0, 0, false}, Case{4, 0, 0, false}, Case{1, 0, 0, false}, Case{0, 0, 0, false}, Case{1000, 4, 0, false},
                        Case{5, 4, 0, false}, Case{1000, 0, 4, false}, Case{4, 0, 3, true}}) {
    SCOPED_TRACE(std::to_string(c.room_values) + " " + std::to_string(c.limit_values) + " " + std::to_string(c.job_values));
    UnifiedProbe probe;
    probe.room = c.room_values * kValueBytes;
    plugin::register_device(probe.description("unified"));
    {
      SessionOptions options;
      options.device = "unified";
      options.memory_limit_bytes = c.limit_values * kValueBytes;
      options.graph_optimization_level = GraphOptimizationLevel::disable_all;
      if (c.job_values > 0)
        options.job = std::make_shared<Job>(JobOptions{.name = "unified", .memory_limit_bytes = c.job_values * kValueBytes});
      if (c.in_files) options.job->set_host_limit(2 * kValueBytes);
      const Session session(there_and_back(), options);
      for (int run = 0; run < 3; ++run) {
        const Tensor x = counted(static_cast<float>(run));
        const Datum y = session.run({{"x", x}})[0];
        for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(y.tensor().data<float>()[i], expected_of(x, i)) << run;
      }
      EXPECT_LE(probe.peak, probe.room);
      const size_t limit = c.limit_values + c.job_values > 0 ? c.limit_values + c.job_values : SIZE_MAX;
      EXPECT_LE(probe.peak / kValueBytes, limit);
      EXPECT_EQ(probe.moved[0] > 0, c.room_values > 0 && std::min(c.room_values, limit) < 10);
      EXPECT_EQ(probe.moved[1] > 0, c.room_values > 1 && std::min(c.room_values, limit) < 10) << "written values go";
      EXPECT_EQ(probe.discarded > 0, c.in_files);
    }
    EXPECT_EQ(probe.problem, "");
    EXPECT_EQ(probe.reserved, 0U);
    EXPECT_TRUE(probe.blocks.empty());
    EXPECT_EQ(probe.alive, 0);
  }
}

TEST(PluginDevice, AMoveThatFailsIsTheRunsErrorWithThePluginsText) {
  UnifiedProbe probe;
  probe.room = 4 * kValueBytes;
  probe.moves_left = 3;
  plugin::register_device(probe.description("unified"));
  {
    SessionOptions options;
    options.device = "unified";
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    const Session session(there_and_back(), options);
    try {
      session.run({{"x", counted(0)}});
      FAIL() << "a move failed";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the device unified failed to move memory: the bus is down"), std::string::npos)
          << error.what();
    }
    probe.moves_left = INT_MAX;
    EXPECT_EQ(session.run({{"x", counted(0)}})[0].tensor().data<float>()[1], expected_of(counted(0), 1));
  }
  EXPECT_EQ(probe.problem, "");
  EXPECT_EQ(probe.reserved, 0U);
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
  device = UnifiedProbe().description("wrong");
  device.reserve = nullptr;
  EXPECT_THROW(plugin::register_device(device), Error);
}

}  // namespace
}  // namespace treadle
