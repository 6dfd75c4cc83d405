// The table of capabilities: each of them in every way of running, on every schedule. What does not exist is refused in the same words.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/session/faults.h"
#include "treadle/profile.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::testing {
namespace {

namespace fs = std::filesystem;

// y = -(x * w + 1) + 0, by rows of four. The 0 comes out of two branches that take long enough to run at once: without them a parallel
// session would run in order.
const std::vector<float> kWeights{1, -2, 0.5F, 3};

Model make_model() {
  ModelBuilder b;
  b.input("x", {-1, 4}).output("y", {-1, 4});
  Tensor w(DType::float32, {4});
  std::copy(kWeights.begin(), kWeights.end(), w.data<float>());
  b.constant("w", w).node("Mul", {"x", "w"}, {"product"}, "multiply");
  b.last_node().metadata_props.emplace_back("ctx_group", "left");
  b.node("Step", {"product"}, {"sum"}, "step", "test.fault");
  b.node("Neg", {"sum"}, {"negated"}, "negate");
  b.last_node().metadata_props.emplace_back("ctx_group", "right");
  Tensor zeros(DType::float32, {1 << 14});
  std::fill_n(zeros.data<float>(), zeros.num_elements(), 0.0F);
  b.node("ReduceSum", {"product"}, {"total"});
  for (const std::string branch : {"one", "two"}) {
    b.constant("zeros_" + branch, zeros.clone()).node("Mul", {"zeros_" + branch, "total"}, {"many_" + branch});
    b.node("ReduceSum", {"many_" + branch}, {"zero_" + branch});
  }
  b.node("Add", {"zero_one", "zero_two"}, {"zero"}).node("Add", {"negated", "zero"}, {"y"});
  b.def().opset_imports.push_back({"test.fault", 1});
  return b.model();
}

Tensor rows(int64_t count, float first = 1) {
  Tensor x(DType::float32, {count, 4});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = first + static_cast<float>(i);
  return x;
}

float result_of(float x, int64_t column) { return -(x * kWeights[static_cast<size_t>(column)] + 1); }

std::vector<float> outputs_for(const Tensor& x) {
  std::vector<float> y;
  for (int64_t i = 0; i < x.num_elements(); ++i) y.push_back(result_of(x.data<float>()[i], i % 4));
  return y;
}

std::vector<float> floats(const Datum& datum) {
  const Tensor tensor = datum.tensor().contiguous();
  return {tensor.data<float>(), tensor.data<float>() + tensor.num_elements()};
}

struct Schedule {
  const char* name;
  void (*choose)(SessionOptions&);
};

constexpr Schedule kSchedules[] = {
    {"in_order", [](SessionOptions& o) { o.intra_op_num_threads = 1; }},
    {"by_readiness",
     [](SessionOptions& o) {
       o.intra_op_num_threads = o.inter_op_num_threads = 2;
       o.execution_mode = ExecutionMode::parallel;
     }},
    {"on_a_device", [](SessionOptions& o) { o.device = "sim"; }},
    {"on_streams", [](SessionOptions& o) { o.device = "sim", o.compute_streams = 2; }},
    {"on_devices",
     [](SessionOptions& o) {
       o.device = "sim:one";
       o.group2ctx = {{"left", "sim:two"}, {"right", "cpu"}};
     }},
    {"in_a_job", [](SessionOptions& o) { o.job = std::make_shared<Job>(JobOptions{.name = "capabilities"}); }},
    {"in_a_job_on_a_device",
     [](SessionOptions& o) {
       o.job = std::make_shared<Job>(JobOptions{.name = "capabilities"});
       o.device = "sim";
     }},
};

/// A way of running the model. What run() gives is compared with expected().
class Client {
 public:
  virtual ~Client() = default;
  virtual std::vector<float> run(const Tensor& x, const RunOptions* options) = 0;
  virtual std::vector<float> expected(const Tensor& x) const { return outputs_for(x); }
  virtual std::string end_profiling() = 0;
  virtual MemoryStatistics memory_statistics() const = 0;
  virtual void set_memory_limit(size_t bytes) = 0;
  virtual void set_monitor(Monitor monitor) = 0;
  virtual std::vector<NodeCounter> node_counters() const = 0;
  virtual void reset_node_counters() = 0;
  /// For those that have one.
  virtual Session* session() { return nullptr; }
  /// For the others: whatever takes feeds by name, once each.
  using Feeding = std::function<void()>;
  virtual std::vector<Feeding> fed_by_name(const train::Feeds& /*feeds*/) { return {}; }
};

class SessionClient : public Client {
 public:
  explicit SessionClient(const SessionOptions& options) : session_(make_model(), options) {}
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    return floats(session_.run({{"x", x}}, std::vector<std::string>{"y"}, options)[0]);
  }
  std::string end_profiling() override { return session_.end_profiling(); }
  MemoryStatistics memory_statistics() const override { return session_.memory_statistics(); }
  void set_memory_limit(size_t bytes) override { session_.set_memory_limit(bytes); }
  void set_monitor(Monitor monitor) override { session_.set_monitor(std::move(monitor)); }
  std::vector<NodeCounter> node_counters() const override { return session_.node_counters(); }
  void reset_node_counters() override { session_.reset_node_counters(); }
  Session* session() override { return &session_; }

 protected:
  Session session_;
};

class BoundClient final : public SessionClient {
 public:
  using SessionClient::SessionClient;
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    IoBinding binding(session_);
    binding.bind_input("x", x);
    binding.bind_output("y");
    session_.run(binding, options);
    return floats(binding.outputs()[0]);
  }
};

class PartialClient final : public SessionClient {
 public:
  using SessionClient::SessionClient;
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    PartialRun run = session_.partial_run({{"x", x}}, nullptr, options);
    while (run.advance_steps(1) > 0) {
    }
    run.advance();
    return floats(run.outputs()[0]);
  }
};

class StatefulClient final : public SessionClient {
 public:
  using SessionClient::SessionClient;
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    StatefulRun runs(session_, {});
    return floats(runs.run({{"x", x}}, {}, options)[0]);
  }
};

// Gradients of ones: of w, the negated sums of its column.
class JointClient final : public Client {
 public:
  explicit JointClient(const SessionOptions& options) : module_(make_model(), {.session = options}) {}
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    train::JointModule::Run run = module_.forward({{"x", x}}, options);
    std::vector<float> result = floats(run.outputs()[0]);
    Tensor ones(DType::float32, x.shape());
    std::fill_n(ones.data<float>(), ones.num_elements(), 1.0F);
    const std::vector<float> gradient = floats(run.backward(std::vector<Tensor>{ones}).at("w"));
    result.insert(result.end(), gradient.begin(), gradient.end());
    return result;
  }
  std::vector<float> expected(const Tensor& x) const override {
    std::vector<float> result = outputs_for(x), sums(4, 0.0F);
    for (int64_t i = 0; i < x.num_elements(); ++i) sums[static_cast<size_t>(i % 4)] -= x.data<float>()[i];
    result.insert(result.end(), sums.begin(), sums.end());
    return result;
  }
  std::string end_profiling() override { return module_.end_profiling(); }
  MemoryStatistics memory_statistics() const override { return module_.memory_statistics(); }
  void set_memory_limit(size_t bytes) override { module_.set_memory_limit(bytes); }
  void set_monitor(Monitor monitor) override { module_.set_monitor(std::move(monitor)); }
  std::vector<NodeCounter> node_counters() const override { return module_.node_counters(); }
  void reset_node_counters() override { module_.reset_node_counters(); }
  std::vector<Feeding> fed_by_name(const train::Feeds& feeds) override {
    return {[=, this] { module_.forward(feeds); }, [=, this] { module_.begin(feeds); }};
  }

 private:
  train::JointModule module_;
};

// The mean square of the outputs, with a rate of 0: a step leaves everything as it was.
class TrainerClient final : public Client {
 public:
  explicit TrainerClient(const SessionOptions& options)
      : trainer_(make_model(), {.loss = train::Loss::mean_squared_error, .learning_rate = 0, .session = options}) {}
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    Tensor zeros(DType::float32, x.shape());
    std::fill_n(zeros.data<float>(), zeros.num_elements(), 0.0F);
    const double loss = trainer_.step({{"x", x}}, zeros, options);
    EXPECT_EQ(floats(trainer_.parameters().at("w")), kWeights);
    return {static_cast<float>(loss)};
  }
  std::vector<float> expected(const Tensor& x) const override {
    double sum = 0;
    for (float y : outputs_for(x)) sum += static_cast<double>(y) * static_cast<double>(y);
    return {static_cast<float>(sum / static_cast<double>(x.num_elements()))};
  }
  std::string end_profiling() override { return trainer_.end_profiling(); }
  MemoryStatistics memory_statistics() const override { return trainer_.memory_statistics(); }
  void set_memory_limit(size_t bytes) override { trainer_.set_memory_limit(bytes); }
  void set_monitor(Monitor monitor) override { trainer_.set_monitor(std::move(monitor)); }
  std::vector<NodeCounter> node_counters() const override { return trainer_.node_counters(); }
  void reset_node_counters() override { trainer_.reset_node_counters(); }
  std::vector<Feeding> fed_by_name(const train::Feeds& feeds) override {
    Tensor zeros(DType::float32, {3, 4});
    std::fill_n(zeros.data<float>(), zeros.num_elements(), 0.0F);
    return {[=, this] { trainer_.step(feeds, zeros); }, [=, this] { trainer_.predict(feeds); },
            [=, this] { trainer_.evaluate(feeds, zeros); }, [=, this] { trainer_.evaluate_with_outputs(feeds, zeros); },
            [=, this] { trainer_.gradients(feeds, zeros); }};
  }

 private:
  train::Trainer trainer_;
};

struct Way {
  const char* name;
  std::unique_ptr<Client> (*make)(const SessionOptions&);
};
template <typename T>
std::unique_ptr<Client> make(const SessionOptions& options) {
  return std::make_unique<T>(options);
}
constexpr Way kWays[] = {{"whole", make<SessionClient>},     {"bound", make<BoundClient>}, {"partial", make<PartialClient>},
                         {"stateful", make<StatefulClient>}, {"joint", make<JointClient>}, {"trainer", make<TrainerClient>}};

class Capabilities : public ::testing::TestWithParam<std::tuple<Schedule, Way>> {
 protected:
  void SetUp() override {
    register_fault_operators();
    std::get<0>(GetParam()).choose(options_);
  }
  void TearDown() override { set_fault(-1, {}); }

  Client& client() {
    if (!client_) client_ = std::get<1>(GetParam()).make(options_);
    return *client_;
  }
  bool on_device() const { return !options_.device.empty(); }
  bool is_way(std::string_view name) const { return name == std::get<1>(GetParam()).name; }

  void expect_right(const RunOptions* run = nullptr, int64_t count = 3) {
    const Tensor x = rows(count);
    const std::vector<float> got = client().run(x, run), expected = client().expected(x);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-4F * (1 + std::abs(expected[i]))) << i;
  }
  Error failure(const RunOptions* run = nullptr, int64_t count = 3) {
    try {
      client().run(rows(count), run);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "it did not fail";
    return Error(ErrorCode::internal, "none");
  }

  SessionOptions options_;
  std::unique_ptr<Client> client_;
};

INSTANTIATE_TEST_SUITE_P(All, Capabilities, ::testing::Combine(::testing::ValuesIn(kSchedules), ::testing::ValuesIn(kWays)),
                         [](const auto& info) { return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name; });

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
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it may have been left behind: others wait for it
  // A node that does not return is left behind. How long it takes until it begins is the machine's business.
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

TEST_P(Capabilities, MetadataSayWhenNodesRan) {
  RunOptions run;
  std::vector<RunMetadata> all;
  run.on_metadata = [&](const RunMetadata& metadata) { all.push_back(metadata); };
  expect_right(&run);
  ASSERT_EQ(all.size(), 1U);
  bool found = false;
  for (const NodeStatistics& node : all[0].nodes) {
    EXPECT_LE(node.scheduled_ns, node.start_ns);
    EXPECT_LE(node.start_ns, node.end_ns);
    EXPECT_LE(node.end_ns, all[0].duration_ns);
    if (node.name != "step") continue;
    found = true;
    EXPECT_EQ(node.output_bytes, 3U * 4 * 4);
  }
  EXPECT_TRUE(found);
}

TEST_P(Capabilities, RunsAreRecorded) {
  options_.enable_profiling = true;
  options_.profile_file_prefix = ::testing::TempDir() + "treadle_capabilities_";
  expect_right();
  const std::string path = client().end_profiling();
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  // Sessions write in ONNX Runtime's words, modules and trainers in PyTorch's.
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
  if (is_way("joint") || is_way("trainer")) {
    EXPECT_NE(std::string(failure(&run).what()).find("training has no output_devices"), std::string::npos);
    return;
  }
  expect_right(&run);
}

TEST_P(Capabilities, OutputsComeFromTheirAllocator) {
  auto allocator = std::make_shared<FaultyAllocator>();
  if (is_way("joint") || is_way("trainer")) {
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
  const bool trains = is_way("joint") || is_way("trainer");
  if (!trains) {
    RunOptions allocated, placed, aimed;
    allocated.output_allocators["yy"] = std::make_shared<FaultyAllocator>();
    expect_message(&allocated, {"output_allocators", "\"yy\"", "is it y?"});
    placed.output_devices["sum"] = "sim";  // a value that the run does not fetch
    expect_message(&placed, {"output_devices", "\"sum\"", "is it y?"});
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
  if (is_way("joint") || is_way("trainer")) {
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

// z = (a * w) + 1 as soon as `a` is there, y = z - b.
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
  EXPECT_FALSE(run.advance());  // as far as it goes
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
      EXPECT_EQ(message_of(feed), "there is no input \"produkt\"; the inputs are: x");
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
    StatefulRun runs(*client().session(), {});
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
    train::JointModule module(make_model(), {.outputs = {"y"}, .plain_outputs = {"sum"}, .session = options_});
    const train::JointModule::Run run = module.forward({{"x", x}});
    values = {run.outputs()[1], run.outputs()[0]};
  } else if (is_way("trainer")) {
    RunOptions run;  // nothing is fetched by name
    run.targets = {"sum"};
    EXPECT_NE(std::string(failure(&run).what()).find("training has no targets: watch the value with a monitor"), std::string::npos);
    return;
  } else {
    StatefulRun runs(*client().session(), {});
    values = runs.run({{"x", x}}, wanted);
  }
  std::vector<float> sum = outputs_for(x);
  for (float& value : sum) value = -value;
  EXPECT_EQ(floats(values[0]), sum);
  EXPECT_EQ(floats(values[1]), outputs_for(x));
}

}  // namespace
}  // namespace treadle::testing
