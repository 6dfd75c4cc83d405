/* Runs the digits network once in a session and prints its scores: `session MODEL`. */
#include <stdio.h>
#include <stdlib.h>
#include <treadle/treadle.h>

static void check(treadle_status* status) {
  if (!status) return;
  fprintf(stderr, "%s\n", treadle_status_message(status));
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  float pixels[64];
  for (int i = 0; i < 64; ++i) pixels[i] = (float)(i * 7 % 17) / 16;
  const int64_t shape[] = {1, 1, 8, 8};
  const char *input = "image", *output = NULL;
  treadle_model* model = NULL;
  treadle_session* session = NULL;
  treadle_value *image = NULL, *scores = NULL;
  check(treadle_model_load(argv[1], &model));
  check(treadle_session_create(model, NULL, &session));
  check(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 4, pixels, sizeof pixels, NULL, NULL, &image));
  output = treadle_session_output_name(session, 0);
  check(treadle_session_run(session, NULL, &input, (const treadle_value* const*)&image, 1, &output, 1, &scores));
  for (int i = 0; i < 10; ++i) printf("%.4f\n", (double)((const float*)treadle_tensor_data(scores))[i]);
  treadle_value_release(scores);
  treadle_value_release(image);
  treadle_session_release(session);
  treadle_model_release(model);
  return 0;
}
