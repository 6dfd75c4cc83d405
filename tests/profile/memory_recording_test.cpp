#include "profile/analysis/memory_recording.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/trace/memory_events.h"

namespace treadle::profile {
namespace {

constexpr uint32_t kRun = 0, kFirst = 1, kSecond = 2, kThird = 3, kArena = 4, kOutput = 5;
constexpr auto kActivations = MemoryClass::activations, kGradients = MemoryClass::gradients, kScratch = MemoryClass::scratch,
               kIo = MemoryClass::io;

Record node(uint32_t name, uint64_t start, uint16_t run) { return {start, start + 5, 0, 0, name, RecordKind::node, run}; }
Record run(uint64_t start, uint64_t end, uint16_t number) { return {start, end, 0, 0, kRun, RecordKind::run, number}; }
Record block(uint64_t at, int64_t bytes, uint64_t number, MemoryClass memory_class, uint32_t holder) {
  return {at, at, bytes, BlockRecord::pack(number, memory_class), holder, RecordKind::memory, 0};
}

// A recording of three nodes: 60 bytes of an activation from the first to the second, 20 of scratch in the second, and 30 of a gradient in
// the last two.
struct Measured {
  explicit Measured(std::vector<std::vector<Record>> threads, const MemoryStatistics& before = {}, std::vector<MemoryHolding> held = {}) {
    ProfileTrace trace;  // in this trace, a tick is a nanosecond
    for (const char* name : {"run", "first", "second", "third", "arena", "output"}) trace.recording.names.push_back({name, {}, {}});
    for (auto& records : threads)
      trace.recording.threads.push_back({static_cast<uint32_t>(trace.recording.threads.size()), 0, "worker", std::move(records)});
    trace.node_of = {{kFirst, 0}, {kSecond, 1}, {kThird, 2}};
    Profile profile;
    profile.nodes.resize(3);
    profile.steps = {0, 1, 2};
    profile.buffers = {{"value", kActivations, 60, 0, 0, 1}, {"second", kScratch, 20, 60, 1, 1}, {"gradient", kGradients, 30, 80, 1, 2}};
    RecordedMemory recorded = measure_memory(trace, profile, before, std::move(held));
    memory = std::move(recorded.memory);
    counters = std::move(recorded.counters);
    for (const MemoryHolding& holding : memory.holders_at_peak) held_bytes[holding.name] += holding.size_bytes;
  }
  size_t at(double ns, MemoryClass memory_class) const {
    size_t bytes = 0;
    for (const MeasuredMemory::Point& point : memory.timeline)
      if (point.ns <= ns) bytes = point.bytes[static_cast<size_t>(memory_class)];
    return bytes;
  }
  MeasuredMemory memory;
  std::vector<MemoryCounter> counters;
  std::map<std::string, size_t> held_bytes;
};

TEST(MemoryRecording, AnArenaIsWhatLiesInItAtTheNodeThatRuns) {
  const Measured m({{block(10, 128, 1, kActivations, kArena), block(20, 8, 2, kIo, kOutput), node(kFirst, 30, 1), node(kSecond, 40, 1),
                     node(kThird, 50, 1), run(5, 60, 1)}});
  using Bytes = std::map<std::string, size_t>;
  auto classes = [&](double ns) {
    return Bytes{{"activations", m.at(ns, kActivations)}, {"scratch", m.at(ns, kScratch)}, {"gradients", m.at(ns, kGradients)}};
  };
  EXPECT_EQ(classes(20), (Bytes{{"activations", 128}, {"scratch", 0}, {"gradients", 0}}));
  EXPECT_EQ(classes(30), (Bytes{{"activations", 128}, {"scratch", 0}, {"gradients", 0}}));
  EXPECT_EQ(classes(40), (Bytes{{"activations", 78}, {"scratch", 20}, {"gradients", 30}}));
  EXPECT_EQ(classes(50), (Bytes{{"activations", 98}, {"scratch", 0}, {"gradients", 30}}));
  EXPECT_EQ(classes(60), (Bytes{{"activations", 128}, {"scratch", 0}, {"gradients", 0}}));
  // From 20 ns on, 136 bytes are held. At 40 ns most of the arena is in use.
  EXPECT_EQ(m.memory.peak_bytes, 136U);
  EXPECT_EQ(m.memory.peak_ns, 40);
  EXPECT_EQ(m.held_bytes, (Bytes{{"value", 60}, {"second", 20}, {"gradient", 30}, {"arena", 18}, {"output", 8}}));
  EXPECT_EQ(m.memory.at_peak[static_cast<size_t>(kActivations)], 78U);
  EXPECT_EQ(m.memory.at_peak[static_cast<size_t>(kGradients)], 30U);
}

TEST(MemoryRecording, CountersAreTheTimelinesChanges) {
  const Measured m(
      {{block(10, 128, 1, kActivations, kArena), node(kFirst, 30, 1), node(kSecond, 40, 1), node(kThird, 50, 1), run(5, 60, 1)}});
  std::vector<std::tuple<uint64_t, MemoryClass, size_t>> found;
  for (const MemoryCounter& counter : m.counters) found.emplace_back(counter.ticks, counter.memory_class, counter.bytes);
  const std::vector<std::tuple<uint64_t, MemoryClass, size_t>> expected{{10, kActivations, 128}, {40, kActivations, 78}, {40, kScratch, 20},
                                                                        {40, kGradients, 30},    {50, kActivations, 98}, {50, kScratch, 0},
                                                                        {60, kActivations, 128}, {60, kGradients, 0}};
  EXPECT_EQ(found, expected);
}

TEST(MemoryRecording, RunsAtOnceHaveAnArenaEach) {
  const Measured m({{block(10, 128, 1, kActivations, kArena), node(kSecond, 30, 1), node(kFirst, 35, 1), run(5, 90, 1)},
                    {block(12, 128, 2, kActivations, kArena), node(kSecond, 40, 2), node(kThird, 50, 2), run(6, 60, 2)}});
  EXPECT_EQ(m.at(35, kGradients), 30U) << "the first node of a run that began later takes nothing back";
  EXPECT_EQ(m.at(40, kGradients), 60U);
  EXPECT_EQ(m.at(40, kScratch), 40U);
  EXPECT_EQ(m.at(50, kScratch), 20U);
  EXPECT_EQ(m.at(60, kGradients), 30U);
  EXPECT_EQ(m.memory.peak_ns, 40);
  EXPECT_EQ(m.held_bytes, (std::map<std::string, size_t>{{"value", 120}, {"second", 40}, {"gradient", 60}, {"arena", 36}}));
}

TEST(MemoryRecording, AnArenaThatWasThereBeforeIsDividedToo) {
  MemoryStatistics before;
  before.classes[static_cast<size_t>(kActivations)].bytes = 110;
  const Measured m({{node(kSecond, 30, 1), run(5, 60, 1)}}, before, {{"arena", kActivations, 110}});
  EXPECT_EQ(m.held_bytes, (std::map<std::string, size_t>{{"value", 60}, {"second", 20}, {"gradient", 30}}));
}

TEST(MemoryRecording, AnArenaThatIsTooSmallForThePlanIsNotDivided) {
  const Measured m({{block(10, 64, 1, kActivations, kArena), node(kSecond, 30, 1), run(5, 60, 1)}});
  EXPECT_EQ(m.at(30, kGradients), 0U);
  EXPECT_EQ(m.held_bytes, (std::map<std::string, size_t>{{"arena", 64}}));
}

}  // namespace
}  // namespace treadle::profile
