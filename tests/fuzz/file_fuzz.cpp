// Changes files of every kind that the library reads, and uses those files that the library accepts. docs/fuzzing.md describes it.
#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tests/fuzz/campaign.h"
#include "treadle/error.h"

using namespace treadle;
using namespace treadle::fuzz;

namespace {

constexpr const char* kUsage =
    "treadle_file_fuzz [--kind KIND] [--seed FIRST] [--count FILES] [--seconds TIME] [--failures MOST] [--time-limit SECONDS]\n"
    "                  [--memory-limit MEGABYTES] [--out FOLDER] | --kind KIND --replay FILE\n";

struct Options : CampaignOptions {
  std::string kind, replay;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc) throw std::runtime_error(name + " is unknown, or lacks its value");
    const std::string value = argv[++i];
    if (name == "--kind")
      options.kind = value;
    else if (name == "--seed")
      options.seed = std::stoull(value);
    else if (name == "--count")
      options.count = std::stoull(value);
    else if (name == "--seconds")
      options.seconds = std::stod(value);
    else if (name == "--failures")
      options.failures = std::stoull(value);
    else if (name == "--time-limit")
      options.seconds_per_case = std::stod(value);
    else if (name == "--memory-limit")
      options.memory_bytes = std::stoull(value) << 20U;
    else if (name == "--out")
      options.out = value;
    else if (name == "--replay")
      options.replay = value;
    else
      throw std::runtime_error(name + " is unknown");
  }
  return options;
}

int replay(const FileKind& kind, const std::string& file) {
  try {
    kind.use(file, 0);
    fmt::print("{}: taken and used\n", file);
  } catch (const Error& error) {
    fmt::print("{}: refused: {}\n", file, error.what());
    return error.code() == ErrorCode::internal ? 1 : 0;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    size_t failed = 0, known = 0;
    for (const FileKind& kind : file_kinds()) {
      if (!options.kind.empty() && options.kind != kind.name) continue;
      ++known;
      if (!options.replay.empty()) return replay(kind, options.replay);
      const CampaignResult result = run_campaign(kind, options);
      fmt::print("{:12} {} files, {} of them used, {} failed\n", kind.name, result.cases, result.used, result.failures.size());
      for (const Failure& failure : result.failures) fmt::print("  seed {}: {}\n", failure.seed, failure.what);
      std::fflush(stdout);
      failed += result.failures.size();
    }
    if (known == 0) throw std::runtime_error("there is no kind \"" + options.kind + "\"");
    return failed > 0 ? 1 : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n{}", error.what(), kUsage);
    return 2;
  }
}
