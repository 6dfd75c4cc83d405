// src/ops/families.txt, by which a build takes only the operators that it is asked for, lists every operator and where it is defined.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "ops/list.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = fs::path(TREADLE_SOURCE_DIR) / "src";

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// In the order of kFamilies.
std::vector<std::string> family_names() {
  const std::string text = contents(kSource / "ops" / "list.h"), list = text.substr(text.find("kFamilies[] = {"));
  std::vector<std::string> names;
  const std::regex name("(\\w+_ops),");
  for (std::sregex_iterator it(list.begin(), list.end(), name), end; it != end; ++it) names.push_back((*it)[1]);
  return names;
}

// The file of each family's function.
std::map<std::string, std::string> files_of_families() {
  std::map<std::string, std::string> files;
  const std::regex definition("std::vector<OpDef> (\\w+_ops)\\(\\) \\{");
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "ops")) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = contents(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), definition), end; it != end; ++it)
      files[(*it)[1]] = fs::relative(entry.path(), kSource).string();
  }
  return files;
}

TEST(OperatorFamilies, AreListedForBuildsOfSomeOperators) {
  const std::vector<std::string> names = family_names();
  ASSERT_EQ(names.size(), std::size(ops::kFamilies));
  const auto files = files_of_families();
  std::ostringstream text;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(files.contains(names[i])) << names[i];
    text << names[i] << ' ' << files.at(names[i]);
    for (const OpDef& op : ops::kFamilies[i]()) text << ' ' << (op.domain.empty() ? "ai.onnx" : op.domain) << ':' << op.name;
    text << '\n';
  }
  const fs::path list = kSource / "ops" / "families.txt";
  if (std::getenv("TREADLE_WRITE_FAMILIES")) std::ofstream(list) << text.str();
  EXPECT_EQ(contents(list), text.str()) << "TREADLE_WRITE_FAMILIES=1 writes the list again";
}

}  // namespace
}  // namespace treadle
