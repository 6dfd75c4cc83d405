#include "session/options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/session/models.h"
#include "treadle/error.h"
#include "treadle/session.h"

namespace treadle {
namespace {

TEST(Options, TheDocumentHasTheTableOfTheCode) {
  std::ifstream file(TREADLE_SOURCE_DIR "/docs/options.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find(options_markdown()), std::string::npos)
      << "docs/options.md lacks the table that `treadle options --markdown` prints:\n"
      << options_markdown();
}

TEST(Options, EveryOptionThatATextCanSetTakesItsDefault) {
  for (const OptionInfo& info : option_table()) {
    SessionOptions options;
    const std::string text = info.get(options);
    if (!info.set || text.empty() || text == "unlimited") continue;
    set_option(options, info.name, text);
    EXPECT_EQ(info.get(options), text) << info.name;
  }
}

TEST(Options, DenormalsAreZeroInRunsOnly) {
  constexpr int64_t kCount = 1 << 20;  // shared by the threads
  constexpr float kSmall = 1e-40F;
  testing::ModelBuilder model;
  model.input("x", {kCount}).output("y", {kCount}).output("z", {kCount});
  model.node("Add", {"x", "x"}, {"y"}).node("Add", {"y", "x"}, {"z"});
  Tensor x(DType::float32, Shape{kCount});
  for (float& value : x.span<float>()) value = kSmall;
  for (int threads : {1, 3}) {
    for (ExecutionMode mode : {ExecutionMode::sequential, ExecutionMode::parallel}) {
      for (const char* on : {"0", "1"}) {
        SessionOptions options;
        options.intra_op_num_threads = threads;
        options.execution_mode = mode;
        set_option(options, "set_denormal_as_zero", on);
        Session session(model.model(), options);
        const std::vector<Datum> outputs = session.run({{"x", x}});
        for (int i : {0, 1}) {
          const float expected = *on == '1' ? 0 : static_cast<float>(i + 2) * kSmall;
          for (float value : outputs[static_cast<size_t>(i)].tensor().span<float>()) ASSERT_EQ(value, expected);
        }
        volatile float mine = kSmall;
        mine = mine + mine;
        EXPECT_GT(mine, 0) << "the caller's mode has changed";
      }
    }
  }
}

TEST(Options, AreSetByNameAndByConfigEntry) {
  SessionOptions options;
  set_option(options, "intra_op_num_threads", "3");
  set_option(options, "graph_optimization_level", "disable_all");
  set_option(options, "disabled_passes", "remove-dead;fold-shapes");
  set_option(options, "free_dimension_overrides", "batch=4");
  EXPECT_EQ(options.intra_op_num_threads, 3);
  EXPECT_EQ(options.graph_optimization_level, GraphOptimizationLevel::disable_all);
  EXPECT_EQ(options.disabled_passes, (std::vector<std::string>{"remove-dead", "fold-shapes"}));
  EXPECT_EQ(options.free_dimension_overrides.at("batch"), 4);
  add_config_entry(options, "treadle.strict_symbols", "0");
  add_config_entry(options, "of.somebody.else", "kept");
  EXPECT_FALSE(options.strict_symbols);
  EXPECT_EQ(options.config.at("of.somebody.else"), "kept");
}

TEST(Options, WrongNamesAndValuesAreNamed) {
  SessionOptions options;
  auto message = [&](const std::string& name, const std::string& value) {
    try {
      set_option(options, name, value);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("threads", "1").find("there is no option \"threads\"; the options are: intra_op_num_threads"), std::string::npos);
  EXPECT_NE(message("intra_op_num_threads", "-1").find("\"-1\" is given, a number from 0 on is expected"), std::string::npos);
  EXPECT_NE(message("use_mmap", "maybe").find("0 or 1 is expected"), std::string::npos);
  EXPECT_NE(message("free_dimension_overrides", "4").find("NAME=EXTENT is expected"), std::string::npos);
}

}  // namespace
}  // namespace treadle
