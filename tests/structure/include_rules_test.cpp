// Checks which folder of src/ includes which other folder, by the rules in src/folders.txt, and other rules about files.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

// Reads the rules: for each folder, the folders that it may include directly. It may also include those that these may include.
std::map<std::string, std::set<std::string>> read_rules() {
  std::map<std::string, std::set<std::string>> rules;
  std::ifstream in(fs::path(TREADLE_SOURCE_DIR) / "src" / "folders.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    rules[line.substr(0, line.find(':'))] = {std::istream_iterator<std::string>(words), {}};
  }
  return rules;
}
const std::map<std::string, std::set<std::string>> kMayInclude = read_rules();

// Returns the folder listed in src/folders.txt to which a file belongs; empty if there is none.
std::string room_of(const fs::path& path) {
  std::string room, found;
  for (const fs::path& part : path.parent_path()) {
    room += (room.empty() ? "" : "/") + part.string();
    if (kMayInclude.contains(room)) found = room;
  }
  return found;
}

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
    const std::string room = room_of(fs::relative(entry.path(), root));
    ASSERT_FALSE(room.empty()) << entry.path().string() << " is in no room of the design";
    const std::set<std::string> allowed = closure(room);
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      std::string target = match[1].str();
      std::string first = fs::path(target).begin()->string();
      if (first == "treadle" || target.find("/") == std::string::npos) continue;  // public headers, and headers of a program itself
      EXPECT_TRUE(allowed.contains(room_of(target))) << entry.path().string() << " includes " << target;
    }
  }
}

// Only one file may load and store parts of vectors: without masked instructions, these functions of Highway access whole vectors, beyond
// the end of an array.
TEST(Structure, PartsOfVectorsAreLoadedAndStoredInOnePlace) {
  const std::regex masked("hn::(MaskedLoad|BlendedStore)\\(");
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "src" / "kernels")) {
    if (!entry.is_regular_file() || entry.path().filename() == "partial-inl.h") continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);)
      EXPECT_FALSE(std::regex_search(line, masked)) << entry.path().string() << " goes past kernels/partial-inl.h: " << line;
  }
}

// Functions are found by clang-format's indentation: a body ends with a brace in the column where its signature begins.
TEST(Structure, FunctionsAreShort) {
  constexpr int kMostLines = 80;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "src")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".cpp" && extension != ".h")) continue;
    std::ifstream in(entry.path());
    std::map<size_t, int> begins;  // by indentation: of namespaces, and of classes
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const size_t indentation = line.find_first_not_of(' ');
      if (indentation != 0 && indentation != 2) continue;
      if (line.substr(indentation) == "}")
        EXPECT_LE(number - begins[indentation] + 1, kMostLines)
            << entry.path().string() << ":" << begins[indentation] << " does several things: make functions of them";
      else if (line.find_first_of("#/}") != indentation)
        begins[indentation] = number;
    }
  }
}

// Commands must print through cli/terminal.cpp, which escapes control characters in names.
TEST(Structure, CommandsPrintThroughOnePlace) {
  const std::regex prints("fmt::print|std::c(out|err|log)|\\bf?puts\\(|printf\\(");
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "src" / "cli")) {
    if (entry.path().extension() != ".cpp" || entry.path().filename() == "terminal.cpp") continue;
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);)
      EXPECT_FALSE(std::regex_search(line, prints)) << entry.path().string() << " prints by itself: " << line;
  }
}

TEST(Structure, HeadersSayWhatTheyAreFor) {
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / "src")) {
    if (!entry.is_regular_file() || entry.path().extension() != ".h") continue;
    std::ifstream in(entry.path());
    std::string first;
    std::getline(in, first);
    EXPECT_TRUE(first.starts_with("//")) << entry.path().string() << " begins with what it is for";
  }
}

// The JSON library takes seconds to compile, so only files that read or write JSON may include it.
TEST(Structure, OneHeaderHasTheJsonLibrary) {
  for (const char* folder : {"src", "include"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TREADLE_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".h" || entry.path().string().ends_with("profile/model/json.h")) continue;
      std::ifstream in(entry.path());
      const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
      EXPECT_EQ(text.find("nlohmann/json.hpp"), std::string::npos) << entry.path().string();
    }
}

// C++ users include one header. The other three are for C and for the export macro.
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
