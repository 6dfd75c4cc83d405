// Runs random graphs in many ways and compares the results with those of an interpreter. Shrinks graphs whose results differ.
// docs/fuzzing.md describes it.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "onnx/serialize.h"
#include "tests/graphs/generator.h"
#include "tests/graphs/settings.h"
#include "tests/graphs/shrink.h"

using namespace treadle;
using namespace treadle::graphs;

namespace {

constexpr const char* kUsage =
    "treadle_graph_fuzz [--seed FIRST] [--count GRAPHS] [--seconds TIME] [--settings PER_GRAPH | --all-settings] [--no-shrink]\n"
    "                   [--beyond-plain] [--failures MOST] [--out FOLDER] | --print SEED | --replay FILE\n";

struct Options {
  uint32_t seed = 1;
  int64_t count = UINT32_MAX, seconds = 0, settings = 3, failures = 1'000'000;
  bool all_settings = false, shrink = true, beyond_plain = false;
  std::string out, replay;
  bool print = false;
};

/// The progress of a worker, in memory that exists longer than the worker.
struct Progress {
  uint32_t seed;
  int setting;
  int64_t graphs, runs, invalid, unsupported;
  char failure[4096];
};

std::vector<Setting> settings_of(uint32_t seed, const Options& options) {
  if (options.all_settings) return standard_settings();
  std::mt19937 random(seed * 2654435761U + 17);
  std::vector<Setting> settings;
  for (int64_t i = 0; i < options.settings; ++i) settings.push_back(random_setting(random));
  return settings;
}

// Runs graphs until one fails, the time is over, or all are done.
void work(const Options& options, uint32_t first, uint32_t last, std::chrono::steady_clock::time_point end, Progress& progress) {
  for (uint32_t seed = first; seed != last && std::chrono::steady_clock::now() < end; ++seed) {
    progress.seed = seed;
    progress.setting = -1;
    alarm(60);
    const Case c = Generator(seed).generate();
    Judgement judgement;
    try {
      judgement = judge(c);
    } catch (const Invalid&) {
      ++progress.invalid;
      continue;
    }
    ++progress.graphs;
    const std::vector<Setting> settings = settings_of(seed, options);
    for (size_t i = 0; i < settings.size(); ++i) {
      progress.setting = static_cast<int>(i);
      ++progress.runs;
      const std::string failure = run_case(c, judgement, settings[i]);
      if (failure.empty()) continue;
      if (options.beyond_plain && !run_apart(c, Setting{.level = GraphOptimizationLevel::disable_all}).empty()) break;
      // The library's shapes have a maximal number of axes; ONNX's have none.
      if (failure.starts_with("error not_implemented") || failure.find("axes are supported") != std::string::npos) {
        ++progress.unsupported;
        std::fprintf(stderr, "unsupported, seed %u: %.300s\n", seed, failure.c_str());
        break;
      }
      std::strncpy(progress.failure, failure.c_str(), sizeof(progress.failure) - 1);
      return;
    }
  }
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const Options& options, uint32_t seed, const Shrunk& shrunk) {
  if (options.out.empty()) return;
  std::filesystem::create_directories(options.out);
  const std::string stem = options.out + "/" + std::to_string(seed);
  std::ofstream(stem + ".txt") << "# " << to_string(shrunk.setting) << "\n" << print(shrunk.graph);
  onnx::write_model_file(shrunk.graph.model, stem + ".onnx");
}

// Returns the class of the failure and the operators of the graph. Failures for which both are equal most often have the same cause.
std::string kind_of(const Shrunk& shrunk) {
  std::string kind = class_of(shrunk.failure);
  for (const auto& node : shrunk.graph.model.graph.nodes) kind += " " + node.op_type;
  return kind;
}

int replay(const Options& options) {
  const Case c = parse(text_of(options.replay));
  if (c.sets.empty()) throw std::runtime_error(options.replay + " has no line \"feeds\", so there is nothing to run");
  int failed = 0;
  for (const Setting& setting : standard_settings()) {
    const std::string failure = run_apart(c, setting);
    failed += !failure.empty();
    std::printf("%-40s %s\n", to_string(setting).c_str(), failure.empty() ? "ok" : failure.c_str());
  }
  if (failed > 0 && !options.out.empty()) onnx::write_model_file(c.model, options.out);
  return failed > 0;
}

int campaign(const Options& options) {
  auto* progress = static_cast<Progress*>(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *progress = {};
  const std::chrono::steady_clock::duration time = options.seconds > 0 ? std::chrono::seconds(options.seconds) : std::chrono::hours(24);
  const auto last = static_cast<uint32_t>(options.seed + options.count);
  std::map<std::string, int> kinds;
  int64_t failed = 0;
  auto working = std::chrono::steady_clock::duration{};
  for (uint32_t next = options.seed; next != last && working < time && failed < options.failures;) {
    progress->failure[0] = '\0';
    std::fflush(stdout);
    const auto started = std::chrono::steady_clock::now();
    const pid_t child = fork();
    if (child == 0) {
      work(options, next, last, started + (time - working), *progress);
      std::fflush(stderr);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    working += std::chrono::steady_clock::now() - started;
    next = progress->seed + 1;
    std::string failure = progress->failure;
    if (WIFSIGNALED(status)) failure = std::string(WTERMSIG(status) == SIGALRM ? "hang: " : "crash: ") + strsignal(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) failure = "crash: exit status " + std::to_string(WEXITSTATUS(status));
    if (failure.empty()) continue;
    ++failed;
    const std::vector<Setting> settings = settings_of(progress->seed, options);
    if (progress->setting < 0) {
      std::printf("\nseed %u: the generator or the interpreter: %s\n", progress->seed, failure.c_str());
      continue;
    }
    const Setting setting = settings[static_cast<size_t>(progress->setting)];
    std::printf("\nseed %u, %s\n%s\n", progress->seed, to_string(setting).c_str(), failure.c_str());
    if (!options.shrink) continue;
    const Shrunk shrunk = shrink(Generator(progress->seed).generate(), setting, failure);
    write(options, progress->seed, shrunk);
    if (kinds[kind_of(shrunk)]++ > 0) {
      std::printf("as before: %s\n", kind_of(shrunk).c_str());
      continue;
    }
    std::printf("shrunk: %s\n%s\n%s", to_string(shrunk.setting).c_str(), shrunk.failure.c_str(), print(shrunk.graph).c_str());
  }
  const double seconds = std::chrono::duration<double>(working).count();
  std::printf("\n%lld graphs, %lld runs in %.1f s (%.0f graphs/s); %lld failed, %lld unsupported, %lld undecided\n",
              static_cast<long long>(progress->graphs), static_cast<long long>(progress->runs), seconds,
              static_cast<double>(progress->graphs) / seconds, static_cast<long long>(failed),
              static_cast<long long>(progress->unsupported), static_cast<long long>(progress->invalid));
  for (const auto& [kind, count] : kinds) std::printf("%4d %s\n", count, kind.c_str());
  return failed > 0;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("TREADLE_VERIFY_PLANS", "1", /*overwrite=*/0);
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool more = i + 1 < argc;
    if (argument == "--seed" && more)
      options.seed = static_cast<uint32_t>(std::atoll(argv[++i]));
    else if (argument == "--count" && more)
      options.count = std::atoll(argv[++i]);
    else if (argument == "--seconds" && more)
      options.seconds = std::atoll(argv[++i]);
    else if (argument == "--settings" && more)
      options.settings = std::atoll(argv[++i]);
    else if (argument == "--failures" && more)
      options.failures = std::atoll(argv[++i]);
    else if (argument == "--out" && more)
      options.out = argv[++i];
    else if (argument == "--replay" && more)
      options.replay = argv[++i];
    else if (argument == "--print" && more)
      options.print = true, options.seed = static_cast<uint32_t>(std::atoll(argv[++i]));
    else if (argument == "--all-settings")
      options.all_settings = true;
    else if (argument == "--beyond-plain")
      options.beyond_plain = true;
    else if (argument == "--no-shrink")
      options.shrink = false;
    else
      return std::fputs(kUsage, stderr), 2;
  }
  if (options.print) return std::fputs(print(Generator(options.seed).generate()).c_str(), stdout), 0;
  try {
    return options.replay.empty() ? campaign(options) : replay(options);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "treadle_graph_fuzz: %s\n", error.what()), 2;
  }
}
