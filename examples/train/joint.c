/* Trains a network to tell two spirals apart, with a joint module: the library runs the model forward and backward, and this program
 * computes the loss and the updates.
 *   cc joint.c -o joint $(python -m treadle --cflags --libs) -lm && ./joint spirals.onnx trained.onnx */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <treadle/treadle.h>

enum { kSamples = 400, kSteps = 1500 };

static float points[kSamples][2], score_gradients[kSamples][2];
static int classes[kSamples];

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

static treadle_value* value_over(float (*data)[2]) {
  const int64_t shape[] = {kSamples, 2};
  treadle_value* value = NULL;
  check(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 2, data, kSamples * sizeof *data, NULL, NULL, &value));
  return value;
}

/* Returns the loss, the mean of -log(probability of the right class), and computes its gradient by each score. */
static double loss_of(const float* scores, int* right) {
  double loss = 0;
  *right = 0;
  for (int i = 0; i < kSamples; ++i) {
    const double by = (double)scores[2 * i + 1] - (double)scores[2 * i], probability = 1 / (1 + exp(-by));
    const double wrong = classes[i] ? probability - 1 : probability;
    loss -= log(classes[i] ? probability : 1 - probability) / kSamples;
    score_gradients[i][1] = (float)(wrong / kSamples);
    score_gradients[i][0] = -score_gradients[i][1];
    *right += (by > 0) == classes[i];
  }
  return loss;
}

/* Updates a parameter in the module's memory by gradient descent with momentum. `velocity` is allocated at the first step. */
static void update(treadle_joint_module* module, size_t index, const treadle_value* gradient, float** velocity) {
  treadle_value* parameter = NULL;
  check(treadle_joint_module_parameter(module, treadle_joint_module_gradient_name(module, index), &parameter));
  const size_t count = treadle_tensor_num_elements(parameter);
  float* x = treadle_tensor_data(parameter);
  const float* g = treadle_tensor_data(gradient);
  if (!*velocity) *velocity = calloc(count, sizeof **velocity);
  for (size_t i = 0; i < count; ++i) {
    (*velocity)[i] = 0.9F * (*velocity)[i] + g[i];
    x[i] -= 0.1F * (*velocity)[i];
  }
  treadle_value_release(parameter);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: joint MODEL OUTPUT\n");
    return 2;
  }
  make_spirals();
  treadle_model* model = NULL;
  treadle_joint_module* module = NULL;
  check(treadle_model_load(argv[1], &model));
  check(treadle_joint_module_create(model, NULL, 0, &module));
  const size_t num_gradients = treadle_joint_module_num_gradients(module);
  treadle_value** gradients = calloc(num_gradients, sizeof *gradients);
  float** velocities = calloc(num_gradients, sizeof *velocities);
  treadle_value *all = value_over(points), *handed_in = value_over(score_gradients);
  int right = 0;
  for (int step = 0; step < kSteps; ++step) {
    const char* name = "point";
    treadle_joint_run* run = NULL;
    treadle_value* scores = NULL;
    check(treadle_joint_module_forward(module, NULL, &name, (const treadle_value* const*)&all, 1, &run));
    check(treadle_joint_run_output(run, 0, &scores));
    const double loss = loss_of(treadle_tensor_data(scores), &right);
    if (step % 500 == 0) printf("step %d  loss %.4f\n", step, loss);
    check(treadle_joint_run_backward(run, (const treadle_value* const*)&handed_in, 1, num_gradients, gradients));
    for (size_t i = 0; i < num_gradients; ++i) {
      update(module, i, gradients[i], &velocities[i]);
      treadle_value_release(gradients[i]);
    }
    treadle_value_release(scores);
    treadle_joint_run_release(run);
  }
  printf("accuracy %.4f\n", (double)right / kSamples);
  check(treadle_joint_module_save(module, argv[2]));
  for (size_t i = 0; i < num_gradients; ++i) free(velocities[i]);
  free(velocities), free(gradients);
  treadle_value_release(handed_in), treadle_value_release(all);
  treadle_joint_module_release(module);
  treadle_model_release(model);
  return 0;
}
