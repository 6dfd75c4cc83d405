// Checks that src/ops/families.inc, by which a build can select operators, lists every operator and the file that defines it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>

#include "ops/list.h"

namespace treadle {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = fs::path(TREADLE_SOURCE_DIR) / "src";

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the file that defines each family's function.
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

struct Row {
  const char *family, *file, *operators;
  ops::Family make;
};
constexpr Row kRows[] = {
#define FAMILY(family, file, operators) {#family, file, operators, ops::family},
#include "ops/families.inc"
#undef FAMILY
};

TEST(OperatorFamilies, AreListedWithFileAndOperators) {
  const auto files = files_of_families();
  for (const Row& row : kRows) {
    ASSERT_TRUE(files.contains(row.family)) << row.family;
    EXPECT_EQ(row.file, files.at(row.family)) << row.family;
    std::string operators;
    for (const OpDef& op : row.make())
      operators += fmt::format("{}{}:{}", operators.empty() ? "" : " ", op.domain.empty() ? "ai.onnx" : op.domain, op.name);
    EXPECT_EQ(row.operators, operators) << row.family << " in src/ops/families.inc";
  }
}

}  // namespace
}  // namespace treadle
