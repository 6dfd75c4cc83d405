// libonnxruntime.so.1: the symbols that clients of ONNX Runtime's C interface look for. libtreadle.so, which it loads, has the rest.
#include <stddef.h>

struct OrtApiBase;
const struct OrtApiBase* treadle_ort_api_base(void);

const struct OrtApiBase* OrtGetApiBase(void) { return treadle_ort_api_base(); }

// Some bindings look for it beside the table; the CPU is always there. No status is success.
void* OrtSessionOptionsAppendExecutionProvider_CPU(void* options, int use_arena) {
  (void)options, (void)use_arena;
  return NULL;
}
