/* Trains a network on data in files, in C alone, from artifacts or from a model: with shuffling, validation, checkpoints and resumption.
 *   treadle artifacts digits.onnx --learning-rate 0.01 --momentum 0.9 -o artifacts
 *   cc files.c -o files -ltreadle && ./files artifacts digits.csv target 0.0625 3 trained.onnx checkpoints
 * If the folder has a checkpoint, training continues from it, also within an epoch, and gives the same bits as without a break. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <treadle/treadle.h>

enum { kStepsPerCheckpoint = 10 };

static void check(treadle_status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", treadle_status_message(status));
  exit(1);
}

static int ends_with(const char* text, const char* end) {
  const size_t length = strlen(text), end_length = strlen(end);
  return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* Computes the mean loss, and the accuracy: the part of the samples whose highest score is that of their class. */
static void evaluate(treadle_trainer* trainer, treadle_data_loader* loader, const char* input, double* loss, double* accuracy) {
  int64_t samples = 0, right = 0;
  double sum = 0;
  for (int has_batch = 0;; samples += treadle_data_loader_batch_samples(loader)) {
    check(treadle_data_loader_next(loader, &has_batch));
    if (!has_batch) break;
    double of_batch = 0;
    treadle_value *feed = NULL, *labels = NULL, *scores = NULL;
    check(treadle_trainer_evaluate_batch(trainer, NULL, loader, &of_batch));
    check(treadle_data_loader_value(loader, input, &feed));
    check(treadle_data_loader_value(loader, NULL, &labels));
    check(treadle_trainer_predict(trainer, NULL, &input, (const treadle_value* const*)&feed, 1, 1, &scores));
    const int64_t count = treadle_data_loader_batch_samples(loader), classes = (int64_t)treadle_tensor_num_elements(scores) / count;
    const float* score = treadle_tensor_data(scores);
    const int64_t* label = treadle_tensor_data(labels);
    for (int64_t i = 0; i < count; ++i) {
      int64_t best = 0;
      for (int64_t k = 1; k < classes; ++k)
        if (score[i * classes + k] > score[i * classes + best]) best = k;
      right += best == label[i];
    }
    sum += of_batch * (double)count;
    treadle_value_release(scores);
    treadle_value_release(labels);
    treadle_value_release(feed);
  }
  *loss = sum / (double)samples;
  *accuracy = (double)right / (double)samples;
}

static treadle_trainer* open_trainer(const char* path) {
  treadle_trainer* trainer = NULL;
  if (!ends_with(path, ".onnx")) {
    check(treadle_trainer_open_artifacts(path, NULL, 0, &trainer));
    return trainer;
  }
  const treadle_config_entry options[] = {{"learning_rate", "0.01"}, {"momentum", "0.9"}};
  treadle_model* model = NULL;
  check(treadle_model_load(path, &model));
  check(treadle_trainer_create(model, options, sizeof options / sizeof *options, &trainer));
  treadle_model_release(model);
  return trainer;
}

int main(int argc, char** argv) {
  if (argc != 8) {
    fprintf(stderr, "usage: files ARTIFACTS|MODEL.onnx DATA LABELS SCALE EPOCHS OUTPUT CHECKPOINTS\n");
    return 2;
  }
  treadle_trainer* trainer = open_trainer(argv[1]);
  const treadle_config_entry files[] = {{"data", argv[2]}, {"labels", argv[3]}, {"scale", argv[4]}};
  treadle_dataset *all = NULL, *training = NULL, *held_out = NULL;
  check(treadle_dataset_open(trainer, files, sizeof files / sizeof *files, NULL, &all));
  check(treadle_dataset_split(all, 0.2, 0, &training, &held_out));
  const treadle_config_entry shuffled[] = {{"batch_size", "64"}}, in_order[] = {{"batch_size", "64"}, {"shuffle", "0"}};
  treadle_data_loader *loader = NULL, *validation = NULL;
  check(treadle_data_loader_create(training, shuffled, 1, &loader));
  check(treadle_data_loader_create(held_out, in_order, 2, &validation));
  printf("%lld samples to train on, %lld to validate with\n", (long long)treadle_dataset_num_samples(training),
         (long long)treadle_dataset_num_samples(held_out));

  treadle_checkpoint_folder* checkpoints = NULL;
  const char* resumed = NULL;
  check(treadle_checkpoint_folder_open(argv[7], 2, 0, &checkpoints));
  check(treadle_checkpoint_folder_resume(checkpoints, trainer, 0, &resumed));
  if (resumed) {
    check(treadle_data_loader_resume(loader, trainer));
    printf("goes on after step %llu\n", (unsigned long long)treadle_trainer_num_steps(trainer));
  }
  double loss = 0, validation_loss = 0, accuracy = 0;
  while (treadle_data_loader_epoch(loader) < atoi(argv[5])) {
    int has_batch = 0;
    check(treadle_data_loader_next(loader, &has_batch));
    if (has_batch) {
      check(treadle_trainer_step_batch(trainer, NULL, loader, &loss));
      if (treadle_trainer_num_steps(trainer) % kStepsPerCheckpoint != 0) continue;
      const treadle_config_entry* position = NULL;
      size_t num_entries = 0;
      check(treadle_data_loader_position(loader, &position, &num_entries));
      check(treadle_checkpoint_folder_save(checkpoints, trainer, position, num_entries));
      continue;
    }
    evaluate(trainer, validation, "image", &validation_loss, &accuracy);
    printf("epoch %lld: loss %.9g, validation loss %.9g, accuracy %.4f\n", (long long)treadle_data_loader_epoch(loader), loss,
           validation_loss, accuracy);
  }
  check(treadle_trainer_save(trainer, argv[6]));
  treadle_checkpoint_folder_release(checkpoints);
  treadle_data_loader_release(validation);
  treadle_data_loader_release(loader);
  treadle_dataset_release(held_out);
  treadle_dataset_release(training);
  treadle_dataset_release(all);
  treadle_trainer_release(trainer);
  return 0;
}
