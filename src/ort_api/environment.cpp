// The environment: logging, and a pool of threads for the sessions that have none of their own.
#include "ort_api/api.h"

void OrtLogger::log(OrtLoggingLevel severity, const char* location, const char* message) const {
  if (function != nullptr && severity >= level) function(param, severity, "treadle", id.c_str(), location, message);
}

namespace treadle::ort {
namespace {

struct Logging {
  OrtLoggingFunction function = nullptr;
  void* param = nullptr;
};

OrtStatus* make_environment(Logging logging, OrtLoggingLevel level, const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
  return guarded([&] {
    auto made = std::make_unique<OrtEnv>();
    made->logger = {logging.function, logging.param, level, logid != nullptr ? logid : ""};
    if (threading != nullptr) {
      made->threading = *threading;
      made->pool = make_thread_pool(threading->intra_op_num_threads);
    }
    required(out, "out") = made.release();
  });
}

OrtStatus* set_threads(int& to, int threads) {
  return guarded([&] {
    if (threads < 0) throw Error(ErrorCode::invalid_argument, "a number of threads is " + std::to_string(threads));
    to = threads;
  });
}

}  // namespace

void add_environment(OrtApi& table) {
  table.CreateEnv = [](OrtLoggingLevel level, const char* logid, OrtEnv** out) { return make_environment({}, level, logid, nullptr, out); };
  table.CreateEnvWithCustomLogger = [](OrtLoggingFunction function, void* param, OrtLoggingLevel level, const char* logid, OrtEnv** out) {
    return make_environment({function, param}, level, logid, nullptr, out);
  };
  table.CreateEnvWithGlobalThreadPools = [](OrtLoggingLevel level, const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
    return make_environment({}, level, logid, threading, out);
  };
  table.CreateEnvWithCustomLoggerAndGlobalThreadPools = [](OrtLoggingFunction function, void* param, OrtLoggingLevel level,
                                                           const char* logid, const OrtThreadingOptions* threading, OrtEnv** out) {
    return make_environment({function, param}, level, logid, threading, out);
  };
  table.CreateEnvWithOptions = [](const OrtEnvCreationOptions* options, OrtEnv** out) {
    return guarded([&] {
      const OrtEnvCreationOptions& given = required(options, "options");
      if (given.logging_severity_level < ORT_VERBOSE || given.logging_severity_level > ORT_FATAL)
        throw Error(ErrorCode::invalid_argument, "there is no severity " + std::to_string(given.logging_severity_level));
      const char* id = chars_of(given.log_id, "log_id");
      const auto level = static_cast<OrtLoggingLevel>(given.logging_severity_level);
      check(make_environment({given.custom_logging_function, given.custom_logging_param}, level, id, given.threading_options, out));
    });
  };
  table.ReleaseEnv = [](OrtEnv* environment) { delete environment; };
  // Nothing is ever sent anywhere.
  table.EnableTelemetryEvents = table.DisableTelemetryEvents = [](const OrtEnv*) -> OrtStatus* { return nullptr; };
  table.SetLanguageProjection = [](const OrtEnv*, OrtLanguageProjection) -> OrtStatus* { return nullptr; };
  table.UpdateEnvWithCustomLogLevel = [](OrtEnv* environment, OrtLoggingLevel level) -> OrtStatus* {
    environment->logger.level = level;
    return nullptr;
  };

  table.CreateThreadingOptions = [](OrtThreadingOptions** out) {
    return guarded([&] { required(out, "out") = new OrtThreadingOptions(); });
  };
  table.ReleaseThreadingOptions = [](OrtThreadingOptions* options) { delete options; };
  table.SetGlobalIntraOpNumThreads = [](OrtThreadingOptions* options, int threads) {
    return set_threads(options->intra_op_num_threads, threads);
  };
  table.SetGlobalInterOpNumThreads = [](OrtThreadingOptions* options, int threads) {
    return set_threads(options->inter_op_num_threads, threads);
  };
  table.SetGlobalSpinControl = [](OrtThreadingOptions* options, int allow) -> OrtStatus* {
    options->allow_spinning = allow != 0;
    return nullptr;
  };
  table.SetGlobalDenormalAsZero = [](OrtThreadingOptions* options) -> OrtStatus* {
    options->set_denormal_as_zero = true;
    return nullptr;
  };

  table.Logger_LogMessage = [](const OrtLogger* logger, OrtLoggingLevel severity, const char* message, const char* file, int line,
                               const char* function) {
    return guarded([&] {
      const std::string location =
          std::string(file != nullptr ? file : "") + ":" + std::to_string(line) + " " + (function != nullptr ? function : "");
      required(logger, "logger").log(severity, location.c_str(), message);
    });
  };
  table.Logger_GetLoggingSeverityLevel = [](const OrtLogger* logger, OrtLoggingLevel* out) {
    return guarded([&] { required(out, "out") = required(logger, "logger").level; });
  };
  table.GetBuildInfoString = [] {
    static const std::string text = "Treadle " + std::string(version());
    return text.c_str();
  };
}

}  // namespace treadle::ort
