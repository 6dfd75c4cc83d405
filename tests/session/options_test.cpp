#include "session/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <tuple>

#include "session/compile_cache.h"
#include "session/environment.h"
#include "session/model.h"
#include "session/refusals.h"
#include "tests/session/models.h"
#include "train/joint/joint_options.h"
#include "train/options/options.h"
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
  EXPECT_NE(text.find(run_options_markdown()), std::string::npos) << "and this one:\n" << run_options_markdown();
  EXPECT_NE(text.find(train::trainer_options_markdown()), std::string::npos) << "and this one:\n" << train::trainer_options_markdown();
  EXPECT_NE(text.find(train::joint_options_markdown()), std::string::npos) << "and this one:\n" << train::joint_options_markdown();
  EXPECT_NE(text.find(environment_markdown()), std::string::npos) << "and this one:\n" << environment_markdown();
}

TEST(Options, EveryEnvironmentVariableThatIsReadIsInTheTable) {
  std::set<std::string> listed, read;
  for (const EnvironmentVariable& variable : environment_variables()) listed.emplace(variable.name);
  const std::regex name("\"(TREADLE_[A-Z_]+|ORT_LOAD_[A-Z_]+)\"");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(TREADLE_SOURCE_DIR "/src")) {
    if (entry.path().extension() != ".cpp" || entry.path().filename() == "environment.cpp") continue;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (auto it = std::sregex_iterator(text.begin(), text.end(), name); it != std::sregex_iterator(); ++it) read.insert((*it)[1]);
  }
  EXPECT_EQ(listed, read);
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
  for (const Option<SessionOptions>& row : session_option_table().rows()) {
    SessionOptions options;
    const std::string text = row.get(options);
    if (!row.settable || text.empty()) continue;
    for (const std::string& name : {std::string(row.name), row.key}) {
      set_option(options, name, text);
      EXPECT_EQ(row.get(options), text) << name;
    }
  }
}

TEST(Options, DenormalsAreZeroInRunsOnly) {
  constexpr int64_t kCount = 1 << 20;  // large enough for several threads
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

template <typename F>
std::string message_of(F&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Options, WrongNamesAndValuesAreNamed) {
  auto message = [](const std::string& name, const std::string& value) {
    SessionOptions options;
    return message_of([&] { set_option(options, name, value); });
  };
  EXPECT_EQ(message("memory_limit", "1").find("there is no option \"memory_limit\"; is it memory_limit_bytes"), 0U);
  EXPECT_EQ(message("treadle.devise", "sim").find("there is no option \"treadle.devise\"; is it treadle.device"), 0U);
  EXPECT_NE(
      message("max_patches", "-1").find("the option max_patches: \"-1\" is given, a whole number from 0 on, or unlimited is expected"),
      std::string::npos);
  EXPECT_NE(message("use_mmap", "maybe").find("0 or 1 is expected"), std::string::npos);
  EXPECT_NE(message("execution_mode", "both").find("sequential or parallel is expected"), std::string::npos);
  EXPECT_NE(message("free_dimension_overrides", "4").find("NAME=EXTENT is expected"), std::string::npos);
}

Model negation() {
  testing::ModelBuilder model;
  model.input("x", {-1}).output("y", {-1}).node("Neg", {"x"}, {"y"});
  return model.model();
}

TEST(Options, EveryOptionOfATextHasAConfigEntry) {
  for (const Option<SessionOptions>& row : session_option_table().rows()) {
    if (!row.settable) continue;
    EXPECT_EQ(row.key, "treadle." + std::string(row.name));
    SessionOptions entered, usual;
    const std::string text = row.form == OptionForm::extents   ? "n=3"
                             : row.form == OptionForm::devices ? "a=sim"
                             : row.form == OptionForm::choice  ? std::string(row.choices[row.choices[0].name == row.get(usual)].name)
                             : row.form == OptionForm::flag    ? (row.get(usual) == "1" ? "0" : "1")
                             : row.form == OptionForm::names   ? "one;two"
                             : row.name == "allocator"         ? "arena"
                             : row.name == "precision"         ? "bfloat16"
                             : row.form == OptionForm::text    ? "text"
                             : row.form == OptionForm::real    ? "1"
                                                               : "7";
    add_config_entry(entered, row.key, text);
    EXPECT_EQ(row.get(entered), text) << row.key;
    EXPECT_TRUE(row.is_set(entered, usual)) << row.key;
    SessionOptions kept;
    kept.config[row.key] = text;
    session_option_table().complete(kept, usual);
    EXPECT_EQ(row.get(kept), text) << row.key << " of a map";
  }
}

TEST(Options, ABareNameIsNoConfigEntry) {
  SessionOptions options;
  for (const char* key : {"execution_mode", "session.device", "device", "session.use_mmap"}) {
    const std::string said = message_of([&] { add_config_entry(options, key, "1"); });
    EXPECT_NE(said.find("\"treadle."), std::string::npos) << key << ": " << said;
    SessionOptions direct;
    direct.config[key] = "1";
    EXPECT_THROW(Session(negation(), direct), Error) << key;
  }
  for (const char* key : {"session.intra_op.allow_spinning", "session.load_model_format", "ep.device", "session.set_denormal_as_zero"})
    add_config_entry(options, key, "1");
  EXPECT_TRUE(options.set_denormal_as_zero);
}

TEST(Options, TheRangeIsTheSameForTextsAndMembers) {
  SessionOptions options;
  auto refused = [](const SessionOptions& given) { return message_of([&] { Session(negation(), given); }); };
  EXPECT_NE(message_of([&] { set_option(options, "compute_streams", "1000"); }).find("a whole number from 1 to 64"), std::string::npos);
  options.compute_streams = 1000;
  EXPECT_NE(refused(options).find("the option compute_streams: \"1000\" is given, a whole number from 1 to 64"), std::string::npos);
  options = {};
  options.intra_op_num_threads = 5000;
  EXPECT_NE(refused(options).find("up to 4096"), std::string::npos);
  // Existing programs pass -1, which ONNX Runtime accepts.
  options.intra_op_num_threads = options.inter_op_num_threads = -1;
  EXPECT_EQ(refused(options), "");
  set_option(options, "intra_op_num_threads", "-1");
  EXPECT_EQ(options.intra_op_num_threads, -1);
  options = {};
  options.recompute_fraction = -0.5;
  EXPECT_NE(refused(options).find("a number from 0 to 1, or -1"), std::string::npos);
  options = {};
  options.precision = "bfloat17";
  EXPECT_NE(refused(options).find("the option precision: \"bfloat17\""), std::string::npos);
}

TEST(Options, SizesHaveUnits) {
  SessionOptions options;
  set_option(options, "memory_limit_bytes", "1GiB");
  EXPECT_EQ(options.memory_limit_bytes, size_t{1} << 30U);
  set_option(options, "optimized_model_data_threshold", "2KiB");
  EXPECT_EQ(options.optimized_model_data_threshold, 2048);
  set_option(options, "treadle.sim.memory", "512MiB");
  EXPECT_EQ(options.config.at("treadle.sim.memory"), "512MiB");
  EXPECT_THROW(set_option(options, "sim.memory", "much"), Error);
  EXPECT_THROW(add_config_entry(options, "treadle.sim.engine_pace", "5000"), Error);
}

TEST(Options, SymbolsAndPatternsThatMeanNothingAreErrorsWithTheNearest) {
  SessionOptions options;
  set_option(options, "free_dimension_overrides", "batch=3");
  EXPECT_NE(message_of([&] { Session(negation(), options); }).find("no input has the symbol \"batch\"; is it n"), std::string::npos);
  std::string warned;
  options.on_warning = [&](const std::string& text) { warned = text; };
  Session(negation(), options);
  EXPECT_NE(warned.find("is it n"), std::string::npos) << "onnxruntime ignores such names, so clients that take warnings go on";
  options = {};
  set_option(options, "denotation_overrides", "DATA_BATCH=3");
  EXPECT_NE(message_of([&] { Session(negation(), options); }).find("no input has the denotation \"DATA_BATCH\""), std::string::npos);
  onnx::ModelDef denoted = negation().impl().def;
  (*denoted.graph.inputs[0].type.shape)[0].denotation = "DATA_CHANNEL";
  const Model with_denotation = make_model(denoted, "");
  EXPECT_NE(message_of([&] { Session(with_denotation, options); }).find("is it DATA_CHANNEL?"), std::string::npos);
  options.on_warning = [&](const std::string& text) { warned = text; };
  Session(with_denotation, options);
  EXPECT_NE(warned.find("is it DATA_CHANNEL?"), std::string::npos);
  options = {};
  options.denotation_overrides = {{"DATA_CHANNEL", 3}};
  EXPECT_NO_THROW(Session(with_denotation, options));
  options = {};
  options.free_dimension_overrides = {{"n", 3}};
  EXPECT_EQ(std::get<int64_t>(Session(negation(), options).inputs()[0].shape[0]), 3);
  testing::ModelBuilder model;
  const std::vector<float> weights{1, 2, 3, 4};
  model.input("x", {1, 2}).output("y", {1, 2}).constant("w", Tensor::of<float>(Shape{2, 2}, weights));
  model.node("MatMul", {"x", "w"}, {"y"}, "layer/product");
  for (const char* right : {"layer/*=bfloat16", "bfloat16", "float32;*product=bfloat16"}) {
    SessionOptions given;
    given.precision = right;
    Session(model.model(), given);
  }
  options = {};
  options.precision = "bfloat16;layr/*=float32";
  EXPECT_NE(message_of([&] { Session(model.model(), options); }).find("\"layr/*\" matches no node; is it layer/product"),
            std::string::npos);
}

TEST(RunOptions, AreSetByNameAndByConfigEntry) {
  RunOptions options;
  add_config_entry(options, "treadle.check_finite", "nan");
  add_config_entry(options, "treadle.deadline_ms", "100");
  add_config_entry(options, "treadle.output_devices", "y=sim");
  add_config_entry(options, "memory.enable_memory_arena_shrinkage", "cpu:0");
  set_option(options, "targets", "a;b");
  EXPECT_EQ(options.check_finite, FiniteCheck::nan);
  EXPECT_EQ(options.deadline_ms, 100);
  EXPECT_EQ(options.output_devices.at("y"), "sim");
  EXPECT_EQ(options.targets, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.config.at("memory.enable_memory_arena_shrinkage"), "cpu:0");
  EXPECT_NE(message_of([&] { add_config_entry(options, "treadle.dump_foldr", "x"); }).find("is it treadle.dump_folder"), std::string::npos);
  EXPECT_NE(message_of([&] { add_config_entry(options, "check_finite", "nan"); }).find("\"treadle.check_finite\""), std::string::npos);
  EXPECT_NE(message_of([&] { set_option(options, "check_finite", "most"); }).find("off, nan or all is expected"), std::string::npos);
  EXPECT_NE(message_of([&] { set_option(options, "deadline_ms", "-1"); }).find("a whole number from 0 on"), std::string::npos);
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
  EXPECT_NE(message(options).find("there is no pass \"ConstantFolding\""), std::string::npos);
  options.disabled_passes.clear();
  add_config_entry(options, "optimization.disable_specified_optimizers", "remove-dead;ConstantFolding;QDQFusion");
  EXPECT_EQ(message(options), "") << "what lists for ONNX Runtime name";
  EXPECT_EQ(options.disabled_passes, (std::vector<std::string>{"remove-dead", "fold-constants"}));
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

// The key of the cache is graph_options(), so options that do not change the graph must not change it.
TEST(Options, ThoseThatLeaveTheGraphAloneAreNotInTheCachesKey) {
  const Model model = convolution();
  SessionOptions usual;
  usual.profile_file_prefix = ::testing::TempDir() + "treadle_options_";  // one row enables profiling, which writes a file
  const std::string graph = Session(model, usual).to_text("optimized");
  for (const Option<SessionOptions>& row : session_option_table().rows()) {
    if (!row.settable || !row.never_compiled.empty() || std::holds_alternative<ConfigMember>(row.member)) continue;
    const bool is_extents = row.form == OptionForm::extents, is_names = row.form == OptionForm::names;
    const bool is_number = row.form == OptionForm::integer || row.form == OptionForm::real;
    if (row.form != OptionForm::flag && row.form != OptionForm::choice && !is_number && !is_extents && !is_names) continue;
    SessionOptions options = usual;
    set_option(options, row.name,
               is_extents  ? "n=3"
               : is_names  ? "fuse-conv"
               : is_number ? "1"
               : row.form == OptionForm::choice
                   ? std::string(row.choices[0].name == row.get(usual) ? row.choices[1].name : row.choices[0].name)
                   : std::string(row.get(usual) == "1" ? "0" : "1"));
    if (!row.is_set(options, usual)) continue;  // 1 is the default
    EXPECT_EQ(graph_options(options) == graph_options(usual), row.leaves_graph) << row.name;
    if (row.leaves_graph) {
      EXPECT_EQ(Session(model, options).to_text("optimized"), graph) << row.name;
    }
  }
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
  constexpr size_t kWeights = 64 * 64 * 9 * sizeof(float), kLine = 64;  // each transformed matrix is followed by a cache line
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
  EXPECT_THROW(with(rest), Error);                                         // two rates are missing
  EXPECT_THROW(with("direct 0\ntransforms 60\n" + rest), Error);           // a rate must be positive
  EXPECT_THROW(with("direct 1\ntransforms 60 7\n" + rest), Error);         // a rate must be one number
  EXPECT_THROW(with("direct 1\ntransforms 60\nspeed 3\n" + rest), Error);  // "speed" is not the name of a rate
  SessionOptions missing;
  missing.conv_rates = path + ".none";
  EXPECT_THROW(Session(model, missing), Error);
}

}  // namespace
}  // namespace treadle
