// Tests profiles that are written to a file while they are recorded.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/trace/recorder.h"
#include "tests/session/model_bytes.h"
#include "treadle/error.h"
#include "treadle/profile_report.h"
#include "treadle/session.h"

namespace treadle::testing {
namespace {

Session chain_session(SessionOptions options = {}) {
  std::vector<std::string> nodes;
  for (int i = 0; i < 20; ++i) nodes.push_back(node("Transpose", {"v" + std::to_string(i)}, {"v" + std::to_string(i + 1)}));
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.intra_op_num_threads = 1;
  return Session(Model::from_bytes(onnx::test::bytes_of(model(graph({.nodes = nodes,
                                                                     .initializers = {},
                                                                     .inputs = {value_info("v0", kFloat, {"n", 3})},
                                                                     .outputs = {value_info("v20", kFloat, {"n", 3})}})))),
                 options);
}

std::map<std::string, Datum> feeds_of() {
  Tensor x(DType::float32, {4, 3});
  for (float& element : x.span<float>()) element = 0.5F;
  return {{"v0", x}};
}

class ProfileStream : public ::testing::Test {
 protected:
  std::string path_ = ::testing::TempDir() + "treadle_stream_" + std::to_string(getpid()) + ".profile";
  void TearDown() override { std::remove(path_.c_str()); }

  std::string contents() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void replace(const std::string& contents) const {
    std::ofstream(path_, std::ios::binary).write(contents.data(), static_cast<std::streamsize>(contents.size()));
  }
};

void expect_same(const Profile& a, const Profile& b) {
  ASSERT_EQ(a.runs.size(), b.runs.size());
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    EXPECT_EQ(a.nodes[i].name, b.nodes[i].name);
    EXPECT_EQ(a.nodes[i].kernel, b.nodes[i].kernel);
    EXPECT_EQ(a.nodes[i].calls, b.nodes[i].calls);
    ASSERT_EQ(a.nodes[i].outputs.size(), b.nodes[i].outputs.size());
    for (size_t k = 0; k < a.nodes[i].outputs.size(); ++k) EXPECT_EQ(a.nodes[i].outputs[k].shape, b.nodes[i].outputs[k].shape);
    for (size_t r = 0; r < a.runs.size(); ++r) EXPECT_NEAR(a.nodes[i].self_ns[r], b.nodes[i].self_ns[r], 1 + 1e-3 * a.nodes[i].self_ns[r]);
  }
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.buffers.size(), b.buffers.size());
  EXPECT_EQ(a.memory.arena_bytes, b.memory.arena_bytes);
  EXPECT_EQ(a.load.size(), b.load.size());
  EXPECT_EQ(a.ranges.size(), b.ranges.size());
  EXPECT_EQ(b.events_lost, 0U);
  EXPECT_EQ(b.events_unknown, 0);
}

TEST_F(ProfileStream, IsTheProfileThatMemoryHolds) {
  Session session = chain_session(), other = chain_session();
  Profiler kept = session.profiler({.memory = true}), streamed = session.profiler({.memory = true, .stream_to = path_});
  const Profiler of_other = other.profiler({});
  for (int i = 0; i < 200; ++i) {
    const ProfileRange range("batch");
    session.run(feeds_of());
    if (i % 3 == 0) other.run(feeds_of());
    if (i == 100) streamed.flush();
  }
  kept.pause(), streamed.pause();
  session.run(feeds_of());
  const Profile expected = kept.profile();
  expect_same(expected, streamed.profile());
  const Profile read = read_profile_recording(path_);
  expect_same(expected, read);
  ASSERT_EQ(read.runs.size(), 200U);
  ASSERT_EQ(read.ranges.size(), 1U);
  EXPECT_EQ(read.ranges[0].name, "batch");
  EXPECT_EQ(read.ranges[0].call_ns.size(), 200U);
  ASSERT_TRUE(read.measured_memory);
  EXPECT_EQ(read.measured_memory->blocks.size(), expected.measured_memory->blocks.size());
  EXPECT_EQ(read.measured_memory->peak_bytes, expected.measured_memory->peak_bytes);
  // The trace contains single events.
  EXPECT_EQ(profile_to_trace(read, TraceFormat::folded).empty(), false);
  EXPECT_EQ(of_other.profile().runs.size(), 67U);
}

TEST_F(ProfileStream, RangesThatAreOpenEndWhereTheFileDoes) {
  Session session = chain_session();
  Profiler profiler = session.profiler({.stream_to = path_});
  {
    const ProfileRange serve("serve");
    {
      const ProfileRange batch("batch");
      session.run(feeds_of());
    }
    profiler.flush();
    const Profile cut_off = read_profile_recording(path_);
    ASSERT_EQ(cut_off.ranges.size(), 2U);
    for (const ProfiledRange& range : cut_off.ranges) EXPECT_EQ(range.call_ns.size(), 1U) << range.name;
  }
  const Profile whole = profiler.profile();
  ASSERT_EQ(whole.ranges.size(), 2U);
  for (const ProfiledRange& range : whole.ranges) EXPECT_EQ(range.call_ns.size(), 1U) << range.name;
}

// Rewrites a recording as older versions wrote it: version 2 is version 3 without the begins of ranges.
std::string as_version(const std::string& recording, const std::string& version, bool keeps_begins) {
  struct Head {
    uint32_t kind, reserved;
    uint64_t size_bytes;
  };
  struct Thread {
    int64_t system_id;
    uint64_t name_bytes;
  };
  constexpr std::string_view kMagic = "TREADLE PROFILE\n", kVersion = "\"version\":3";
  std::string written(kMagic);
  for (size_t at = kMagic.size(); at < recording.size();) {
    Head head{};
    std::memcpy(&head, recording.data() + at, sizeof head);
    std::string payload = recording.substr(at + sizeof head, head.size_bytes);
    at += sizeof head + head.size_bytes;
    if (head.kind == 1) payload.replace(payload.find(kVersion), kVersion.size(), "\"version\":" + version);
    if (head.kind == 4 && !keeps_begins) {
      Thread thread{};
      std::memcpy(&thread, payload.data(), sizeof thread);
      const size_t first = sizeof thread + thread.name_bytes;
      std::string kept = payload.substr(0, first);
      for (size_t e = first; e < payload.size();) {
        RecordEvent event{};
        std::memcpy(&event, payload.data() + e, sizeof event);
        const size_t bytes = (event.has_arguments ? 2 : 1) * sizeof event;
        if (event.kind != RecordKind::begin) kept += payload.substr(e, bytes);
        e += bytes;
      }
      payload = kept;
    }
    head.size_bytes = payload.size();
    written.append(reinterpret_cast<const char*>(&head), sizeof head);
    written += payload;
  }
  return written;
}

TEST_F(ProfileStream, RecordingsOfTheVersionBeforeAreReadAndOthersAreRefused) {
  Session session = chain_session();
  Profile expected;
  {  // in a block, because the profiler must not write to the file that is replaced below
    const Profiler profiler = session.profiler({.memory = true, .stream_to = path_});
    const uint32_t handed_over = ProfileRange::name_id("handed over");
    const uint64_t begin = ProfileRange::begin(handed_over);
    for (int i = 0; i < 20; ++i) {
      const ProfileRange range("batch");
      session.run(feeds_of());
    }
    std::thread([&] { ProfileRange::end(handed_over, begin); }).join();
    expected = profiler.profile();
  }
  const std::string recording = contents();

  replace(as_version(recording, "2", false));
  EXPECT_LT(contents().size(), recording.size()) << "there were begins";
  const Profile read = read_profile_recording(path_);
  expect_same(expected, read);
  ASSERT_EQ(read.ranges.size(), 2U);
  for (const ProfiledRange& range : read.ranges) EXPECT_EQ(range.call_ns.size(), range.name == "batch" ? 20U : 1U) << range.name;

  for (const char* version : {"1", "4", "\"2\"", "null"}) {
    replace(as_version(recording, version, true));
    try {
      static_cast<void>(read_profile_recording(path_));
      ADD_FAILURE() << version;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.message()),
                "this is a recording of version " + std::string(version) + "; this build reads versions 2 to 3");
    }
  }
}

// No other profile needs the events, so they leave memory once they are in the file.
TEST_F(ProfileStream, MemoryStaysBounded) {
  Session session = chain_session();
  constexpr int64_t kRuns = 30'000;  // 630,000 events of 24 bytes
  uint64_t most = 0;
  {
    Profiler profiler = session.profiler({.stream_to = path_});
    for (int64_t i = 0; i < kRuns; ++i) {
      session.run(feeds_of());
      if (i % 1000 == 999) profiler.flush();
      most = std::max(most, Recorder::of_process().held_bytes());
    }
    profiler.flush();
  }
  EXPECT_LT(most, 4U << 20U);
  const Profile profile = read_profile_recording(path_);
  EXPECT_EQ(profile.events_lost, 0U);
  ASSERT_EQ(profile.runs.size(), static_cast<size_t>(kRuns));
  for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, kRuns);
}

TEST_F(ProfileStream, EventsWithoutRoomAreCountedAndTheirRunsLeftOut) {
  Session session = chain_session();
  Profiler profiler = session.profiler({.max_events = 2048, .stream_to = path_});
  for (int i = 0; i < 5000; ++i) session.run(feeds_of());
  profiler.flush();
  for (int i = 0; i < 10; ++i) session.run(feeds_of());  // these runs are recorded again
  const Profile profile = profiler.profile();
  EXPECT_GT(profile.events_lost, 0U);
  EXPECT_GE(profile.runs.size(), 10U);
  EXPECT_LT(profile.runs.size(), 5010U);
  for (const ProfiledRun& run : profile.runs) EXPECT_EQ(run.events, 21);
}

TEST_F(ProfileStream, RangesWhoseEndsHadNoRoomDoNotHoldLaterOnes) {
  Session session = chain_session();
  Profiler profiler = session.profiler({.max_events = 2048, .stream_to = path_});
  const auto run_batch = [&] {
    const ProfileRange range("batch");
    session.run(feeds_of());
  };
  for (int i = 0; i < 5000; ++i) run_batch();
  profiler.flush();
  for (int i = 0; i < 10; ++i) run_batch();
  const Profile profile = profiler.profile();
  EXPECT_GT(profile.events_lost, 0U);
  ASSERT_EQ(profile.ranges.size(), 1U);
  EXPECT_EQ(profile.ranges[0].parent, -1);
  EXPECT_GE(profile.ranges[0].call_ns.size(), 10U);
}

TEST_F(ProfileStream, OfSeveralThreadsAndThreadsThatEnd) {
  Session session = chain_session();
  Profiler profiler = session.profiler({.stream_to = path_}), second = session.profiler({.stream_to = path_ + "2"});
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) session.run(feeds_of());
      });
    for (auto& thread : threads) thread.join();
  }
  for (Profiler* of : {&profiler, &second}) {
    const Profile profile = of->profile();
    EXPECT_EQ(profile.runs.size(), 3000U);
    for (const ProfiledNode& node : profile.nodes) EXPECT_EQ(node.calls, 3000);
  }
  std::remove((path_ + "2").c_str());
}

// A file that is cut off anywhere gives either a profile of its intact part, or an error that says that it contains none.
TEST_F(ProfileStream, ACutOffFileIsReadUpToTheLastMark) {
  Session session = chain_session();
  {
    Profiler profiler = session.profiler({.stream_to = path_});
    for (int i = 0; i < 8; ++i) {
      session.run(feeds_of());
      profiler.flush();
    }
  }
  const std::string whole = contents();
  size_t before = 0;
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 500) {
    replace(whole.substr(0, size));
    try {
      const size_t runs = read_profile_recording(path_).runs.size();
      EXPECT_GE(runs, before);
      before = runs;
    } catch (const Error& error) {
      EXPECT_EQ(before, 0U) << error.what();
    }
  }
  EXPECT_GE(before, 6U);
}

TEST_F(ProfileStream, ADamagedFileIsAnErrorOrAProfile) {
  Session session = chain_session();
  {
    Profiler profiler = session.profiler({.memory = true, .kernel_phases = true, .stream_to = path_});
    for (int i = 0; i < 3; ++i) session.run(feeds_of());
    profiler.flush();
  }
  const std::string whole = contents();
  uint32_t state = 1;
  for (int i = 0; i < 400; ++i) {
    std::string bad = whole;
    for (int k = 0; k < 3; ++k) {
      state = state * 1664525 + 1013904223;
      bad[state % bad.size()] = static_cast<char>(state >> 24U);
    }
    replace(bad);
    try {
      const Profile profile = read_profile_recording(path_);
      static_cast<void>(profile_to_json(report_profile(profile)));
      for (TraceFormat format :
           {TraceFormat::chrome, TraceFormat::perfetto, TraceFormat::folded, TraceFormat::speedscope, TraceFormat::onnxruntime})
        static_cast<void>(profile_to_trace(profile, format));
    } catch (const Error&) {
    }
  }
}

TEST_F(ProfileStream, WhatIsNoTextOrTooDeepIsAnErrorOfTheLibrary) {
  Session session = chain_session();
  {
    const Profiler profiler = session.profiler({.stream_to = path_});
    session.run(feeds_of());
  }
  const std::string whole = contents();
  const size_t plan = whole.find("{\"");
  ASSERT_NE(plan, std::string::npos);
  std::string bad = whole;
  bad[plan + 3] = '\xe9';
  replace(bad);
  try {
    read_profile_recording(path_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no JSON at byte"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\xe9'), std::string::npos);
  }
  uint64_t size = 0;
  std::memcpy(&size, whole.data() + plan - sizeof size, sizeof size);
  const std::string deep = "{\"run\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  const uint64_t deep_size = deep.size();
  bad = whole.substr(0, plan - sizeof size) + std::string(reinterpret_cast<const char*>(&deep_size), sizeof deep_size) + deep +
        whole.substr(plan + size);
  replace(bad);
  EXPECT_THROW(read_profile_recording(path_), Error);
  EXPECT_THROW(read_profile(R"({"format":"treadle-profile","version":1,"nodes":[],"runs":{},"more":)" + deep + "}"), Error);
}

// A limit on the size of files has the effect of a full disk.
TEST_F(ProfileStream, AFullDiskEndsTheRecordingAndNotTheRuns) {
  Session session = chain_session();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  Profiler profiler = session.profiler({.stream_to = path_});
  session.run(feeds_of());
  profiler.flush();
  const rlimit small{contents().size() + 100'000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    for (int i = 0; i < 2000; ++i) {
      session.run(feeds_of());
      if (i % 100 == 0) profiler.flush();
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_error);
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_NE(message.find(path_), std::string::npos) << message;
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_THROW(static_cast<void>(profiler.profile()), Error);
  EXPECT_NO_THROW(session.run(feeds_of()));
  EXPECT_GT(read_profile_recording(path_).runs.size(), 0U);
}

TEST_F(ProfileStream, AForkedChildLeavesTheFileAlone) {
  Session session = chain_session();
  std::optional<Profiler> profiler(session.profiler({.stream_to = path_}));
  session.run(feeds_of());
  const pid_t child = fork();
  if (child == 0) {
    try {
      profiler->flush();
      _exit(1);
    } catch (const Error&) {
    }
    profiler.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  session.run(feeds_of());
  EXPECT_EQ(profiler->profile().runs.size(), 2U);
}

TEST_F(ProfileStream, RefusesWhatItCannotDo) {
  Session session = chain_session();
  EXPECT_THROW(session.profiler({.keep_last = true, .stream_to = path_}), Error);
  EXPECT_THROW(session.profiler({.stream_to = "/nowhere/at/all"}), Error);
  EXPECT_THROW(read_profile_recording("/nowhere/at/all"), Error);
  replace("something else, and more of it");
  EXPECT_THROW(read_profile_recording(path_), Error);
  EXPECT_NO_THROW(session.run(feeds_of()));
}

}  // namespace
}  // namespace treadle::testing
