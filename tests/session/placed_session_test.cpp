// Tests sessions on a device.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "device/sim/sim_device.h"
#include "tests/session/faults.h"
#include "tests/session/model_bytes.h"
#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

/// Makes a model whose output is y = x * x if c is true, else x + x.
std::string branches() {
  auto branch = [](const char* op) {
    return graph({.nodes = {node(op, {"x", "x"}, {"t"})}, .outputs = {value_info("t", kFloat, {"n"})}}, op);
  };
  return model(graph(
      {.nodes = {node("If", {"c"}, {"y"}, {graph_attribute("then_branch", branch("Mul")), graph_attribute("else_branch", branch("Add"))}),
                 node("Neg", {"y"}, {"z"})},
       .inputs = {value_info("c", kBool, {}), value_info("x", kFloat, {"n"})},
       .outputs = {value_info("y", kFloat, {"n"}), value_info("z", kFloat, {"n"})}}));
}

Session make_session(const std::string& device) {
  SessionOptions options;
  options.config["treadle.device"] = device;
  return Session(Model::from_bytes(onnx::test::bytes_of(branches())), options);
}

TEST(PlacedSession, GivesWhatTheHostGives) {
  for (const char* device : {"cpu", "sim"}) {
    Session session = make_session(device);
    for (bool c : {true, false})
      for (int64_t n : {1, 3, 4}) {
        Tensor x(DType::float32, {n});
        for (float& value : x.span<float>()) value = 3;
        auto outputs = session.run({{"c", Tensor::scalar(c)}, {"x", x}});
        ASSERT_EQ(outputs[0].tensor().shape(), (Shape{n}));
        for (float value : outputs[0].tensor().span<float>()) EXPECT_EQ(value, c ? 9 : 6);
        for (float value : outputs[1].tensor().span<float>()) EXPECT_EQ(value, c ? -9 : -6);
      }
    EXPECT_THROW(session.run({{"c", Tensor::scalar(true)}}), Error);
  }
}

// Makes y = x * of_branch if c is true, otherwise x + x. An input that is only read by the branch that is not taken need not be fed.
TEST(PlacedSession, AnInputOfABranchThatIsNotTakenMayBeLeftOut) {
  auto branch = [](const char* op, const char* second) {
    return graph({.nodes = {node(op, {"x", second}, {"t"})}, .outputs = {value_info("t", kFloat, {int64_t{2}})}}, op);
  };
  const std::string bytes = model(graph(
      {.nodes = {node("If", {"c"}, {"y"},
                      {graph_attribute("then_branch", branch("Mul", "of_branch")), graph_attribute("else_branch", branch("Add", "x"))})},
       .inputs = {value_info("c", kBool, {}), value_info("x", kFloat, {int64_t{2}}), value_info("of_branch", kFloat, {int64_t{2}})},
       .outputs = {value_info("y", kFloat, {int64_t{2}})}}));
  Tensor x(DType::float32, {2});
  for (float& value : x.span<float>()) value = 3;
  for (const char* device : {"cpu", "sim"}) {
    SessionOptions options;
    options.config["treadle.device"] = device;
    Session session(Model::from_bytes(onnx::test::bytes_of(bytes)), options);
    EXPECT_EQ(session.run({{"c", Tensor::scalar(false)}, {"x", x}})[0].tensor().data<float>()[1], 6);
    try {
      session.run({{"c", Tensor::scalar(true)}, {"x", x}});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("\"of_branch\" is missing"), std::string::npos) << error.what();
    }
  }
}

TEST(PlacedSession, RunsOfSeveralThreadsAreUnderWayAtOnce) {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {4}).output("y", {4}).node("Step", {"x"}, {"y"}, "", "test.fault");
  SessionOptions options;
  options.config["treadle.device"] = "sim";
  const Session session(b.model(), options);
  auto run = [&](float value) {
    Tensor x(DType::float32, {4});
    for (float& element : x.span<float>()) element = value;
    return session.run({{"x", x}})[0].tensor().data<float>()[3];
  };
  std::promise<void> begun;
  Gate gate;
  set_fault(0, [&] {
    begun.set_value();
    gate.wait();
  });
  std::future<float> held = std::async(std::launch::async, run, 1.0F);
  begun.get_future().wait();
  std::future<float> beside = std::async(std::launch::async, run, 5.0F);
  const bool ended = beside.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  gate.open();
  EXPECT_TRUE(ended) << "it waited for a run that was in a kernel";
  EXPECT_EQ(beside.get(), 6);
  EXPECT_EQ(held.get(), 2);
}

TEST(PlacedSession, WritesBoundOutputs) {
  Session session = make_session("sim");
  Tensor x = Tensor::scalar(3.0F).reshaped({1}), y(DType::float32, {1});
  IoBinding binding(session);
  binding.bind_input("c", Tensor::scalar(true));
  binding.bind_input("x", x);
  binding.bind_output("y", y);
  session.run(binding);
  EXPECT_EQ(y.data<float>()[0], 9);
}

// Makes a model that computes eight values and adds them up in reverse order. Its weights do not all fit into the device's memory at the
// same time.
ModelBuilder there_and_back() {
  ModelBuilder b;
  b.input("x", {64, 64}).output("y", {64, 64});
  std::string last = "x";
  for (int i = 0; i < 8; ++i) {
    Tensor weight(DType::float32, {64, 64});
    for (int64_t k = 0; k < 64 * 64; ++k) weight.data<float>()[k] = static_cast<float>((k * 7 + i) % 19 - 9) / 64;
    const std::string n = std::to_string(i);
    b.constant("w" + n, weight).node("MatMul", {last, "w" + n}, {"v" + n});
    last = "v" + n;
  }
  for (int i = 7; i-- > 0;) {
    const std::string next = i == 0 ? "y" : "s" + std::to_string(i);
    b.node("Add", {last, "v" + std::to_string(i)}, {next});
    last = next;
  }
  return b;
}

constexpr size_t kValueBytes = size_t{64} * 64 * 4;

Tensor there_and_back_input() {
  Tensor x(DType::float32, {64, 64});
  for (int64_t k = 0; k < 64 * 64; ++k) x.data<float>()[k] = static_cast<float>(k % 100) / 7;
  return x;
}

SessionOptions limited_on_sim(const std::string& name, size_t limit_bytes) {
  SessionOptions options;
  options.config["treadle.device"] = "sim:" + name;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;  // otherwise one node would compute all sums, and use all values
  options.memory_limit_bytes = limit_bytes;
  return options;
}

TEST(PlacedSession, KeepsToALimitOnTheDevicesMemory) {
  const Model built = there_and_back().model();
  const Tensor x = there_and_back_input();
  const std::vector<float> expected = values_of(Session(built).run({{"x", x}})[0]);

  const SessionOptions options = limited_on_sim("limited", 1000);
  const auto device = SimDevice::shared("limited");
  size_t least = 0;
  {
    Session session(built, options);
    try {
      session.run({{"x", x}});
      FAIL() << "no node fits";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
      const std::string message = error.what(), before = "needs at least ";
      EXPECT_NE(message.find("the memory limit of 1000 bytes of the session on its devices is too low: this run needs"), std::string::npos)
          << message;
      least = static_cast<size_t>(std::stoull(message.substr(message.find(before) + before.size())));
    }
    EXPECT_EQ(device->peak_bytes(), 0U) << "the error comes before anything is on the device";
    EXPECT_GE(least, 3 * kValueBytes);
    // The limits ascend, so that the device's peak is that of the last run.
    for (size_t limit : {least, least + kValueBytes / 2, 5 * kValueBytes, 12 * kValueBytes}) {
      session.set_memory_limit(limit);
      EXPECT_EQ(values_of(session.run({{"x", x}})[0]), expected) << limit;
      EXPECT_LE(device->peak_bytes(), limit);
      EXPECT_GT(device->peak_bytes(), limit / 2);
    }
    session.set_memory_limit(4 * kValueBytes);
    EXPECT_LE(device->allocated_bytes(), 4 * kValueBytes) << "weights that wait for the next run are moved out at once";
    // Another program of the session moves values out of the device that the runs of this program have left there.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(session.run({{"x", x}}, std::vector<std::string>{"v7"}).size(), 1U);
      EXPECT_EQ(values_of(session.run({{"x", x}})[0]), expected);
      EXPECT_LE(device->allocated_bytes(), 4 * kValueBytes);
    }
    session.set_memory_limit(least - 1);
    EXPECT_THROW(session.run({{"x", x}}), Error);
    session.set_memory_limit(0);
    EXPECT_EQ(values_of(session.run({{"x", x}})[0]), expected);
  }
  EXPECT_EQ(device->allocated_bytes(), 0U);
}

// Two threads run different programs. Each program moves the values of the other out of the device.
TEST(PlacedSession, ProgramsUnderOneLimitGiveWayToEachOther) {
  const Model built = there_and_back().model();
  const Tensor x = there_and_back_input();
  constexpr size_t kLimit = 5 * kValueBytes;
  const auto device = SimDevice::shared("both");
  const Session session(built, limited_on_sim("both", kLimit)), without_limit(built);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (const char* output : {"y", "v7"})
    threads.emplace_back([&, output] {
      const std::vector<std::string> outputs{output};
      const std::vector<float> expected = values_of(without_limit.run({{"x", x}}, outputs)[0]);
      for (int i = 0; i < 10; ++i)
        if (values_of(session.run({{"x", x}}, outputs)[0]) != expected) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(device->peak_bytes(), kLimit);
  EXPECT_GT(device->peak_bytes(), kLimit / 2);
}

/// Makes y = (x + x) w, in which each node is in a group; then a Cast without a group, and a Cast to strings, which only the host supports.
std::string grouped() {
  auto in_group = [](const std::string& encoded, const std::string& key, const std::string& group) {
    return encoded + message([&](Writer& w) {
             w.add_message(9, message([&](Writer& entry) {
                             entry.add_string(1, key);
                             entry.add_string(2, group);
                           }));
           });
  };
  return model(graph(
      {.nodes = {in_group(node("Add", {"x", "x"}, {"s"}), "ctx_group", "left"),
                 in_group(node("MatMul", {"s", "w"}, {"p"}), "__ctx_group__", "right"),
                 node("Cast", {"p"}, {"y"}, {int_attribute("to", kInt64)}), node("Cast", {"p"}, {"t"}, {int_attribute("to", kString)})},
       .inputs = {value_info("x", kFloat, {"n", 2}), value_info("w", kFloat, {2, 2})},
       .outputs = {value_info("y", kInt64, {"n", 2}), value_info("t", kString, {"n", 2})}}));
}

TEST(PlacedSession, GroupsGoToTheirDevicesAndStringsStayOnTheHost) {
  for (int streams : {1, 2}) {
    SessionOptions options;
    set_option(options, "group2ctx", "left=sim:0;right=sim:1");
    set_option(options, "compute_streams", std::to_string(streams));
    options.config["treadle.sim.max_delay_us"] = "30";
    Session session(Model::from_bytes(onnx::test::bytes_of(grouped())), options);
    if (streams == 2) session.start_profiling();
    const std::string plan = session.to_text("planned");
    EXPECT_NE(plan.find("copy %s on sim:0 -> %s on sim:1"), std::string::npos) << plan;
    EXPECT_NE(plan.find("sim:1 compute"), std::string::npos) << plan;
    Tensor w(DType::float32, {2, 2});
    for (int i = 0; i < 4; ++i) w.data<float>()[i] = static_cast<float>(i);
    for (int64_t n : {1, 3, 3, 2}) {
      Tensor x(DType::float32, {n, 2});
      for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = static_cast<float>(i);
      auto outputs = session.run({{"x", x}, {"w", w}});
      for (int64_t row = 0; row < n; ++row) {
        const int64_t a = 2 * (2 * row), b = 2 * (2 * row + 1);
        EXPECT_EQ(outputs[0].tensor().data<int64_t>()[2 * row], 2 * b);
        EXPECT_EQ(outputs[0].tensor().data<int64_t>()[2 * row + 1], a + 3 * b);
        EXPECT_EQ(outputs[1].tensor().data<std::string>()[2 * row], std::to_string(2 * b));
      }
    }
  }
}

TEST(PlacedSession, AGroupThatNoNodeHasIsNamedWithTheNearest) {
  const auto message = [](const std::string& model, const std::map<std::string, std::string>& groups) -> std::string {
    SessionOptions options;
    options.group2ctx = groups;
    try {
      Session session(Model::from_bytes(onnx::test::bytes_of(model)), options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      return error.what();
    }
    return {};
  };
  for (const char* device : {"sim:0", "cpu"}) {
    EXPECT_EQ(message(grouped(), {{"left", device}, {"right", "cpu"}}), "");
    const std::string found = message(grouped(), {{"left", "sim:0"}, {"rigth", device}});
    for (const char* word : {"group2ctx", "\"rigth\"", "is it right"}) EXPECT_NE(found.find(word), std::string::npos) << found;
  }
  const std::string without = model(graph(
      {.nodes = {node("Relu", {"x"}, {"y"})}, .inputs = {value_info("x", kFloat, {"n"})}, .outputs = {value_info("y", kFloat, {"n"})}}));
  EXPECT_NE(message(without, {{"left", "sim:0"}}).find("no node has one"), std::string::npos);
}

TEST(PlacedSession, MonitorsSeeEveryNodeOnItsDevice) {
  SessionOptions options;
  options.device = "sim:0";
  options.argument_devices["w"] = "sim:1";
  Session session(Model::from_bytes(onnx::test::bytes_of(grouped())), options);
  std::map<std::string, float> seen;
  session.set_monitor({.callback = [&](const MonitorEvent& event) {
    if (event.datum.is_tensor() && event.datum.tensor().dtype() == DType::float32)
      seen[std::string(event.value)] = event.datum.tensor().data<float>()[1];
  }});
  Tensor x(DType::float32, {1, 2}), w(DType::float32, {2, 2});
  for (int i = 0; i < 2; ++i) x.data<float>()[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 4; ++i) w.data<float>()[i] = static_cast<float>(i);
  session.run({{"x", x}, {"w", w}});
  EXPECT_EQ(seen.at("s"), 4);
  EXPECT_EQ(seen.at("p"), 2 * 1 + 4 * 3);
}

TEST(PlacedSession, ArgumentsThatTheModelLacksAreAnError) {
  for (const char* name : {"ww", "p"}) {  // the name is neither in the model nor computed
    SessionOptions options;
    options.device = "sim:0";
    options.argument_devices[name] = "sim:1";
    try {
      Session session(Model::from_bytes(onnx::test::bytes_of(grouped())), options);
      FAIL() << name << " was ignored";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("argument_devices"), std::string::npos) << message;
      EXPECT_NE(message.find("\"" + std::string(name) + "\"; is it "), std::string::npos) << message;
    }
  }
}

// With a limit on the device's memory, runs of a session take turns, whether they are of the same program or of different ones.
TEST(PlacedSession, ARunThatWaitsForItsTurnCanBeCancelled) {
  register_fault_operators();
  for (const std::string other : {"y", "z"}) {
    ModelBuilder b;
    b.def().opset_imports.push_back({"test.fault", 1});
    b.input("x", {-1}).output("y", {-1}).node("Step", {"x"}, {"y"}, "step", "test.fault");
    onnx::AttributeDef id;
    id.name = "id";
    id.type = onnx::AttributeType::i;
    b.last_node().attributes.push_back(std::move(id));
    b.output("z", {-1}).node("Neg", {"x"}, {"z"});
    SessionOptions options;
    options.device = "sim:turns";
    options.memory_limit_bytes = size_t{1} << 20;
    Session session(b.model(), options);
    Gate reached, gate;
    set_fault(0, [&] {
      reached.open();
      gate.wait();
    });
    RunOptions first, second;
    auto run = [&](const RunOptions& run_options, const std::string& output) {
      return std::async(std::launch::async, [&, output] {
        return session.run({{"x", floats({1, 2})}}, std::vector<std::string>{output}, &run_options);
      });
    };
    auto hanging = run(first, "y");
    reached.wait();
    auto waiting = run(second, other);
    while (session.runs_in_flight() < 2) std::this_thread::yield();
    second.terminate = true;
    EXPECT_EQ(waiting.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "it waits for the other run";
    gate.open();
    try {
      waiting.get();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::cancelled);
    }
    EXPECT_EQ(values_of(hanging.get()[0]), (std::vector<float>{2, 3}));
  }
}

TEST(PlacedSession, ADeviceThatIsNotThereIsNamed) {
  try {
    make_session("abacus");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("abacus"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("sim"), std::string::npos);
  }
}

}  // namespace
}  // namespace treadle::testing
