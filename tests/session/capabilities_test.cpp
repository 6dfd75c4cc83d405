// Tests each capability with every kind of client and on every schedule. If a capability is missing on a schedule, all clients must refuse
// it with the same message.
#include "tests/session/capabilities.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

#include "sharing/turn.h"
#include "tests/sharing/jobs.h"

namespace treadle::testing {
namespace {

namespace fs = std::filesystem;

INSTANTIATE_TEST_SUITE_P(All, Capabilities, ::testing::Combine(::testing::ValuesIn(kSchedules), ::testing::ValuesIn(kWays)), name_of_case);

TEST_P(Capabilities, ExtentsMayDifferFromRunToRun) {
  for (int64_t count : {3, 1, 8, 3}) expect_right(nullptr, count);
}

TEST_P(Capabilities, ErrorsNameTheNode) {
  for (int kind = 0; kind < 3; ++kind) {
    set_fault(0, [kind] {
      if (kind == 0) throw Error(ErrorCode::invalid_argument, "a fault");
      if (kind == 1) throw std::runtime_error("a fault");
      throw std::bad_alloc();
    });
    const Error error = failure();
    EXPECT_NE(std::string(error.what()).find("\"step\""), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(kind < 2 ? "a fault" : "out of memory"), std::string::npos) << error.what();
    expect_right();
  }
}

TEST_P(Capabilities, RunsAreCancelled) {
  {
    RunOptions run;
    run.terminate = true;
    EXPECT_EQ(failure(&run).code(), ErrorCode::cancelled);
  }
  {
    RunOptions run;
    run.cancel_token.emplace();
    set_fault(0, [&] { run.cancel_token->cancel(); });
    EXPECT_EQ(failure(&run).code(), ErrorCode::cancelled);
  }
  expect_right();
}

TEST_P(Capabilities, RunsEndAtTheirDeadline) {
  RunOptions run;
  run.deadline_ms = 30;
  set_fault(0, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
  const Error late = failure(&run);
  EXPECT_EQ(late.code(), ErrorCode::timed_out) << late.what();
  // The run may still be under way after its caller has left, and later ones wait for it.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // A node waits at a gate, so the caller returns at the deadline while the node still computes. On a busy machine, the deadline may pass
  // before the node begins. The loop then tries a longer one.
  bool begun = false;
  for (run.deadline_ms = 200; !begun && run.deadline_ms <= 60'000; run.deadline_ms *= 4) {
    auto gate = std::make_shared<Gate>();
    set_fault(0, [gate] { gate->wait(); });
    const Error left = failure(&run);
    EXPECT_EQ(left.code(), ErrorCode::timed_out) << left.what();
    begun = gate->reached();
    EXPECT_TRUE(!begun || std::string(left.what()).find("\"step\"") != std::string::npos) << left.what();
    gate->open();
  }
  EXPECT_TRUE(begun);
  run.deadline_ms = 60'000;
  expect_right(&run);
}

TEST_P(Capabilities, ValuesAreChecked) {
  RunOptions run;
  run.check_finite = FiniteCheck::nan;
  expect_right(&run);
  Tensor x = rows(2);
  x.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  try {
    client().run(x, &run);
    FAIL() << "NaN got through";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("multiply"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[1,1]"), std::string::npos) << error.what();
  }
}

TEST_P(Capabilities, ValuesAreDumped) {
  const fs::path folder = fs::path(::testing::TempDir()) / "treadle_capabilities_dump";
  fs::remove_all(folder);
  RunOptions run;
  run.dump_folder = folder.string();
  run.dump_pattern = "multiply*";
  expect_right(&run);
  size_t inputs = 0, outputs = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    inputs += file.path().filename().string().find("_multiply_in") != std::string::npos;
    outputs += file.path().filename().string().find("_multiply_out0") != std::string::npos;
  }
  EXPECT_EQ(inputs, 2U);
  EXPECT_EQ(outputs, 1U);
  fs::remove_all(folder);
}

TEST_P(Capabilities, MetadataSayWhenAndInWhatMemoryNodesRan) {
  options_.allocator = std::make_shared<FaultyAllocator>();
  RunOptions run;
  std::vector<RunMetadata> all;
  run.on_metadata = [&](const RunMetadata& metadata) { all.push_back(metadata); };
  expect_right(&run);
  ASSERT_EQ(all.size(), 1U);
  bool found = false;
  int64_t end_of_step = INT64_MAX;
  for (const NodeStatistics& node : all[0].nodes) {
    if (node.name == "step") end_of_step = node.end_ns;
    if (node.name == "negate") {
      EXPECT_GE(node.scheduled_ns, end_of_step) << "its operand was not there before";
    }
    EXPECT_LE(node.scheduled_ns, node.start_ns);
    EXPECT_LE(node.start_ns, node.end_ns);
    EXPECT_LE(node.end_ns, all[0].duration_ns);
    if (node.name != "step") continue;
    found = true;
    EXPECT_EQ(node.output_bytes, 3U * 4 * 4);
    ASSERT_EQ(node.memory.size(), 1U);
    EXPECT_EQ(node.memory[0].bytes, node.output_bytes);
    EXPECT_EQ(node.memory[0].allocator, "faulty");
    EXPECT_EQ(node.memory[0].device.starts_with("sim"), on_device()) << node.memory[0].device;
  }
  EXPECT_TRUE(found);
}

TEST_P(Capabilities, MetadataTellWaitingFromRunning) {
  if (!options_.job) GTEST_SKIP() << "a node that may run runs at once";
  RunOptions run;
  std::vector<RunMetadata> all;
  run.on_metadata = [&](const RunMetadata& metadata) { all.push_back(metadata); };
  expect_right();
  constexpr auto kPause = std::chrono::milliseconds(20);
  std::thread resuming;
  set_fault(0, [&] {
    options_.job->suspend();
    resuming = std::thread([&] {
      EXPECT_TRUE(eventually([&] { return options_.job->status().active == 0; })) << "the next node waits for its turn";
      std::this_thread::sleep_for(kPause);
      options_.job->resume();
    });
  });
  expect_right(&run);
  resuming.join();
  ASSERT_EQ(all.size(), 1U);
  int64_t longest = 0;
  for (const NodeStatistics& node : all[0].nodes) longest = std::max(longest, node.start_ns - node.scheduled_ns);
  EXPECT_GE(longest, std::chrono::nanoseconds(kPause).count() / 2);
}

TEST_P(Capabilities, RunsAreRecorded) {
  options_.enable_profiling = true;
  options_.profile_file_prefix = ::testing::TempDir() + "treadle_capabilities_";
  expect_right();
  const std::string path = client().end_profiling();
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  // Trace files of sessions use ONNX Runtime's names, and those of modules and trainers use PyTorch's.
  EXPECT_TRUE(text.find("Step step") != std::string::npos || text.find("step_kernel_time") != std::string::npos) << text;
  EXPECT_TRUE(text.find("ProfilerStep#0") != std::string::npos || text.find("model_run") != std::string::npos);
  fs::remove(path);
}

TEST_P(Capabilities, HooksStandAroundRuns) {
  int before = 0, after = 0;
  const HookId ids[] = {register_hook(HookPoint::pre_run, 0, [&](const HookedRun&) { ++before; }),
                        register_hook(HookPoint::post_run, 0, [&](const HookedRun&) { ++after; })};
  expect_right();
  for (HookId id : ids) unregister_hook(id);
  EXPECT_GE(before, 1);
  EXPECT_EQ(before, after);
}

TEST_P(Capabilities, MemoryComesFromTheAllocator) {
  auto allocator = std::make_shared<FaultyAllocator>();
  options_.allocator = allocator;
  expect_right();
  EXPECT_GT(allocator->live(), 0);
  client_.reset();
  EXPECT_EQ(allocator->live(), 0);
}

TEST_P(Capabilities, OutputsComeToLieOnADevice) {
  RunOptions run;
  run.output_devices["y"] = "sim";
  if (trains()) {
    EXPECT_NE(std::string(failure(&run).what()).find("training has no output_devices"), std::string::npos);
    return;
  }
  expect_right(&run);
  EXPECT_EQ(client().device, "sim");
  expect_right();
  EXPECT_EQ(client().device, "cpu");
}

TEST_P(Capabilities, OutputsComeFromTheirAllocator) {
  auto allocator = std::make_shared<FaultyAllocator>();
  if (trains()) {
    RunOptions run;
    run.output_allocators["y"] = allocator;
    EXPECT_NE(std::string(failure(&run).what()).find("training has no output_allocators"), std::string::npos);
    return;
  }
  {
    RunOptions run;
    run.output_allocators["y"] = allocator;
    int64_t most = 0;
    set_fault(0, [&] { most = allocator->live(); });
    expect_right(&run);
    EXPECT_GE(most, 1) << "before its node runs";
  }
  EXPECT_EQ(allocator->live(), 0);
}

TEST_P(Capabilities, NamesThatMeanNothingAreErrors) {
  auto expect_message = [&](const RunOptions* run, std::initializer_list<const char*> parts) {
    const Error error = failure(run);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    for (const char* part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  };
  if (!trains()) {
    RunOptions allocated, placed, aimed;
    allocated.output_allocators["yy"] = std::make_shared<FaultyAllocator>();
    expect_message(&allocated, {"output_allocators", "\"yy\"", "is it y"});
    placed.output_devices["sum"] = "sim";  // the run does not return this value
    expect_message(&placed, {"output_devices", "\"sum\"", "is it y"});
    aimed.targets = {"produkt"};
    expect_message(&aimed, {"\"produkt\"", "is it product"});
  }
  RunOptions dumped;
  dumped.dump_folder = ::testing::TempDir() + "treadle_capabilities_no_dump";
  dumped.dump_pattern = "multiplx";
  expect_message(&dumped, {"dump_pattern", "\"multiplx\"", "is it multiply"});
  EXPECT_FALSE(fs::exists(dumped.dump_folder));
  client().set_monitor({.callback = [](const MonitorEvent&) {}, .pattern = "produc"});
  expect_message(nullptr, {"monitor", "\"produc\"", "is it product"});
  client().set_monitor({});
  expect_right();
}

TEST_P(Capabilities, OutputsInBoundMemoryHaveNoOtherPlace) {
  if (!is_way("bound")) GTEST_SKIP() << "binds no memory";
  IoBinding binding(*client().session());
  Tensor y(DType::float32, {3, 4});
  binding.bind_input("x", rows(3));
  binding.bind_output("y", y);
  for (const bool on_device : {false, true}) {
    RunOptions run;
    if (on_device)
      run.output_devices["y"] = "sim";
    else
      run.output_allocators["y"] = std::make_shared<FaultyAllocator>();
    try {
      client().session()->run(binding, &run);
      FAIL() << "the option was ignored";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\"y\" is bound to memory"), std::string::npos) << error.what();
    }
  }
  client().session()->run(binding);
  EXPECT_EQ(floats(y).size(), 12U);
}

TEST_P(Capabilities, DenormalsAreZeroWhereAsked) {
  options_.set_denormal_as_zero = true;
  Tensor x = rows(1);
  std::fill_n(x.data<float>(), 4, 1e-39F);
  Tensor zeros(DType::float32, {1, 4});
  std::fill_n(zeros.data<float>(), 4, 0.0F);
  std::atomic<bool> kept{false};
  set_fault(0, [&] {
    volatile float small = 1e-39F;
    kept = small * 1.0F != 0;
  });
  client().run(x, nullptr);
  EXPECT_FALSE(kept);
}

TEST_P(Capabilities, AJobKnowsOfItsRuns) {
  if (!options_.job) GTEST_SKIP() << "not in a job";
  expect_right();
  EXPECT_GT(options_.job->status().runs, 0U);
  options_.job->suspend();
  RunOptions run;
  run.deadline_ms = 30;
  EXPECT_EQ(failure(&run).code(), ErrorCode::timed_out) << "a suspended job does not go on";
  options_.job->resume();
  expect_right();
}

// Each node takes 20 ms, and the job's share is half of the machine.
TEST_P(Capabilities, AJobKeepsToItsShare) {
  if (!options_.job) GTEST_SKIP() << "not in a job";
  expect_right();
  options_.job->set_share(50);
  EXPECT_EQ(options_.job->status().idle_ns, 0U);
  set_fault(0, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  expect_right();
  EXPECT_GE(options_.job->status().idle_ns, 15'000'000U) << "before the next node";
}

TEST_P(Capabilities, AJobGivesWay) {
  if (!options_.job) GTEST_SKIP() << "not in a job";
  options_.job = std::make_shared<Job>(JobOptions{.name = "second", .job_class = JobClass::opportunistic});
  expect_right();
  Job guaranteed(JobOptions{.name = "first"});
  std::thread other;
  std::promise<void> begun;
  const uint64_t before = options_.job->status().gave_way_ns;
  set_fault(0, [&] {
    other = std::thread([&] {
      const sharing::Interruption none{[](const void*) {}, nullptr};
      sharing::Turn turn(guaranteed.state().get(), nullptr, 0, none);
      begun.set_value();
      EXPECT_TRUE(eventually([&] { return options_.job->status().active == 0; }));
    });
    begun.get_future().wait();
  });
  expect_right();
  other.join();
  EXPECT_GT(options_.job->status().gave_way_ns, before);
}

TEST_P(Capabilities, MemoryLimitsAreKept) {
  options_.memory_limit_bytes = size_t{1} << 20;
  expect_right();
  client().set_memory_limit(1);
  const Error error = failure(nullptr, 64);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted) << error.what();
  client().set_memory_limit(size_t{1} << 20);
  expect_right(nullptr, 64);
}

TEST_P(Capabilities, NodesAreCounted) {
  auto of_step = [&] {
    for (const NodeCounter& counter : client().node_counters())
      if (counter.name == "step") return counter;
    ADD_FAILURE() << "no counter of the node";
    return NodeCounter{};
  };
  options_.node_counters = true;
  for (int64_t count : {3, 5, 3}) expect_right(nullptr, count);
  EXPECT_EQ(of_step().calls, 3);
  client().reset_node_counters();
  EXPECT_EQ(of_step().calls, 0);
  set_fault(0, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  RunOptions with_deadline;
  with_deadline.deadline_ms = 60'000;
  const auto start = std::chrono::steady_clock::now();
  expect_right(&with_deadline);
  const double wall_ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  const NodeCounter slow = of_step();
  EXPECT_EQ(slow.calls, 1);
  EXPECT_GE(slow.total_ns, 19e6);
  EXPECT_LE(slow.total_ns, 1.05 * wall_ns);
  ASSERT_EQ(slow.histogram.size(), 1U);
  EXPECT_LE(slow.histogram[0].low_ns, slow.total_ns);
  EXPECT_GT(slow.histogram[0].high_ns, slow.total_ns);
  EXPECT_GE(slow.quantile_ns(0.5), slow.histogram[0].low_ns);
}

TEST_P(Capabilities, CountersThatNobodyAskedForAreAnError) {
  expect_right();
  EXPECT_THROW(client().node_counters(), Error);
  EXPECT_THROW(client().reset_node_counters(), Error);
}

TEST_P(Capabilities, TargetsAreComputed) {
  RunOptions run;
  run.targets = {"product"};
  if (trains()) {
    EXPECT_NE(std::string(failure(&run).what()).find("training has no targets"), std::string::npos);
    return;
  }
  expect_right(&run);
}

TEST_P(Capabilities, MonitorsSeeValues) {
  std::set<std::string> values, inputs;
  auto note = [&](const MonitorEvent& event) {
    (event.is_input ? inputs : values).emplace(event.value);
    if (event.value == "product") {
      EXPECT_EQ(floats(event.datum)[1], rows(3).data<float>()[1] * kWeights[1]);
    }
  };
  const bool trains = !client().session();
  client().set_monitor({.callback = note, .pattern = "*", .inputs = true});
  expect_right();
  expect_right(nullptr, 5);
  for (const char* name : {"x", "product", "sum", "y"}) EXPECT_TRUE(values.contains(name)) << name;
  for (const char* name : {"x", "product", "sum"}) EXPECT_TRUE(inputs.contains(name)) << name;
  if (trains) {
    EXPECT_TRUE(values.contains("w"));
    EXPECT_GT(values.size(), 20U) << "gradients too";
  }
  values.clear();
  client().set_monitor({});
  expect_right();
  EXPECT_TRUE(values.empty());
}

// The model is z = (a * w) + 1, which needs only `a`, and y = z - b.
TEST_P(Capabilities, FeedsComeLaterAndValuesAreFetchedEarly) {
  if (!is_way("partial")) GTEST_SKIP() << "does not stop";
  ModelBuilder b;
  b.input("a", {-1, 4}).input("b", {-1, 4}).output("z", {-1, 4}).output("y", {-1, 4});
  Tensor w(DType::float32, {4});
  std::copy(kWeights.begin(), kWeights.end(), w.data<float>());
  b.constant("w", w).node("Mul", {"a", "w"}, {"product"}, "multiply");
  b.last_node().metadata_props.emplace_back("ctx_group", "left");
  b.node("Step", {"product"}, {"z"}, "step", "test.fault").node("Sub", {"z", "b"}, {"y"}, "subtract");
  b.last_node().metadata_props.emplace_back("ctx_group", "right");
  b.def().opset_imports.push_back({"test.fault", 1});
  const Session session(b.model(), options_);
  const std::vector<std::string> z{"z"}, y{"y"};
  const Tensor x = rows(3);
  std::vector<float> sum = outputs_for(x), difference;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = -sum[i], difference.push_back(sum[i] - x.data<float>()[i]);
  {
    PartialRun run = session.partial_run({{"a", x}});
    EXPECT_EQ(floats(run.advance("step", {}, z)[0]), sum);
    EXPECT_EQ(floats(run.advance("", {{"b", x}}, y)[0]), difference);
    EXPECT_TRUE(run.finished());
    EXPECT_EQ(floats(run.outputs()[1]), difference);
  }
  PartialRun run = session.partial_run({{"a", x}});
  EXPECT_FALSE(run.advance());  // runs up to the node that needs b
  EXPECT_EQ(run.steps_left(), 0U);
  EXPECT_EQ(floats(run.fetch(z)[0]), sum);
  EXPECT_THROW(run.fetch(y), Error);
  EXPECT_THROW(run.advance(), Error);
  run.feed("b", x);
  while (run.advance_steps(1) > 0) {
  }
  EXPECT_EQ(floats(run.fetch(y)[0]), difference);
}

TEST_P(Capabilities, AnyValueIsFed) {
  if (!client().session()) {
    auto message_of = [](const Client::Feeding& feed) -> std::string {
      try {
        feed();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        return error.what();
      }
      return "it was ignored";
    };
    const Datum x = rows(3);
    for (const char* inner : {"product", "w"})
      for (const auto& feed : client().fed_by_name({{"x", x}, {inner, x}}))
        EXPECT_EQ(message_of(feed).find(fmt::format("\"{}\": training has no feeds of inner values", inner)), 0U) << message_of(feed);
    for (const auto& feed : client().fed_by_name({{"x", x}, {"produkt", x}}))
      EXPECT_EQ(message_of(feed), "Invalid input name: produkt: there is no input \"produkt\"; the inputs are: x");
    for (const auto& feed : client().fed_by_name({{"x", x}})) feed();
    return;
  }
  EXPECT_THROW(client().session()->run({{"x", rows(3)}, {"produkt", rows(3)}}), Error);
  Tensor product(DType::float32, {2, 4});
  std::fill_n(product.data<float>(), 8, 4.0F);
  std::vector<float> y;
  if (is_way("whole")) {
    y = floats(client().session()->run({{"product", product}})[0]);
  } else if (is_way("bound")) {
    IoBinding binding(*client().session());
    binding.bind_input("product", product);
    binding.bind_output("y");
    client().session()->run(binding);
    y = floats(binding.outputs()[0]);
  } else if (is_way("partial")) {
    PartialRun run = client().session()->partial_run({{"product", product}});
    run.advance();
    y = floats(run.outputs()[0]);
  } else {
    StatefulRun runs = StatefulClient::begin(*client().session());
    y = floats(runs.run({{"product", product}})[0]);
  }
  EXPECT_EQ(y, std::vector<float>(8, -5.0F));
}

TEST_P(Capabilities, AnyValueIsFetched) {
  const std::vector<std::string> wanted{"sum", "y"};
  const Tensor x = rows(2);
  std::vector<Datum> values;
  if (is_way("whole")) {
    values = client().session()->run({{"x", x}}, wanted);
  } else if (is_way("bound")) {
    IoBinding binding(*client().session());
    binding.bind_input("x", x);
    for (const std::string& name : wanted) binding.bind_output(name);
    client().session()->run(binding);
    values = binding.outputs();
  } else if (is_way("partial")) {
    RunOptions run;
    run.targets = {"sum"};
    PartialRun partial = client().session()->partial_run({{"x", x}}, nullptr, &run);
    partial.advance();
    values = partial.fetch(wanted);
  } else if (is_way("joint")) {
    train::JointModule module(build_().model(), {.outputs = {"y"}, .plain_outputs = {"sum"}, .session = options_});
    const train::JointModule::Run run = module.forward({{"x", x}});
    values = {run.outputs()[1], run.outputs()[0]};
  } else if (is_way("trainer")) {
    RunOptions run;  // these options fetch no value by name
    run.targets = {"sum"};
    EXPECT_NE(std::string(failure(&run).what()).find("training has no targets: watch the value with a monitor"), std::string::npos);
    return;
  } else {
    StatefulRun runs = StatefulClient::begin(*client().session());
    values = runs.run({{"x", x}}, wanted);
  }
  std::vector<float> sum = outputs_for(x);
  for (float& value : sum) value = -value;
  EXPECT_EQ(floats(values[0]), sum);
  EXPECT_EQ(floats(values[1]), outputs_for(x));
}

}  // namespace
}  // namespace treadle::testing
