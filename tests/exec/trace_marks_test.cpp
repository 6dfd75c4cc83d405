#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
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

// A tool finds probes by the notes of the program's file: provider and name, each with its end. Names are backwards here, or this file's
// own would be found.
TEST(TraceMarks, ABuildWithProbesHasThemAroundRunsAndNodes) {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  const std::string program{std::istreambuf_iterator<char>(self), {}};
  auto has = [&](std::string backwards) {
    std::reverse(backwards.begin(), backwards.end());
    return program.find(std::string("treadle") + '\0' + backwards + '\0') != std::string::npos;
  };
  if (!has("nigeb_edon")) GTEST_SKIP() << "built without -DTREADLE_USDT=ON";
  for (const char* backwards : {"dne_edon", "nigeb_nur", "dne_nur", "nigeb_trap", "dne_trap"}) EXPECT_TRUE(has(backwards)) << backwards;
}

#ifdef TREADLE_NVTX

std::vector<std::string> heard;  // "name" for a push, "" for a pop

int on_push(const char* name) {
  heard.emplace_back(name);
  return static_cast<int>(heard.size());
}
int on_pop() {
  heard.emplace_back();
  return 0;
}

// What a tool does when NVTX finds it.
int listen(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(on_push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(on_pop);
  return 1;
}

// NVTX looks here before it looks for a tool's library, once: before any run of any test.
[[maybe_unused]] const bool kListens = (InitializeInjectionNvtx2_fnptr = listen, true);

// The ranges around each: "treadle forward/treadle run/y_node".
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

#endif

}  // namespace
}  // namespace treadle::exec
