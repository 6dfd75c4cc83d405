#include "train/options/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/train/tiny_network.h"
#include "treadle/error.h"

namespace treadle::train {
namespace {

template <typename F>
std::string refused(const F& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.message();
  }
  return {};
}

std::string made(const TrainerOptions& options) {
  return refused([&] { Trainer(tiny::tiny_network(), options); });
}

TEST(TrainerOptions, HaveOneRangeForTextsAndMembers) {
  for (const Option<TrainerOptions>& row : trainer_option_table().rows()) {
    for (double outside : {std::nextafter(row.least, -INFINITY), std::nextafter(row.most, INFINITY), row.below_most ? row.most : NAN}) {
      if (std::isinf(outside) || row.form != OptionForm::real) continue;
      TrainerOptions options;
      const std::string message = refused([&] { row.set(options, fmt::format("{}", outside)); });
      EXPECT_NE(message.find("is given, a " + row.type_text() + " is expected"), std::string::npos) << row.name << ": " << message;
    }
  }
  TrainerOptions options;
  options.learning_rate = -0.5;
  EXPECT_EQ(made(options), "the option learning_rate: \"-0.5\" is given, a number from 0 to 1e+30 is expected");
  EXPECT_EQ(refused([&] { set_option(options, "learning_rate", "-0.5"); }), made(options));
  options = {.beta2 = 1};
  EXPECT_EQ(made(options), "the option beta2: \"1\" is given, a number from 0 and below 1 is expected");
  options = {.reduction = DType::float16};
  EXPECT_EQ(made(options), "the option reduction: \"10\" is given, float32 or bfloat16 is expected");
  options = {.groups = {{.parameters = {"*.bias"}, .rate_factor = -1}}};
  EXPECT_EQ(made(options), "the option rate_factor: \"-1\" is given, a number from 0 to 1e+30 is expected");
  options = {.class_weights = {1, NAN}};
  EXPECT_EQ(made(options), "the option class_weights: \"nan\" is given, numbers from 0 to 1e+30, separated by \",\" is expected");
}

TEST(TrainerOptions, AreReadAsTheyWereSet) {
  TrainerOptions options;
  for (const auto& [name, text] : std::initializer_list<std::pair<const char*, const char*>>{{"optimizer", "lamb"},
                                                                                             {"schedule", "one_cycle"},
                                                                                             {"loss", "huber"},
                                                                                             {"gamma", "0.25"},
                                                                                             {"lora_targets", "a;b*"},
                                                                                             {"class_weights", "1,0.5"},
                                                                                             {"growth_interval", "7"},
                                                                                             {"initialization_seed", "9"},
                                                                                             {"memory_fraction", "0.5"},
                                                                                             {"reduction", "bfloat16"},
                                                                                             {"bucket_bytes", "4096"}}) {
    set_option(options, name, text);
    for (const Option<TrainerOptions>& row : trainer_option_table().rows())
      if (row.name == name) {
        EXPECT_EQ(row.get(options), text) << name;
      }
  }
  EXPECT_EQ(options.schedule.gamma, 0.25);
  EXPECT_EQ(options.session.memory_fraction, 0.5);
  set_option(options, "group", "a*,b;rate_factor=0.5;weight_decay=0");
  set_option(options, "initialize", "c;initializer=normal;scale=-2");
  ASSERT_EQ(options.groups.size(), 1U);
  EXPECT_EQ(options.groups[0].parameters, (std::vector<std::string>{"a*", "b"}));
  EXPECT_EQ(options.groups[0].rate_factor, 0.5);
  EXPECT_EQ(options.groups[0].weight_decay, 0.0);
  ASSERT_EQ(options.initialization.size(), 1U);
  EXPECT_EQ(options.initialization[0].scale, -2);
  for (const char* wrong : {"", ";rate_factor=1", "a;rate_factor", "a;=1", "a;b=1"})
    EXPECT_THROW(set_option(options, "group", wrong), Error) << wrong;
  for (const char* wrong : {"a", "a;scale=2", "a;initializer=nothing"})
    EXPECT_THROW(set_option(options, "initialize", wrong), Error) << wrong;
}

TEST(TrainerOptions, ThatNothingUsesOrDoNotGoTogetherAreRefused) {
  EXPECT_EQ(made({.loss = Loss::l1, .blank = 1}), "the loss l1 has no use for blank");
  EXPECT_EQ(made({.optimizer = Optimizer::lion, .epsilon = 1}), "the optimizer lion has no use for epsilon");
  EXPECT_EQ(made({.optimizer = Optimizer::lamb, .fused_update = true}), "the optimizer lamb has no use for fused_update");
  EXPECT_EQ(made({.schedule = {.kind = Schedule::Kind::cosine, .total_steps = 9, .gamma = 0.5}}),
            "the schedule cosine has no use for gamma");
  EXPECT_EQ(made({.schedule = {.kind = Schedule::Kind::step}}), "the schedule step needs step_size");
  EXPECT_EQ(made({.clip_norm = 1, .fused_update = true}), "fused_update does not go with clip_norm: it looks at parameters one by one");
  EXPECT_EQ(made({.lora = {.seed = 3}}), "lora_seed needs lora_rank: there are no adapters otherwise");
  EXPECT_EQ(made({.nesterov = true}), "nesterov needs a momentum above 0: it looks ahead by it");
}

}  // namespace
}  // namespace treadle::train
