/* Trains a network to tell two spirals apart, with an executor: points, parameters and gradients are bound once, and passes read and write
 * them in place. The gradients of two batches are added before each update.
 *   cc executor.c -o executor $(python -m treadle --cflags --libs) -lm && ./executor spirals.onnx */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <treadle/treadle.h>

enum { kSamples = 200, kBatches = 2, kSteps = 1500, kMostArguments = 16 };

static float points[kBatches][kSamples][2], bound_points[kSamples][2], head[kSamples][2];

static void check(treadle_status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", treadle_status_message(status));
  exit(1);
}

/* Makes the points. In each batch, every second point has class 1. */
static void make_spirals(void) {
  for (int i = 0; i < kBatches * kSamples; ++i) {
    const double t = (double)(i / 2) / (kBatches * kSamples / 2.0), angle = 6 * t + (i % 2) * acos(-1);
    float* point = points[i / 2 % kBatches][i / 2 / kBatches * 2 + i % 2];
    point[0] = (float)((0.1 + t) * cos(angle));
    point[1] = (float)((0.1 + t) * sin(angle));
  }
}

static treadle_value* value_over(float (*data)[2]) {
  const int64_t shape[] = {kSamples, 2};
  treadle_value* value = NULL;
  check(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 2, data, kSamples * sizeof *data, NULL, NULL, &value));
  return value;
}

/* Returns a batch's part of the loss, the mean of -log(probability of the right class) over both batches, and writes its gradient by the
 * scores to `head`. */
static double loss_of(const float* scores, int* right) {
  double loss = 0;
  const double samples = kBatches * kSamples;
  for (int i = 0; i < kSamples; ++i) {
    const double by = (double)scores[2 * i + 1] - (double)scores[2 * i], probability = 1 / (1 + exp(-by));
    loss -= log(i % 2 ? probability : 1 - probability) / samples;
    head[i][1] = (float)((i % 2 ? probability - 1 : probability) / samples);
    head[i][0] = -head[i][1];
    *right += (by > 0) == (i % 2);
  }
  return loss;
}

/* Updates a bound parameter by gradient descent with momentum, and sets its gradient to zero. */
static void update(treadle_executor* executor, const char* name, float** velocity) {
  treadle_value *parameter = NULL, *gradient = NULL;
  check(treadle_executor_argument(executor, name, &parameter));
  check(treadle_executor_gradient(executor, name, &gradient));
  const size_t count = treadle_tensor_num_elements(parameter);
  float *x = treadle_tensor_data(parameter), *g = treadle_tensor_data(gradient);
  if (!*velocity) *velocity = calloc(count, sizeof **velocity);
  for (size_t i = 0; i < count; ++i) {
    (*velocity)[i] = 0.9F * (*velocity)[i] + g[i];
    x[i] -= 0.1F * (*velocity)[i];
    g[i] = 0;
  }
  treadle_value_release(gradient), treadle_value_release(parameter);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: executor MODEL\n");
    return 2;
  }
  make_spirals();
  treadle_model* model = NULL;
  treadle_executor* executor = NULL;
  check(treadle_model_load(argv[1], &model));
  treadle_value *point = value_over(bound_points), *heads = value_over(head);
  const treadle_named_value argument = {"point", point};
  const treadle_config_entry no_gradient = {"point", "null"};
  treadle_bind_options options = {.struct_size = sizeof options, .request = "add", .requests = &no_gradient, .num_requests = 1};
  check(treadle_executor_bind(model, &argument, 1, &options, &executor));

  float* velocities[kMostArguments] = {NULL};
  double loss = 0;
  int right = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = 0, right = 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      memcpy(bound_points, points[batch], sizeof bound_points);
      treadle_value* scores = NULL;
      check(treadle_executor_forward(executor, 1, NULL));
      check(treadle_executor_output(executor, 0, &scores));
      loss += loss_of(treadle_tensor_data(scores), &right);
      check(treadle_executor_backward(executor, (const treadle_value* const*)&heads, 1));
      treadle_value_release(scores);
    }
    if (step % 500 == 0) printf("step %d  loss %.4f\n", step, loss);
    for (size_t i = 0; i < treadle_executor_num_arguments(executor) && i < kMostArguments; ++i) {
      const char* name = treadle_executor_argument_name(executor, i);
      if (strcmp(treadle_executor_request(executor, name), "null") != 0) update(executor, name, &velocities[i]);
    }
  }
  printf("loss %.4f  accuracy %.4f\n", loss, (double)right / (kBatches * kSamples));
  for (size_t i = 0; i < kMostArguments; ++i) free(velocities[i]);
  treadle_executor_release(executor);
  treadle_value_release(heads), treadle_value_release(point);
  treadle_model_release(model);
  return 0;
}
