/* Recognises a handwritten digit, then quantises the model to 8 bits and recognises the digit again.
 *   cc classify.c -o classify $(python -m treadle --cflags --libs) && ./classify ../digits/digits.onnx quantised.onnx */
#include <stdio.h>
#include <stdlib.h>
#include <treadle/treadle.h>

/* The picture of a zero, 8 x 8 pixels from 0 to 16: the first of scikit-learn's digits. */
static const int kPixels[64] = {0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0, 0, 3, 15, 2, 0,  11, 8, 0, 0, 4, 12, 0,  0,  8, 8, 0,
                                0, 5, 8, 0,  0, 9, 8, 0, 0, 4, 11, 0,  1,  12, 7, 0, 0, 2, 14, 5, 10, 12, 0, 0, 0, 0, 6,  13, 10, 0, 0, 0};
static const char* const kInput = "image";

static void check(treadle_status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", treadle_status_message(status));
  exit(1);
}

static void classify(const treadle_model* model, const treadle_value* image, const char* what) {
  treadle_session* session = NULL;
  check(treadle_session_create(model, NULL, &session));
  treadle_value* scores = NULL;
  check(treadle_session_run(session, NULL, &kInput, &image, 1, NULL, 1, &scores));
  const float* values = treadle_tensor_data(scores);
  const int64_t count = treadle_session_output_extent(session, 0, 1);
  int64_t best = 0;
  for (int64_t i = 1; i < count; ++i)
    if (values[i] > values[best]) best = i;
  printf("%sdigit %d, score %.4f\n", what, (int)best, values[best]);
  treadle_value_release(scores);
  treadle_session_release(session);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL QUANTISED_MODEL\n", argv[0]);
    return 2;
  }
  float pixels[64];
  for (int i = 0; i < 64; ++i) pixels[i] = (float)kPixels[i] / 16;
  const int64_t shape[4] = {1, 1, 8, 8};
  treadle_value* image = NULL;
  check(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 4, pixels, sizeof pixels, NULL, NULL, &image));
  const treadle_value* inputs[1] = {image};

  treadle_model* model = NULL;
  check(treadle_model_load(argv[1], &model));
  classify(model, image, "");

  treadle_samples samples = {0};
  samples.struct_size = sizeof samples;
  samples.input_names = &kInput;
  samples.num_inputs = 1;
  samples.values = inputs;
  samples.num_samples = 1;
  treadle_quantize_options options = {0};
  options.struct_size = sizeof options;
  options.mode = "qdq";
  treadle_model* small = NULL;
  check(treadle_model_quantize(model, &options, &samples, NULL, &small));
  check(treadle_model_save(small, argv[2], 0, 0));
  classify(small, image, "in 8 bits: ");

  treadle_model_release(small);
  treadle_model_release(model);
  treadle_value_release(image);
  return 0;
}
