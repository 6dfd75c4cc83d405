#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

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
  for (const char* backwards : {"dne_edon", "nigeb_nur", "dne_nur"}) EXPECT_TRUE(has(backwards)) << backwards;
}

}  // namespace
}  // namespace treadle::exec
