// A small part of the sweep over all operators. The program treadle_operator_sweep runs the whole: docs/fuzzing.md.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/fuzz/sweep_run.h"

namespace treadle::fuzz {
namespace {

/// The result of a child process, in memory that exists longer than the child.
struct Found {
  uint64_t seed;
  int64_t ran;
  char failure[1024];
};

TEST(Sweep, NoCaseOfAnyOperatorEndsTheProcessOrIsAFaultOfTheLibrary) {
  constexpr uint64_t kFirst = 1, kLast = 8'000;
  auto* found = static_cast<Found*>(mmap(nullptr, sizeof(Found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(found, MAP_FAILED);
  const pid_t child = fork();
  if (child == 0) {
    limit_memory();
    std::vector<const OpDef*> ops;
    for (const OpDef& op : all_ops()) ops.push_back(&op);
    for (uint64_t seed = kFirst; seed <= kLast; ++seed) {
      found->seed = seed;
      const Verdict verdict = run_case(make_case(seed, ops));
      found->ran += verdict.outcome == Outcome::ran;
      if (verdict.outcome != Outcome::failed) continue;
      std::strncpy(found->failure, verdict.text.c_str(), sizeof(found->failure) - 1);
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "seed " << found->seed << ": " << found->failure;
  EXPECT_GT(found->ran, 1'000);  // checks that enough cases have run
  munmap(found, sizeof(Found));
}

}  // namespace
}  // namespace treadle::fuzz
