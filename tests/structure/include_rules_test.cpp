// The include rules of docs/architecture.md: which folder of src/ may include which.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

// Direct permissions; what those may include is permitted as well.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"core", {}},
    {"kernels", {"core"}},
    {"memory", {"core"}},
    {"profile", {"core"}},
    {"graph", {"core"}},
    {"ops", {"graph", "kernels"}},
    {"onnx", {"graph"}},
    {"passes", {"graph", "ops"}},
    {"autodiff", {"graph", "ops"}},
    {"plugin", {"graph", "ops"}},
    {"sharing", {"core"}},
    {"exec", {"graph", "ops", "memory", "kernels", "profile", "sharing"}},
    {"compiled", {"exec"}},
    {"device", {"core", "memory", "profile", "sharing"}},
    {"session", {"exec", "compiled", "passes", "onnx", "autodiff", "device", "plugin"}},
    {"train", {"session"}},
    {"quantize", {"session"}},
    {"ort_api", {"session"}},
    {"c_api", {"session", "train", "ort_api"}},
    {"cli", {"session", "train", "c_api", "quantize"}},
};

std::set<std::string> closure(const std::string& folder) {
  std::set<std::string> all{folder};
  for (const std::string& direct : kMayInclude.at(folder)) all.merge(closure(direct));
  return all;
}

TEST(Structure, FoldersIncludeOnlyWhatTheDesignAllows) {
  const fs::path root = fs::path(TREADLE_SOURCE_DIR) / "src";
  const std::regex include("^\\s*#\\s*include\\s+\"([^\"]+)\"");
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".cpp" && extension != ".h")) continue;
    std::string folder = fs::relative(entry.path(), root).begin()->string();
    ASSERT_TRUE(kMayInclude.contains(folder)) << "the folder src/" << folder << " is not in the design";
    const std::set<std::string> allowed = closure(folder);
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      std::string target = match[1].str();
      std::string first = fs::path(target).begin()->string();
      if (first == "treadle" || target.find("/") == std::string::npos) continue;  // public headers; a program's own
      EXPECT_TRUE(allowed.contains(first)) << entry.path().string() << " includes " << target;
    }
  }
}

// They read and write whole vectors where no instruction masks memory.
TEST(Structure, PartsOfVectorsAreLoadedAndStoredInOnePlace) {
  const std::regex masked("hn::(MaskedLoad|BlendedStore)\\(");
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "src" / "kernels")) {
    if (!entry.is_regular_file() || entry.path().filename() == "partial-inl.h") continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);)
      EXPECT_FALSE(std::regex_search(line, masked)) << entry.path().string() << " goes past kernels/partial-inl.h: " << line;
  }
}

// What users of C++ include is one header; the other three are C's, and the mark of what is exported.
TEST(Structure, OneHeaderHasTheWholeInterface) {
  const fs::path folder = fs::path(TREADLE_SOURCE_DIR) / "include" / "treadle";
  std::ifstream in(folder / "treadle.hpp");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "treadle.hpp" || name == "treadle.h" || name == "plugin.h" || name == "export.h") continue;
    EXPECT_NE(text.find("\"treadle/" + name + "\""), std::string::npos) << "treadle.hpp lacks " << name;
  }
}

TEST(Structure, PublicHeadersIncludeOnlyEachOther) {
  const std::regex include("^\\s*#\\s*include\\s+\"([^\"]+)\"");
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "include")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      if (std::regex_search(line, match, include)) {
        EXPECT_EQ(match[1].str().rfind("treadle/", 0), 0U) << entry.path().string() << " includes " << match[1].str();
      }
    }
  }
}

}  // namespace
