#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/train/tiny_network.h"
#include "treadle/session.h"
#include "treadle/train.h"

#ifdef TREADLE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace treadle::exec {
namespace {

#if defined(TREADLE_EXPECTS_PROBES)
constexpr bool kHasProbes = true;
#else
constexpr bool kHasProbes = false;  // the build has no probes, unless the program's file contains some
#endif

// Returns the program's SystemTap probes, from the notes of its file: "treadle:node_begin" and the like, each with its numbers of
// arguments.
std::map<std::string, std::set<size_t>> probes_of_this_program() {
  std::map<std::string, std::set<size_t>> probes;
  FILE* notes = popen("LC_ALL=C readelf --notes --wide /proc/$PPID/exe 2>/dev/null", "r");
  if (!notes) return probes;
  std::string provider, name;
  std::array<char, 4096> line;
  while (fgets(line.data(), line.size(), notes)) {
    const std::string text = line.data();
    auto value_of = [&](const std::string& key) {
      const size_t at = text.find(key);
      return at == std::string::npos ? std::nullopt : std::optional(text.substr(at + key.size(), text.size() - at - key.size() - 1));
    };
    if (const auto found = value_of("Provider: ")) provider = *found;
    if (const auto found = value_of("Name: ")) name = *found;
    if (const auto found = value_of("Arguments: "); found && provider == "treadle")
      probes[provider + ":" + name].insert(static_cast<size_t>(std::count(found->begin(), found->end(), '@')));
  }
  pclose(notes);
  return probes;
}

TEST(TraceMarks, ABuildWithProbesHasThemAroundRunsAndNodes) {
  const auto probes = probes_of_this_program();
  if (!kHasProbes && !probes.contains("treadle:node_begin")) GTEST_SKIP() << "built without -DTREADLE_USDT=ON";
  const std::map<std::string, std::set<size_t>> expected{
      {"treadle:node_begin", {2}}, {"treadle:node_end", {2}},  {"treadle:part_begin", {1}},
      {"treadle:part_end", {1}},   {"treadle:run_begin", {1}}, {"treadle:run_end", {1}},
  };
  EXPECT_EQ(probes, expected);
}

#ifdef TREADLE_NVTX

std::vector<std::string> heard;  // range names as NVTX reports them: "name" for a push, "" for a pop

int on_push(const char* name) {
  heard.emplace_back(name);
  return static_cast<int>(heard.size());
}
int on_pop() {
  heard.emplace_back();
  return 0;
}

// A tool's entry point, which NVTX calls when it finds the tool.
int listen(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(on_push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(on_pop);
  return 1;
}

// NVTX looks at this variable once for a tool, before it looks for a tool's library. So it must be set before any test runs.
[[maybe_unused]] const bool kListens = (InitializeInjectionNvtx2_fnptr = listen, true);

// Returns the path of each range through the ranges around it: "treadle forward/treadle run/y_node".
std::vector<std::string> paths() {
  std::vector<std::string> open, found;
  for (const std::string& name : heard) {
    if (name.empty()) {
      EXPECT_FALSE(open.empty()) << "a range ends that did not begin";
      if (!open.empty()) open.pop_back();
      continue;
    }
    open.push_back(open.empty() ? name : open.back() + "/" + name);
    found.push_back(open.back());
  }
  EXPECT_TRUE(open.empty()) << "a range does not end: " << open.back();
  return found;
}

TEST(TraceMarks, RangesNestAroundPartsRunsAndNodes) {
  train::JointModule module(train::tiny::tiny_network(), {.outputs = {"scores"}});
  heard.clear();
  train::JointModule::Run run = module.forward(train::tiny::make_batch(4, 1).feeds);
  std::vector<std::string> found = paths();
  ASSERT_GE(found.size(), 3U);
  EXPECT_EQ(found[0], "treadle forward");
  EXPECT_EQ(found[1], "treadle forward/treadle run");
  for (size_t i = 2; i < found.size(); ++i) EXPECT_TRUE(found[i].starts_with("treadle forward/treadle run/")) << found[i];

  heard.clear();
  Tensor ones(DType::float32, run.outputs()[0].shape());
  for (float& x : ones.span<float>()) x = 1;
  run.backward(std::vector<Tensor>{ones});
  found = paths();
  ASSERT_GE(found.size(), 3U);
  EXPECT_EQ(found[0], "treadle backward");
  for (size_t i = 2; i < found.size(); ++i) EXPECT_TRUE(found[i].starts_with("treadle backward/treadle run/")) << found[i];
}

TEST(TraceMarks, AStepHasARangeForEachOfItsPhases) {
  train::Trainer trainer(train::tiny::tiny_network(), {.optimizer = train::Optimizer::adam});
  const auto batch = train::tiny::make_batch(4, 1);
  heard.clear();
  trainer.step(batch.feeds, batch.labels);
  const std::vector<std::string> found = paths();
  ASSERT_GE(found.size(), 2U);
  EXPECT_EQ(found[0], "treadle step");
  EXPECT_EQ(found[1], "treadle step/treadle run");
  const std::string run = "treadle step/treadle run/";
  std::vector<std::string> phases;
  for (size_t i = 2; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].starts_with(run)) << found[i];
    const std::string below = found[i].substr(run.size());
    if (below.find('/') == std::string::npos)
      phases.push_back(below);
    else
      EXPECT_TRUE(below.starts_with(phases.back() + "/")) << "a node outside of its phase: " << below;
  }
  // The order of the plan may change between the phases of a step more than once.
  EXPECT_EQ(phases.front(), "forward");
  EXPECT_EQ(phases.back(), "optimizer");
  EXPECT_EQ(std::set<std::string>(phases.begin(), phases.end()), (std::set<std::string>{"forward", "backward", "optimizer"}));
  EXPECT_EQ(std::adjacent_find(phases.begin(), phases.end()), phases.end());
}

#endif

}  // namespace
}  // namespace treadle::exec
