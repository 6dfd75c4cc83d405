#include "tests/fuzz/campaign.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <stdexcept>
#include <thread>

#include "tests/sanitizers.h"
#include "treadle/error.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(2);

/// A worker's progress, in memory that the parent shares and that outlives the worker.
struct Progress {
  std::atomic<uint64_t> next, used;  // number of the current case, and of files used so far
  std::atomic<int64_t> began_ns;
  char failure[1024];
};

int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "treadle-fuzz-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

// Describes the fault that an exception in a worker shows; empty for an ordinary error of the library.
std::string fault_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return error.code() == ErrorCode::internal ? fmt::format("an internal error: {}", error.what()) : "";
  } catch (const std::bad_alloc&) {
    return "more memory than there is";
  } catch (const std::exception& error) {
    return fmt::format("no error of the library: {}", error.what());
  }
}

[[noreturn]] void work(const FileKind& kind, const CampaignOptions& options, const std::vector<std::string>& seeds, const fs::path& file,
                       Progress& progress) {
  if (options.memory_bytes > 0 && !test::kAddressSanitizer && !test::kThreadSanitizer) {
    const rlimit limit{options.memory_bytes, options.memory_bytes};
    ::setrlimit(RLIMIT_AS, &limit);
  }
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (uint64_t next = progress.next; next < options.seed + options.count; ++next) {
    progress.next = next;
    progress.began_ns = now_ns();
    Mutator mutator(next);
    const std::string& seed = seeds[mutator.below(seeds.size())];
    write_contents(file, kind.changed(seed, mutator));
    try {
      kind.use(file, next);
      ++progress.used;
    } catch (...) {
      const std::string fault = fault_of(std::current_exception());
      std::strncpy(progress.failure, fault.c_str(), sizeof(progress.failure) - 1);
      if (!fault.empty()) ::_exit(1);
    }
  }
  progress.next = options.seed + options.count;
  ::_exit(0);
}

// Waits for the worker to end. @return the reason for which it failed; empty if it has done all its cases
std::string await(pid_t worker, const CampaignOptions& options, const Progress& progress, Clock::time_point end) {
  int status = 0;
  bool is_late = false, is_over = false;
  while (::waitpid(worker, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(kLook);
    const int64_t began = progress.began_ns;
    is_late = began > 0 && static_cast<double>(now_ns() - began) > options.seconds_per_case * 1e9;
    is_over = Clock::now() > end;
    if (!is_late && !is_over) continue;
    ::kill(worker, SIGKILL);
    ::waitpid(worker, &status, 0);
    break;
  }
  if (is_late) return fmt::format("it takes more than {} s", options.seconds_per_case);
  if (is_over) return "";
  if (WIFSIGNALED(status)) return fmt::format("a crash: {}", ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) == 0) return "";
  return progress.failure[0] != 0 ? progress.failure : fmt::format("it ends the process with status {}", WEXITSTATUS(status));
}

// Makes the seeds in a child process, so that this process starts no threads of the library and can fork.
std::vector<std::string> make_seeds(const FileKind& kind, const fs::path& folder) {
  const fs::path made = folder / "seeds";
  fs::create_directories(made);
  const pid_t maker = ::fork();
  if (maker == 0) {
    int status = 1;
    try {
      const std::vector<std::string> seeds = kind.seeds(folder);
      for (size_t i = 0; i < seeds.size(); ++i) write_contents(made / fmt::format("{:06}", i), seeds[i]);
      status = seeds.empty() ? 1 : 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: no seeds: {}\n", kind.name, error.what());
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(maker, &status, 0);
  if (status != 0) throw std::runtime_error("files of the kind " + kind.name + " could not be made");
  std::vector<fs::path> paths(fs::directory_iterator(made), fs::directory_iterator{});
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds;
  for (const fs::path& path : paths) seeds.push_back(contents_of(path));
  return seeds;
}

}  // namespace

std::string contents_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_contents(const fs::path& file, const std::string& contents) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
  if (!out) throw std::runtime_error("cannot write " + file.string());
}

CampaignResult run_campaign(const FileKind& kind, const CampaignOptions& options) {
  const Folder folder;
  const std::vector<std::string> seeds = make_seeds(kind, folder.path);
  const fs::path file = folder.path / ("case" + kind.extension);
  auto* progress = static_cast<Progress*>(::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  new (progress) Progress{};
  progress->next = options.seed;
  const Clock::time_point end =
      options.seconds > 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds))
                          : Clock::time_point::max();
  CampaignResult result;
  while (progress->next < options.seed + options.count && Clock::now() < end && result.failures.size() < options.failures) {
    progress->failure[0] = 0;
    progress->began_ns = 0;
    const pid_t worker = ::fork();
    if (worker == 0) work(kind, options, seeds, file, *progress);
    const std::string failure = await(worker, options, *progress, end);
    if (failure.empty()) continue;
    result.failures.push_back({progress->next, failure});
    if (!options.out.empty()) {
      fs::create_directories(options.out);
      fs::copy_file(file, options.out / fmt::format("{}-{}{}", kind.name, progress->next.load(), kind.extension),
                    fs::copy_options::overwrite_existing);
    }
    ++progress->next;
  }
  result.cases = progress->next - options.seed;
  result.used = progress->used;
  ::munmap(progress, sizeof(Progress));
  return result;
}

}  // namespace treadle::fuzz
