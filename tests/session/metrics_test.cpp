// Tests the metrics of the process.
#include "treadle/metrics.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/session/models.h"
#include "treadle/treadle.hpp"

namespace treadle {
namespace {

Model relu_of(const std::string& name) {
  testing::ModelBuilder b;
  b.def().graph.name = name;
  b.input("x", {-1, 3}).output("y", {-1, 3}).node("Relu", {"x"}, {"y"});
  return b.model();
}

ClientMetrics metrics_of(const std::string& model) {
  for (const ClientMetrics& client : read_metrics().clients)
    if (client.model == model) return client;
  return {};
}

Tensor zeros(std::vector<int64_t> extents) {
  Tensor made(DType::float32, Shape(extents));
  std::memset(made.raw(), 0, made.size_bytes());
  return made;
}

int64_t sum(const ClientMetrics& of) { return std::accumulate(of.runs_by_duration.begin(), of.runs_by_duration.end(), int64_t{0}); }

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override { count_metrics(true); }
  void TearDown() override { count_metrics(false); }
};

TEST_F(MetricsTest, CountRunsBytesErrorsAndWhatIsHeld) {
  const std::string model = "counted";
  std::optional<Session> session(std::in_place, relu_of(model));
  for (const int64_t rows : {2, 5, 2}) session->run({{"x", zeros({rows, 3})}});
  {
    IoBinding binding(*session);
    binding.bind_input("x", zeros({1, 3}));
    binding.bind_output("y");
    session->run(binding);
    PartialRun partial = session->partial_run({{"x", zeros({4, 3})}});
    partial.advance();
    partial.outputs();
  }
  EXPECT_THROW(session->run({}), Error);
  EXPECT_THROW(session->run({{"x", zeros({3})}}), Error);

  ClientMetrics found = metrics_of(model);
  EXPECT_EQ(found.client, "session");
  EXPECT_EQ(found.clients, 1);
  EXPECT_EQ(found.runs_in_flight, 0);
  EXPECT_GE(found.runs, 5);
  EXPECT_EQ(sum(found), found.runs);
  EXPECT_GT(found.run_seconds, 0);
  EXPECT_EQ(found.input_bytes, (2 + 5 + 2 + 1 + 4) * 3 * 4);
  EXPECT_EQ(found.output_bytes, found.input_bytes);
  EXPECT_EQ(found.errors, (std::map<std::string, int64_t>{{"invalid_argument", 2}}));
  const CacheStatistics caches = session->cache_statistics();
  EXPECT_EQ(found.caches.binding_misses, caches.binding_misses);
  EXPECT_GT(found.caches.binding_misses, 0);
  EXPECT_EQ(found.caches.size, caches.size);

  // What the session did is kept when it is gone; what it holds is not.
  session.reset();
  const ClientMetrics past = metrics_of(model);
  EXPECT_EQ(past.clients, 0);
  EXPECT_EQ(past.runs, found.runs);
  EXPECT_EQ(past.input_bytes, found.input_bytes);
  EXPECT_EQ(past.errors, found.errors);
  EXPECT_EQ(past.caches.size, 0);
  EXPECT_EQ(std::accumulate(past.memory_bytes.begin(), past.memory_bytes.end(), size_t{0}), 0U);

  const Session again(relu_of(model));
  again.run({{"x", zeros({2, 3})}});
  EXPECT_EQ(metrics_of(model).runs, found.runs + 1);
}

TEST_F(MetricsTest, CountNothingWhileTheyAreOff) {
  count_metrics(false);
  const Session session(relu_of("uncounted"));
  session.run({{"x", zeros({2, 3})}});
  EXPECT_THROW(session.run({}), Error);
  const ClientMetrics found = metrics_of("uncounted");
  EXPECT_FALSE(read_metrics().counting);
  EXPECT_EQ(found.clients, 1);
  EXPECT_EQ(found.runs, 0);
  EXPECT_TRUE(found.errors.empty());
}

TEST_F(MetricsTest, CountRunsWithDeadlinesAndOfSeveralThreads) {
  const Session session(relu_of("threads"));
  RunOptions options;
  options.deadline_ms = 60'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) session.run({{"x", zeros({2, 3})}}, {}, i % 2 == 0 ? &options : nullptr);
    });
  while (metrics_of("threads").runs < 200) std::this_thread::yield();  // read while runs end
  for (std::thread& thread : threads) thread.join();
  const ClientMetrics found = metrics_of("threads");
  EXPECT_EQ(found.runs, 200);
  EXPECT_EQ(found.input_bytes, 200 * 24);
  EXPECT_EQ(found.output_bytes, 200 * 24);
}

TEST_F(MetricsTest, NameExceptionsOfTheProgramForeign) {
  const Session session(relu_of("foreign"));
  RunOptions options;
  options.on_metadata = [](const RunMetadata&) { throw std::string("no error of the library"); };
  EXPECT_ANY_THROW(session.run({{"x", zeros({2, 3})}}, {}, &options));
  EXPECT_EQ(metrics_of("foreign").errors, (std::map<std::string, int64_t>{{"foreign", 1}}));
}

TEST_F(MetricsTest, SurviveFork) {
  const Session session(relu_of("forked"));
  session.run({{"x", zeros({2, 3})}});
  const pid_t child = fork();
  if (child == 0) {
    session.run({{"x", zeros({2, 3})}});
    _exit(metrics_of("forked").runs == 2 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(metrics_of("forked").runs, 1);
}

// Runs counted with each duration are those of a clock beside.
TEST_F(MetricsTest, MeasureDurationsAsTheClockDoes) {
  const Session session(relu_of("duration"));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) session.run({{"x", zeros({2000, 3})}});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const ClientMetrics found = metrics_of("duration");
  EXPECT_LE(found.run_seconds, seconds * 1.01);
  double least = 0;  // sum of the lower bounds
  for (size_t k = 1; k < found.runs_by_duration.size(); ++k)
    least += static_cast<double>(found.runs_by_duration[k]) * kRunSecondsBounds[k - 1];
  EXPECT_LE(least * 0.88, found.run_seconds);
}

TEST_F(MetricsTest, AreWrittenAsPrometheusReadsThem) {
  const Session session(relu_of("a \"name\"\\ of\ntwo lines"));
  session.run({{"x", zeros({2, 3})}});
  const std::string text = metrics_to_prometheus(read_metrics());
  EXPECT_NE(text.find("model=\"a \\\"name\\\"\\\\ of\\ntwo lines\""), std::string::npos) << text;
  std::map<std::string, std::string> type_of;
  std::istringstream lines(text);
  std::string last_count, last_bucket;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    if (line.starts_with("# ")) {
      words >> hash >> kind >> name >> type;
      const bool is_new = kind != "TYPE" || type_of.emplace(name, type).second;
      EXPECT_TRUE(is_new) << "twice: " << line;
      continue;
    }
    const std::string sample = line.substr(0, line.find_first_of("{ "));
    EXPECT_TRUE(sample.starts_with("treadle_")) << line;
    const std::string family = type_of.contains(sample) ? sample : sample.substr(0, sample.rfind('_'));
    EXPECT_TRUE(type_of.contains(family)) << line;
    EXPECT_TRUE(std::isfinite(std::stod(line.substr(line.rfind(' '))))) << line;
  }
}

TEST_F(MetricsTest, AreReportedToFunctionsAndFiles) {
  std::atomic<int> reports{0};
  {
    const MetricsReporter reporter(
        [&](const std::string& text) {
          EXPECT_NE(text.find("treadle_clients"), std::string::npos);
          ++reports;
        },
        0.01);
    while (reports < 2) std::this_thread::yield();
  }
  EXPECT_GE(reports, 3);
  EXPECT_THROW(MetricsReporter([](const std::string&) {}, 0), Error);
  EXPECT_THROW(MetricsReporter([](const std::string&) {}, std::nan("")), Error);
  EXPECT_THROW(MetricsReporter("/nowhere/metrics.prom", 1), Error);

  const std::string path = (std::filesystem::temp_directory_path() / ("metrics." + std::to_string(getpid()) + ".prom")).string();
  {
    const MetricsReporter reporter(path, 1000);
    EXPECT_TRUE(std::filesystem::exists(path));
    const Session session(relu_of("reported"));
    session.run({{"x", zeros({2, 3})}});
  }
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find("treadle_run_seconds_count{client=\"session\",model=\"reported\"} 1\n"), std::string::npos) << text.str();
  std::filesystem::remove(path);
}

// A server that loads ever new models must not grow.
TEST_F(MetricsTest, CountManyModelsTogether) {
  for (int i = 0; i < 300; ++i) {
    const Session session(relu_of("model " + std::to_string(i)));
    session.run({{"x", zeros({1, 3})}});
  }
  const Metrics metrics = read_metrics();
  EXPECT_LE(metrics.clients.size(), 300U);
  int64_t runs = 0;
  for (const ClientMetrics& client : metrics.clients)
    if (client.model.starts_with("model ") || client.model == "(others)") runs += client.runs;
  EXPECT_GE(runs, 300);
}

}  // namespace
}  // namespace treadle
