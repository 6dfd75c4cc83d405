// libonnxruntime.so.1: contains only the symbols that clients of ONNX Runtime's C interface look for. It loads libtreadle.so, which
// implements them.
#include <stddef.h>

struct OrtApiBase;
const struct OrtApiBase* treadle_ort_api_base(void);

const struct OrtApiBase* OrtGetApiBase(void) { return treadle_ort_api_base(); }

// Some bindings look for this function beside the table. It does nothing, as the CPU is always available; a null status means success.
void* OrtSessionOptionsAppendExecutionProvider_CPU(void* options, int use_arena) {
  (void)options, (void)use_arena;
  return NULL;
}
