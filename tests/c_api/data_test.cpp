// Tests data in files through the C ABI: batches equal those of the C++ loader, a checkpoint keeps the position in the data, and wrong
// calls return error statuses.
#include "treadle/data.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/c_api/status.h"
#include "treadle/train.h"
#include "treadle/treadle.h"

namespace {

using treadle::testing::message_of;
namespace fs = std::filesystem;

const std::string kSpirals = std::string(TREADLE_SOURCE_DIR) + "/examples/train/spirals.onnx";

struct Files {
  Files() : folder(fs::temp_directory_path() / ("treadle-data-" + std::to_string(getpid()))) {
    fs::create_directories(folder);
    std::ofstream csv(folder / "points.csv");
    csv << "x,y,side\n";
    for (int i = 0; i < 50; ++i) csv << i * 0.125 << ',' << 3 - i * 0.25 << ',' << (i % 3 ? "left" : "right") << '\n';
    std::ofstream other(folder / "other.csv");
    other << "x,y,side\n1,2,right\n";
  }
  ~Files() { fs::remove_all(folder); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  std::string operator/(const char* file) const { return (folder / file).string(); }
  fs::path folder;
};

struct Opened {
  treadle_trainer* trainer = nullptr;
  treadle_dataset* data = nullptr;
  treadle_data_loader* loader = nullptr;

  explicit Opened(const std::string& csv) {
    treadle_model* model = nullptr;
    EXPECT_EQ(message_of(treadle_model_load(kSpirals.c_str(), &model)), "");
    EXPECT_EQ(message_of(treadle_trainer_create(model, nullptr, 0, &trainer)), "");
    treadle_model_release(model);
    const treadle_config_entry files[] = {{"data", csv.c_str()}, {"labels", "side"}, {"features", "x,y"}, {"scale", "0.5"}};
    EXPECT_EQ(message_of(treadle_dataset_open(trainer, files, 4, nullptr, &data)), "");
    const treadle_config_entry options[] = {{"batch_size", "16"}, {"seed", "7"}};
    EXPECT_EQ(message_of(treadle_data_loader_create(data, options, 2, &loader)), "");
  }
  ~Opened() {
    treadle_data_loader_release(loader);
    treadle_dataset_release(data);
    treadle_trainer_release(trainer);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  bool next() const {
    int has_batch = 0;
    EXPECT_EQ(message_of(treadle_data_loader_next(loader, &has_batch)), "");
    return has_batch == 1;
  }
  double step() const {
    double loss = 0;
    EXPECT_EQ(message_of(treadle_trainer_step_batch(trainer, nullptr, loader, &loss)), "");
    return loss;
  }
};

TEST(CApiData, StepsAsTheLibraryDoesWithTheSameFiles) {
  const Files files;
  const std::string csv = files / "points.csv";
  const Opened opened(csv);
  EXPECT_EQ(treadle_dataset_num_samples(opened.data), 50);
  EXPECT_STREQ(treadle_dataset_class_name(opened.data, 0), "left");
  EXPECT_STREQ(treadle_dataset_class_name(opened.data, 1), "right");
  EXPECT_EQ(treadle_dataset_class_name(opened.data, 2), nullptr);
  EXPECT_EQ(treadle_data_loader_batches_per_epoch(opened.loader), 4);

  treadle::train::Trainer trainer(treadle::Model::load(kSpirals));
  treadle::train::CsvTable table = treadle::train::read_csv(csv, {.label = "side"});
  for (float& x : table.features.span<float>()) x *= 0.5F;
  treadle::train::DataLoader loader(treadle::train::dataset_of({{"point", table.features}, {"labels", table.labels}}),
                                    {.batch_size = 16, .seed = 7});
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(treadle_data_loader_epoch(opened.loader), epoch);
    while (auto batch = loader.next()) {
      ASSERT_TRUE(opened.next());
      EXPECT_EQ(treadle_data_loader_batch_samples(opened.loader), batch->at("labels").shape()[0]);
      EXPECT_EQ(opened.step(), trainer.step({{"point", batch->at("point")}}, batch->at("labels")));
      double loss = 0;
      EXPECT_EQ(message_of(treadle_trainer_evaluate_batch(opened.trainer, nullptr, opened.loader, &loss)), "");
      EXPECT_EQ(loss, trainer.evaluate({{"point", batch->at("point")}}, batch->at("labels")));
    }
    EXPECT_FALSE(opened.next());
  }
}

TEST(CApiData, ACheckpointKeepsThePosition) {
  const Files files;
  const Opened first(files / "points.csv"), second(files / "points.csv");
  const std::string path = files / "checkpoint.safetensors";
  for (int i = 0; i < 3; ++i) first.next(), first.step();
  const treadle_config_entry* position = nullptr;
  size_t count = 0;
  EXPECT_EQ(message_of(treadle_data_loader_position(first.loader, &position, &count)), "");
  EXPECT_EQ(message_of(treadle_trainer_save_checkpoint(first.trainer, path.c_str(), position, count)), "");
  EXPECT_EQ(message_of(treadle_trainer_load_checkpoint(second.trainer, path.c_str(), 0)), "");
  EXPECT_EQ(message_of(treadle_data_loader_resume(second.loader, second.trainer)), "");
  for (int i = 0; i < 9; ++i) {
    const bool more = first.next();
    ASSERT_EQ(second.next(), more);
    if (!more) continue;
    EXPECT_EQ(first.step(), second.step());
  }
}

TEST(CApiData, SplitsAndKeepsTheNumbersOfClasses) {
  const Files files;
  const Opened opened(files / "points.csv");
  treadle_dataset *training = nullptr, *held_out = nullptr, *other = nullptr;
  EXPECT_EQ(message_of(treadle_dataset_split(opened.data, 0.2, 3, &training, &held_out)), "");
  EXPECT_EQ(treadle_dataset_num_samples(training), 40);
  EXPECT_EQ(treadle_dataset_num_samples(held_out), 10);
  const std::string path = files / "other.csv";
  const treadle_config_entry options[] = {{"data", path.c_str()}, {"labels", "side"}};
  EXPECT_EQ(message_of(treadle_dataset_open(opened.trainer, options, 2, training, &other)), "");
  treadle_data_loader* loader = nullptr;
  treadle_value* labels = nullptr;
  int has_batch = 0;
  EXPECT_EQ(message_of(treadle_data_loader_create(other, nullptr, 0, &loader)), "");
  treadle_dataset_release(other);
  EXPECT_EQ(message_of(treadle_data_loader_next(loader, &has_batch)), "");
  EXPECT_EQ(message_of(treadle_data_loader_value(loader, nullptr, &labels)), "");
  EXPECT_EQ(*static_cast<const int64_t*>(treadle_tensor_data(labels)), 1);
  treadle_value_release(labels);
  treadle_data_loader_release(loader);
  treadle_dataset_release(training);
  treadle_dataset_release(held_out);
}

TEST(CApiData, WrongCallsAreStatuses) {
  const Files files;
  const Opened opened(files / "points.csv");
  treadle_dataset* data = nullptr;
  treadle_data_loader* loader = nullptr;
  treadle_value* value = nullptr;
  auto open = [&](const std::vector<treadle_config_entry>& options) {
    return message_of(treadle_dataset_open(opened.trainer, options.data(), options.size(), nullptr, &data));
  };
  const std::string csv = files / "points.csv", missing = files / "missing.csv";
  EXPECT_NE(open({}).find("the option \"data\" is missing"), std::string::npos);
  EXPECT_NE(open({{"datum", "x"}}).find("all: data, labels, features, scale"), std::string::npos);
  EXPECT_NE(open({{"data", csv.c_str()}}).find("labels names the column to learn"), std::string::npos);
  EXPECT_NE(open({{"data", csv.c_str()}, {"scale", "much"}}).find("scale is \"much\""), std::string::npos);
  EXPECT_NE(open({{"data", missing.c_str()}, {"labels", "side"}}).find("missing.csv"), std::string::npos);
  const treadle_config_entry bad[] = {{"shuffle", "2"}};
  EXPECT_NE(message_of(treadle_data_loader_create(opened.data, bad, 1, &loader)).find("it is 0 or 1"), std::string::npos);
  double loss = 0;
  EXPECT_NE(message_of(treadle_trainer_step_batch(opened.trainer, nullptr, opened.loader, &loss)).find("holds no batch"),
            std::string::npos);
  EXPECT_TRUE(opened.next());
  EXPECT_NE(message_of(treadle_data_loader_value(opened.loader, "nothing", &value)).find("has no input \"nothing\""), std::string::npos);
  EXPECT_NE(message_of(treadle_data_loader_resume(opened.loader, opened.trainer)), "");  // no checkpoint was loaded
  EXPECT_NE(message_of(treadle_dataset_open(nullptr, nullptr, 0, nullptr, &data)), "");
}

TEST(CApiArtifacts, AreWrittenAndOpened) {
  const Files files;
  const std::string folder = files / "artifacts";
  const Opened first(files / "points.csv"), second(files / "points.csv");
  EXPECT_EQ(message_of(treadle_trainer_write_artifacts(first.trainer, folder.c_str())), "");
  treadle_trainer* trainer = nullptr;
  const treadle_config_entry threads[] = {{"session.intra_op_num_threads", "2"}}, rate[] = {{"learning_rate", "1"}};
  EXPECT_NE(message_of(treadle_trainer_open_artifacts(folder.c_str(), rate, 1, &trainer)).find("artifacts fix all options"),
            std::string::npos);
  EXPECT_EQ(message_of(treadle_trainer_open_artifacts(folder.c_str(), threads, 1, &trainer)), "");
  for (int i = 0; i < 3; ++i) {
    first.next(), second.next();
    double loss = 0;
    EXPECT_EQ(message_of(treadle_trainer_step_batch(trainer, nullptr, second.loader, &loss)), "");
    EXPECT_EQ(loss, first.step());
  }
  treadle_trainer_release(trainer);
}

}  // namespace
