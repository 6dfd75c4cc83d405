// Sweeps over every operator and attribute, including those of the optimiser and the trainer. docs/fuzzing.md describes it.
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "tests/fuzz/sweep_run.h"

using namespace treadle;
using namespace treadle::fuzz;

namespace {

constexpr const char* kUsage =
    "treadle_operator_sweep [--seed FIRST] [--count CASES] [--seconds TIME] [--op NAME]... [--domain DOMAIN] | --print SEED | --one SEED\n";
constexpr unsigned kSecondsOfACase = 10;  // seconds of processor time

struct Options {
  uint64_t seed = 1;
  int64_t count = INT64_MAX, seconds = 0;
  std::set<std::string> ops, domains;
  bool print = false, one = false;
};

/// The progress of a worker, in memory that exists longer than the worker.
struct Progress {
  uint64_t seed;
  int64_t ran, refused;
  char failure[2048];
};

std::vector<const OpDef*> chosen_ops(const Options& options) {
  std::vector<const OpDef*> chosen;
  for (const OpDef& op : all_ops()) {
    const bool wanted_domain = options.domains.empty() || options.domains.contains(std::string(op.domain.empty() ? "ai.onnx" : op.domain));
    if (wanted_domain && (options.ops.empty() || options.ops.contains(std::string(op.name)))) chosen.push_back(&op);
  }
  return chosen;
}

void limit_case() {
  const itimerval time{{0, 0}, {kSecondsOfACase, 0}};
  setitimer(ITIMER_PROF, &time, nullptr);
}

void work(const std::vector<const OpDef*>& ops, uint64_t first, uint64_t last, std::chrono::steady_clock::time_point end,
          Progress& progress) {
  limit_memory();
  for (uint64_t seed = first; seed != last && std::chrono::steady_clock::now() < end; ++seed) {
    progress.seed = seed;
    limit_case();
    const Verdict verdict = run_case(make_case(seed, ops));
    ++(verdict.outcome == Outcome::ran ? progress.ran : progress.refused);
    if (verdict.outcome != Outcome::failed) continue;
    std::strncpy(progress.failure, verdict.text.c_str(), sizeof(progress.failure) - 1);
    return;
  }
}

// Describes how a child process died; empty if it exited normally.
std::string how_it_died(int status) {
  if (WIFSIGNALED(status)) return std::string(WTERMSIG(status) == SIGPROF ? "hang: " : "crash: ") + strsignal(WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) != 0 ? "crash: exit status " + std::to_string(WEXITSTATUS(status)) : std::string();
}

int campaign(const Options& options, const std::vector<const OpDef*>& ops) {
  auto* progress = static_cast<Progress*>(mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  *progress = {};
  const auto begun = std::chrono::steady_clock::now();
  const auto end = begun + (options.seconds > 0 ? std::chrono::seconds(options.seconds) : std::chrono::seconds(86'400));
  const uint64_t last = options.count == INT64_MAX ? 0 : options.seed + static_cast<uint64_t>(options.count);
  std::map<std::string, int> kinds;
  int64_t failed = 0;
  for (uint64_t next = options.seed; next != last && std::chrono::steady_clock::now() < end;) {
    progress->failure[0] = '\0';
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      work(ops, next, last, end, *progress);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    next = progress->seed + 1;
    const std::string death = how_it_died(status), failure = death.empty() ? progress->failure : death;
    if (failure.empty()) continue;
    ++failed;
    const SweepCase c = make_case(progress->seed, ops);
    const std::string kind = std::string(c.op->name) + " " + failure.substr(0, failure.find('\n')).substr(0, 100);
    if (kinds[kind]++ == 0)
      std::printf("\nseed %llu: %s\n%s", static_cast<unsigned long long>(progress->seed), failure.c_str(), to_string(c).c_str());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("\n");
  for (const auto& [kind, count] : kinds) std::printf("%5d %s\n", count, kind.c_str());
  std::printf("%lld cases ran, %lld were refused, %lld failed, in %.1f s\n", static_cast<long long>(progress->ran),
              static_cast<long long>(progress->refused), static_cast<long long>(failed), seconds);
  return failed > 0;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) return false;
    const char* value = argv[i + 1];
    const auto number = std::strtoull(value, nullptr, 10);
    if (name == "--seed")
      options.seed = number;
    else if (name == "--count")
      options.count = static_cast<int64_t>(number);
    else if (name == "--seconds")
      options.seconds = static_cast<int64_t>(number);
    else if (name == "--op")
      options.ops.insert(value);
    else if (name == "--domain")
      options.domains.insert(value);
    else if (name == "--print")
      options.print = true, options.seed = number;
    else if (name == "--one")
      options.one = true, options.seed = number;
    else
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) return std::fputs(kUsage, stderr), 2;
  const std::vector<const OpDef*> ops = chosen_ops(options);
  if (ops.empty()) return std::fputs("treadle_operator_sweep: no operator has that name\n", stderr), 2;
  if (!options.print && !options.one) return campaign(options, ops);
  const SweepCase c = make_case(options.seed, ops);
  std::fputs(to_string(c).c_str(), stdout);
  std::fflush(stdout);
  if (options.print) return 0;
  limit_case();
  const Verdict verdict = run_case(c);
  std::printf("%s%s\n",
              verdict.outcome == Outcome::ran       ? "ran"
              : verdict.outcome == Outcome::refused ? "refused: "
                                                    : "failed: ",
              verdict.text.c_str());
  return verdict.outcome == Outcome::failed;
}
