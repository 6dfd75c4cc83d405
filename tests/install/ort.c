// Calls the two functions of OrtApiBase, the base table of ONNX Runtime's C interface, without using onnxruntime's headers.
#include <stdint.h>
#include <stdio.h>

struct Base {
  const void* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
};
const struct Base* OrtGetApiBase(void);

int main(void) {
  const struct Base* base = OrtGetApiBase();
  if (!base->get_api(17)) return 1;
  printf("onnxruntime interface: %s\n", base->get_version());
  return 0;
}
