// Tests jobs through the C ABI.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "onnx/serialize.h"
#include "tests/c_api/status.h"
#include "tests/sharing/jobs.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;

treadle_job* create(const char* name, int32_t job_class = TREADLE_GUARANTEED, double share_percent = 100) {
  treadle_job* job = nullptr;
  EXPECT_EQ(message_of(treadle_job_create(name, job_class, share_percent, 0, &job)), "");
  return job;
}

treadle_job_status status_of(const treadle_job* job) {
  treadle_job_status status{};
  status.struct_size = sizeof status;
  EXPECT_EQ(message_of(treadle_job_get_status(job, &status)), "");
  return status;
}

TEST(CJob, SaysWhatItWasMadeWith) {
  treadle_job* job = nullptr;
  ASSERT_EQ(message_of(treadle_job_create("c-job", TREADLE_OPPORTUNISTIC, 40, uint64_t{1} << 30, &job)), "");
  const treadle_job_status status = status_of(job);
  EXPECT_STREQ(status.name, "c-job");
  EXPECT_EQ(status.pid, getpid());
  EXPECT_EQ(status.job_class, TREADLE_OPPORTUNISTIC);
  EXPECT_EQ(status.share_percent, 40);
  EXPECT_EQ(status.memory_limit_bytes, uint64_t{1} << 30);
  EXPECT_EQ(status.suspended, 0);
  EXPECT_EQ(status.runs, 0U);
  treadle_job_release(job);
}

TEST(CJob, ChangesWhileItLives) {
  treadle_job* job = create("changing");
  EXPECT_EQ(message_of(treadle_job_set_share(job, 25)), "");
  EXPECT_EQ(message_of(treadle_job_set_memory_limit(job, 12345)), "");
  EXPECT_EQ(message_of(treadle_job_set_host_limit(job, 54321)), "");
  EXPECT_EQ(message_of(treadle_job_set_suspended(job, 1)), "");
  EXPECT_EQ(status_of(job).share_percent, 25);
  EXPECT_EQ(status_of(job).memory_limit_bytes, 12345U);
  EXPECT_EQ(status_of(job).host_limit_bytes, 54321U);
  EXPECT_EQ(status_of(job).suspended, 1);
  EXPECT_EQ(message_of(treadle_job_set_suspended(job, 0)), "");
  EXPECT_EQ(status_of(job).suspended, 0);
  EXPECT_EQ(message_of(treadle_jobs_set_share(status_of(job).id, 75)), "");
  EXPECT_EQ(status_of(job).share_percent, 75);
  treadle_job_release(job);
}

TEST(CJob, IsListedUntilItIsReleased) {
  treadle_job *first = create("listed-1"), *second = create("listed-2");
  auto names = [](size_t capacity) {
    std::vector<treadle_job_status> jobs(capacity);
    for (treadle_job_status& job : jobs) job.struct_size = sizeof job;
    size_t num_jobs = 0;
    EXPECT_EQ(message_of(treadle_jobs_list(jobs.data(), capacity, &num_jobs)), "");
    EXPECT_GE(num_jobs, 1U);
    std::string joined;
    for (size_t i = 0; i < std::min(num_jobs, capacity); ++i) joined += std::string(jobs[i].name) + " ";
    return joined;
  };
  EXPECT_NE(names(64).find("listed-1 "), std::string::npos);
  EXPECT_NE(names(64).find("listed-2 "), std::string::npos);
  EXPECT_EQ(names(0), "") << "only the number";
  treadle_job_release(first);
  EXPECT_EQ(names(64).find("listed-1 "), std::string::npos);
  treadle_job_release(second);
}

TEST(CJob, CountsTheRunsOfItsSessions) {
  const std::string bytes = treadle::onnx::serialize_model(treadle::testing::chain(2).def());
  treadle_model* model = nullptr;
  ASSERT_EQ(message_of(treadle_model_from_bytes(bytes.data(), bytes.size(), nullptr, &model)), "");
  treadle_job* job = create("counting");
  treadle_session_options options{};
  options.struct_size = sizeof options;
  options.job = job;
  treadle_session* session = nullptr;
  ASSERT_EQ(message_of(treadle_session_create(model, &options, &session)), "");
  const int64_t shape[] = {64, 96};
  treadle::Tensor input = treadle::testing::chain_input();
  for (int i = 0; i < 3; ++i) {
    treadle_value *x = nullptr, *y = nullptr;
    ASSERT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 2, input.data<float>(), input.size_bytes(), nullptr, nullptr, &x)),
              "");
    const char* names[] = {"x"};
    EXPECT_EQ(message_of(treadle_session_run(session, nullptr, names, &x, 1, nullptr, 1, &y)), "");
    treadle_value_release(y);
    treadle_value_release(x);
  }
  EXPECT_EQ(status_of(job).runs, 3U);
  EXPECT_EQ(status_of(job).running, 0U);
  EXPECT_GT(status_of(job).run_ns, 0U);
  treadle_job_release(job);  // the session keeps it
  treadle_session_release(session);
  treadle_model_release(model);
}

TEST(CJob, RefusesWhatHasNoMeaning) {
  treadle_job* job = nullptr;
  EXPECT_NE(message_of(treadle_job_create("bad", 7, 100, 0, &job)).find("job_class is 7"), std::string::npos);
  EXPECT_NE(message_of(treadle_job_create("bad", TREADLE_GUARANTEED, 101, 0, &job)).find("101"), std::string::npos);
  EXPECT_NE(message_of(treadle_job_create("two words", TREADLE_GUARANTEED, 100, 0, &job)), "");
  EXPECT_NE(message_of(treadle_job_create("bad", TREADLE_GUARANTEED, 100, 0, nullptr)), "");
  EXPECT_EQ(job, nullptr);
  EXPECT_NE(message_of(treadle_job_set_share(nullptr, 50)), "");
  EXPECT_NE(message_of(treadle_jobs_set_share(~uint64_t{0}, 50)), "");
  job = create("right");
  treadle_job_status unset{};
  EXPECT_NE(message_of(treadle_job_get_status(job, &unset)).find("struct_size"), std::string::npos);
  EXPECT_NE(message_of(treadle_job_set_share(job, -1)), "");
  EXPECT_EQ(status_of(job).share_percent, 100);
  treadle_job_release(job);
}

}  // namespace
