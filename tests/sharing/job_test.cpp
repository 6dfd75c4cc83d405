// Tests jobs: the page that they share, shares, suspension, yielding, forks, and processes that are killed.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <future>
#include <limits>
#include <optional>
#include <semaphore>
#include <thread>

#include "core/threads/thread_pool.h"
#include "exec/memory/memory_gate.h"
#include "sharing/job_table.h"
#include "sharing/memory_watch.h"
#include "sharing/turn.h"
#include "tests/onnx/wire_builder.h"
#include "tests/sanitizers.h"
#include "tests/session/faults.h"
#include "tests/sharing/jobs.h"
#include "treadle/plugin.h"
#include "treadle/profile.h"

namespace treadle {
namespace {

using testing::chain;
using testing::chain_input;
using testing::endless_loop;
using testing::eventually;
using testing::values_of;

// Keeps the jobs of the tests apart from those of the user who runs the tests.
class OwnFolder : public ::testing::Environment {
 public:
  OwnFolder() { setenv("TREADLE_SHARING_DIR", folder_.path().c_str(), 1); }

 private:
  onnx::test::TemporaryFolder folder_;
};
const auto* const own_folder = ::testing::AddGlobalTestEnvironment(new OwnFolder);

SessionOptions in_job(const std::shared_ptr<Job>& job) {
  SessionOptions options;
  options.job = job;
  options.intra_op_num_threads = 1;
  return options;
}

ErrorCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

const JobStatus* find(const std::vector<JobStatus>& jobs, uint64_t id) {
  for (const JobStatus& job : jobs)
    if (job.id == id) return &job;
  return nullptr;
}

TEST(Jobs, AreInTheTableForAsLongAsTheyLive) {
  uint64_t id = 0;
  {
    auto job = std::make_shared<Job>(JobOptions{.name = "served", .job_class = JobClass::opportunistic, .share_percent = 12.5});
    id = job->id();
    const auto jobs = list_jobs();
    const JobStatus* found = find(jobs, id);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, "served");
    EXPECT_EQ(found->pid, getpid());
    EXPECT_EQ(found->share_percent, 12.5);
    EXPECT_EQ(found->job_class, JobClass::opportunistic);
    set_job(id, {.share_percent = 40, .memory_limit_bytes = 1 << 20});
    EXPECT_EQ(job->status().share_percent, 40);
    EXPECT_EQ(job->status().memory_limit_bytes, 1U << 20);
    Session session(chain(2).model(), in_job(job));
    job.reset();
    EXPECT_TRUE(find(list_jobs(), id));  // the session holds a reference to the job
  }
  EXPECT_FALSE(find(list_jobs(), id));
  EXPECT_EQ(code_of([&] { set_job(id, {.share_percent = 40}); }), ErrorCode::not_found);
}

TEST(Jobs, RefuseWhatIsOutOfRange) {
  Job job({.name = "checked"});
  for (double share : {-0.1, 100.1, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(code_of([&] { job.set_share(share); }), ErrorCode::invalid_argument) << share;
  EXPECT_EQ(job.status().share_percent, 100);
  EXPECT_EQ(code_of([] { Job({.name = "with space"}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Job({.name = std::string(48, 'x')}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Job({.name = "x", .share_percent = 101}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { job.set_class(static_cast<JobClass>(7)); }), ErrorCode::invalid_argument);
}

TEST(Jobs, AreAsManyAsTheTableHolds) {
  std::vector<std::unique_ptr<Job>> jobs;
  const ErrorCode code = code_of([&] {
    for (int i = 0; i <= sharing::kMaxJobs; ++i) jobs.push_back(std::make_unique<Job>());
  });
  EXPECT_EQ(code, ErrorCode::resource_exhausted);
  jobs.pop_back();
  Job one_more;
}

// With a small share, each executor must give the same results as alone, and must idle in between.
TEST(Jobs, ComputeTheSameBitsAtAnyShareInEveryExecutor) {
  const Model model = chain(12).model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = values_of(Session(model).run(feeds)[0]);
  for (const char* executor : {"sequential", "parallel", "sim", "partial"}) {
    auto job = std::make_shared<Job>(JobOptions{.name = executor, .share_percent = 20});
    SessionOptions options = in_job(job);
    if (executor == std::string("parallel")) {
      options.execution_mode = ExecutionMode::parallel;
      options.inter_op_num_threads = 2;
    }
    if (executor == std::string("sim")) options.config["treadle.device"] = "sim";
    Session session(model, options);
    for (int run = 0; run < 3; ++run) {
      if (executor == std::string("partial")) {
        PartialRun partial = session.partial_run(feeds);
        EXPECT_TRUE(partial.advance());
        EXPECT_EQ(values_of(partial.outputs()[0]), expected);
      } else {
        EXPECT_EQ(values_of(session.run(feeds)[0]), expected) << executor;
      }
    }
    EXPECT_EQ(job->status().runs, 3U) << executor;
    EXPECT_GT(job->status().idle_ns, 0U) << executor;
    EXPECT_EQ(job->status().running, 0U);
  }
}

// Idle time is proportional to the time of the nodes, so the ratio does not depend on the machine's speed.
TEST(Jobs, HaveTheShareThatTheyAreGiven) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "with every access recorded, the share is one of bookkeeping, and does not settle";
  const Model model = chain(24).model();
  auto job = std::make_shared<Job>(JobOptions{.name = "ratio", .share_percent = 30});
  Session session(model, in_job(job));
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  // On a busy machine a thread may sleep too long; later runs make up for that.
  EXPECT_TRUE(eventually([&] {
    for (int run = 0; run < 20; ++run) session.run(feeds);
    const JobStatus now = job->status();
    const double share = static_cast<double>(now.run_ns - now.idle_ns) / static_cast<double>(now.run_ns);
    return share > 0.28 && share < 0.32;
  }));
  job->set_share(100);
  const uint64_t idle_before = job->status().idle_ns;
  session.run(feeds);
  EXPECT_EQ(job->status().idle_ns, idle_before);
}

TEST(Jobs, AreSuspendedAtANodeAndGoOn) {
  const Model model = chain(8).model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = values_of(Session(model).run(feeds)[0]);
  for (const bool by_share : {false, true}) {
    auto job = std::make_shared<Job>(JobOptions{.name = "halted"});
    Session session(model, in_job(job));
    by_share ? job->set_share(0) : job->suspend();
    auto run = std::async(std::launch::async, [&] { return values_of(session.run(feeds)[0]); });
    ASSERT_TRUE(eventually([&] { return job->status().running == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(job->status().runs, 0U);
    by_share ? job->set_share(100) : job->resume();
    EXPECT_EQ(run.get(), expected);
  }
}

TEST(Jobs, SuspendedRunsAreCancelledAndTimeOut) {
  auto job = std::make_shared<Job>(JobOptions{.name = "ended"});
  Session session(chain(4).model(), in_job(job));
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  job->suspend();
  RunOptions deadline;
  deadline.deadline_ms = 20;
  EXPECT_EQ(code_of([&] { session.run(feeds, {}, &deadline); }), ErrorCode::timed_out);
  RunOptions cancelled;
  cancelled.cancel_token.emplace();
  auto run = std::async(std::launch::async, [&] { return code_of([&] { session.run(feeds, {}, &cancelled); }); });
  ASSERT_TRUE(eventually([&] { return job->status().running == 1; }));
  cancelled.cancel_token->cancel();
  EXPECT_EQ(run.get(), ErrorCode::cancelled);
  job->resume();
  session.run(feeds);
  EXPECT_EQ(job->status().running, 0U);
}

TEST(Jobs, OpportunisticOnesGiveWayWithinANode) {
  Job guaranteed(JobOptions{.name = "first"}), opportunistic(JobOptions{.name = "second", .job_class = JobClass::opportunistic});
  const sharing::Interruption none{[](const void*) {}, nullptr};
  ThreadPool pool(2);
  constexpr int kChunks = 20'000;
  std::atomic<int> done{0};
  std::atomic<bool> hurries{false};
  std::thread node([&] {
    sharing::Turn turn(opportunistic.state().get(), nullptr, 0, none);
    turn.before_node({});
    LoopBreakScope breaks(turn.within_node());
    pool.parallel_for(kChunks, 1, [&](int64_t, int64_t) {
      if (!hurries) std::this_thread::sleep_for(std::chrono::microseconds(500));
      ++done;
    });
  });
  EXPECT_TRUE(eventually([&] { return done > 3; }));
  {
    sharing::Turn run(guaranteed.state().get(), nullptr, 0, none);
    EXPECT_TRUE(eventually([&] { return opportunistic.status().active == 0; }));
    const int before = done;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_LE(done, before + 1);  // the helper finishes its current chunk
    EXPECT_LT(done, kChunks);
    hurries = true;
  }
  node.join();
  EXPECT_EQ(done, kChunks);
}

// A guaranteed run begins during the first chunk of the only node's loop.
TEST(Jobs, OpportunisticOnesGiveWayWithinANodeThatIsWatched) {
  testing::register_fault_operators();
  testing::ModelBuilder b;
  b.input("x", {-1}).output("y", {-1}).node("WideStep", {"x"}, {"y"}, "wide", "test.fault");
  b.def().opset_imports.push_back({"test.fault", 1});
  for (const std::string watched_by : {"nobody", "a profile", "a monitor", "a deadline", "counters"}) {
    auto guaranteed = std::make_shared<Job>(JobOptions{.name = "first"});
    auto opportunistic = std::make_shared<Job>(JobOptions{.name = "second", .job_class = JobClass::opportunistic});
    SessionOptions options = in_job(opportunistic);
    options.node_counters = watched_by == "counters";
    Session session(b.model(), options);
    std::optional<Profiler> profiler;
    if (watched_by == "a profile") profiler.emplace(session.profiler({}));
    if (watched_by == "a monitor") session.set_monitor({.callback = [](const MonitorEvent&) {}});
    RunOptions run;
    if (watched_by == "a deadline") run.deadline_ms = 60'000;
    std::promise<void> begun;
    std::thread other;
    testing::set_fault(0, [&] {
      other = std::thread([&] {
        const sharing::Interruption none{[](const void*) {}, nullptr};
        sharing::Turn turn(guaranteed->state().get(), nullptr, 0, none);
        begun.set_value();
        EXPECT_TRUE(eventually([&] { return opportunistic->status().active == 0; })) << watched_by;
      });
      begun.get_future().wait();
    });
    const std::vector<float> y = values_of(session.run({{"x", testing::floats(std::vector<float>(300, 1.0F))}}, {}, &run)[0]);
    other.join();
    EXPECT_EQ(y, std::vector<float>(300, 2.0F));
    EXPECT_GT(opportunistic->status().gave_way_ns, 0U) << watched_by;
    if (profiler) {
      const std::vector<ProfiledEvent> events = profiler->profile().slowest_run;
      EXPECT_GE(std::ranges::count(events, -1, &ProfiledEvent::node), 1) << "the pause is a wait";
    }
  }
}

TEST(Jobs, OpportunisticOnesGiveWayToGuaranteedOnes) {
  auto guaranteed = std::make_shared<Job>(JobOptions{.name = "first"});
  auto opportunistic = std::make_shared<Job>(JobOptions{.name = "second", .job_class = JobClass::opportunistic});
  SessionOptions as_written = in_job(guaranteed);
  as_written.graph_optimization_level = GraphOptimizationLevel::disable_all;
  Session endless(endless_loop().model(), as_written), session(chain(4).model(), in_job(opportunistic));
  RunOptions stop;
  auto first = std::async(std::launch::async, [&] { endless.run({{"start", Tensor::scalar<int64_t>(0)}}, {}, &stop); });
  struct AtEnd {  // stops the run even if an expectation fails, as the future waits for it
    RunOptions& options;
    ~AtEnd() { options.terminate = true; }
  } at_end{stop};
  ASSERT_TRUE(eventually([&] { return guaranteed->status().running == 1; }));
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  auto second = std::async(std::launch::async, [&] { return values_of(session.run(feeds)[0]); });
  ASSERT_TRUE(eventually([&] { return opportunistic->status().running == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(opportunistic->status().runs, 0U);
  // A guaranteed run that is suspended must not block other runs.
  guaranteed->suspend();
  second.get();
  EXPECT_GT(opportunistic->status().gave_way_ns, 0U);
  guaranteed->resume();
  // Waits until the thread of the run is running again.
  ASSERT_TRUE(eventually([&] { return sharing::JobTable::get().page().guaranteed_running.load() != 0; }));
  auto third = std::async(std::launch::async, [&] { return values_of(session.run(feeds)[0]); });
  ASSERT_TRUE(eventually([&] { return opportunistic->status().running == 1; }));
  // A run of a job that is no longer guaranteed must not block other runs.
  guaranteed->set_class(JobClass::opportunistic);
  third.get();
  stop.terminate = true;
  EXPECT_THROW(first.get(), Error);
}

// The second guaranteed run begins on the CPU of the first, which is this thread's.
TEST(Jobs, GuaranteedOnesThatMeetOnACpuSpread) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one CPU";
  Job first({.name = "first"}), second({.name = "second"});
  const sharing::Turn begun(first.state().get(), nullptr, 0, {});
  const int taken = first.state()->slot().cpu;
  const sharing::Turn elsewhere(second.state().get(), nullptr, 0, {});
  EXPECT_NE(second.state()->slot().cpu, taken);
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

// Two sessions share the engine of a device: one node runs at a time, and both sessions get the right results.
TEST(Jobs, MeetAtTheEngineOfASharedDevice) {
  static std::atomic<int> inside{0}, most{0};
  static const bool registered = [] {
    treadle_operator op{};
    op.size = sizeof op;
    op.domain = "engine.test";
    op.op_type = "Busy";
    op.min_inputs = op.max_inputs = op.num_outputs = 1;
    op.infer = [](void*, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs) {
      host->node_input_type(node, 0, outputs);
      return 1;
    };
    op.run = [](void*, void*, const treadle_host* host, treadle_call* call) {
      const int now = ++inside;
      int seen = most.load();
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      treadle_tensor_view x;
      host->call_input(call, 0, &x);
      void* y = host->call_output(call, 0, x.dtype, x.dims, static_cast<size_t>(x.rank));
      if (y) *static_cast<float*>(y) = *static_cast<const float*>(x.data) + 1;
      --inside;
      return y ? 1 : 0;
    };
    treadle_status* status = treadle_register_operator(&op);
    const bool good = status == nullptr;
    treadle_status_release(status);
    return good;
  }();
  ASSERT_TRUE(registered);
  testing::ModelBuilder b;
  b.input("x", {1}).output("y", {1});
  for (int i = 0; i < 8; ++i)
    b.node("Busy", {i == 0 ? "x" : "v" + std::to_string(i)}, {i == 7 ? "y" : "v" + std::to_string(i + 1)}, "busy" + std::to_string(i),
           "engine.test");
  auto run = [&](JobClass job_class, float start) {
    SessionOptions options = in_job(std::make_shared<Job>(JobOptions{.name = "engine", .job_class = job_class}));
    options.config["treadle.device"] = "sim:engine test";
    options.config["treadle.sim.shared_engine"] = "1";
    Session session(b.model(), options);
    for (int i = 0; i < 5; ++i) {
      Tensor x = Tensor::scalar(start + static_cast<float>(i)).reshaped({1});
      EXPECT_EQ(values_of(session.run({{"x", x}})[0]), (std::vector<float>{start + static_cast<float>(i) + 8}));
    }
  };
  auto first = std::async(std::launch::async, [&] { run(JobClass::guaranteed, 0); });
  auto second = std::async(std::launch::async, [&] { run(JobClass::opportunistic, 100); });
  auto third = std::async(std::launch::async, [&] { run(JobClass::guaranteed, 200); });
  first.get();
  second.get();
  third.get();
  EXPECT_EQ(most, 1);
}

// A node must give the same bits, whether it is preempted or not.
TEST(Jobs, OnOneEngineComputeTheSameBits) {
  const Model model = chain(12).model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = values_of(Session(model).run(feeds)[0]);
  auto session_of = [&](const char* name, JobClass job_class) {
    SessionOptions options = in_job(std::make_shared<Job>(JobOptions{.name = name, .job_class = job_class}));
    options.config["treadle.device"] = "sim:one-engine";
    options.config["treadle.sim.shared_engine"] = "1";
    return std::make_unique<Session>(model, options);
  };
  const auto guaranteed = session_of("first", JobClass::guaranteed);
  const auto one = session_of("last", JobClass::opportunistic), other = session_of("last", JobClass::opportunistic);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, runs{0};
  std::vector<std::thread> threads;
  for (const Session* session : {one.get(), other.get()})
    threads.emplace_back([&, session] {
      for (int own = 0; !stop || own < 3; ++own, ++runs) wrong += values_of(session->run(feeds)[0]) != expected;
    });
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(values_of(guaranteed->run(feeds)[0]), expected);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(runs, 6);
}

// A process that is killed during a guaranteed run must not keep its entry in the shared page, nor block other processes.
TEST(Jobs, OfKilledProcessesAreForgotten) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    auto job = std::make_shared<Job>(JobOptions{.name = "killed"});
    SessionOptions options = in_job(job);
    options.graph_optimization_level = GraphOptimizationLevel::disable_all;
    Session session(endless_loop().model(), options);
    std::thread watcher([&] {
      while (job->state()->slot().active.load() == 0) usleep(1000);
      (void)!write(ready[1], "x", 1);
    });
    try {
      session.run({{"start", Tensor::scalar<int64_t>(0)}});
    } catch (const Error& error) {
      std::fprintf(stderr, "the run that should not end: %s\n", error.what());
    }
    _exit(1);  // exits while the watcher runs, which cannot be destroyed
  }
  close(ready[1]);  // then read() ends if the child dies
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  bool seen = false;
  for (const JobStatus& job : list_jobs()) seen |= job.name == "killed" && job.running == 1 && job.pid == child;
  EXPECT_TRUE(seen);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  auto job = std::make_shared<Job>(JobOptions{.name = "left", .job_class = JobClass::opportunistic});
  Session session(chain(2).model(), in_job(job));
  session.run({{"x", chain_input()}});  // this run would not end if the killed run still counted
  for (const JobStatus& left : list_jobs()) EXPECT_NE(left.name, "killed");
  close(ready[0]);
}

// A thread tells the job's clients about a limit, and holds mutexes meanwhile. In a forked child they would stay locked, since the thread
// does not exist there.
TEST(Jobs, AForkWhileALimitIsToldLeavesTheChildFree) {
  struct Slow final : sharing::MemoryWatch::Client {
    std::binary_semaphore told{0}, go_on{0};
    std::atomic<bool> waits{true};
    void limit_changed(bool) override {
      if (!waits.exchange(false)) return;
      told.release();
      go_on.acquire();
    }
  } slow;
  struct Quick final : sharing::MemoryWatch::Client {
    std::binary_semaphore told{0};
    void limit_changed(bool) override { told.release(); }
  };
  auto job = std::make_shared<Job>(JobOptions{.name = "told"});
  sharing::MemoryWatch& watch = sharing::MemoryWatch::get();
  watch.add(slow, *job->state());  // this call tells the client at once
  slow.told.acquire();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    Quick own;
    watch.add(own, *job->state());
    own.told.acquire();  // waits until the child has started a thread of its own
    watch.remove(own);
    _exit(0);
  }
  slow.go_on.release();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  watch.remove(slow);
}

TEST(Jobs, AForkWhileARunIsLetInLeavesTheChildFree) {
  exec::Governor governor;
  const MemoryAccount account("the session");
  std::binary_semaphore is_inside{0}, may_leave{0};
  std::thread elsewhere([&] {
    exec::Admission::Run run(governor.admission, account, /*ends_by_itself=*/true);
    run.enter();
    is_inside.release();
    may_leave.acquire();
  });
  is_inside.acquire();
  std::unique_lock held(governor.mutex);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::lock_guard lock(governor.mutex);
    exec::Admission::Run run(governor.admission, account, /*ends_by_itself=*/true);
    run.queue();
    _exit(run.expects_others() ? 1 : 0);
  }
  held.unlock();
  may_leave.release();
  elsewhere.join();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Jobs, OfAForkedChildAreItsOwn) {
  auto job = std::make_shared<Job>(JobOptions{.name = "forked", .job_class = JobClass::opportunistic, .share_percent = 50});
  Session session(chain(2).model(), in_job(job));
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  session.run(feeds);
  const uint64_t id = job->id();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    session.run(feeds);
    const JobStatus own = job->status();
    const bool right = own.id != id && own.pid == getpid() && own.runs == 1 && own.name == "forked" && own.share_percent == 50;
    _exit(right && find(list_jobs(), id) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(job->status().runs, 1U);
  EXPECT_EQ(job->id(), id);
}

}  // namespace
}  // namespace treadle
