#include "session/environment.h"

#include <fmt/format.h>

namespace treadle {
namespace {

constexpr EnvironmentVariable kVariables[] = {
    {"TREADLE_ISA", "baseline, neon, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx",
     "best instruction set that the process uses, with all that stand before it, as far as the machine has them; to compare them, and to "
     "test on one machine what others compute"},
    {"TREADLE_VERIFY_PLANS", "0 or 1", "1: the option verify_plans for all sessions of the process; 0: off, in debug builds as well"},
    {"TREADLE_VERIFY_PASSES", "0 or 1",
     "1: check the graph after every pass, in sessions and training, and name the pass that breaks it; 0: not in debug builds either"},
    {"TREADLE_JOB_CLASS", "guaranteed, opportunistic", "puts the sessions of the process in a job (docs/sharing.md)"},
    {"TREADLE_JOB_NAME", "text", "name of that job; default: the program's"},
    {"TREADLE_JOB_SHARE", "number from 0 to 100", "share of the machine that the job may have, in percent"},
    {"TREADLE_JOB_MEMORY", "size such as 512MiB", "the job's limit for memory of devices"},
    {"TREADLE_JOB_HOST_MEMORY", "size such as 512MiB", "the job's limit for memory of the host"},
    {"TREADLE_JOB_IDLE_PRIORITY", "0 or 1",
     "1: threads of opportunistic runs take the system's idle priority, where they may leave it again"},
    {"TREADLE_LOG", "verbose, info, warning, error or fatal; then `:` and categories",
     "lowest severity of messages, and the categories that are told: session, run, program, placement, fusion, memory, or patterns, "
     "separated by commas; for programs that set no callback of their own (docs/log.md)"},
    {"TREADLE_LOG_FILE", "path", "file that messages are appended to instead of standard error; lines of JSON if the name ends in .jsonl"},
    {"TREADLE_METRICS", "path",
     "file to which the process writes its metrics every TREADLE_METRICS_SECONDS, from its first session on; %p stands for the number of "
     "the process. Forked children write nothing (docs/metrics.md)"},
    {"TREADLE_METRICS_SECONDS", "number of at least 0.01", "interval of TREADLE_METRICS; default: 15"},
    {"TREADLE_PEAKS", "measure",
     "measure the machine's peaks for each profile, instead of keeping them in the user's cache folder ($XDG_CACHE_HOME/treadle)"},
    {"TREADLE_SHARING_DIR", "path", "folder in which jobs meet"},
    {"ORT_LOAD_CONFIG_FROM_MODEL", "0 or 1",
     "1: sessions of Python and of ONNX Runtime's C interface take the options that the model's metadata has, in `ort_config`"},
    {"TREADLE_SOFTWARE_GPU", "0 or 1",
     "1: implementations of Vulkan on the CPU count as GPUs: `gpu` takes them, and programs are offered them; for tests on machines "
     "without a GPU (docs/gpu.md)"},
    {"TREADLE_MPI_PLUGIN", "path", "plugin that connects to MPI, where it is not beside the library (docs/data-parallel.md)"},
};

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::string environment_markdown() {
  std::string text = "| variable | type | meaning |\n|---|---|---|\n";
  for (const EnvironmentVariable& variable : kVariables)
    text += fmt::format("| {} | {} | {} |\n", variable.name, variable.type, variable.text);
  return text;
}

}  // namespace treadle
