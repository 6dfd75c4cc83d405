// Tests the coordinator: its socket, its files, its grants after its death, policies, and the notation of quantities.
#include "sharing/coordinator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include "sharing/job_table.h"
#include "sharing/policy.h"
#include "sharing/quantities.h"
#include "tests/sharing/jobs.h"

namespace treadle {
namespace {

using sharing::ask_coordinator;
using sharing::Coordinator;
using sharing::CoordinatorOptions;
using testing::chain;
using testing::chain_input;
using testing::eventually;

class Running {
 public:
  explicit Running(const CoordinatorOptions& options = {}) : coordinator_(options), thread_([this] { coordinator_.run(stop_); }) {}
  ~Running() {
    stop_ = true;
    thread_.join();
  }

 private:
  Coordinator coordinator_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(JobStatus, IsALineAndAJsonObjectOfAllFields) {
  const JobStatus status{.id = 1,
                         .name = "train",
                         .pid = 3,
                         .job_class = JobClass::opportunistic,
                         .share_percent = 30,
                         .granted_percent = 12.5,
                         .suspended = true,
                         .running = 4,
                         .active = 5,
                         .threads = 6,
                         .runs = 7,
                         .run_ns = 8,
                         .idle_ns = 9,
                         .gave_way_ns = 10,
                         .last_step_ns = 11,
                         .average_step_ns = 12,
                         .memory_limit_bytes = 13,
                         .host_limit_bytes = 14,
                         .device_bytes = 15,
                         .host_bytes = 16,
                         .disk_bytes = 17,
                         .peak_bytes = 18,
                         .moved_bytes = 19,
                         .moves = 20,
                         .moving_ns = 21};
  const std::string line =
      "id=1 name=train pid=3 class=opportunistic share=30 granted=12.5 suspended=1 running=4 active=5 threads=6 runs=7 run_ns=8 idle_ns=9 "
      "gave_way_ns=10 last_step_ns=11 average_step_ns=12 memory_limit=13 host_limit=14 device_bytes=15 host_bytes=16 disk_bytes=17 "
      "peak_bytes=18 moved_bytes=19 moves=20 moving_ns=21";
  EXPECT_EQ(sharing::format_status(status), line);
  EXPECT_EQ(sharing::format_status(sharing::parse_status("of_later_versions=1 " + line)), line);
  const std::string json = sharing::format_json(status);
  EXPECT_TRUE(json.starts_with(R"({"id": 1, "name": "train", "pid": 3, "class": "opportunistic", "share": 30, "granted": 12.5, )")) << json;
  EXPECT_TRUE(json.ends_with(R"("suspended": true, "running": 4, "active": 5, "threads": 6, "runs": 7, "run_ns": 8, "idle_ns": 9, )"
                             R"("gave_way_ns": 10, "last_step_ns": 11, "average_step_ns": 12, "memory_limit": 13, "host_limit": 14, )"
                             R"("device_bytes": 15, "host_bytes": 16, "disk_bytes": 17, "peak_bytes": 18, "moved_bytes": 19, "moves": 20, )"
                             R"("moving_ns": 21})"))
      << json;
}

TEST(Coordinator, ListsAndSetsJobs) {
  Job job({.name = "asked", .share_percent = 60});
  Running running({.period_ms = 5});
  EXPECT_EQ(ask_coordinator("ping"), "");
  const JobStatus listed = [&] {
    std::istringstream lines(ask_coordinator("list"));
    for (std::string line; std::getline(lines, line);)
      if (sharing::parse_status(line).id == job.id()) return sharing::parse_status(line);
    return JobStatus{};
  }();
  EXPECT_EQ(listed.name, "asked");
  EXPECT_EQ(listed.share_percent, 60);
  ask_coordinator("set asked share=25% memory=3MiB host_memory=5MiB class=opportunistic suspend");
  JobStatus status = job.status();
  EXPECT_EQ(status.share_percent, 25);
  EXPECT_EQ(status.memory_limit_bytes, 3U << 20);
  EXPECT_EQ(status.host_limit_bytes, 5U << 20);
  EXPECT_EQ(status.job_class, JobClass::opportunistic);
  EXPECT_TRUE(status.suspended);
  ask_coordinator("set " + std::to_string(job.id()) + " resume share=100");
  EXPECT_FALSE(job.status().suspended);
  EXPECT_EQ(ask_coordinator("policy"), "give-way\n");
  ask_coordinator("policy feedback");
  EXPECT_EQ(ask_coordinator("policy"), "feedback\n");
}

TEST(Coordinator, RefusesBadRequestsAndGoesOn) {
  Job job({.name = "unharmed", .share_percent = 60});
  Running running({.period_ms = 5});
  EXPECT_NE(error_of([] { ask_coordinator("set nobody share=10"); }).find("there is no job \"nobody\""), std::string::npos);
  EXPECT_NE(error_of([] { ask_coordinator("set unharmed share=101"); }).find("a share from 0 to 100 %"), std::string::npos);
  EXPECT_NE(error_of([] { ask_coordinator("set unharmed share=20 colour=red"); }).find("colour=red"), std::string::npos);
  EXPECT_NE(error_of([] { ask_coordinator("sing"); }).find("requests are ping, list, set and policy"), std::string::npos);
  EXPECT_NE(error_of([] { ask_coordinator("policy magic"); }).find("the policies are: give-way"), std::string::npos);
  // One client never ends its line; another one disconnects in the middle of a line.
  const int rude = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  sharing::coordinator_socket().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(connect(rude, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const std::string flood(10'000, 'x');
  (void)!send(rude, flood.data(), flood.size(), MSG_NOSIGNAL);
  EXPECT_EQ(ask_coordinator("ping"), "");
  close(rude);
  EXPECT_EQ(job.status().share_percent, 60);
}

TEST(Coordinator, IsOneAtATime) {
  {
    Running first;
    const std::string message = error_of([] { Coordinator second({}); });
    EXPECT_NE(message.find("a coordinator runs already: process " + std::to_string(getpid())), std::string::npos) << message;
    // A coordinator in another process is refused as well.
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);
      const std::string there = error_of([] { Coordinator second({}); });
      _exit(there.find("a coordinator runs already: process " + std::to_string(getppid())) != std::string::npos ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  Running again;
  EXPECT_EQ(ask_coordinator("ping"), "");
  struct stat info {};
  ASSERT_EQ(stat(sharing::coordinator_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(Coordinator, RefusesOptionsThatMakeNoSense) {
  EXPECT_NE(error_of([] { Coordinator({.policy = "none"}); }).find("there is no policy"), std::string::npos);
  EXPECT_NE(error_of([] { Coordinator({.period_ms = 0}); }).find("from 1 to 1000"), std::string::npos);
  EXPECT_NE(error_of([] { ask_coordinator("ping"); }).find("no coordinator listens"), std::string::npos);
}

TEST(Coordinator, TakesOrdersFromAFileAlsoForJobsThatComeLater) {
  const std::string folder = sharing_folder();
  const std::string control = folder + "/control", status_file = folder + "/status.json";
  std::ofstream(control) << "# orders\nearly share=35\nlater share=15 class=opportunistic\nbroken share=900\n";
  Job early({.name = "early"});
  Running running({.period_ms = 2, .control_file = control, .status_file = status_file});
  EXPECT_TRUE(eventually([&] { return early.status().share_percent == 35; }));
  Job later({.name = "later"});
  EXPECT_TRUE(eventually([&] { return later.status().share_percent == 15; }));
  EXPECT_EQ(later.status().job_class, JobClass::opportunistic);
  // A share that the program then sets by itself stays until the file changes.
  early.set_share(80);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(early.status().share_percent, 80);
  std::ofstream(control) << "early suspend\n";
  EXPECT_TRUE(eventually([&] { return early.status().suspended; }));
  EXPECT_TRUE(eventually([&] {
    std::ifstream in(status_file);
    std::stringstream text;
    text << in.rdbuf();
    return text.str().find("\"name\": \"early\"") != std::string::npos;
  }));
}

// A coordinator that was killed leaves its grants in the shared page. Jobs treat them as void and continue.
TEST(Coordinator, GrantsEndWithIt) {
  auto job = std::make_shared<Job>(JobOptions{.name = "granted", .job_class = JobClass::opportunistic});
  SessionOptions options;
  options.job = job;
  options.intra_op_num_threads = 1;
  Session session(chain(4).model(), options);
  sharing::JobTable& table = sharing::JobTable::get();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Coordinator coordinator({.policy = "feedback", .period_ms = 5});
    (void)!write(ready[1], "x", 1);
    std::atomic<bool> stop{false};
    coordinator.run(stop);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(table.coordinator_pid(), child);
  EXPECT_TRUE(eventually([&] { return job->status().granted_percent < 100; }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(table.coordinator_pid(), 0);
  EXPECT_TRUE(eventually([&] {
    session.run({{"x", chain_input()}});
    return job->status().granted_percent == 100;
  }));
  Running next;  // the old socket does not prevent a new coordinator
  EXPECT_EQ(ask_coordinator("ping"), "");
  close(ready[0]);
  close(ready[1]);
}

sharing::JobView view(uint64_t id, JobClass job_class, double step_ms, uint64_t new_runs = 10) {
  return {.id = id,
          .job_class = job_class,
          .threads = 1,
          .running = true,
          .new_runs = new_runs,
          .busy_ns = 50e6,
          .average_step_ns = step_ms * 1e6};
}

TEST(Policies, FeedbackGrowsUntilTheGuaranteedJobSuffersThenFalls) {
  auto policy = sharing::make_policy("feedback");
  uint32_t last = 0;
  auto look = [&](double step_ms) {
    const std::vector<sharing::JobView> jobs{view(1, JobClass::guaranteed, step_ms), view(2, JobClass::opportunistic, 3)};
    const auto decision = policy->decide(jobs, 100e6, 2);
    EXPECT_EQ(decision.granted[0], sharing::kFullShare);
    EXPECT_EQ(decision.beside, sharing::Beside::any);
    return decision.granted[1];
  };
  for (int i = 0; i < 5; ++i) {
    const uint32_t granted = look(10);
    EXPECT_GT(granted, last);
    last = granted;
  }
  const uint32_t suffering = look(10.5);
  EXPECT_NEAR(suffering, last * 0.92, 2);
  EXPECT_LT(look(11), suffering);
  const uint32_t low = look(11), higher = look(10);
  EXPECT_GT(higher, low);
  EXPECT_LT(higher, low * 1.1);  // from now on, the increase is additive
}

TEST(Policies, AntManGrantsWhatIsLeft) {
  auto policy = sharing::make_policy("antman");
  uint32_t granted = 0;
  for (int i = 0; i < 50; ++i) {
    const std::vector<sharing::JobView> jobs{view(1, JobClass::guaranteed, 10), view(2, JobClass::opportunistic, 3)};
    granted = policy->decide(jobs, 100e6, 2).granted[1];
  }
  EXPECT_NEAR(granted, 5000, 50);  // the guaranteed job is busy half of the time
  const std::vector<sharing::JobView> jobs{view(1, JobClass::guaranteed, 12), view(2, JobClass::opportunistic, 3)};
  EXPECT_LT(policy->decide(jobs, 100e6, 2).granted[1], granted * 0.6);
}

TEST(Policies, OperatorsHoldMemoryBoundNodesBackWhenTheyHurt) {
  auto policy = sharing::make_policy("operators");
  auto look = [&](double step_ms, int cpus = 2) {
    const std::vector<sharing::JobView> jobs{view(1, JobClass::guaranteed, step_ms), view(2, JobClass::opportunistic, 3)};
    return policy->decide(jobs, 100e6, cpus);
  };
  EXPECT_EQ(look(10, 1).beside, sharing::Beside::none);  // no CPU is free for the opportunistic jobs
  EXPECT_EQ(look(10).beside, sharing::Beside::opposite);
  EXPECT_EQ(look(10).max_beside_ns, 250'000U);
  EXPECT_TRUE(look(10).guaranteed_publish);
  EXPECT_EQ(look(11).beside, sharing::Beside::compute_bound);
  EXPECT_EQ(look(11).beside, sharing::Beside::none);
  sharing::Beside beside = sharing::Beside::none;
  for (int i = 0; i < 60; ++i) beside = look(10).beside;
  EXPECT_EQ(beside, sharing::Beside::compute_bound);  // the policy tries it again after a while
}

TEST(Quantities, AreReadAsPeopleWriteThem) {
  EXPECT_EQ(sharing::parse_percent("30%"), 30);
  EXPECT_EQ(sharing::parse_percent("12.5"), 12.5);
  EXPECT_EQ(sharing::parse_bytes("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(sharing::parse_bytes("1.5M"), uint64_t{3} << 19);
  EXPECT_EQ(sharing::parse_bytes("none"), 0U);
  for (const char* wrong : {"", "x", "-1", "101", "30 %", "nan", "inf"}) EXPECT_THROW(sharing::parse_percent(wrong), Error) << wrong;
  for (const char* wrong : {"", "GiB", "-1", "1XB", "1GiBx", "1e300", "nan"}) EXPECT_THROW(sharing::parse_bytes(wrong), Error) << wrong;
}

// Makes random changes of what jobs depend on: shares, classes, suspension, cancelled runs, and a coordinator whose decisions change.
// Several threads run meanwhile. Every run must end, and those that succeed must have the right bits.
TEST(Jobs, LiveThroughARandomLife) {
  const Model model = chain(6).model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = testing::values_of(Session(model).run(feeds)[0]);
  Running running({.policy = "operators", .period_ms = 1});
  std::atomic<bool> stop{false};
  std::atomic<int> finished{0}, wrong{0};
  std::vector<std::shared_ptr<Job>> jobs;
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(std::make_shared<Job>(
        JobOptions{.name = "life" + std::to_string(i), .job_class = i % 2 == 0 ? JobClass::guaranteed : JobClass::opportunistic}));
    SessionOptions options;
    options.job = jobs.back();
    options.intra_op_num_threads = 1 + i % 2;
    if (i == 3) {
      options.execution_mode = ExecutionMode::parallel;
      options.inter_op_num_threads = 2;
    }
    if (i == 2) options.config["treadle.device"] = "sim";
    sessions.push_back(std::make_unique<Session>(model, options));
  }
  std::vector<std::thread> threads;
  for (auto& session : sessions)
    threads.emplace_back([&, session = session.get()] {
      int number = 0;
      while (!stop) {
        RunOptions options;
        if (++number % 5 == 0) options.deadline_ms = 3;
        try {
          if (testing::values_of(session->run(feeds, {}, &options)[0]) != expected) ++wrong;
          ++finished;
        } catch (const Error& error) {
          if (error.code() != ErrorCode::timed_out) ++wrong;
        }
      }
    });
  std::mt19937 random(7);
  const char* policies[] = {"policy give-way", "policy antman", "policy feedback", "policy operators"};
  for (int step = 0; step < 300; ++step) {
    Job& job = *jobs[random() % jobs.size()];
    switch (random() % 6) {
      case 0: job.set_share(static_cast<double>(random() % 101)); break;
      case 1: job.suspend(); break;
      case 2:
      case 3: job.resume(); break;
      case 4: job.set_class(random() % 2 == 0 ? JobClass::guaranteed : JobClass::opportunistic); break;
      default: ask_coordinator(policies[random() % 4]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1000));
  }
  for (auto& job : jobs) {
    job->set_share(100);
    job->resume();
    job->set_class(JobClass::guaranteed);
  }
  const int before = finished;
  EXPECT_TRUE(eventually([&] { return finished > before + 10; }));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  // A run whose caller left at the deadline ends a moment later.
  for (auto& job : jobs) EXPECT_TRUE(eventually([&] { return job->status().running == 0; }));
  EXPECT_EQ(sharing::JobTable::get().page().guaranteed_running.load(), 0U);
}

// Kills jobs and coordinators in random order at random times. The runs of the surviving job must have the right bits, and nothing that the
// dead processes left may block it.
TEST(Jobs, SurviveTheDeathOfOthersAtAnyMoment) {
  const Model model = chain(4).model();
  const std::map<std::string, Datum> feeds{{"x", chain_input()}};
  const auto expected = testing::values_of(Session(model).run(feeds)[0]);
  auto in_job = [&](const char* name, JobClass job_class) {
    SessionOptions options;
    options.job = std::make_shared<Job>(JobOptions{.name = name, .job_class = job_class});
    options.intra_op_num_threads = 1;
    return options;
  };
  const SessionOptions own = in_job("survivor", JobClass::opportunistic);
  Session session(model, own);
  std::mt19937 random(23);
  auto spawn = [&](unsigned kind) {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(60);
    try {
      if (kind == 0) {
        std::atomic<bool> stop{false};
        Coordinator({.policy = "feedback", .period_ms = 1}).run(stop);
      } else {
        Session other(model, in_job("victim", kind == 1 ? JobClass::guaranteed : JobClass::opportunistic));
        for (;;) other.run(feeds);
      }
    } catch (const Error&) {  // another coordinator runs already
    }
    _exit(0);
  };
  auto end = [](pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  };
  std::vector<pid_t> children;
  int finished = 0;
  for (int step = 0; step < 60; ++step) {
    if (children.size() < 4) children.push_back(spawn(random() % 3));
    RunOptions options;
    options.deadline_ms = 3;
    try {
      EXPECT_EQ(testing::values_of(session.run(feeds, {}, &options)[0]), expected);
      ++finished;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timed_out) << error.what();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    if (random() % 2 != 0) continue;
    const auto chosen = children.begin() + static_cast<std::ptrdiff_t>(random() % children.size());
    end(*chosen);
    children.erase(chosen);
  }
  for (const pid_t child : children) end(child);
  EXPECT_TRUE(eventually([&] {
    EXPECT_EQ(testing::values_of(session.run(feeds)[0]), expected);
    return own.job->status().granted_percent == 100;
  }));
  for (const JobStatus& job : list_jobs()) EXPECT_NE(job.name, "victim");
  EXPECT_EQ(sharing::JobTable::get().page().guaranteed_running.load(), 0U);
  const Coordinator last({});  // its end also voids the killed coordinators' grants, which would otherwise last two seconds
  RecordProperty("finished beside them", finished);
}

}  // namespace
}  // namespace treadle
