// Tests training through the C ABI: its numbers equal those of the C++ trainer, and wrong calls return error statuses.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/c_api/status.h"
#include "train/options/options.h"
#include "treadle/model.h"
#include "treadle/plugin.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

namespace {

// The parts from which both trainers are made, that of the C ABI and the C++ one.
const std::string kSpirals = std::string(TREADLE_SOURCE_DIR) + "/examples/train/spirals.onnx";

using treadle::testing::message_of;

struct OpenedTrainer {
  treadle_model* model = nullptr;
  treadle_trainer* trainer = nullptr;
  float points[4][2] = {{0, 1}, {1, 0}, {-1, 0.5F}, {0.3F, -2}};
  int64_t classes[4] = {0, 1, 1, 0};
  treadle_value *feed = nullptr, *labels = nullptr;

  explicit OpenedTrainer(const std::vector<treadle_config_entry>& options) {
    EXPECT_EQ(message_of(treadle_model_load(kSpirals.c_str(), &model)), "");
    EXPECT_EQ(message_of(treadle_trainer_create(model, options.data(), options.size(), &trainer)), "");
    const int64_t shape[] = {4, 2};
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 2, points, sizeof points, nullptr, nullptr, &feed)), "");
    EXPECT_EQ(message_of(treadle_tensor_borrow(TREADLE_INT64, shape, 1, classes, sizeof classes, nullptr, nullptr, &labels)), "");
  }
  ~OpenedTrainer() {
    treadle_value_release(feed);
    treadle_value_release(labels);
    treadle_trainer_release(trainer);
    treadle_model_release(model);
  }
  OpenedTrainer(const OpenedTrainer&) = delete;
  OpenedTrainer& operator=(const OpenedTrainer&) = delete;

  double step() const {
    const char* name = "point";
    double loss = 0;
    EXPECT_EQ(message_of(treadle_trainer_step(trainer, nullptr, &name, &feed, 1, labels, &loss)), "");
    return loss;
  }
};

const std::vector<treadle_config_entry> kAdam = {{"optimizer", "adam"}, {"learning_rate", "0.01"}, {"frozen", "layer1.*,layer2.bias"}};

TEST(CApiTrainer, StepsAsTheTrainerOfTheLibrary) {
  const OpenedTrainer opened(kAdam);
  treadle::train::TrainerOptions options;
  options.optimizer = treadle::train::Optimizer::adam, options.frozen = {"layer1.*", "layer2.bias"};
  treadle::train::Trainer trainer(treadle::Model::load(kSpirals), options);
  const auto points = treadle::Tensor::of<float>({4, 2}, std::span(&opened.points[0][0], 8));
  const auto classes = treadle::Tensor::of<int64_t>({4}, std::span(opened.classes));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(opened.step(), trainer.step({{"point", points}}, classes));
  EXPECT_EQ(treadle_trainer_num_steps(opened.trainer), 5U);
  EXPECT_EQ(treadle_trainer_num_updates(opened.trainer), 5);
  const char* name = "point";
  double loss = 0;
  EXPECT_EQ(message_of(treadle_trainer_evaluate(opened.trainer, nullptr, &name, &opened.feed, 1, opened.labels, &loss)), "");
  EXPECT_EQ(loss, trainer.evaluate({{"point", points}}, classes));
  treadle_value* scores = nullptr;
  EXPECT_EQ(message_of(treadle_trainer_predict(opened.trainer, nullptr, &name, &opened.feed, 1, 1, &scores)), "");
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(scores))[7], trainer.predict({{"point", points}})[0].tensor().data<float>()[7]);
  treadle_value_release(scores);
  ASSERT_EQ(treadle_trainer_num_parameters(opened.trainer), 3U);
  EXPECT_STREQ(treadle_trainer_parameter_name(opened.trainer, 2), "layer3.weight");
  EXPECT_EQ(treadle_trainer_parameter_name(opened.trainer, 3), nullptr);
  EXPECT_STREQ(treadle_trainer_output_name(opened.trainer, 0), "scores");
  treadle_value* weight = nullptr;
  EXPECT_EQ(message_of(treadle_trainer_parameter(opened.trainer, "layer3.weight", &weight)), "");
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(weight))[9], trainer.parameters().at("layer3.weight").data<float>()[9]);
  treadle_value_release(weight);
}

std::string saved(treadle_profiler* profiler) {
  const std::string path = ::testing::TempDir() + "treadle_c_trainer.csv";
  EXPECT_EQ(message_of(treadle_profiler_save(profiler, path.c_str())), "");
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::filesystem::remove(path);
  return text;
}

TEST(CApiTrainer, StepsAreProfiled) {
  const OpenedTrainer opened(kAdam);
  treadle_profiler_options options{};
  options.struct_size = sizeof options;
  options.passes = 1;
  treadle_profiler* profiler = nullptr;
  EXPECT_NE(message_of(treadle_trainer_start_profiler(nullptr, &options, &profiler)).find("trainer"), std::string::npos);
  EXPECT_EQ(message_of(treadle_trainer_start_profiler(opened.trainer, &options, &profiler)), "");
  opened.step();
  const std::string text = saved(profiler);
  for (const char* phase : {"forward", "backward", "optimizer"}) EXPECT_NE(text.find(phase), std::string::npos) << phase;
  treadle_profiler_release(profiler);
}

TEST(CApiTrainer, AScaledLossBacksOffWhereItOverflows) {
  const OpenedTrainer plain(kAdam), scaled({{"session.precision", "float16"}, {"init_scale", "1e30"}, {"backoff_factor", "1e-20"}});
  EXPECT_EQ(treadle_trainer_loss_scale(plain.trainer), 1);
  const double loss = scaled.step();
  EXPECT_EQ(treadle_trainer_num_skipped(scaled.trainer), 1U);
  EXPECT_EQ(treadle_trainer_num_steps(scaled.trainer), 0U);
  EXPECT_EQ(treadle_trainer_loss_scale(scaled.trainer), 1e30 * 1e-20);
  EXPECT_EQ(scaled.step(), loss);
}

TEST(CApiTrainer, CheckpointsGoOnWithTheSameBits) {
  const std::string path = testing::TempDir() + "c_api_trainer.safetensors", model = testing::TempDir() + "c_api_trainer.onnx";
  const OpenedTrainer first(kAdam), second(kAdam), other({{"optimizer", "sgd"}, {"momentum", "0.9"}});
  for (int i = 0; i < 3; ++i) first.step();
  const treadle_config_entry metadata[] = {{"epoch", "7"}};
  EXPECT_EQ(message_of(treadle_trainer_save_checkpoint(first.trainer, path.c_str(), metadata, 1)), "");
  EXPECT_EQ(message_of(treadle_trainer_set_learning_rate(second.trainer, 0.5)), "");
  EXPECT_EQ(message_of(treadle_trainer_load_checkpoint(second.trainer, path.c_str(), 0)), "");
  EXPECT_STREQ(treadle_trainer_checkpoint_metadata(second.trainer, "epoch"), "7");
  EXPECT_EQ(treadle_trainer_checkpoint_metadata(second.trainer, "absent"), nullptr);
  EXPECT_EQ(treadle_trainer_learning_rate(second.trainer), 0.01);
  EXPECT_EQ(treadle_trainer_num_steps(second.trainer), 3U);
  EXPECT_EQ(second.step(), first.step());
  EXPECT_EQ(second.step(), first.step());
  EXPECT_NE(message_of(treadle_trainer_load_checkpoint(other.trainer, path.c_str(), 0)), "");
  EXPECT_EQ(message_of(treadle_trainer_save(first.trainer, model.c_str())), "");
  EXPECT_NO_THROW(treadle::Model::load(model));
  std::filesystem::remove(path), std::filesystem::remove(model);
}

TEST(CApiTrainer, AFolderKeepsTheNewestCheckpoints) {
  const std::string path = testing::TempDir() + "c_api_folder";
  std::filesystem::remove_all(path);
  for (const int asynchronous : {0, 1}) {
    const OpenedTrainer first(kAdam), second(kAdam);
    treadle_checkpoint_folder* folder = nullptr;
    EXPECT_EQ(message_of(treadle_checkpoint_folder_open(path.c_str(), 2, asynchronous, &folder)), "");
    const char* resumed = "set";
    EXPECT_EQ(message_of(treadle_checkpoint_folder_resume(folder, second.trainer, 0, &resumed)), "");
    EXPECT_EQ(resumed, nullptr);
    for (const char* epoch : {"1", "2", "3"}) {
      first.step();
      const treadle_config_entry metadata[] = {{"epoch", epoch}};
      EXPECT_EQ(message_of(treadle_checkpoint_folder_save(folder, first.trainer, metadata, 1)), "");
    }
    EXPECT_EQ(message_of(treadle_checkpoint_folder_wait(folder)), "");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 2);
    EXPECT_EQ(message_of(treadle_checkpoint_folder_resume(folder, second.trainer, 0, &resumed)), "");
    ASSERT_NE(resumed, nullptr);
    EXPECT_TRUE(std::filesystem::exists(resumed));
    EXPECT_STREQ(treadle_trainer_checkpoint_metadata(second.trainer, "epoch"), "3");
    EXPECT_EQ(second.step(), first.step());
    EXPECT_NE(message_of(treadle_checkpoint_folder_save(folder, nullptr, nullptr, 0)).find("trainer is NULL"), std::string::npos);
    treadle_checkpoint_folder_release(folder);
    std::filesystem::remove_all(path);
  }
}

TEST(CApiTrainer, AdaptersAndAveragesAreSaved) {
  const std::string path = testing::TempDir() + "c_api_adapters.safetensors", model = testing::TempDir() + "c_api_adapters.onnx";
  const std::vector<treadle_config_entry> options{{"optimizer", "adam"}, {"lora_rank", "2"}, {"lora_alpha", "4"}, {"ema_decay", "0.5"}};
  const OpenedTrainer first(options), second(options), plain(kAdam);
  EXPECT_STREQ(treadle_trainer_parameter_name(first.trainer, 0), "layer1.lora_A.weight");
  const double before = first.step();
  EXPECT_LT(first.step(), before);
  EXPECT_EQ(message_of(treadle_trainer_save_adapters(first.trainer, path.c_str())), "");
  EXPECT_EQ(message_of(treadle_trainer_load_adapters(second.trainer, path.c_str())), "");
  const char* name = "point";
  double losses[3] = {};
  EXPECT_EQ(message_of(treadle_trainer_evaluate(first.trainer, nullptr, &name, &first.feed, 1, first.labels, &losses[0])), "");
  EXPECT_EQ(message_of(treadle_trainer_evaluate(second.trainer, nullptr, &name, &first.feed, 1, first.labels, &losses[1])), "");
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(message_of(treadle_trainer_use_averages(first.trainer, 1)), "");
  EXPECT_EQ(message_of(treadle_trainer_evaluate(first.trainer, nullptr, &name, &first.feed, 1, first.labels, &losses[2])), "");
  EXPECT_NE(losses[0], losses[2]);
  EXPECT_EQ(message_of(treadle_trainer_save(first.trainer, model.c_str())), "");
  EXPECT_EQ(message_of(treadle_trainer_use_averages(first.trainer, 0)), "");
  EXPECT_NO_THROW(treadle::Model::load(model));
  EXPECT_NE(message_of(treadle_trainer_save_adapters(plain.trainer, path.c_str())).find("lora_rank"), std::string::npos);
  EXPECT_NE(message_of(treadle_trainer_use_averages(plain.trainer, 1)).find("ema_decay"), std::string::npos);
  std::filesystem::remove(path), std::filesystem::remove(model);
}

TEST(CApiTrainer, EveryOptionOfTheTableIsSetByItsName) {
  const OpenedTrainer opened(kAdam);
  const std::string missing = "there is no option";
  treadle_trainer* none = nullptr;
  auto create = [&](const std::string& name, const std::string& value) {
    const treadle_config_entry option{name.c_str(), value.c_str()};
    return message_of(treadle_trainer_create(opened.model, &option, 1, &none));
  };
  for (const treadle::Option<treadle::train::TrainerOptions>& row : treadle::train::trainer_option_table().rows()) {
    const std::string name(row.name), text = row.get({});
    if (!text.empty()) {
      EXPECT_EQ(create(name, text), "") << name;
      treadle_trainer_release(none), none = nullptr;
    }
    if (row.form == treadle::OptionForm::integer || row.form == treadle::OptionForm::real) {
      EXPECT_NE(create(name, "many").find("the option " + name + ": \"many\" is given, a " + row.type_text()), std::string::npos) << name;
    }
    EXPECT_EQ(create(name, "?").find(missing), std::string::npos) << name;
    EXPECT_NE(create(name + "_", "1").find(missing), std::string::npos) << name;
  }
}

TEST(CApiTrainer, WrongCallsAreStatuses) {
  const OpenedTrainer opened(kAdam);
  treadle_trainer* none = nullptr;
  auto create = [&](treadle_config_entry option) { return message_of(treadle_trainer_create(opened.model, &option, 1, &none)); };
  EXPECT_NE(create({"optimiser", "adam"}).find("is it optimizer"), std::string::npos);
  EXPECT_NE(create({"learning_rate", "fast"}).find("the option learning_rate: \"fast\" is given, a number from 0 to 1e+30 is expected"),
            std::string::npos);
  EXPECT_NE(create({"learning_rate", nullptr}).find("NULL"), std::string::npos);
  EXPECT_NE(create({"session.intra_op_num_threads", "many"}), "");
  EXPECT_NE(create({"group", "layer1.*;rate=2"}).find("rate_factor"), std::string::npos);
  EXPECT_EQ(none, nullptr);
  const char* name = "point";
  treadle_value* outputs[2] = {};
  EXPECT_NE(message_of(treadle_trainer_step(nullptr, nullptr, &name, &opened.feed, 1, opened.labels, nullptr)).find("trainer is NULL"),
            std::string::npos);
  EXPECT_NE(message_of(treadle_trainer_step(opened.trainer, nullptr, nullptr, nullptr, 1, opened.labels, nullptr)).find("NULL"),
            std::string::npos);
  EXPECT_NE(message_of(treadle_trainer_step(opened.trainer, nullptr, &name, &opened.feed, 1, nullptr, nullptr)).find("labels"),
            std::string::npos);
  EXPECT_NE(message_of(treadle_trainer_predict(opened.trainer, nullptr, &name, &opened.feed, 1, 2, outputs)).find("room for 2"),
            std::string::npos);
  EXPECT_NE(message_of(treadle_trainer_load_checkpoint(opened.trainer, "/absent", 0)).find("absent"), std::string::npos);
  EXPECT_EQ(treadle_trainer_num_steps(nullptr), 0U);
}

// A communicator of one rank, which counts the calls.
struct CountingRank {
  int reductions = 0, releases = 0;
  bool works = true;

  treadle_communicator callbacks() {
    treadle_communicator made{};
    made.size = sizeof(made), made.user = this, made.rank = 0, made.num_ranks = 1;
    made.all_reduce = [](void* user, const treadle_host* host, void*, size_t, int32_t dtype) {
      auto& self = *static_cast<CountingRank*>(user);
      EXPECT_EQ(dtype, TREADLE_FLOAT32);
      ++self.reductions;
      if (!self.works) host->fail("rank 7 is lost");
      return self.works ? 1 : 0;
    };
    made.broadcast = [](void*, const treadle_host*, void*, size_t, int32_t) { return 1; };
    made.release = [](void* user) { ++static_cast<CountingRank*>(user)->releases; };
    return made;
  }
};

TEST(CApiTrainer, CallbacksAreACommunicator) {
  const OpenedTrainer alone(kAdam), model_and_batch(kAdam);
  CountingRank rank;
  const treadle_communicator callbacks = rank.callbacks();
  treadle_trainer* trainer = nullptr;
  ASSERT_EQ(message_of(treadle_trainer_create_rank(model_and_batch.model, kAdam.data(), kAdam.size(), &callbacks, &trainer)), "");
  const char* name = "point";
  double loss = 0;
  auto step = [&] {
    return message_of(treadle_trainer_step(trainer, nullptr, &name, &model_and_batch.feed, 1, model_and_batch.labels, &loss));
  };
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(step(), "");
    EXPECT_NEAR(loss, alone.step(), 1e-6);
  }
  EXPECT_GE(rank.reductions, 4);
  rank.works = false;
  EXPECT_NE(step().find("rank 7 is lost"), std::string::npos);
  treadle_trainer_release(trainer);
  EXPECT_EQ(rank.releases, 1);
  treadle_communicator incomplete = callbacks;
  incomplete.broadcast = nullptr;
  EXPECT_NE(
      message_of(treadle_trainer_create_rank(model_and_batch.model, nullptr, 0, &incomplete, &trainer)).find("all_reduce and broadcast"),
      std::string::npos);
}

TEST(CApiTrainer, ARegisteredCommunicatorIsFoundByItsName) {
  static CountingRank rank;
  treadle_communicator_type type{};
  type.size = sizeof(type), type.name = "counting";
  type.connect = [](void*, const treadle_host* host, double deadline_s, treadle_communicator* out) {
    if (deadline_s > 100) {
      host->fail("nobody waits so long");
      return 0;
    }
    *out = rank.callbacks();
    return 1;
  };
  ASSERT_EQ(message_of(treadle_register_communicator(&type)), "");
  const OpenedTrainer opened(
      {{"communicator", "counting"}, {"communicator_deadline_s", "5"}, {"bucket_bytes", "64"}, {"shard_optimizer", "1"}});
  opened.step();
  EXPECT_GE(rank.reductions, 2);
  treadle_trainer* none = nullptr;
  const treadle_config_entry patient[] = {{"communicator", "counting"}, {"communicator_deadline_s", "500"}};
  EXPECT_NE(message_of(treadle_trainer_create(opened.model, patient, 2, &none)).find("nobody waits so long"), std::string::npos);
  const treadle_config_entry other[] = {{"reduction", "float16"}};
  EXPECT_NE(message_of(treadle_trainer_create(opened.model, other, 1, &none)).find("float32 or bfloat16"), std::string::npos);
}

TEST(CApiJointModule, GivesTheGradientsOfTheLibrarysModule) {
  const OpenedTrainer opened(kAdam);
  treadle_joint_module* module = nullptr;
  const treadle_config_entry options[] = {{"inputs", "point"}, {"frozen", "layer1.*"}, {"session.intra_op_num_threads", "1"}};
  ASSERT_EQ(message_of(treadle_joint_module_create(opened.model, options, 3, &module)), "");
  treadle::train::JointModule reference(treadle::Model::load(kSpirals), {.inputs = {"point"}, .frozen = {"layer1.*"}});
  ASSERT_EQ(treadle_joint_module_num_gradients(module), reference.gradient_names().size());
  EXPECT_EQ(treadle_joint_module_gradient_name(module, 99), nullptr);
  ASSERT_EQ(treadle_joint_module_num_inputs(module), 1U);
  EXPECT_STREQ(treadle_joint_module_input_name(module, 0), "point");
  ASSERT_EQ(treadle_joint_module_num_outputs(module), 1U);
  EXPECT_STREQ(treadle_joint_module_output_name(module, 0), "scores");
  treadle_profiler* profiler = nullptr;
  EXPECT_EQ(message_of(treadle_joint_module_start_profiler(module, nullptr, &profiler)), "");
  const char* name = "point";
  treadle_joint_run* run = nullptr;
  ASSERT_EQ(message_of(treadle_joint_module_forward(module, nullptr, &name, &opened.feed, 1, &run)), "");
  treadle_value *scores = nullptr, *none = nullptr;
  EXPECT_EQ(message_of(treadle_joint_run_output(run, 0, &scores)), "");
  EXPECT_NE(message_of(treadle_joint_run_output(run, 1, &none)), "");
  auto theirs = reference.forward({{"point", treadle::Tensor::of<float>({4, 2}, std::span(&opened.points[0][0], 8))}});
  EXPECT_EQ(static_cast<const float*>(treadle_tensor_data(scores))[5], theirs.outputs()[0].data<float>()[5]);
  std::vector<treadle_value*> gradients(reference.gradient_names().size());
  EXPECT_NE(message_of(treadle_joint_run_backward(run, &scores, 1, 1, gradients.data())).find("room for 1"), std::string::npos);
  ASSERT_EQ(message_of(treadle_joint_run_backward(run, &scores, 1, gradients.size(), gradients.data())), "");
  const auto expected = theirs.backward(theirs.outputs());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const treadle::Tensor& gradient = expected.at(reference.gradient_names()[i]);
    ASSERT_EQ(treadle_tensor_size_bytes(gradients[i]), gradient.size_bytes());
    EXPECT_EQ(std::memcmp(treadle_tensor_data(gradients[i]), gradient.raw(), gradient.size_bytes()), 0);
    treadle_value_release(gradients[i]);
  }
  EXPECT_NE(message_of(treadle_joint_run_gradient_rows(run, 0, &none)).find("not by rows"), std::string::npos);
  EXPECT_NE(message_of(treadle_joint_run_backward(run, &scores, 1, gradients.size(), gradients.data())), "");
  treadle_value_release(scores);
  treadle_joint_run_release(run);
  const std::string profiled = saved(profiler);
  for (const char* phase : {"forward", "backward"}) EXPECT_NE(profiled.find(phase), std::string::npos) << phase;
  treadle_profiler_release(profiler);
  treadle_joint_module_release(module);
  const treadle_config_entry wrong = {"output", "scores"};
  EXPECT_NE(message_of(treadle_joint_module_create(opened.model, &wrong, 1, &module)).find("is it outputs"), std::string::npos);
  const treadle_config_entry no_request = {"gradient_requests", "layer1.weight=sum"};
  EXPECT_NE(message_of(treadle_joint_module_create(opened.model, &no_request, 1, &module)).find("write"), std::string::npos);
  const treadle_config_entry inference = {"inference", "1"};  // artifacts for inference also need the entry "forward_only"
  EXPECT_NE(message_of(treadle_joint_module_create(opened.model, &inference, 1, &module)).find("backward"), std::string::npos);
}

TEST(CApiJointModule, TakesEveryOptionAsText) {
  treadle::train::JointOptions set;
  treadle::train::set_option(set, "gradient_requests", "point=null,layer1.weight=add");
  using treadle::train::GradientRequest;
  EXPECT_EQ(set.gradient_requests,
            (std::map<std::string, GradientRequest>{{"point", GradientRequest::null}, {"layer1.weight", GradientRequest::add}}));
  const OpenedTrainer opened(kAdam);
  treadle_joint_module* module = nullptr;
  const treadle_config_entry options[] = {{"forward_only", "1"}, {"inference", "1"}};
  ASSERT_EQ(message_of(treadle_joint_module_create(opened.model, options, 2, &module)), "");
  EXPECT_EQ(treadle_joint_module_num_gradients(module), 0U);
  treadle_joint_module_release(module);
  const treadle_config_entry requests[] = {{"inputs", "point"}, {"gradient_requests", "point=null"}};
  ASSERT_EQ(message_of(treadle_joint_module_create(opened.model, requests, 2, &module)), "");
  treadle_joint_module_release(module);
}

}  // namespace
