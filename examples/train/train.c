/* Trains a network to tell two spirals apart, in C alone.
 *   cc train.c -o train $(python -m treadle --cflags --libs) -lm && ./train spirals.onnx trained.onnx checkpoints
 * If the folder has a checkpoint, training continues from it, and gives the same bits as without a break. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <treadle/treadle.h>

enum { kSamples = 400, kBatch = 50, kSteps = 2000, kStepsPerCheckpoint = 500 };

static float points[kSamples][2];
static int64_t classes[kSamples];

static void check(treadle_status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", treadle_status_message(status));
  exit(1);
}

static void make_spirals(void) {
  for (int i = 0; i < kSamples; ++i) {
    const double t = (double)(i / 2) / (kSamples / 2.0), angle = 6 * t + (i % 2) * acos(-1);
    points[i][0] = (float)((0.1 + t) * cos(angle));
    points[i][1] = (float)((0.1 + t) * sin(angle));
    classes[i] = i % 2;
  }
}

/* Makes a value that uses the program's own array without a copy. */
static treadle_value* value_over(treadle_dtype dtype, const int64_t* shape, size_t rank, void* data, size_t size_bytes) {
  treadle_value* value = NULL;
  check(treadle_tensor_borrow(dtype, shape, rank, data, size_bytes, NULL, NULL, &value));
  return value;
}

static double accuracy(treadle_trainer* trainer) {
  const char* name = "point";
  const int64_t shape[] = {kSamples, 2};
  treadle_value *all = value_over(TREADLE_FLOAT32, shape, 2, points, sizeof points), *scores = NULL;
  check(treadle_trainer_predict(trainer, NULL, &name, (const treadle_value* const*)&all, 1, 1, &scores));
  const float* score = treadle_tensor_data(scores);
  int right = 0;
  for (int i = 0; i < kSamples; ++i) right += (score[2 * i + 1] > score[2 * i]) == (classes[i] == 1);
  treadle_value_release(scores);
  treadle_value_release(all);
  return (double)right / kSamples;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: train MODEL OUTPUT CHECKPOINTS\n");
    return 2;
  }
  make_spirals();
  treadle_model* model = NULL;
  treadle_trainer* trainer = NULL;
  check(treadle_model_load(argv[1], &model));
  const treadle_config_entry options[] = {{"loss", "softmax_cross_entropy"},
                                          {"optimizer", "adamw"},
                                          {"learning_rate", "0.01"},
                                          {"schedule", "cosine"},
                                          {"total_steps", "2000"}};
  check(treadle_trainer_create(model, options, sizeof options / sizeof *options, &trainer));
  treadle_checkpoint_folder* checkpoints = NULL;
  check(treadle_checkpoint_folder_open(argv[3], 2, 0, &checkpoints));
  const char* resumed = NULL;
  check(treadle_checkpoint_folder_resume(checkpoints, trainer, 0, &resumed));
  if (resumed) printf("goes on after step %llu\n", (unsigned long long)treadle_trainer_num_steps(trainer));
  for (uint64_t step = treadle_trainer_num_steps(trainer); step < kSteps; ++step) {
    /* Takes every seventh batch. As 7 and the number of batches have no common divisor, all batches are used. */
    const size_t first = step * 7 % (kSamples / kBatch) * kBatch;
    const char* name = "point";
    const int64_t shape[] = {kBatch, 2};
    treadle_value* batch = value_over(TREADLE_FLOAT32, shape, 2, points[first], kBatch * sizeof points[0]);
    treadle_value* labels = value_over(TREADLE_INT64, shape, 1, &classes[first], kBatch * sizeof classes[0]);
    double loss = 0;
    check(treadle_trainer_step(trainer, NULL, &name, (const treadle_value* const*)&batch, 1, labels, &loss));
    treadle_value_release(batch);
    treadle_value_release(labels);
    if ((step + 1) % kStepsPerCheckpoint == 0) {
      check(treadle_checkpoint_folder_save(checkpoints, trainer, NULL, 0));
      printf("step %llu  loss %.4f\n", (unsigned long long)step + 1, loss);
    }
  }
  printf("accuracy %.4f\n", accuracy(trainer));
  check(treadle_trainer_save(trainer, argv[2]));
  treadle_checkpoint_folder_release(checkpoints);
  treadle_trainer_release(trainer);
  treadle_model_release(model);
  return 0;
}
