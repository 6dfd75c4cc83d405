// Tests the limit of a job on host memory: for sessions on the host, and for values that do not fit on a device.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/session/faults.h"
#include "tests/session/measuring_allocator.h"
#include "tests/sharing/jobs.h"

namespace treadle::testing {
namespace {

constexpr int kLinks = 12;
constexpr int64_t kElements = 16 * 1024;
constexpr size_t kValueBytes = kElements * sizeof(float);

// Makes v[i + 1] = v[i] + 1, and then the sum of all values in reverse order. Each value is read twice, the first ones last.
ModelBuilder there_and_back() {
  register_fault_operators();
  ModelBuilder b;
  b.def().opset_imports.push_back({"test.fault", 1});
  b.input("x", {-1}).output("y", {-1});
  std::string last = "x";
  for (int i = 0; i < kLinks; ++i) {
    const std::string next = "v" + std::to_string(i);
    b.node("Step", {last}, {next}, "", "test.fault");
    onnx::AttributeDef id;
    id.name = "id";
    id.type = onnx::AttributeType::i;
    id.i = i;
    b.last_node().attributes.push_back(std::move(id));
    last = next;
  }
  for (int i = kLinks - 1; i-- > 0;) {
    const std::string next = i == 0 ? "y" : "s" + std::to_string(i);
    b.node("Add", {last, "v" + std::to_string(i)}, {next});
    last = next;
  }
  return b;
}

Tensor numbers() {
  Tensor x(DType::float32, Shape{kElements});
  for (int64_t i = 0; i < kElements; ++i) x.data<float>()[i] = static_cast<float>(i % 1000) * 0.25F - 100;
  return x;
}

// Returns the sum of all values, computed in plain C++; it is exact in float32.
const std::vector<float>& truth() {
  static const std::vector<float> values = [] {
    std::vector<float> sums = values_of(numbers());
    for (float& value : sums) value = kLinks * value + kLinks * (kLinks + 1) / 2;
    return sums;
  }();
  return values;
}

std::shared_ptr<Job> job_named(const std::string& name, uint64_t host_limit = 0) {
  return std::make_shared<Job>(JobOptions{.name = name, .host_limit_bytes = host_limit});
}

SessionOptions in_job(const std::shared_ptr<Job>& job) {
  SessionOptions options;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  options.job = job;
  return options;
}

SessionOptions on_sim(const std::shared_ptr<Job>& job) {
  SessionOptions options = in_job(job);
  options.config["treadle.device"] = "sim";
  return options;
}

std::vector<float> run_for(const Session& session) { return values_of(session.run({{"x", numbers()}})[0]); }

Error refusal(const Session& session) {
  try {
    session.run({{"x", numbers()}});
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::ok, "the run ended");
}

/// As long as an object of this class lives, no file can grow beyond a page, as on a full disk.
class FullDisk {
 public:
  FullDisk() {
    handler_ = signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{4096, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(JobHostMemory, RunsKeepToTheLimitWithTheSameBits) {
  auto job = job_named("host");
  auto measuring = std::make_shared<MeasuringAllocator>();
  SessionOptions options = in_job(job);
  options.allocator = measuring;
  Session session(there_and_back().model(), options);
  EXPECT_EQ(run_for(session), truth());
  EXPECT_GE(measuring->peak(), kLinks * kValueBytes);
  EXPECT_EQ(job->status().moved_bytes, 0U);
  for (const size_t values : {11, 7, 5, 4}) {
    const uint64_t limit = values * kValueBytes + 4096;
    if (values % 2 == 0)  // tests each limit alone
      job->set({.memory_limit_bytes = 0, .host_limit_bytes = limit});
    else
      job->set({.memory_limit_bytes = limit, .host_limit_bytes = 0});
    EXPECT_EQ(run_for(session), truth()) << values;
    measuring->reset();
    const JobStatus before = job->status();
    EXPECT_EQ(run_for(session), truth()) << values;
    EXPECT_LE(measuring->peak(), limit);
    const JobStatus after = job->status();
    EXPECT_LE(after.host_bytes, limit);
    EXPECT_GT(after.host_bytes, 0U);
    if (values > 5) continue;  // with so many values, recomputing a few of them suffices
    EXPECT_GT(after.moved_bytes, before.moved_bytes);
    EXPECT_GT(after.moves, before.moves);
    EXPECT_GT(after.moving_ns, before.moving_ns);
  }
  job->set({.memory_limit_bytes = 0, .host_limit_bytes = 0});
  const uint64_t moved = job->status().moved_bytes;
  EXPECT_EQ(run_for(session), truth());
  EXPECT_EQ(job->status().moved_bytes, moved);
}

TEST(JobHostMemory, WhatIsHeldIsInTheStatusUntilTheSessionGoes) {
  auto job = job_named("held");
  {
    Session session(chain(4).model(), in_job(job));
    EXPECT_GE(job->status().host_bytes, 96U * 96 * 4) << "the weights";
    session.run({{"x", chain_input()}});
    EXPECT_GE(job->status().host_bytes, 96U * 96 * 4 + 64U * 96 * 4);
    EXPECT_GE(job->status().peak_bytes, job->status().host_bytes);
    EXPECT_EQ(job->status().device_bytes, 0U);
  }
  EXPECT_EQ(job->status().host_bytes, 0U);
}

TEST(JobHostMemory, AnIdleJobGivesUpItsArena) {
  auto job = job_named("idle");
  auto measuring = std::make_shared<MeasuringAllocator>();
  SessionOptions options = in_job(job);
  options.allocator = measuring;
  Session session(there_and_back().model(), options);
  run_for(session);
  EXPECT_GE(measuring->live(), (kLinks - 1) * kValueBytes);
  job->set_host_limit(4 * kValueBytes + 4096);
  // Either this thread or the job's own thread frees the memory, whichever notices first.
  EXPECT_TRUE(eventually([&] { return measuring->live() <= 4 * kValueBytes && job->status().host_bytes <= 4 * kValueBytes; }));
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, AnotherProcessMaySetTheLimit) {
  auto job = job_named("steered");
  Session session(there_and_back().model(), in_job(job));
  run_for(session);
  ASSERT_GT(job->status().host_bytes, 4 * kValueBytes);
  const uint64_t id = job->id();  // the job in the forked child gets another id
  const pid_t child = fork();
  if (child == 0) {
    set_job(id, {.host_limit_bytes = 4 * kValueBytes + 4096});
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(eventually([&] { return job->status().host_bytes <= 4 * kValueBytes; }));
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, ALimitBelowWhatARunNeedsNamesTheLeast) {
  auto job = job_named("tight", 2 * kValueBytes), other = job_named("unharmed");
  Session session(there_and_back().model(), in_job(job)), beside(there_and_back().model(), in_job(other));
  const Error error = refusal(session);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  const std::string message = error.what(), before = "at least ";
  EXPECT_NE(message.find("the job \"tight\""), std::string::npos) << message;
  EXPECT_EQ(run_for(beside), truth());
  job->set_host_limit(std::stoull(message.substr(message.find(before) + before.size())));
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, WeightsThatAreLargerThanTheLimitAreAnErrorOfTheSession) {
  auto job = job_named("small", 1000);
  SessionOptions options;
  options.job = job;
  try {
    Session session(chain(4).model(), options);
    FAIL() << "the weights are larger than the limit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_NE(std::string(error.what()).find("the job \"small\""), std::string::npos) << error.what();
  }
  job->set_host_limit(0);
  Session session(chain(4).model(), options);
  session.run({{"x", chain_input()}});
}

TEST(JobHostMemory, ARunFollowsALimitThatChangesUnderWay) {
  for (const size_t values : {5, 8, 0}) {
    for (int at = 1; at < kLinks; at += 2) {
      auto job = job_named("under-way", 12 * kValueBytes);
      auto measuring = std::make_shared<MeasuringAllocator>();
      SessionOptions options = in_job(job);
      options.allocator = measuring;
      Session session(there_and_back().model(), options);
      set_fault(at, [&, limit = values * kValueBytes] { job->set_host_limit(limit); });
      EXPECT_EQ(run_for(session), truth()) << "from 12 to " << values << " values at node " << at;
      set_fault(-1, {});
      if (values != 0) {
        EXPECT_LE(measuring->live(), values * kValueBytes) << at;
      }
    }
  }
}

TEST(JobHostMemory, SessionsOfAJobKeepToItTogether) {
  constexpr uint64_t kLimit = 9 * kValueBytes;
  auto job = job_named("together", kLimit);
  auto measuring = std::make_shared<MeasuringAllocator>();
  SessionOptions options = in_job(job);
  options.allocator = measuring;
  std::vector<std::unique_ptr<Session>> sessions;
  for (int s = 0; s < 3; ++s) sessions.push_back(std::make_unique<Session>(there_and_back().model(), options));
  std::atomic<int> right{0};
  std::vector<std::thread> clients;
  for (const auto& session : sessions)
    clients.emplace_back([&] {
      for (int i = 0; i < 10; ++i) right += run_for(*session) == truth();
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 30);
  EXPECT_LE(measuring->peak(), kLimit + sessions.size() * kValueBytes) << "each client may hold an output";
}

TEST(JobHostMemory, AFullDiskIsAnErrorOfThatRunOnly) {
  auto job = job_named("spills", 4 * kValueBytes + 4096), other = job_named("unharmed");
  Session session(there_and_back().model(), in_job(job)), beside(there_and_back().model(), in_job(other));
  {
    FullDisk full;
    const Error error = refusal(session);
    EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
    EXPECT_NE(std::string(error.what()).find("spilled"), std::string::npos) << error.what();
    EXPECT_EQ(run_for(beside), truth());
  }
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, WhatADeviceHasNoRoomForGoesToAFileBeyondTheLimit) {
  auto job = job_named("device");
  Session session(there_and_back().model(), on_sim(job));
  EXPECT_EQ(run_for(session), truth());
  for (const size_t on_device : {4, 1}) {
    for (const size_t on_host : {9, 6, 4}) {
      job->set({.memory_limit_bytes = on_device * kValueBytes, .host_limit_bytes = on_host * kValueBytes});
      const JobStatus before = job->status();
      std::atomic<uint64_t> most{0}, on_disk{0};
      set_fault(kLinks - 1, [&] { most = job->status().host_bytes, on_disk = job->status().disk_bytes; });
      EXPECT_EQ(run_for(session), truth()) << on_device << ", " << on_host;
      set_fault(-1, {});
      EXPECT_LE(most, on_host * kValueBytes);
      // At this node, twelve values are alive.
      EXPECT_GE(on_disk + (on_device + on_host) * kValueBytes, kLinks * kValueBytes);
      EXPECT_GT(job->status().moves, before.moves);
      EXPECT_EQ(job->status().disk_bytes, 0U) << "nothing lasts but constants";
    }
  }
  job->set({.memory_limit_bytes = 0, .host_limit_bytes = 0});
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, ConstantsOfAnIdleJobGoToAFileAndComeBack) {
  // No kernel packs the constants, because the host would then hold a second copy of them.
  ModelBuilder b;
  b.input("x", {64, 96}).output("y", {64, 96});
  for (const char* name : {"scale", "shift"}) {
    Tensor values(DType::float32, Shape{64, 96});
    for (int64_t i = 0; i < values.num_elements(); ++i) values.data<float>()[i] = static_cast<float>(i % 19 - 9);
    b.constant(name, values);
  }
  b.node("Mul", {"x", "scale"}, {"scaled"}).node("Add", {"scaled", "shift"}, {"y"});
  const Model model = b.model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = values_of(Session(model).run(feeds)[0]);
  auto job = job_named("weights");
  Session session(model, on_sim(job));
  EXPECT_EQ(values_of(session.run(feeds)[0]), expected);
  const uint64_t held = job->status().device_bytes;
  ASSERT_GE(held, 64U * 96 * 4);
  job->set({.memory_limit_bytes = 1000, .host_limit_bytes = 1000});
  EXPECT_TRUE(eventually([&] { return job->status().disk_bytes == held && job->status().device_bytes + job->status().host_bytes == 0; }));
  job->set({.memory_limit_bytes = 0, .host_limit_bytes = 0});
  EXPECT_EQ(values_of(session.run(feeds)[0]), expected);
  EXPECT_EQ(job->status().disk_bytes, 0U);
}

TEST(JobHostMemory, LimitsThatLeaveADevicesNodeNoRoomAreAnErrorOfThatRun) {
  auto job = job_named("nowhere"), other = job_named("unharmed");
  Session session(there_and_back().model(), on_sim(job)), beside(there_and_back().model(), on_sim(other));
  job->set({.memory_limit_bytes = 1, .host_limit_bytes = kValueBytes});
  const Error error = refusal(session);
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_NE(std::string(error.what()).find(std::to_string(kValueBytes) + " bytes of the host's memory"), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("Step"), std::string::npos) << error.what();
  EXPECT_EQ(run_for(beside), truth());
  job->set_host_limit(0);
  EXPECT_EQ(run_for(session), truth());
}

TEST(JobHostMemory, AFullDiskUnderADevicesValuesIsAnErrorOfThatRunOnly) {
  auto job = job_named("spills"), other = job_named("unharmed");
  Session session(there_and_back().model(), on_sim(job)), beside(there_and_back().model(), on_sim(other));
  job->set({.memory_limit_bytes = 1, .host_limit_bytes = 4 * kValueBytes});
  {
    FullDisk full;
    const Error error = refusal(session);
    EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
    EXPECT_EQ(run_for(beside), truth());
  }
  EXPECT_EQ(run_for(session), truth());
  EXPECT_EQ(job->status().disk_bytes + job->status().device_bytes + job->status().host_bytes, 0U);
}

// Both limits change at random during runs, on the host and on a device.
TEST(JobHostMemory, LimitsMayChangeAtAnyMoment) {
  auto job = job_named("random");
  Session on_host(there_and_back().model(), in_job(job)), on_device(there_and_back().model(), on_sim(job));
  std::atomic<bool> stop{false};
  std::atomic<int> runs{0}, wrong{0};
  std::vector<std::thread> workers;
  for (const Session* session : {&on_host, &on_device})
    workers.emplace_back([&, session] {
      for (int own = 0; !stop || own < 4; ++own) {
        try {
          if (run_for(*session) != truth()) ++wrong;
        } catch (const Error& error) {
          ADD_FAILURE() << error.what();  // every limit is large enough for each run
        }
        ++runs;
      }
    });
  std::mt19937 random(17);
  for (int i = 0; i < 200; ++i) {
    job->set({.memory_limit_bytes = (5 + random() % 14) * kValueBytes, .host_limit_bytes = (8 + random() % 14) * kValueBytes});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  }
  stop = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(runs, 8);
  job->set({.memory_limit_bytes = 0, .host_limit_bytes = 0});
  EXPECT_EQ(run_for(on_host), truth());
  EXPECT_EQ(run_for(on_device), truth());
}

}  // namespace
}  // namespace treadle::testing
