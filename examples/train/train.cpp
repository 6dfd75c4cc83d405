// Trains a network to tell two spirals apart, in C++ alone.
//   c++ -std=c++20 train.cpp -o train $(python -m treadle --cflags --libs) && ./train spirals.onnx trained.onnx checkpoints
// If the folder has checkpoints, training continues from the newest one, and gives the same bits as without a break.
#include <cmath>
#include <cstdio>
#include <exception>
#include <numbers>
#include <treadle/treadle.hpp>

namespace {

namespace train = treadle::train;
using treadle::DType;
using treadle::Tensor;

constexpr int64_t kSamples = 400, kEpochs = 200;

train::NamedTensors make_spirals() {
  Tensor points(DType::float32, {kSamples, 2}), classes(DType::int64, {kSamples});
  for (int64_t i = 0; i < kSamples; ++i) {
    const double t = static_cast<double>(i / 2) / (kSamples / 2.0), angle = 6 * t + static_cast<double>(i % 2) * std::numbers::pi;
    points.data<float>()[2 * i] = static_cast<float>((0.1 + t) * std::cos(angle));
    points.data<float>()[2 * i + 1] = static_cast<float>((0.1 + t) * std::sin(angle));
    classes.data<int64_t>()[i] = i % 2;
  }
  return {{"point", points}, {"class", classes}};
}

double accuracy(train::Trainer& trainer, const train::NamedTensors& data) {
  const Tensor scores = trainer.predict({{"point", data.at("point")}})[0].tensor();
  int right = 0;
  for (int64_t i = 0; i < kSamples; ++i)
    right += (scores.data<float>()[2 * i + 1] > scores.data<float>()[2 * i]) == (data.at("class").data<int64_t>()[i] == 1);
  return static_cast<double>(right) / static_cast<double>(kSamples);
}

int run(const char* model, const char* output, const char* folder) {
  const train::NamedTensors data = make_spirals();
  train::DataLoader loader(train::dataset_of(data), {.batch_size = 50, .seed = 1});
  train::TrainerOptions options;
  options.optimizer = train::Optimizer::adamw;
  options.learning_rate = 0.01;
  options.schedule = {.kind = train::Schedule::Kind::cosine, .total_steps = kEpochs * loader.batches_per_epoch()};
  train::Trainer trainer(treadle::Model::load(model), options);
  train::CheckpointFolder checkpoints(folder, {.keep_last = 2, .asynchronous = true});
  if (const auto resumed = checkpoints.resume(trainer)) {
    loader.resume(resumed->metadata);
    std::printf("goes on after step %llu\n", static_cast<unsigned long long>(trainer.position().num_steps));
  }
  while (loader.position().epoch < kEpochs) {
    double loss = 0;
    while (const auto batch = loader.next()) loss = trainer.step({{"point", batch->at("point")}}, batch->at("class"));
    if (loader.position().epoch % 50 != 0) continue;
    checkpoints.save(trainer, loader.to_metadata());
    std::printf("epoch %lld  loss %.4f\n", static_cast<long long>(loader.position().epoch), loss);
  }
  checkpoints.wait();
  std::printf("accuracy %.4f\n", accuracy(trainer, data));
  trainer.save(output);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: train MODEL OUTPUT FOLDER\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
