// For capabilities_test.cpp and capabilities_graphs_test.cpp, which test each capability with every client on every schedule: the model,
// the clients that run it, and the schedules.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/session/faults.h"
#include "tests/session/schedules.h"
#include "treadle/profile.h"
#include "treadle/sharing.h"
#include "treadle/train.h"

namespace treadle::testing {

// The model computes y = -(x * w + 1) + 0, in rows of four. The 0 comes from two branches that are expensive enough to run at the same
// time; without them, a parallel session would run in order.
inline const std::vector<float> kWeights{1, -2, 0.5F, 3};

/// @param add_one  adds nodes that compute "sum" = product + 1; null: a Step.
inline ModelBuilder build_model(const std::function<void(ModelBuilder&)>& add_one = nullptr) {
  ModelBuilder b;
  b.input("x", {-1, 4}).output("y", {-1, 4});
  Tensor w(DType::float32, {4});
  std::copy(kWeights.begin(), kWeights.end(), w.data<float>());
  b.constant("w", w).node("Mul", {"x", "w"}, {"product"}, "multiply");
  b.last_node().metadata_props.emplace_back("ctx_group", "left");
  if (add_one)
    add_one(b);
  else
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
  return b;
}

using Build = std::function<ModelBuilder()>;

/// Returns the model with a state: present is past with the products appended.
inline Model with_state(ModelBuilder b) {
  b.input("past", {-1, 4}).output("present", {-1, 4}).node("Concat", {"past", "product"}, {"present"}, "append");
  b.def().graph.inputs.back().type.shape->at(0).param = "p";
  b.def().graph.outputs.back().type.shape->at(0).param = "m";
  onnx::AttributeDef& axis = b.last_node().attributes.emplace_back();
  axis.name = "axis";
  axis.type = onnx::AttributeType::i;
  axis.i = 0;
  return b.model();
}

inline Tensor rows(int64_t count, float first = 1) {
  Tensor x(DType::float32, {count, 4});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.data<float>()[i] = first + static_cast<float>(i);
  return x;
}

inline float result_of(float x, int64_t column) { return -(x * kWeights[static_cast<size_t>(column)] + 1); }

inline std::vector<float> outputs_for(const Tensor& x) {
  std::vector<float> y;
  for (int64_t i = 0; i < x.num_elements(); ++i) y.push_back(result_of(x.data<float>()[i], i % 4));
  return y;
}

inline std::vector<float> floats(const Datum& datum) {
  const Tensor tensor = datum.tensor().clone();  // copies the elements to the host
  return {tensor.data<float>(), tensor.data<float>() + tensor.num_elements()};
}

inline constexpr Schedule kSchedules[] = {
    kInOrder,
    kByReadiness,
    kOnADevice,
    kOnStreams,
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

/// One way to run the model. The tests compare the results of run() with expected().
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
  /// Returns null for clients without a session.
  virtual Session* session() { return nullptr; }
  /// The device that held y after the last run.
  std::string device;
  /// Calls that other clients support as well; each takes feeds by name.
  using Feeding = std::function<void()>;
  virtual std::vector<Feeding> fed_by_name(const train::Feeds& /*feeds*/) { return {}; }
};

class SessionClient : public Client {
 public:
  SessionClient(const Build& build, const SessionOptions& options) : SessionClient(build().model(), options) {}
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    return taken(session_.run({{"x", x}}, std::vector<std::string>{"y"}, options)[0]);
  }
  std::string end_profiling() override { return session_.end_profiling(); }
  MemoryStatistics memory_statistics() const override { return session_.memory_statistics(); }
  void set_memory_limit(size_t bytes) override { session_.set_memory_limit(bytes); }
  void set_monitor(Monitor monitor) override { session_.set_monitor(std::move(monitor)); }
  std::vector<NodeCounter> node_counters() const override { return session_.node_counters(); }
  void reset_node_counters() override { session_.reset_node_counters(); }
  Session* session() override { return &session_; }

 protected:
  SessionClient(const Model& model, const SessionOptions& options) : session_(model, options) {}
  std::vector<float> taken(const Datum& y) {
    device = std::string(device_of(y.tensor()));
    return floats(y);
  }
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
    return taken(binding.outputs()[0]);
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
    return taken(run.outputs()[0]);
  }
};

// A client whose state contains the products of all runs that succeeded.
class StatefulClient final : public SessionClient {
 public:
  StatefulClient(const Build& build, const SessionOptions& options) : SessionClient(with_state(build()), options), runs_(begin(session_)) {}
  static StatefulRun begin(const Session& session) {
    return StatefulRun(session, {{"past", "present"}}, {{"past", Tensor(DType::float32, {0, 4})}});
  }
  std::vector<float> run(const Tensor& x, const RunOptions* options) override {
    const std::vector<float> y = taken(runs_.run({{"x", x}}, {}, options)[0]);
    for (int64_t i = 0; i < x.num_elements(); ++i) past_.push_back(x.data<float>()[i] * kWeights[static_cast<size_t>(i % 4)]);
    const std::vector<float> state = floats(runs_.state("past"));
    EXPECT_EQ(state.size(), past_.size());
    // The product may be subnormal.
    for (size_t i = 0; i < std::min(state.size(), past_.size()); ++i) EXPECT_NEAR(state[i], past_[i], 1e-30) << i;
    return y;
  }

 private:
  StatefulRun runs_;
  std::vector<float> past_;
};

// A client whose gradient of the outputs is 1 everywhere, so the gradient of w is the negated sum of each column.
class JointClient final : public Client {
 public:
  JointClient(const Build& build, const SessionOptions& options) : module_(build().model(), {.session = options}) {}
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

// A client that trains with the mean square of the outputs and a learning rate of 0, so that a step changes nothing.
class TrainerClient final : public Client {
 public:
  TrainerClient(const Build& build, const SessionOptions& options)
      : trainer_(build().model(), {.loss = train::Loss::mean_squared_error, .learning_rate = 0, .session = options}) {}
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
  std::unique_ptr<Client> (*make)(const Build&, const SessionOptions&);
};
template <typename T>
std::unique_ptr<Client> make(const Build& build, const SessionOptions& options) {
  return std::make_unique<T>(build, options);
}
inline constexpr Way kWays[] = {{"whole", make<SessionClient>},     {"bound", make<BoundClient>}, {"partial", make<PartialClient>},
                                {"stateful", make<StatefulClient>}, {"joint", make<JointClient>}, {"trainer", make<TrainerClient>}};

class Capabilities : public ::testing::TestWithParam<std::tuple<Schedule, Way>> {
 protected:
  void SetUp() override {
    register_fault_operators();
    std::get<0>(GetParam()).choose(options_);
  }
  void TearDown() override { set_fault(-1, {}); }

  Client& client() {
    if (!client_) client_ = std::get<1>(GetParam()).make(build_, options_);
    return *client_;
  }
  bool on_device() const { return !options_.device.empty(); }
  bool is_way(std::string_view name) const { return name == std::get<1>(GetParam()).name; }
  bool trains() const { return is_way("joint") || is_way("trainer"); }

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
  Build build_ = [] { return build_model(); };  // a function that makes the model, set before client() is called
  std::unique_ptr<Client> client_;
};

inline std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Schedule, Way>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name;
}

}  // namespace treadle::testing
