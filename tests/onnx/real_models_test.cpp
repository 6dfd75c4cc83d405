// Tests models that exporters have written. The tests are skipped if the folder of test data is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "onnx/parse.h"
#include "onnx/serialize.h"
#include "tests/onnx/model_difference.h"
#include "tests/onnx/wire_builder.h"

namespace treadle::onnx::test {
namespace {
namespace fs = std::filesystem;

std::vector<fs::path> models() {
  const char* chosen = std::getenv("TREADLE_TEST_DATA");
  fs::path folder = (chosen ? fs::path(chosen) : fs::path(TREADLE_SOURCE_DIR) / "../shared/data") / "models";
  std::vector<fs::path> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& file : fs::directory_iterator(folder))
    if (file.path().extension() == ".onnx") found.push_back(file.path());
  std::sort(found.begin(), found.end());
  return found;
}

TEST(OnnxRealModels, SurviveARoundTrip) {
  if (models().empty()) GTEST_SKIP() << "no folder shared/data beside the sources, and TREADLE_TEST_DATA is not set";
  for (const fs::path& path : models()) {
    SCOPED_TRACE(path.filename().string());
    ModelDef model = parse_model_file(path.string());
    EXPECT_FALSE(model.opset_imports.empty());
    EXPECT_FALSE(model.graph.nodes.empty());
    EXPECT_EQ(first_difference(model, parse_model_file(path.string(), {.use_mmap = false})), "");
    std::string written = serialize_model(model);
    EXPECT_EQ(first_difference(model, parse_model_bytes(bytes_of(written), nullptr, {})), "");
  }
}

TEST(OnnxRealModels, SurviveARoundTripThroughFilesWithExternalData) {
  if (models().empty()) GTEST_SKIP() << "no folder shared/data beside the sources, and TREADLE_TEST_DATA is not set";
  TemporaryFolder folder;
  for (const fs::path& path : models()) {
    SCOPED_TRACE(path.filename().string());
    ModelDef model = parse_model_file(path.string());
    write_model_file(model, folder.file("m.onnx"), {.external_data_file = "m.onnx.data"});
    EXPECT_EQ(first_difference(model, parse_model_file(folder.file("m.onnx"))), "");
  }
}

TEST(OnnxRealModels, ACutOffFileIsAnError) {
  if (models().empty()) GTEST_SKIP() << "no folder shared/data beside the sources, and TREADLE_TEST_DATA is not set";
  TemporaryFolder folder;
  std::string path = folder.file("cut.onnx");
  fs::copy_file(models().front(), path);
  for (uintmax_t size = fs::file_size(path); size > 100; size = size * 2 / 3) {
    fs::resize_file(path, size - 1);
    EXPECT_EQ(code_of([&] { parse_model_file(path); }), ErrorCode::invalid_model) << size - 1;
  }
}

}  // namespace
}  // namespace treadle::onnx::test
