#include "core/trace/kernel_phases.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "core/threads/thread_pool.h"
#include "core/trace/record_filter.h"
#include "core/trace/recorder.h"

namespace treadle {
namespace {

/// Returns the records of one node in a profile with phases: for each thread, their texts in the order in which the records end.
std::vector<std::vector<std::string>> texts_of(const Recording& recording) {
  std::vector<std::vector<std::string>> texts;
  for (const Recording::Thread& thread : recording.threads) {
    texts.emplace_back();
    for (const Record& record : thread.records) texts.back().push_back(recording.names[record.name].text);
  }
  return texts;
}

struct PhasesOfANode {
  explicit PhasesOfANode(bool wanted = true) : window(Recorder::of_process(), {.kernel_phases = wanted}), phases(wanted) {}
  Recording recording() const {
    RecordFilter filter{.from = window.start(), .kernel_phases = phases};
    filter.names.emplace(node, 0);
    filter.texts.push_back({"Conv c", {}, {}});
    Recording recording = Recorder::of_process().collect(filter, window);
    for (Recording::Thread& thread : recording.threads)
      std::erase_if(thread.records, [](const Record& record) { return record.kind == RecordKind::pool; });
    return recording;
  }
  RecordWindow window;
  const bool phases;
  const uint32_t node = Recorder::reserve_names(1);
};

TEST(KernelPhases, EveryPhaseHasAName) {
  for (int i = 1; i < kNumKernelPhases; ++i) EXPECT_FALSE(name_of(static_cast<KernelPhase>(i)).empty()) << i;
  EXPECT_TRUE(name_of(KernelPhase::none).empty());
}

TEST(KernelPhases, NothingIsRecordedWhereNobodyAsks) {
  const PhasesOfANode profile(/*wanted=*/false);
  EXPECT_FALSE(phases_wanted());
  const PhaseNode node(/*recorded=*/true, profile.node, 3);
  const PhaseScope phase(KernelPhase::pack);
  EXPECT_TRUE(profile.recording().threads.empty());
}

TEST(KernelPhases, AreThoseOfTheNode) {
  const PhasesOfANode profile;
  {
    const PhaseScope outside(KernelPhase::pack);  // a phase outside of any node
  }
  {
    const PhaseNode node(/*recorded=*/true, profile.node, 3);
    PhaseScope phase(KernelPhase::pack);
    phase.next(KernelPhase::compute);
    phase.next(KernelPhase::none);
    phase.next(KernelPhase::epilogue);
  }
  {
    const PhaseNode unrecorded(/*recorded=*/false, profile.node, 3);
    const PhaseScope phase(KernelPhase::pack);
  }
  const Recording recording = profile.recording();
  EXPECT_EQ(texts_of(recording), (std::vector<std::vector<std::string>>{{"pack", "compute", "epilogue"}}));
  const std::vector<Record>& records = recording.threads[0].records;
  for (const Record& record : records) {
    EXPECT_EQ(record.kind, RecordKind::phase);
    EXPECT_EQ(record.run, 3);
    EXPECT_EQ(recording.names[static_cast<size_t>(record.arg0)].text, "Conv c");
    EXPECT_LE(record.start, record.end);
  }
  EXPECT_EQ(records[0].end, records[1].start);
  EXPECT_LE(records[1].end, records[2].start);
}

TEST(KernelPhases, AProductWithinAnotherPhaseIsThatPhases) {
  const PhasesOfANode profile;
  {
    const PhaseNode node(/*recorded=*/true, profile.node, 1);
    const PhaseScope scores(KernelPhase::scores);
    { const PhaseScope pack(KernelPhase::pack), again(KernelPhase::pack); }
    PhaseScope product(KernelPhase::compute);
    product.next(KernelPhase::epilogue);  // this call has no effect, because the scope within "scores" has begun no phase
  }
  EXPECT_EQ(texts_of(profile.recording()), (std::vector<std::vector<std::string>>{{"pack", "scores"}}));
}

TEST(KernelPhases, ANodeThatOnlyMovesDataIsOnePhase) {
  const PhasesOfANode profile;
  { const PhaseNode node(/*recorded=*/true, profile.node, 3, KernelPhase::move); }
  { const PhaseNode node(/*recorded=*/false, profile.node, 3, KernelPhase::move); }
  const Recording recording = profile.recording();
  ASSERT_EQ(recording.threads.size(), 1U);
  EXPECT_EQ(texts_of(recording)[0], std::vector<std::string>{"move"});
  EXPECT_EQ(recording.threads[0].records[0].run, 3);
}

// No chunk ends before the other has begun, so two threads run one each.
TEST(KernelPhases, HelpersRecordTheirPartsOfTheNode) {
  const PhasesOfANode profile;
  ThreadPool pool(2);
  auto run = [&](bool open_before) {
    const PhaseNode node(/*recorded=*/true, profile.node, 1);
    std::atomic<int> arrived{0};
    PhaseScope before(open_before ? KernelPhase::pack : KernelPhase::none);
    pool.parallel_for(2, 1, [&](int64_t, int64_t) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
      const PhaseScope phase(KernelPhase::windows);
    });
  };
  run(/*open_before=*/false);
  run(/*open_before=*/true);
  const Recording recording = profile.recording();
  ASSERT_EQ(recording.threads.size(), 2U);
  auto texts = texts_of(recording);
  if (texts[0].size() > texts[1].size()) std::swap(texts[0], texts[1]);
  EXPECT_EQ(texts[0], (std::vector<std::string>{"windows", "windows", "pack"}));                      // the phases of the calling thread
  EXPECT_EQ(texts[1], (std::vector<std::string>{"windows", "Conv c", "windows", "Conv c", "pack"}));  // the phases of the helper thread
  for (const Recording::Thread& thread : recording.threads)
    for (const Record& record : thread.records)
      EXPECT_EQ(record.kind, recording.names[record.name].text == "Conv c" ? RecordKind::chunk : RecordKind::phase);
}

}  // namespace
}  // namespace treadle
