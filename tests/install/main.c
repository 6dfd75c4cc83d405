/* Uses the C ABI from a C program: runs a model of one node, whose bytes it writes itself, and provokes an error. */
#include <stdio.h>
#include <string.h>
#include <treadle/treadle.h>

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                               \
    }                                                         \
  } while (0)

/* ModelProto: ir 8, opset 17, graph "g": y = Add(x, x), x and y float[2]. */
static const unsigned char kModel[] = {
    0x08, 0x08, 0x42, 0x04, 0x0a, 0x00, 0x10, 0x11, 0x3a, 0x2f,             /* ir_version, opset_import, graph of 47 bytes */
    0x0a, 0x0c, 0x0a, 0x01, 'x',  0x0a, 0x01, 'x',  0x12, 0x01, 'y',  0x22, /* node: inputs x, x; output y; op_type of */
    0x03, 'A',  'd',  'd',                                                  /* "Add" */
    0x12, 0x01, 'g',                                                        /* name */
    0x5a, 0x0d, 0x0a, 0x01, 'x',  0x12, 0x08, 0x0a, 0x06, 0x08, 0x01, 0x12, 0x02, 0x0a, 0x00, /* input x: float, one unknown extent */
    0x62, 0x0d, 0x0a, 0x01, 'y',  0x12, 0x08, 0x0a, 0x06, 0x08, 0x01, 0x12, 0x02, 0x0a, 0x00, /* output y */
};

int main(void) {
  treadle_model* model = NULL;
  unsigned char bytes[sizeof kModel];
  memcpy(bytes, kModel, sizeof kModel);
  bytes[9] = (unsigned char)(sizeof kModel - 10); /* the graph's length */
  bytes[11] = 14;                                 /* the node's length: 3 + 3 + 3 + 5 */
  treadle_status* status = treadle_model_from_bytes(bytes, sizeof bytes, NULL, &model);
  if (status) fprintf(stderr, "%s\n", treadle_status_message(status));
  CHECK(status == NULL);
  treadle_session* session = NULL;
  treadle_session_options options = {0};
  options.struct_size = sizeof options;
  options.intra_op_num_threads = 1;
  CHECK(treadle_session_create(model, &options, &session) == NULL);
  treadle_model_release(model);
  CHECK(treadle_session_num_inputs(session) == 1 && strcmp(treadle_session_input_name(session, 0), "x") == 0);
  CHECK(strcmp(treadle_session_input_type(session, 0), "tensor(float)") == 0);
  CHECK(treadle_session_input_name(session, 1) == NULL);

  float data[2] = {1.5f, -2.0f};
  int64_t shape[1] = {2};
  treadle_value *x = NULL, *y = NULL;
  CHECK(treadle_tensor_borrow(TREADLE_FLOAT32, shape, 1, data, sizeof data, NULL, NULL, &x) == NULL);
  const char* names[1] = {"x"};
  const treadle_value* inputs[1] = {x};
  CHECK(treadle_session_run(session, NULL, names, inputs, 1, NULL, 1, &y) == NULL);
  CHECK(treadle_tensor_dtype(y) == TREADLE_FLOAT32 && treadle_tensor_rank(y) == 1 && treadle_tensor_shape(y)[0] == 2);
  CHECK(((float*)treadle_tensor_data(y))[0] == 3.0f && ((float*)treadle_tensor_data(y))[1] == -4.0f);
  treadle_value_release(y);

  names[0] = "z";
  status = treadle_session_run(session, NULL, names, inputs, 1, NULL, 1, &y);
  CHECK(treadle_status_code(status) == TREADLE_INVALID_ARGUMENT && y == NULL);
  CHECK(strstr(treadle_status_message(status), "\"z\"") != NULL);
  treadle_status_release(status);
  treadle_value_release(x);
  treadle_session_release(session);
  printf("treadle %s, ABI %u: C works\n", treadle_version(), treadle_abi_version());
  return 0;
}
