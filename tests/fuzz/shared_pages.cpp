// Fuzzes the page of memory that jobs share. Any process of the same user may write to it while others run.
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "core/base/utf8.h"
#include "session/attach.h"
#include "sharing/job_table.h"
#include "tests/fuzz/file_kinds.h"
#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/session.h"
#include "treadle/sharing.h"

namespace treadle::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWords = sizeof(sharing::Page) / sizeof(uint64_t);
constexpr uint64_t kZero = 0x5A5A5A5A5A5A5A5A;  // in a case, this number means that 0 is written
constexpr int64_t kDeadlineMs = 50;

// A case has a word for each word of the page; 0 leaves that word as it is.
std::vector<std::string> seeds(const fs::path&) { return {std::string(kWords * sizeof(uint64_t), '\0')}; }

std::string changed(const std::string& seed, Mutator& mutator) {
  constexpr size_t kFirstSlot = offsetof(sharing::Page, slots) / sizeof(uint64_t), kSlotWords = sizeof(sharing::JobSlot) / sizeof(uint64_t);
  std::string words = seed;
  for (size_t changes = 1 + mutator.below(6); changes > 0; --changes) {
    // Most changes are to the first entries of the page, which belong to this process.
    const size_t word = mutator.one_in(4) ? mutator.below(kWords) : mutator.below(kFirstSlot + 2 * kSlotWords);
    uint64_t value = mutator.one_in(3) ? mutator.number() : mutator.hard_number();
    if (mutator.one_in(3)) value = value << 32U | mutator.below(5);
    if (value == 0) value = kZero;
    std::memcpy(words.data() + word * sizeof value, &value, sizeof value);
  }
  return words;
}

Session make_session(const std::shared_ptr<Job>& job) {
  treadle::testing::ModelBuilder b;
  b.input("x", {-1, 4}).output("y", {-1, 4});
  b.node("Relu", {"x"}, {"a"}).node("Add", {"a", "x"}, {"c"}).node("Exp", {"c"}, {"y"});
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.job = job;
  return Session(b.model(), options);
}

void scribble(const std::string& words) {
  auto* page = reinterpret_cast<volatile uint64_t*>(&sharing::JobTable::get().page());
  for (size_t i = 0; i < kWords && (i + 1) * sizeof(uint64_t) <= words.size(); ++i) {
    uint64_t value;
    std::memcpy(&value, words.data() + i * sizeof value, sizeof value);
    if (value != 0) page[i] = value == kZero ? 0 : value;
  }
}

// Calls a function. These errors are valid: a run that would wait for ever, a memory limit, a job that cannot be found.
template <typename Call>
void try_to(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
  }
}

void use(const fs::path& file, uint64_t number) {
  static const bool has_folder = ::setenv("TREADLE_SHARING_DIR", (file.parent_path() / "sharing").c_str(), 1) == 0;
  (void)has_folder;
  const auto job =
      std::make_shared<Job>(JobOptions{.name = "fuzz", .job_class = number % 2 == 0 ? JobClass::guaranteed : JobClass::opportunistic});
  const Session session = make_session(job);
  const uint64_t id = job->id();
  std::string before(sizeof(sharing::Page), '\0');
  std::memcpy(before.data(), static_cast<const void*>(&sharing::JobTable::get().page()), before.size());
  scribble(contents_of(file));
  RunOptions options;
  options.deadline_ms = kDeadlineMs;
  const std::map<std::string, Datum> feeds{{"x", Tensor(DType::float32, Shape{2, 4})}};
  try_to([&] { session.run(feeds, {}, &options); });
  try_to([] {
    for (const JobStatus& status : list_jobs())
      if (!is_utf8(status.name) || (status.job_class != JobClass::guaranteed && status.job_class != JobClass::opportunistic))
        throw std::runtime_error("a job whose name is no text, or whose class is none");
  });
  try_to([&] { job->status(); });
  try_to([&] { job->set_share(50); });
  try_to([&] { set_job(id, {.share_percent = 100, .suspended = false}); });
  try_to([&] {
    AttachRequest request(id, {.seconds = 0.01});
    try_to([&] { session.run(feeds, {}, &options); });
    request.stop();
    request.profiles(/*cut_off=*/true);
  });
  std::memcpy(static_cast<void*>(&sharing::JobTable::get().page()), before.data(), before.size());
}

}  // namespace

FileKind shared_pages() { return {"jobs", ".page", seeds, changed, use}; }

}  // namespace treadle::fuzz
