#include "session/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include "session/refusals.h"
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

TEST(Options, TheDocumentSaysWhatIsRefused) {
  std::ifstream file(TREADLE_SOURCE_DIR "/docs/sessions.md");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find(refusals_markdown()), std::string::npos) << "docs/sessions.md lacks this table:\n" << refusals_markdown();
}

TEST(Options, WhatAWayOfRunningLacksIsRefusedInTheWordsOfThatTable) {
  auto expect_refused = [](void (*set)(SessionOptions&)) {
    SessionOptions options;
    set(options);
    try {
      const Session session(testing::two_outputs().model(), options);
      ADD_FAILURE() << "it was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_TRUE(std::ranges::any_of(refusals(), [&](const Refusal& refusal) { return refusal.message() == error.what(); }))
          << error.what();
    }
  };
  expect_refused([](SessionOptions& o) { o.device = "sim", o.memory_fraction = 0.5; });
  expect_refused([](SessionOptions& o) { o.device = "sim", o.recompute_fraction = 0.5; });
  expect_refused([](SessionOptions& o) { o.execution_mode = ExecutionMode::parallel, o.recompute_fraction = 0.5; });
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
  add_config_entry(options, "treadle.strict_symbols", "1");
  add_config_entry(options, "of.somebody.else", "kept");
  EXPECT_TRUE(options.strict_symbols);
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
  EXPECT_NE(message("memory_limit", "1").find("is it memory_limit_bytes"), std::string::npos);
  EXPECT_NE(message("intra_op_num_threads", "-1").find("\"-1\" is given, a number from 0 on is expected"), std::string::npos);
  EXPECT_NE(message("use_mmap", "maybe").find("0 or 1 is expected"), std::string::npos);
  EXPECT_NE(message("free_dimension_overrides", "4").find("NAME=EXTENT is expected"), std::string::npos);
}

TEST(Options, AFileOfInitializersNeedsAModelThatNamesIt) {
  SessionOptions options;
  options.config["session.optimized_model_external_initializers_file_name"] = "weights.bin";
  try {
    (void)complete(options);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("\"weights.bin\", but no optimized_model_filepath"), std::string::npos) << error.what();
  }
  options.optimized_model_filepath = "model.onnx";
  options.optimized_model_data_threshold = 10;
  EXPECT_EQ(complete(options).optimized_model_data_file, "weights.bin");
  options.config.clear();
  EXPECT_THROW(complete(options), Error) << "a threshold for no file";
}

TEST(Options, ConfigEntriesAndPassesThatDoNotExistAreErrorsWithTheNearest) {
  auto message = [](const SessionOptions& options) {
    testing::ModelBuilder model;
    model.input("x", {1}).output("y", {1}).node("Neg", {"x"}, {"y"});
    try {
      Session session(model.model(), options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  SessionOptions options;
  options.config["treadle.devise"] = "sim";
  EXPECT_NE(message(options).find("there is no config entry \"treadle.devise\"; is it treadle.device"), std::string::npos);
  EXPECT_THROW(add_config_entry(options, "treadle.strict_symbol", "1"), Error);
  options.config = {{"somebody.elses", "kept"}, {"treadle.sim.memory", "1MiB"}};
  EXPECT_EQ(message(options), "");
  options.disabled_passes = {"remove-deed"};
  EXPECT_NE(message(options).find("there is no pass \"remove-deed\"; is it remove-dead"), std::string::npos);
  options.disabled_passes = {"remove-dead", "ConstantFolding"};
  EXPECT_EQ(message(options), "") << "what lists for ONNX Runtime name";
}

Model convolution() {
  testing::ModelBuilder model;
  Tensor weights(DType::float32, Shape{64, 64, 3, 3});
  float next = 0;
  for (float& w : weights.span<float>()) w = (next = next < 1 ? next + 0.03125F : -1) * 0.05F;
  model.input("x", {1, 64, 56, 56}).output("y", {1, 64, 56, 56}).constant("w", weights).node("Conv", {"x", "w"}, {"y"});
  onnx::AttributeDef pads;
  pads.name = "pads", pads.type = onnx::AttributeType::ints, pads.ints = {1, 1, 1, 1};
  model.last_node().attributes.push_back(std::move(pads));
  return model.model();
}

struct Packing {
  std::string plan;
  size_t bytes;
  Tensor y;
};
Packing packing(const Model& model, const SessionOptions& options) {
  Tensor x(DType::float32, Shape{1, 64, 56, 56});
  float next = 0;
  for (float& value : x.span<float>()) value = next = next < 1 ? next + 0.0625F : -1;
  Session session(model, options);
  const Tensor y = session.run({{"x", x}})[0].tensor();
  return {session.to_text("planned"), session.memory().packed_bytes, y};
}

TEST(Options, TransformedWeightsAreBoundedAndReported) {
  const Model model = convolution();
  constexpr size_t kWeights = 64 * 64 * 9 * sizeof(float), kLine = 64;  // a line of the cache lies behind each transformed matrix
  const Packing free = packing(model, {});
  EXPECT_NE(free.plan.find("packs 592128 bytes (F(4,3))"), std::string::npos) << free.plan;
  EXPECT_EQ(free.bytes, 4 * kWeights + 36 * kLine);
  for (auto [text, form, bytes] :
       {std::tuple("4", "F(4,3)", 4 * kWeights + 36 * kLine), std::tuple("2", "F(2,3)", 16 * kWeights / 9 + 16 * kLine),
        std::tuple("1", "direct", kWeights), std::tuple("unlimited", "F(4,3)", 4 * kWeights + 36 * kLine)}) {
    SessionOptions options;
    set_option(options, "max_weight_expansion", text);
    const Packing bounded = packing(model, options);
    EXPECT_NE(bounded.plan.find(std::string("bytes (") + form + ")"), std::string::npos) << bounded.plan;
    EXPECT_EQ(bounded.bytes, bytes) << text;
    EXPECT_LE(static_cast<double>(bounded.bytes), options.max_weight_expansion * static_cast<double>(kWeights) + 36 * kLine);
    double difference = 0, largest = 0;
    for (int64_t i = 0; i < free.y.num_elements(); ++i) {
      difference = std::max(difference, std::abs(double{free.y.data<float>()[i]} - double{bounded.y.data<float>()[i]}));
      largest = std::max(largest, std::abs(double{free.y.data<float>()[i]}));
    }
    EXPECT_LE(difference, 4e-6 * largest);
  }
}

TEST(Options, AnExpansionBelowOneIsRefused) {
  SessionOptions options;
  for (const char* text : {"0.5", "0", "-1", "nan", "", "2x"})
    EXPECT_THROW(set_option(options, "max_weight_expansion", text), Error) << text;
  options.max_weight_expansion = 0.5;
  EXPECT_THROW(Session(convolution(), options), Error);
  add_config_entry(options, "treadle.max_weight_expansion", "1");
  EXPECT_EQ(options.max_weight_expansion, 1);
}

TEST(Options, RatesOfAMachineChooseTheWayOfConvolutions) {
  const Model model = convolution();
  const std::string path = ::testing::TempDir() + "conv_rates.txt";
  auto with = [&](const std::string& text) {
    std::ofstream(path) << text;
    SessionOptions options;
    set_option(options, "conv_rates", path);
    return packing(model, options).plan;
  };
  const std::string rest = "winograd 220000\ncached 60000\nmemory 25000\n";
  EXPECT_NE(with("# a machine\ndirect 210000\ntransforms 60000\n" + rest).find("(F(4,3))"), std::string::npos);
  EXPECT_NE(with("direct 210000\ntransforms 60\n" + rest).find("(direct)"), std::string::npos);
  EXPECT_THROW(with(rest), Error);                                         // two are missing
  EXPECT_THROW(with("direct 0\ntransforms 60\n" + rest), Error);           // no rate
  EXPECT_THROW(with("direct 1\ntransforms 60 7\n" + rest), Error);         // two numbers
  EXPECT_THROW(with("direct 1\ntransforms 60\nspeed 3\n" + rest), Error);  // no such rate
  SessionOptions missing;
  missing.conv_rates = path + ".none";
  EXPECT_THROW(Session(model, missing), Error);
}

}  // namespace
}  // namespace treadle
