// Limits on jobs' device memory, on the simulated device and on a GPU: limits that change, a device that is too small, the text of reports.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sharing/turn.h"
#include "tests/sharing/jobs.h"

namespace treadle {
namespace {

using testing::chain;
using testing::chain_input;
using testing::eventually;
using testing::ModelBuilder;
using testing::values_of;

const std::map<std::string, Datum>& feeds() {
  static const std::map<std::string, Datum> all{{"x", chain_input()}};
  return all;
}

SessionOptions on_device(const std::shared_ptr<Job>& job, const std::string& device = "sim") {
  SessionOptions options;
  options.job = job;
  options.intra_op_num_threads = 1;
  options.config["treadle.device"] = device;
  return options;
}

uint64_t needed_bytes(const Model& model, const std::string& device = "sim") {
  auto job = std::make_shared<Job>(JobOptions{.name = "alone"});
  Session(model, on_device(job, device)).run(feeds());
  const JobStatus status = job->status();
  EXPECT_EQ(status.device_bytes + status.host_bytes, 0U);  // the session has been destroyed, so no bytes are left
  return status.peak_bytes;
}

class JobMemory : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      Session(chain(1).model(), on()).run(feeds());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found && error.code() != ErrorCode::not_implemented) throw;
      GTEST_SKIP() << error.what();  // no GPU
    }
  }
  static SessionOptions on(const std::shared_ptr<Job>& job = nullptr) { return on_device(job, GetParam()); }
  /// The host's values. A GPU adds up in another order: its own without a limit, which are near the host's.
  static std::vector<float> expected_of(const Model& model) {
    const std::vector<float> of_host = values_of(Session(model).run(feeds())[0]);
    if (GetParam() == "sim") return of_host;
    std::vector<float> own = values_of(Session(model, on()).run(feeds())[0]);
    EXPECT_EQ(own.size(), of_host.size());
    for (size_t i = 0; i < std::min(own.size(), of_host.size()); ++i) EXPECT_NEAR(own[i], of_host[i], 1e-4F) << i;
    return own;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, JobMemory, ::testing::Values("sim", "gpu:0"));

TEST_P(JobMemory, RunsFinishWithTheSameBitsAtAnyLimit) {
  const Model model = chain(8).model();
  const auto expected = expected_of(model);
  const uint64_t needed = needed_bytes(model, GetParam());
  constexpr uint64_t kFeedBytes = 64U * 96 * 4;
  ASSERT_GT(needed, kFeedBytes);
  auto job = std::make_shared<Job>(JobOptions{.name = "limited"});
  Session session(model, on(job));
  session.run(feeds());
  for (const double fraction : {0.8, 0.6, 0.3, 0.0001, 1.0, 0.5}) {
    job->set_memory_limit(static_cast<uint64_t>(fraction * static_cast<double>(needed)) + 1);
    const uint64_t before = job->status().moved_bytes;
    EXPECT_EQ(values_of(session.run(feeds())[0]), expected) << fraction;
    const JobStatus status = job->status();
    EXPECT_LE(status.device_bytes, status.memory_limit_bytes) << fraction;
    if (fraction < 0.5) {
      EXPECT_GT(status.moved_bytes - before, kFeedBytes) << fraction;  // some weights, too
    }
  }
  // When the limit is lifted again, the weights stay on the device from the second run on.
  job->set_memory_limit(0);
  session.run(feeds());
  const uint64_t before = job->status().moved_bytes;
  EXPECT_EQ(values_of(session.run(feeds())[0]), expected);
  EXPECT_EQ(job->status().moved_bytes - before, kFeedBytes);  // a run copies only the feed
}

// Prefetching a constant does not move anything out, so that the bus carries no more bytes than necessary.
TEST_P(JobMemory, ConstantsComeOverTheBusOnceARunWhereTheyDoNotFit) {
  constexpr int64_t kExtent = 96, kFeedBytes = 64 * kExtent * 4, kWeightBytes = kExtent * kExtent * 4;
  ModelBuilder b;
  b.input("x", {64, kExtent}).output("y", {64, kExtent});
  std::string last = "x";
  for (int i = 0; i < 8; ++i) {
    const std::string next = i + 1 < 8 ? "h" + std::to_string(i) : "y", weight = "w" + std::to_string(i);
    Tensor values(DType::float32, Shape{kExtent, kExtent});
    for (int64_t k = 0; k < kExtent * kExtent; ++k) values.data<float>()[k] = std::sin(static_cast<float>(k * 7 + i)) / 8.0F;
    b.constant(weight, values).node("MatMul", {last, weight}, {next});
    last = next;
  }
  const Model model = b.model();
  const auto expected = expected_of(model);
  auto job = std::make_shared<Job>(JobOptions{.name = "weights"});
  Session session(model, on(job));
  for (int i = 0; i < 2; ++i) session.run(feeds());
  constexpr uint64_t kNeeded = 8 * kWeightBytes + 2 * kFeedBytes;
  ASSERT_GE(job->status().peak_bytes, kNeeded);
  for (const uint64_t missing : {1U, 2U, 4U}) {
    job->set_memory_limit(kNeeded - missing * kWeightBytes);
    session.run(feeds());
    const uint64_t before = job->status().moved_bytes;
    EXPECT_EQ(values_of(session.run(feeds())[0]), expected) << missing;
    const uint64_t moved = job->status().moved_bytes - before;
    EXPECT_GE(moved, kFeedBytes + missing * kWeightBytes) << missing;
    EXPECT_LE(moved, kFeedBytes + (missing + 2) * kWeightBytes) << missing;
  }
}

TEST_P(JobMemory, AnIdleJobGivesUpWhatANewLimitTakes) {
  auto job = std::make_shared<Job>(JobOptions{.name = "idle"});
  Session session(chain(4).model(), on(job));
  session.run(feeds());
  ASSERT_GT(job->status().device_bytes, 1000U);  // the weights are on the device
  set_job(job->id(), {.memory_limit_bytes = 1000});
  EXPECT_TRUE(eventually([&] { return job->status().device_bytes <= 1000; }));
  session.run(feeds());
  EXPECT_LE(job->status().device_bytes, 1000U);
}

TEST(JobsOnOneDevice, ADeviceThatIsFullOfOthersSlowsAJobDownOnly) {
  const Model model = chain(6).model();
  const auto expected = values_of(Session(model).run(feeds())[0]);
  const uint64_t needed = needed_bytes(model);
  auto first = std::make_shared<Job>(JobOptions{.name = "first"}), second = std::make_shared<Job>(JobOptions{.name = "second"});
  SessionOptions shared = on_device(first, "sim:small");
  shared.config["treadle.sim.memory"] = std::to_string(needed * 5 / 4);
  auto one = std::make_unique<Session>(model, shared);
  EXPECT_EQ(values_of(one->run(feeds())[0]), expected);
  Session two(model, on_device(second, "sim:small"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(values_of(two.run(feeds())[0]), expected);
    EXPECT_EQ(values_of(one->run(feeds())[0]), expected);
  }
  one.reset();
  EXPECT_EQ(first->status().device_bytes + first->status().host_bytes, 0U);
  EXPECT_EQ(values_of(two.run(feeds())[0]), expected);
}

TEST_P(JobMemory, AnIdleSessionGivesWayToAnotherOneOfTheJob) {
  const Model model = chain(8).model();
  const auto expected = expected_of(model);
  const uint64_t needed = needed_bytes(model, GetParam());
  auto job = std::make_shared<Job>(JobOptions{.name = "both", .memory_limit_bytes = needed});
  Session one(model, on(job)), two(model, on(job));
  for (const Session* session : {&one, &two, &one}) {
    EXPECT_EQ(values_of(session->run(feeds())[0]), expected);
    const uint64_t before = job->status().moved_bytes;
    EXPECT_EQ(values_of(session->run(feeds())[0]), expected);
    EXPECT_EQ(job->status().moved_bytes - before, 64U * 96 * 4) << "the feed: all else has room";
    EXPECT_LE(job->status().device_bytes, needed);
  }
}

TEST_P(JobMemory, SessionsOfAJobThatRunAtOnceKeepToItsLimits) {
  const Model model = chain(8).model();
  const auto expected = expected_of(model);
  const uint64_t needed = needed_bytes(model, GetParam()), limit = needed / 2, host_limit = needed;
  auto job = std::make_shared<Job>(JobOptions{.name = "both-run", .memory_limit_bytes = limit, .host_limit_bytes = host_limit});
  const Session one(model, on(job)), two(model, on(job));
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> most{0};
  std::vector<std::thread> threads;
  for (const Session* session : {&one, &two})
    threads.emplace_back([&, session] {
      for (int i = 0; i < 10; ++i) {
        if (values_of(session->run(feeds())[0]) != expected) ++wrong;
        most = std::max<uint64_t>(most, job->status().device_bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(most, limit);
  EXPECT_GT(most, 0U);
}

// The limits change at random during runs.
TEST_P(JobMemory, LimitsMayChangeAtAnyMoment) {
  const Model model = chain(6).model();
  const auto expected = expected_of(model);
  const uint64_t needed = needed_bytes(model, GetParam());
  auto job = std::make_shared<Job>(JobOptions{.name = "random"});
  Session session(model, on(job));
  std::atomic<bool> stop{false};
  std::atomic<int> runs{0}, wrong{0};
  std::thread worker([&] {
    while (!stop) {
      if (values_of(session.run(feeds())[0]) != expected) ++wrong;
      ++runs;
    }
  });
  std::mt19937 random(11);
  for (int i = 0; i < 200; ++i) {
    job->set_memory_limit(random() % (needed + needed / 4));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
  }
  EXPECT_TRUE(eventually([&] { return runs > 3; }));
  stop = true;
  worker.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace treadle
